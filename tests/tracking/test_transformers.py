import accelerate  # noqa: F401  named first: without it the Trainer says so in its own words
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from hardsight.errors import DataError, MissingExtraError, OptionError, RunMismatchError
from hardsight.tracking import HardnessTracker, with_index
from tests._nets import tiny_bert

N, CLASSES = 12, 3
# the Trainer asks for pinned memory, which a machine without an accelerator has not
pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*")


class Sentences(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        make = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(20, (5,), generator=make), "labels": index % CLASSES}


def trainer(folder, *trackers, dataset=None, epochs=2, **options):
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=5,
        lr_scheduler_type="constant",
        remove_unused_columns=options.pop("remove_unused_columns", False),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **({"save_strategy": "no", "learning_rate": 0.05} | options),
    )
    return Trainer(
        model=tiny_bert(CLASSES),
        args=arguments,
        train_dataset=with_index(Sentences()) if dataset is None else dataset,
        eval_dataset=with_index(Sentences()),
        callbacks=[tracker.transformers_callback() for tracker in trackers],
    )


def losses(model):
    """Loss of every example, in eval mode; the network has no dropout."""
    items = [Sentences()[index] for index in range(N)]
    inputs = torch.stack([item["input_ids"] for item in items])
    labels = torch.tensor([item["labels"] for item in items])
    with torch.no_grad():
        return cross_entropy(model.eval()(inputs).logits, labels, reduction="none")


def test_a_training_run_is_recorded_from_its_own_forward_passes(tmp_path):
    tracker = HardnessTracker(N)
    run = trainer(tmp_path, tracker, learning_rate=0.0)
    run.train()
    assert tracker.epochs == 2
    expected = losses(run.model).expand(2, N)  # nothing was learned at a rate of 0
    np.testing.assert_allclose(tracker.history("loss"), expected, rtol=1e-4)
    np.testing.assert_array_equal(tracker.history("label")[0], np.arange(N) % CLASSES)
    assert not run.model.classifier._forward_hooks
    assert not run.model._forward_pre_hooks


def test_tracking_leaves_the_weights_as_they_are(tmp_path):
    runs = [trainer(tmp_path), trainer(tmp_path, HardnessTracker(N))]
    runs[0].train_dataset = Sentences()
    runs[0].args.eval_strategy = "no"
    for run in runs:
        run.train()
    for first, second in zip(*(run.model.parameters() for run in runs), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_an_evaluation_pass_is_recorded_where_asked(tmp_path):
    train, held = HardnessTracker(N), HardnessTracker(N, stage="evaluation")
    run = trainer(tmp_path, train, held, eval_strategy="epoch")
    run.train()
    assert (train.epochs, held.epochs) == (2, 2)
    np.testing.assert_allclose(held.history("loss")[-1], losses(run.model), rtol=1e-4)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    tracker = HardnessTracker(N)
    trainer(tmp_path_factory.mktemp("whole"), tracker).train()
    return tracker


@pytest.mark.parametrize(
    ("save_steps", "step", "with_folder"),
    [(3, 3, False), (2, 4, True)],
    ids=["at the end of an epoch", "within an epoch, with a folder"],
)
def test_training_that_goes_on_from_a_checkpoint_ends_like_one_that_was_not_interrupted(
    tmp_path, undisturbed, save_steps, step, with_folder
):
    folder = tmp_path / "dynamics" if with_folder else None
    saving = {"save_strategy": "steps", "save_steps": save_steps}
    trainer(tmp_path, HardnessTracker(N, folder=folder), **saving).train()
    tracker = HardnessTracker(N, folder=folder)
    run = trainer(tmp_path, tracker)
    run.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert tracker.epochs == 2
    for name in ("avh", "loss", "logit_margin"):
        np.testing.assert_allclose(
            tracker.history(name), undisturbed.history(name), rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_going_on_without_the_state_of_the_tracker_is_refused(tmp_path):
    trainer(tmp_path, save_strategy="steps", save_steps=3, dataset=Sentences()).train()
    run = trainer(tmp_path, HardnessTracker(N))
    with pytest.raises(RunMismatchError, match=r"goes on at step 3, but there is no tracker state"):
        run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_a_trainer_that_drops_the_index_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"TrainingArguments\(remove_unused_columns=False\)"):
        trainer(tmp_path, HardnessTracker(N), remove_unused_columns=True).train()


def test_batches_without_an_index_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"a mapping with 'index' and 'labels', got a mapping with"):
        trainer(tmp_path, HardnessTracker(N), dataset=Sentences()).train()


def test_labels_that_the_trainer_keeps_back_are_missed_in_words(tmp_path):
    run = trainer(tmp_path, HardnessTracker(N), label_smoothing_factor=0.1)
    with pytest.raises(DataError, match=r"labels did not reach the model: .* label smoothing"):
        run.train()


def test_without_transformers_the_extra_is_named(monkeypatch):
    def missing(module):
        raise ImportError("No module named 'transformers'")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(MissingExtraError, match=r"transformers_callback\(\) needs 'transformers'"):
        HardnessTracker(N).transformers_callback()


def test_a_head_beside_others_is_found_by_the_number_of_labels():
    model = tiny_bert(CLASSES)
    assert HardnessTracker(N).layer_in(model) is model.classifier
    assert isinstance(model.classifier, nn.Linear)


def test_a_state_that_only_some_ranks_find_is_loaded_on_none(tmp_path, monkeypatch):
    options = {"save_strategy": "epoch"}
    trainer(tmp_path, HardnessTracker(N), epochs=1, **options).train()
    tracker = HardnessTracker(N)
    training = trainer(tmp_path, tracker, **options)

    def told(values, value):
        values[:] = [value, False]  # the second of two ranks does not see the folder of the first

    for name, found in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 0)):
        monkeypatch.setattr(torch.distributed, name, lambda *args, found=found: found)
    monkeypatch.setattr(torch.distributed, "all_gather_object", told)
    with pytest.raises(RunMismatchError, match=r"no tracker state is found on rank 1, .* share"):
        training.train(resume_from_checkpoint=True)
    assert tracker.epochs == 0
