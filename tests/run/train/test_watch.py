"""Examples that are watched while a model is trained, and never trained on."""

from __future__ import annotations

import gc

import lightning.pytorch as pl
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hardsight as hs
from hardsight.errors import ConfigError, DataError, OptionError, RunMismatchError
from hardsight.run.train.engine import TrainModule
from hardsight.tracking import HardnessTracker

FAST = {"device": "cpu", "batch_size": 16, "show_progress": False, "workers": 0}


def history(folder, examples):
    return HardnessTracker(examples, folder=folder, resume=True, stage="evaluation").history


def test_every_epoch_has_the_measures_of_the_model_after_it(images, net, tmp_path):
    done = hs.train(
        net, images, out=tmp_path / "run", epochs=3, select="last", track_on={"again": images},
        **FAST,
    )  # fmt: skip
    found = history(done.tracked["again"], 120)
    assert found("avh").shape == (3, 120)
    # the last epoch is the model that was kept: score it by another way
    table = hs.score(done.model, images, device="cpu", preprocessing=done.preprocessing)
    columns = {"avh": "avh", "confidence": "model_confidence", "norm": "feature_norm"}
    for measure, column in columns.items():
        np.testing.assert_allclose(
            found(measure)[-1], table.column(column), rtol=1e-4, atol=1e-5, err_msg=measure
        )
    np.testing.assert_array_equal(found("prediction")[-1], table.column("prediction"))
    assert not np.allclose(found("avh")[0], found("avh")[-1])


def test_watching_changes_nothing_of_what_is_learned(images, net, tmp_path):
    options = {**FAST, "epochs": 2, "augment": {"crop_padding": 1, "flip": True}}
    plain = hs.train(net, images, out=tmp_path / "a", **options)
    watched = hs.train(net, images, out=tmp_path / "b", track_on={"all": images}, **options)
    for one, two in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert [row["train_loss"] for row in plain.history] == [
        row["train_loss"] for row in watched.history
    ]


def test_a_pass_over_held_out_or_watched_examples_keeps_no_batch_but_the_last(
    tmp_path, monkeypatch
):
    width, kept = 17, []
    net = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))
    data = TensorDataset(torch.randn(700, 5), torch.arange(700) % 3)

    def alive():
        """Embeddings of a batch that are in memory."""
        found = [one for one in gc.get_objects() if type(one) is torch.Tensor]
        wide = [one for one in found if one.shape[-1:] == (width,) and len(one) > 100]
        return {one.untyped_storage().data_ptr() for one in wide}

    def counted(self):
        kept.append(len(alive()))

    for hook in ("on_validation_epoch_end", "on_train_epoch_end"):  # the latter after watching
        monkeypatch.setattr(TrainModule, hook, counted)
    hs.train(
        net, data, out=tmp_path / "run", epochs=2, validation=0.9, track_on={"again": data}, **FAST
    )
    assert len(kept) == 4
    assert max(kept) == 1


def test_a_recipe_watches_its_test_split_and_says_who_the_examples_are(tmp_path):
    done = hs.train(
        "small_cnn", "builtin:digits", split="train", test_split="test", track_test=True,
        out=tmp_path / "run", epochs=2, **{**FAST, "batch_size": 256},
    )  # fmt: skip
    assert done.tracked == {"test": tmp_path / "run" / "tracked" / "test"}
    assert history(done.tracked["test"], 449)("correct").shape == (2, 449)
    rows = pq.read_table(done.tracked["test"] / "examples.parquet")
    source = hs.data.open_source("builtin:digits", split="test")
    assert rows["label"].to_pylist() == [source.label_of(i) for i in range(449)]
    assert rows["id"].to_pylist() == [source.id_of(i) for i in range(449)]
    again = hs.train(
        "small_cnn", "builtin:digits", split="train", test_split="test", track_test=True,
        out=tmp_path / "run", epochs=2, resume=True, **{**FAST, "batch_size": 256},
    )  # fmt: skip
    assert again.tracked == done.tracked


def test_an_interrupted_run_ends_with_the_same_epochs(images, net, tmp_path, monkeypatch):
    options = {**FAST, "epochs": 3, "track_on": {"all": images}, "track": True}
    whole = hs.train(net, images, out=tmp_path / "whole", **options)
    original = pl.Trainer.save_checkpoint

    def killed(self, *args, **kwargs):
        if self.current_epoch == 1:  # its rows are written, its checkpoint is not
            raise RuntimeError("killed")
        original(self, *args, **kwargs)

    monkeypatch.setattr(pl.Trainer, "save_checkpoint", killed)
    with pytest.raises(RuntimeError, match="killed"):
        hs.train(net, images, out=tmp_path / "parts", **options)
    monkeypatch.undo()
    parts = hs.train(net, images, out=tmp_path / "parts", resume=True, **options)
    one, two = (history(run.tracked["all"], 120) for run in (whole, parts))
    for measure in ("avh", "norm", "loss", "prediction"):
        np.testing.assert_array_equal(one(measure), two(measure))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"track_test": True}, ConfigError, "track_test needs data.test_split"),
        ({"track_on": {"a/b": "x"}}, OptionError, "each once, got 'a/b'"),
        ({"track_on": {"": "x"}}, OptionError, "each once, got ''"),
        ({"track_on": {"held-out": "x"}}, OptionError, "the share that the run itself holds out"),
        (
            {"track_on": {"digits": "builtin:digits"}},
            DataError,
            "expected the 3 classes of the training data in the tracked examples 'digits', got 10",
        ),
    ],
)
def test_what_cannot_be_watched_is_explained(images, net, tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        hs.train(net, images, out=tmp_path / "run", epochs=1, **FAST, **change)


def test_a_run_does_not_go_on_with_other_tracked_examples(images, net, tmp_path):
    options = {**FAST, "out": tmp_path / "run", "epochs": 1}
    hs.train(net, images, track_on={"all": images}, **options)
    with pytest.raises(RunMismatchError, match="other tracked examples"):
        hs.train(net, images, resume=True, **options)
