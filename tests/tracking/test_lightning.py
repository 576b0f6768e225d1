import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from hardsight.errors import AmbiguousHeadError, DataError, HeadMismatchError, MissingExtraError
from hardsight.tracking import HardnessTracker, with_index

N = 22
# advice of Lightning's that a tiny run on a CPU does not need
pytestmark = pytest.mark.filterwarnings(
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:.*LeafSpec.* is deprecated:FutureWarning",  # Lightning against a newer torch
)


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.seen = []

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch):
        index, inputs, labels = batch
        logits = self(inputs)
        self.seen.append((self.current_epoch, index, logits.detach().clone(), labels))
        return cross_entropy(logits, labels)

    def validation_step(self, batch):
        _, inputs, labels = batch
        self.log("val_loss", cross_entropy(self(inputs), labels))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)


def data(indexed=True):
    make = torch.Generator().manual_seed(1)
    inputs = torch.randn(N, 4, generator=make)
    plain = TensorDataset(inputs, torch.randint(3, (N,), generator=make))
    return with_index(plain) if indexed else plain


class ByEpoch(torch.utils.data.Sampler):
    """A shuffle that depends on the epoch alone, as a resumed run needs it."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def __len__(self):
        return N


def fit(net, *callbacks, epochs=3, folder, validate=False, ckpt=None, dataset=None, **options):
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=list(callbacks),
        **({"enable_checkpointing": False} | options),
    )
    dataset = data() if dataset is None else dataset
    train = DataLoader(dataset, batch_size=5, sampler=ByEpoch())
    trainer.fit(net, train, DataLoader(data(), batch_size=8) if validate else None, ckpt_path=ckpt)
    return trainer


def test_a_fit_is_recorded_from_its_own_forward_passes(tmp_path):
    net, tracker = Net(), HardnessTracker(N)
    fit(net, tracker.lightning_callback(), folder=tmp_path, validate=True)
    assert tracker.epochs == 3
    expected = np.full((3, N), np.nan)
    for epoch, index, logits, labels in net.seen:
        expected[epoch, index] = cross_entropy(logits, labels, reduction="none")
    np.testing.assert_allclose(tracker.history("loss"), expected, rtol=1e-5)
    assert not net.net[2]._forward_hooks


def test_angles_are_by_the_weights_of_the_forward_pass_not_of_the_step_after_it(tmp_path):
    net, tracker = Net(), HardnessTracker(N)
    weight = net.net[2].weight.detach().clone()
    fit(net, tracker.lightning_callback(), epochs=1, folder=tmp_path, limit_train_batches=1)
    index = net.seen[0][1]
    fresh = Net()
    embeddings = fresh.net[:2](torch.stack([data()[i][1] for i in index]))
    cosines = torch.cosine_similarity(embeddings, weight[net.seen[0][3]])
    got = tracker.history("target_angle")[0, index]
    np.testing.assert_allclose(got, cosines.acos().detach(), rtol=1e-4)


def test_tracking_leaves_the_weights_as_they_are(tmp_path):
    plain, watched = Net(), Net()
    fit(plain, folder=tmp_path)
    fit(watched, HardnessTracker(N).lightning_callback(), folder=tmp_path)
    for first, second in zip(plain.parameters(), watched.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_an_evaluation_pass_is_recorded_where_asked_and_a_sanity_check_is_not(tmp_path):
    train, held = HardnessTracker(N), HardnessTracker(N, stage="evaluation")
    net = Net()
    fit(
        net,
        train.lightning_callback(),
        held.lightning_callback(),
        folder=tmp_path,
        validate=True,
        num_sanity_val_steps=1,
    )
    assert (train.epochs, held.epochs) == (3, 3)
    _, inputs, labels = next(iter(DataLoader(data(), batch_size=N)))
    final = cross_entropy(net(inputs), labels, reduction="none").detach()
    np.testing.assert_allclose(held.history("loss")[-1], final, rtol=1e-5)


@pytest.mark.parametrize(
    ("when", "with_folder"),
    [("epoch end", True), ("validation end", False), ("last step", False)],
)
def test_a_fit_that_goes_on_from_a_checkpoint_ends_like_one_that_was_not_interrupted(
    tmp_path, when, with_folder
):
    expected = HardnessTracker(N)
    fit(Net(), expected.lightning_callback(), epochs=4, folder=tmp_path, validate=True)

    folder = tmp_path / "dynamics" if with_folder else None
    saver = {
        "dirpath": tmp_path / "ckpt",
        "filename": "{epoch}",
        "save_top_k": -1,
        "every_n_train_steps": 5 if when == "last step" else None,  # an epoch is five
        "save_on_train_epoch_end": when == "epoch end",
    }
    first = HardnessTracker(N, folder=folder)
    options = {"folder": tmp_path, "validate": True, "enable_checkpointing": True}
    fit(Net(), first.lightning_callback(), ModelCheckpoint(**saver), epochs=3, **options)

    second = HardnessTracker(N, folder=folder)
    checkpoint = tmp_path / "ckpt" / "epoch=1.ckpt"
    callbacks = second.lightning_callback(), ModelCheckpoint(**saver)
    fit(Net(), *callbacks, epochs=4, ckpt=checkpoint, **options)
    assert second.epochs == 4
    for name in ("avh", "loss", "logit_margin"):
        np.testing.assert_allclose(
            second.history(name), expected.history(name), rtol=1e-5, atol=1e-6, err_msg=name
        )


def test_a_validation_outside_of_a_fit_is_not_recorded(tmp_path):
    held, net = HardnessTracker(N, stage="evaluation"), Net()
    trainer = fit(net, held.lightning_callback(), epochs=2, folder=tmp_path, validate=True)
    trainer.validate(net, DataLoader(data(), batch_size=5), verbose=False)
    assert held.epochs == 2
    assert held.rows_this_epoch == 0


def test_of_two_views_in_one_step_the_first_counts(tmp_path):
    class TwoViews(Net):
        def training_step(self, batch):
            index, inputs, labels = batch
            first, second = self(inputs), self(inputs + 1)
            self.seen.append((self.current_epoch, index, first.detach().clone(), labels))
            return cross_entropy(first, labels) + cross_entropy(second, labels)

    net, tracker = TwoViews(), HardnessTracker(N)
    fit(net, tracker.lightning_callback(), epochs=1, folder=tmp_path)
    for _, index, logits, labels in net.seen:
        expected = cross_entropy(logits, labels, reduction="none")
        np.testing.assert_allclose(tracker.history("loss")[0, index], expected, rtol=1e-5)


def test_batches_without_an_index_are_refused(tmp_path):
    tracker = HardnessTracker(N)
    with pytest.raises(DataError, match=r"expected batches \(index, inputs, labels\).*with_index"):
        fit(Net(), tracker.lightning_callback(), folder=tmp_path, dataset=data(indexed=False))


def test_a_head_that_cannot_be_told_must_be_named(tmp_path):
    class TwoHeads(Net):
        def __init__(self):
            super().__init__()
            self.aux = nn.Linear(6, 3)

    with pytest.raises(AmbiguousHeadError, match="pass head="):
        fit(TwoHeads(), HardnessTracker(N).lightning_callback(), folder=tmp_path)
    tracker = HardnessTracker(N)
    fit(TwoHeads(), tracker.lightning_callback(head="net.2"), folder=tmp_path, epochs=1)
    assert tracker.epochs == 1
    net = TwoHeads()
    tracker = HardnessTracker(N, head=net.net[2])
    fit(net, tracker.lightning_callback(), folder=tmp_path, epochs=1)
    assert tracker.epochs == 1
    with pytest.raises(HeadMismatchError, match=r"head was not called .* lightning_callback\(head"):
        fit(net, HardnessTracker(N).lightning_callback(head="aux"), folder=tmp_path)
    assert not net.aux._forward_hooks


def test_without_lightning_the_extra_is_named(monkeypatch):
    def missing(module):
        raise ImportError("No module named 'lightning'")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(
        MissingExtraError, match=r"lightning_callback\(\) needs 'lightning.pytorch'"
    ):
        HardnessTracker(N).lightning_callback()
