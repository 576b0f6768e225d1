"""Recipes that draw examples by their hardness."""

import numpy as np
import pytest
import torch

import hardsight as hs
from hardsight.errors import ConfigError, DataError, RunMismatchError
from hardsight.run.train.engine import TrainModule

FAST = {"device": "cpu", "batch_size": 16, "show_progress": False, "workers": 0, "validation": 0.0,
        "select": "last", "thumbnails": 0}  # fmt: skip


@pytest.fixture
def seen(monkeypatch):
    """Numbers of the examples of every epoch."""
    epochs: dict[int, list[int]] = {}
    original = TrainModule.training_step

    def watched(self, batch, at):
        epochs.setdefault(self.current_epoch, []).extend(batch.index.tolist())
        return original(self, batch, at)

    monkeypatch.setattr(TrainModule, "training_step", watched)
    return epochs


@pytest.fixture
def tracked(images, net, tmp_path):
    done = hs.train(net, images, out=tmp_path / "tracked", epochs=2, track=True, **FAST)
    return done.dynamics


def test_a_curriculum_draws_the_easiest_by_a_table_first(images, net, tmp_path, tracked, seen):
    seen.clear()
    sampling = {"order": "easy_first", "by": "aum", "table": str(tmp_path / "tracked"),
                "start": 0.25, "full_epoch": 2}  # fmt: skip
    hs.train(net, images, out=tmp_path / "run", epochs=3, sampling=sampling, **FAST)
    easiest = tracked.easiest(30, by="aum")["index"].tolist()
    assert {epoch: len(rows) for epoch, rows in seen.items()} == {0: 120, 1: 120, 2: 120}
    assert set(seen[0]) == set(easiest)
    assert len(set(seen[1])) == 75
    assert sorted(seen[2]) == list(range(120))


def test_self_paced_learning_follows_the_tracker_of_the_run(images, net, tmp_path, seen):
    sampling = {"order": "self_paced", "by": "loss", "start": 0.5, "full_epoch": 2}
    done = hs.train(
        net, images, out=tmp_path / "run", epochs=3, sampling=sampling, track=True, **FAST
    )
    from hardsight.tracking import HardnessTracker

    assert sorted(seen[0]) == list(range(120))
    tracker = HardnessTracker(120, folder=done.folder / "dynamics", resume=True, repeats="first")
    history = tracker.history("loss")
    first = np.argsort(history[0], kind="stable")[:60]
    assert set(seen[1]) == set(first.tolist())
    assert np.isnan(history[1]).sum() == 60
    latest = np.where(np.isnan(history[1]), history[0], history[1])
    assert set(seen[2]) == set(np.argsort(latest, kind="stable")[:90].tolist())
    assert tracker.latest("loss").shape == (120,)


def test_a_resumed_self_paced_run_draws_what_it_would_have_drawn(images, net, tmp_path, seen):
    sampling = {"order": "self_paced", "by": "avh", "start": 0.3, "full_epoch": 3}
    options = {"sampling": sampling, "track": True, **FAST}
    whole = hs.train(net, images, out=tmp_path / "whole", epochs=3, **options)
    expected = {epoch: list(rows) for epoch, rows in seen.items()}
    original = TrainModule.on_train_epoch_start

    def stopping(self):
        if self.current_epoch == 2:
            raise KeyboardInterrupt
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainModule, "on_train_epoch_start", stopping)
        with pytest.raises(KeyboardInterrupt):
            hs.train(net, images, out=tmp_path / "half", epochs=3, **options)
    seen.clear()
    again = hs.train(net, images, out=tmp_path / "half", epochs=3, resume=True, **options)
    assert seen == {2: expected[2]}
    for name, weights in whole.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], weights)


def test_a_table_that_changed_is_not_continued_with(images, net, tmp_path, tracked):
    table = tmp_path / "table.parquet"
    import pyarrow.parquet as pq

    rows = tracked.to_arrow()
    pq.write_table(rows, table)
    options = {"sampling": {"order": "weighted", "by": "aum", "table": str(table)}, **FAST}
    hs.train(net, images, out=tmp_path / "run", epochs=1, **options)
    turned = rows.set_column(rows.column_names.index("aum"), "aum", [rows["aum"].to_numpy()[::-1]])
    pq.write_table(turned, table)
    with pytest.raises(RunMismatchError, match="other hardness of the examples"):
        hs.train(net, images, out=tmp_path / "run", epochs=1, resume=True, **options)


def test_keys_that_do_not_go_together_are_refused(images, net, tmp_path):
    def refused(sampling, said, error=ConfigError, **more):
        with pytest.raises(error, match=said):
            hs.train(
                net, images, out=tmp_path / "run", epochs=1, sampling=sampling, **{**FAST, **more}
            )

    refused({"order": "easy_first"}, r"needs the hardness .* sampling\.table to a run")
    refused({"order": "first"}, "unknown order of sampling 'first'")
    refused({"order": "self_paced"}, "set track = true")
    refused({"order": "self_paced", "by": "entropy"}, "avh, loss, el2n, target_angle", track=True)
    refused({"order": "self_paced", "name": "class_balanced"}, "leave one out")
    hs.score("small_cnn", "builtin:digits", split="test", out=tmp_path / "digits", device="cpu",
             show_progress=False, mean=(0.0,), std=(1.0,))  # fmt: skip
    other = {"order": "easy_first", "table": str(tmp_path / "digits")}
    refused(other, "is a table of other data than", DataError)
