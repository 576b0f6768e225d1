import copy
import errno
import gc
import math
import os
import pickle
import resource

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import hardsight
from hardsight.errors import (
    DataError,
    HeadMismatchError,
    LabelError,
    NonFiniteError,
    OptionError,
    OutputError,
    RunExistsError,
    RunMismatchError,
    ShapeError,
)
from hardsight.heads import Head
from hardsight.tracking import HardnessTracker

N = 22
MEASURES = [
    "target_angle",
    "avh",
    "avc",
    "confidence",
    "norm",
    "logit_margin",
    "loss",
    "el2n",
    "correct",
]


def tracked(run, tracker, epochs=3):
    for _ in range(epochs):
        for step in run.steps():
            tracker.update(*step)
        tracker.end_epoch()
    return tracker


def assert_same_histories(first, second, **tolerance):
    assert first.epochs == second.epochs
    for name in MEASURES:
        np.testing.assert_allclose(
            first.history(name), second.history(name), err_msg=name, **tolerance
        )


def one_epoch(tracker, index, **changed):
    """An epoch of a single step over the given examples."""
    size = len(index)
    make = torch.Generator().manual_seed(0)
    embeddings = changed.get("embeddings", torch.randn(size, 4, generator=make))
    step = {
        "index": torch.tensor(index),
        "embeddings": embeddings,
        "logits": embeddings[:, :3],  # by the weights torch.eye(3, 4)
        "labels": torch.zeros(size, dtype=torch.int64),
    } | changed
    tracker.update(step["index"], step["embeddings"], step["logits"], step["labels"])
    tracker.end_epoch()


@pytest.fixture
def tracker():
    return HardnessTracker(6, head=torch.eye(3, 4))


def test_the_package_is_reached_lazily():
    assert hardsight.tracking.HardnessTracker is HardnessTracker


def test_every_example_is_recorded_as_the_step_saw_it(run):
    tracker = HardnessTracker(N, head=run.head)
    expected = np.full((2, N), np.nan)
    for epoch in range(2):
        for index, embeddings, logits, labels in run.steps():
            tracker.update(index, embeddings, logits, labels)
            # AVH in float64, by the weights of this very step
            x = embeddings.detach().double().numpy()
            w = run.head.weight.detach().double().numpy()
            norms = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(w, axis=1)
            angles = np.arccos(x @ w.T / norms)
            expected[epoch, index] = angles[np.arange(len(x)), labels] / angles.sum(axis=1)
        tracker.end_epoch()
    np.testing.assert_allclose(tracker.history("avh"), expected, rtol=1e-5)
    assert np.ptp(expected, axis=0).min() > 0  # training moved every example


def test_tracking_leaves_training_as_it_is(run, make_run):
    plain = make_run()
    tracked(run, HardnessTracker(N, head=run.head))
    for _ in range(3):
        for _ in plain.steps():
            pass
    for got, expected in zip(run.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["layer", "model", "head", "parameter"])
def test_the_head_may_be_given_in_any_form(run, kind):
    forms = {
        "layer": run.head,
        "model": run.model,
        "head": Head("2", run.head.weight.detach()),
        "parameter": run.head.weight,
    }
    tracker = HardnessTracker(N, head=forms[kind])
    assert tracked(run, tracker, epochs=2).history("avh").shape == (2, N)
    again = type(run)()
    assert_same_histories(tracker, tracked(again, HardnessTracker(N, head=again.head), 2))


def test_class_weights_given_with_a_step_are_used(run):
    index, embeddings, logits, labels = run.forward(torch.arange(N))
    tracker = HardnessTracker(N)
    tracker.update(index, embeddings, logits, labels, class_weights=run.head.weight)
    tracker.end_epoch()
    assert tracker.history("avh").shape == (1, N)


def test_steps_without_gradient_and_in_inference_mode_are_recorded(run):
    tracker = HardnessTracker(N, head=run.head, stage="evaluation")
    with torch.inference_mode():
        for index in torch.arange(N).split(5):
            tracker.update(*run.forward(index))
    tracker.end_epoch()
    assert np.isfinite(tracker.history("loss")).all()


@pytest.mark.parametrize("inference_first", [True, False])
def test_steps_in_and_out_of_inference_mode_may_take_turns(run, inference_first):
    tracker, expected = (HardnessTracker(N, head=run.head) for _ in range(2))
    for place, index in enumerate(torch.arange(N).split(5)):
        with torch.inference_mode((place % 2 == 0) == inference_first):
            tracker.update(*run.forward(index))
        expected.update(*run.forward(index))
    tracker.end_epoch()
    expected.end_epoch()
    assert_same_histories(tracker, expected, rtol=0)


class Operations(TorchDispatchMode):
    """Names of the operations that run, but for those that only look at memory another way."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.names += [] if name == "detach" else [name]
        return func(*args, **(kwargs or {}))


def test_a_step_costs_one_copy_of_each_of_its_tensors(run):
    # on a GPU every operation is a launch, and a step of a small network is a few hundred of them
    tracker = HardnessTracker(N, head=run.head)
    first, second, *_ = (run.forward(index) for index in torch.arange(N).split(5))
    tracker.update(*first)
    with Operations() as seen:
        tracker.update(*second)
    assert seen.names == ["copy_"] * 5


def test_spectral_norm_takes_no_further_step_when_tracked():
    def train(track):
        torch.manual_seed(0)
        head = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).train()
        tracker = HardnessTracker(6, head=head)
        embeddings = torch.rand(6, 4)
        for _ in range(3):
            logits = head(embeddings)
            if track:
                tracker.update(range(6), embeddings, logits, torch.zeros(6, dtype=torch.long))
                tracker.end_epoch()
        return head(embeddings)

    torch.testing.assert_close(train(track=True), train(track=False), rtol=0, atol=0)


def test_an_example_that_does_not_come_is_nan_in_that_epoch_and_counted(tracker):
    one_epoch(tracker, [0, 1, 2])
    one_epoch(tracker, [0, 4])
    seen = ~np.isnan(tracker.history("loss"))
    np.testing.assert_array_equal(seen, [[1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 0]])
    assert tracker.history("label")[1].tolist() == [0, -1, -1, -1, 0, -1]
    table = tracker.summaries()
    assert table.column("epochs_seen").tolist() == [2, 1, 1, 0, 1, 0]
    assert np.isnan(table.column("aum")).tolist() == [False, False, False, True, False, True]
    assert table.column("finite").tolist() == [True, True, True, False, True, False]


# tensors that do not belong together


@pytest.mark.parametrize("kind", ["parameter", "head", "layer"])
def test_a_head_that_is_not_the_models_is_refused_in_the_first_step(run, kind):
    other = nn.Linear(6, 3)
    heads = {"parameter": other.weight, "head": Head("2", other.weight.detach()), "layer": other}
    tracker = HardnessTracker(N, head=heads[kind])
    with pytest.raises(HeadMismatchError, match=r"are not the logits.*head=model\.fc"):
        tracker.update(*run.forward(torch.arange(5)))


def test_a_copy_of_the_weights_is_noticed_when_training_leaves_it_behind(run):
    tracker = HardnessTracker(N, head=run.head.weight.detach().clone())
    for step in run.steps():
        tracker.update(*step)
    with pytest.raises(HeadMismatchError, match=r"for \d+ of 22 rows \(examples "):
        tracker.end_epoch()
    assert tracker.rows_this_epoch == 0


def test_single_rows_are_held_to_a_head_whose_bias_is_known(run):
    tracker = HardnessTracker(N, head=run.head)
    for index in range(3):
        tracker.update(*run.forward(torch.tensor([index])))
    index, embeddings, logits, labels = run.forward(torch.tensor([3]))
    tracker.update(index, embeddings.flip(1), logits, labels)
    with pytest.raises(HeadMismatchError, match=r"1 of \d+ rows \(examples 3\)"):
        tracker.end_epoch()


class Cosine(nn.Linear):
    def forward(self, x):
        normalize = nn.functional.normalize
        return 16 * nn.functional.linear(normalize(x), normalize(self.weight))


@pytest.mark.parametrize(
    "head",
    [
        lambda: Cosine(6, 3),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)),
    ],
    ids=["cosine", "weight norm", "spectral norm"],
)
def test_heads_of_other_forms_are_tracked(run, head):
    run.head = head()
    run.optimizer = torch.optim.SGD(run.head.parameters(), lr=0.2)
    tracker = tracked(run, HardnessTracker(N, head=run.head), epochs=2)
    assert tracker.history("avh").shape == (2, N)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("upcast", [False, True])
def test_rounding_under_autocast_is_not_a_wrong_head(dtype, upcast):
    torch.manual_seed(0)
    head = nn.Linear(512, 50)
    tracker = HardnessTracker(640, head=head)
    for index in torch.arange(640).split(64):
        embeddings = torch.randn(64, 512)
        with torch.autocast("cpu", dtype=dtype):
            logits = head(embeddings)
        logits = logits.float() if upcast else logits
        tracker.update(index, embeddings, logits, index % 50)
    tracker.end_epoch()


# wrong use, in words


def test_an_index_out_of_range_is_named(tracker):
    with pytest.raises(DataError, match=r"indices in \[0, 6\), got 6; give the tracker the length"):
        one_epoch(tracker, [0, 6])
    with pytest.raises(DataError, match=r"indices in \[0, 6\), got -1"):
        one_epoch(tracker, [-1, 2])


def test_an_index_that_repeats_in_an_epoch_is_named(tracker):
    with pytest.raises(DataError, match=r"examples 2, 4 came more than once in epoch 1; call end"):
        one_epoch(tracker, [2, 4, 4, 2])


def test_a_forgotten_end_of_epoch_is_noticed_at_once(tracker):
    embeddings = torch.rand(4, 4)
    step = (embeddings, embeddings[:, :3], torch.zeros(4, dtype=torch.int64))
    tracker.update(range(4), *step)
    with pytest.raises(DataError, match=r"more rows in epoch 1 than the 6 examples .* end_epoch"):
        tracker.update(range(4), *step)


def test_repeats_may_be_reduced_to_the_first():
    tracker = HardnessTracker(6, head=torch.eye(3, 4), repeats="first")
    embeddings = torch.arange(1.0, 9.0)[:, None].expand(8, 4)
    one_epoch(tracker, [0, 1, 0, 1, 0, 1, 2, 2], embeddings=embeddings)
    np.testing.assert_allclose(tracker.history("norm")[0, :3], [2.0, 4.0, 14.0])


def test_a_label_that_changes_between_epochs_is_named(tracker):
    one_epoch(tracker, [0, 1, 2])
    one_epoch(tracker, [3])
    with pytest.raises(
        LabelError, match=r"1 examples changed by epoch 3: example 1 was 0 and is 2"
    ):
        one_epoch(tracker, [0, 1], labels=torch.tensor([0, 2]))


def test_a_label_out_of_range_is_named(tracker):
    with pytest.raises(LabelError, match=r"labels in \[0, 3\), got -100 for the examples 5"):
        one_epoch(tracker, [5], labels=torch.tensor([-100]))


@pytest.mark.parametrize("part", ["embeddings", "logits"])
def test_values_that_are_not_finite_are_named(tracker, part):
    embeddings = torch.rand(3, 4)
    step = {"embeddings": embeddings, "logits": embeddings[:, :3].clone()}
    step[part][1, 0] = math.nan
    with pytest.raises(
        NonFiniteError, match=r"1 examples of epoch 1 .* not finite .*: 4; training"
    ):
        one_epoch(tracker, [3, 4, 5], **step)
    one_epoch(tracker, [3, 4, 5])  # the broken epoch is gone
    assert tracker.epochs == 1


def test_tensors_that_do_not_fit_are_named(tracker):
    with pytest.raises(ShapeError, match="one row per example"):
        one_epoch(tracker, [0, 1], labels=torch.tensor([0]))
    with pytest.raises(ShapeError, match=r"same width D, got embeddings \[2, 5\]"):
        one_epoch(tracker, [0, 1], embeddings=torch.rand(2, 5))
    with pytest.raises(ShapeError, match=r"same C, at least 2, got logits \[2, 4\]"):
        one_epoch(tracker, [0, 1], logits=torch.rand(2, 4))
    with pytest.raises(DataError, match=r"index to be whole numbers \[B\], got torch.float32"):
        one_epoch(tracker, [0.5, 1.5])


def test_tensors_that_do_not_fit_are_named_also_after_steps_that_did(tracker):
    labels, embeddings = torch.zeros(2, dtype=torch.int64), torch.rand(2, 4)
    logits = embeddings[:, :3]
    tracker.update([0, 1], embeddings, logits, labels)
    with pytest.raises(ShapeError, match="one row per example"):
        tracker.update([2, 3], embeddings, logits, labels[:1])
    with pytest.raises(DataError, match=r"indices in \[0, 6\), got 6"):
        tracker.update([5, 6], embeddings, logits, labels)
    with pytest.raises(LabelError, match=r"labels in \[0, 3\), got 3 for the examples 2, 3"):
        tracker.update([2, 3], embeddings, logits, labels + 3)
    tracker.update([2, 3], embeddings, logits, labels)
    tracker.end_epoch()
    assert np.isfinite(tracker.history("loss")).tolist() == [[True] * 4 + [False] * 2]


def test_the_number_of_classes_cannot_change(tracker):
    one_epoch(tracker, [0])
    with pytest.raises(ShapeError, match="expected 3 classes as before, got 2"):
        tracker.update(
            [1],
            torch.rand(1, 4),
            torch.rand(1, 2),
            torch.tensor([0]),
            class_weights=torch.eye(2, 4),
        )


def test_angles_without_a_head_are_refused():
    with pytest.raises(OptionError, match=r"angles need the class weights; pass head=model.fc"):
        one_epoch(HardnessTracker(6), [0])


def test_an_epoch_without_rows_is_refused(tracker):
    with pytest.raises(DataError, match="nothing was recorded in epoch 1; call update"):
        tracker.end_epoch()


def test_results_before_the_first_epoch_ended_are_refused(tracker):
    with pytest.raises(DataError, match="no epoch has ended yet; call end_epoch"):
        tracker.summaries()


def test_an_unknown_measure_is_refused_with_the_nearest_one(tracker):
    with pytest.raises(OptionError, match=r"unknown measure 'avhh'. Did you mean 'avh'"):
        tracker.history("avhh")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_examples": 0}, "num_examples to be at least 1, got 0"),
        ({"stage": "test"}, "stage to be one of train, evaluation, got 'test'"),
        ({"repeats": "last"}, "repeats to be one of error, first, got 'last'"),
        ({"resume": True}, "resume=True needs the folder"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        HardnessTracker(**({"num_examples": 6} | options))


# on disk


def test_epochs_are_files_that_are_there_in_full_or_not_at_all(run, tmp_path):
    tracked(run, HardnessTracker(N, head=run.head, folder=tmp_path / "dynamics"), epochs=2)
    names = sorted(file.name for file in (tmp_path / "dynamics").iterdir())
    assert names == ["epoch-00001.parquet", "epoch-00002.parquet", "tracker.json"]


def test_an_epoch_takes_less_of_the_disk_than_its_values_take_of_memory(tmp_path):
    count = 1 << 14
    tracker = HardnessTracker(count, head=torch.eye(3, 4), folder=tmp_path)
    one_epoch(tracker, list(range(count)))
    assert (tmp_path / "epoch-00001.parquet").stat().st_size < 4 * 10 * count


def test_a_temporary_folder_goes_with_its_tracker(run):
    tracker = tracked(run, HardnessTracker(N, head=run.head), epochs=1)
    folder = tracker._store.folder
    assert folder.is_dir()
    del tracker
    gc.collect()
    assert not folder.exists()


def test_a_full_disk_keeps_the_epoch_so_that_it_can_be_written_later(run, tmp_path, monkeypatch):
    undisturbed = tracked(run, HardnessTracker(N, head=run.head), epochs=1)
    again = type(run)()
    tracker = HardnessTracker(N, head=again.head, folder=tmp_path)
    for step in again.steps():
        tracker.update(*step)

    def full(rows, sink, **options):
        sink.write(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("pyarrow.parquet.write_table", full)
        with pytest.raises(OutputError, match=r"No space left on device; its rows are kept: free"):
            tracker.end_epoch()
    assert [file.name for file in tmp_path.iterdir()] == ["tracker.json"]
    tracker.end_epoch()
    assert_same_histories(tracker, undisturbed)


def test_a_write_that_the_system_refuses_is_reported_and_leaves_nothing(tmp_path):
    # a limit on the size of files is a disk that fills up at 200 bytes: the settings still fit
    tracker = HardnessTracker(6, head=torch.eye(3, 4), folder=tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(OutputError, match="File too large; its rows are kept"):
            one_epoch(tracker, [0, 1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in tmp_path.iterdir()] == ["tracker.json"]
    tracker.end_epoch()
    assert tracker.epochs == 1


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").touch()
    tracker = HardnessTracker(6, head=torch.eye(3, 4), folder=tmp_path / "file" / "dynamics")
    said = r"cannot write an epoch to .*call end_epoch\(\) again, or continue the run .*--resume"
    with pytest.raises(OutputError, match=said):  # the second for those who never call it
        one_epoch(tracker, [0, 1])


def test_a_folder_of_another_run_is_not_overwritten(run, tmp_path):
    tracked(run, HardnessTracker(N, head=run.head, folder=tmp_path), epochs=1)
    tracker = HardnessTracker(N, head=run.head, folder=tmp_path)
    with pytest.raises(RunExistsError, match=r"holds 1 epochs already; pass resume=True or load"):
        tracker.update(*run.forward(torch.arange(3)))


def test_a_folder_of_other_data_is_not_gone_on_with(run, tmp_path):
    tracked(run, HardnessTracker(N, head=run.head, folder=tmp_path), epochs=1)
    with pytest.raises(
        RunMismatchError, match=r"num_examples=22, but this tracker has num_ex.*=23"
    ):
        HardnessTracker(23, head=run.head, folder=tmp_path, resume=True)


def test_memory_does_not_grow_with_the_number_of_epochs(run):
    tracker = HardnessTracker(N, head=run.head)

    def size(tensor):
        try:
            return tensor.nbytes
        except RuntimeError:  # symbolic, left behind by a compiler in another test
            return 0

    def held():
        gc.collect()
        return sum(size(one) for one in gc.get_objects() if issubclass(type(one), torch.Tensor))

    tracked(run, tracker, epochs=1)
    before = held()
    tracked(run, tracker, epochs=5)
    assert held() <= before + 1000


# resume


@pytest.mark.parametrize("with_folder", [True, False])
@pytest.mark.parametrize("steps_before_break", [0, 2])
def test_a_run_that_was_interrupted_ends_like_one_that_was_not(
    make_run, tmp_path, with_folder, steps_before_break
):
    undisturbed = make_run()
    expected = tracked(undisturbed, HardnessTracker(N, head=undisturbed.head), epochs=4)

    folder = tmp_path / "dynamics" if with_folder else None
    first = make_run()
    tracker = tracked(first, HardnessTracker(N, head=first.head, folder=folder), epochs=2)
    orders = first.orders()
    for index in orders[:steps_before_break]:
        step = first.forward(index)
        tracker.update(*step)
        first.learn(step[2], step[3])
    torch.save({"run": first.state(), "tracker": tracker.state_dict()}, tmp_path / "checkpoint")
    # the interrupted process went on for a while after its last checkpoint
    for index in orders[steps_before_break:]:
        tracker.update(*first.forward(index))
    tracker.end_epoch()
    del tracker

    state = torch.load(tmp_path / "checkpoint", weights_only=True)
    second = make_run()
    second.load(state["run"])
    tracker = HardnessTracker(N, head=second.head, folder=folder)
    tracker.load_state_dict(state["tracker"])
    assert tracker.epochs == tracker._store.count() == 2  # the third is trained again
    for index in orders[steps_before_break:]:
        step = second.forward(index)
        tracker.update(*step)
        second.learn(step[2], step[3])
    tracker.end_epoch()
    tracked(second, tracker, epochs=1)
    assert_same_histories(tracker, expected, rtol=1e-6, atol=1e-6)


def test_resume_goes_on_after_the_last_epoch_in_the_folder(make_run, tmp_path):
    undisturbed = make_run()
    expected = tracked(undisturbed, HardnessTracker(N, head=undisturbed.head), epochs=3)
    run = make_run()
    tracked(run, HardnessTracker(N, head=run.head, folder=tmp_path), epochs=2)
    tracker = HardnessTracker(N, head=run.head, folder=tmp_path, resume=True)
    assert tracker.epochs == 2
    assert_same_histories(tracked(run, tracker, epochs=1), expected)


def test_the_first_of_two_times_is_known_also_over_a_resume():
    def update(tracker, index, length):
        embeddings = torch.full((2, 4), length)
        tracker.update(index, embeddings, embeddings[:, :3], torch.tensor([0, 0]))

    options = {"num_examples": 2, "head": torch.eye(3, 4), "repeats": "first"}
    tracker, other = HardnessTracker(**options), HardnessTracker(**options)
    update(tracker, [0, 1], 1.0)
    other.load_state_dict(tracker.state_dict())
    update(other, [1, 0], 5.0)
    other.end_epoch()
    np.testing.assert_allclose(other.history("norm"), [[2.0, 2.0]])


def test_labels_are_remembered_over_a_resume(tracker):
    one_epoch(tracker, [0, 1])
    other = HardnessTracker(6, head=torch.eye(3, 4))
    other.load_state_dict(tracker.state_dict())
    with pytest.raises(LabelError, match="example 1 was 0 and is 1"):
        one_epoch(other, [1], labels=torch.tensor([1]))


def test_a_state_without_its_folder_is_refused(run, tmp_path):
    state = tracked(
        run, HardnessTracker(N, head=run.head, folder=tmp_path / "a"), epochs=2
    ).state_dict()
    tracker = HardnessTracker(N, head=run.head, folder=tmp_path / "b")
    with pytest.raises(RunMismatchError, match=r"state has 2 epochs, but .* holds 0; give the"):
        tracker.load_state_dict(state)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_copy_has_epochs_of_its_own(run, copied):
    tracker = tracked(run, HardnessTracker(N, head=run.head), epochs=1)
    twin, first = copied(tracker), tracker.history("norm")
    for step in run.steps():
        twin.update(*step, class_weights=run.head.weight)  # the twin's head is a copy too
    twin.end_epoch()
    second = twin.history("norm")[1]
    tracked(run, tracker, epochs=1)  # other weights by now
    del tracker
    gc.collect()  # its temporary folder goes with it
    np.testing.assert_array_equal(twin.history("norm"), [first[0], second])


def test_a_state_of_other_data_is_refused(tracker):
    with pytest.raises(RunMismatchError, match="with num_examples=6, this one has num_examples=7"):
        HardnessTracker(7).load_state_dict(tracker.state_dict())
