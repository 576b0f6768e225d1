"""Whole training runs, small enough for two cores."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import hardsight as hs
from hardsight.data import MemorySource, decoded, open_source
from hardsight.errors import (
    ConfigError,
    DataError,
    HardsightWarning,
    MissingExtraError,
    ModelError,
    NonFiniteError,
    OptionError,
    RunExistsError,
    RunMismatchError,
)
from hardsight.models import SmallCNN, load_model
from hardsight.run.evaluate import evaluation_card
from hardsight.run.train import DataConfig, HostState, opened_sources
from hardsight.run.train.engine import BEST, LAST, TrainModule
from hardsight.run_folder import RunFolder
from hardsight.tracking import HardnessTracker
from tests._deaths import Died, dying_after

FAST = {"device": "cpu", "batch_size": 16, "show_progress": False, "workers": 0}


def weights(folder, file="model.safetensors"):
    return load_file(Path(folder) / file)


def metrics(folder):
    return list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))


def assert_nearly(one, two):
    """Equal but for the rounding of another kernel."""
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-6, msg=name)


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=0, msg=name)


def test_a_recipe_learns_the_digits_and_its_folder_can_be_scored(tmp_path):
    out = tmp_path / "run"
    done = hs.train(
        "small_cnn", "builtin:digits", split="train", test_split="test", out=out, epochs=4,
        optimizer={"name": "adamw", "lr": 0.005}, schedule="one_cycle", augment={"crop_padding": 1},
        device="cpu", batch_size=64,
    )  # fmt: skip
    assert done.test is not None
    assert done.test["accuracy"] > 0.9
    table = hs.score(str(out), "builtin:digits", split="test", device="cpu")
    scored = (table.column("label") == table.column("prediction")).mean()
    assert scored == pytest.approx(done.test["accuracy"])
    assert "measured on the training images" in table.metadata["preprocessing"]["origin"]
    assert done.next_step == (
        f"hardsight score --model {out} --data builtin:digits --split test --sample out-of-sample "
        f"--out {out}-scores"
    )


def test_tensorboard_shows_the_metrics_of_every_epoch(images, net, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = hs.train(net, images, out=tmp_path / "run", epochs=2, **FAST)
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    for name in ("train_loss", "val_accuracy", "lr"):
        shown = {event.step: event.value for event in board.Scalars(name)}
        wanted = {int(row["epoch"]): pytest.approx(row[name]) for row in done.history}
        assert shown == wanted, name


def test_the_folder_holds_model_metrics_recipe_result_and_checkpoints(images, net, tmp_path):
    done = hs.train(net, images, out=tmp_path / "run", epochs=2, **FAST)
    rows = metrics(tmp_path / "run")
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert float(rows[1]["val_accuracy"]) == done.history[1]["val_accuracy"]
    assert int(rows[1]["step"]) == 2 * 7  # 108 of 120 examples by 16
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["config"]["epochs"] == 2
    assert result["versions"]["lightning"]
    assert (result["train_examples"], result["validation_examples"]) == (108, 12)
    state = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert {"epoch", "state_dict", "optimizer_states", "lr_schedulers"} <= state.keys()
    assert_same(weights(tmp_path / "run"), done.model.state_dict())


def test_the_epoch_with_the_best_validation_is_selected(images, net, tmp_path):
    options = {**FAST, "epochs": 4, "optimizer": {"lr": 0.5}}  # jumps about
    for select, best in (("accuracy", np.argmax), ("loss", np.argmin)):
        done = hs.train(net, images, out=tmp_path / select, select=select, **options)
        values = [row[f"val_{select}"] for row in done.history]
        assert done.best_epoch == best(values) + 1
    last = hs.train(net, images, out=tmp_path / "last", select="last", **options)
    assert last.best_epoch == 4
    state = torch.load(tmp_path / "last" / "checkpoints" / "last.ckpt", weights_only=True)
    plain = {name.removeprefix("model."): v for name, v in state["state_dict"].items()}
    assert_same(weights(tmp_path / "last"), plain)


def test_without_validation_the_last_epoch_is_selected(images, net, tmp_path):
    done = hs.train(net, images, out=tmp_path / "run", epochs=2, validation=0.0, **FAST)
    assert done.best_epoch == 2
    assert "val_accuracy" not in done.history[0]


def test_validation_examples_are_never_trained_on(images, net, tmp_path, monkeypatch):
    seen = {"train": set(), "validation": set()}
    from hardsight.run.train.engine import TrainModule

    for part, name in (("train", "training_step"), ("validation", "validation_step")):
        original = getattr(TrainModule, name)

        def watched(self, batch, at, original=original, part=part):
            seen[part] |= set(batch.index.tolist())
            return original(self, batch, at)

        monkeypatch.setattr(TrainModule, name, watched)
    hs.train(net, images, out=tmp_path / "run", epochs=2, validation=0.25, **FAST)
    assert len(seen["validation"]) == 30
    assert seen["train"].isdisjoint(seen["validation"])
    assert seen["train"] | seen["validation"] == set(range(120))


def split_rows(data, share, seed):
    sources = opened_sources(DataConfig(str(data), validation=share), data, seed=seed)
    return list(sources.train.rows), list(sources.validation.rows)


def test_the_held_out_part_has_the_same_share_of_every_class(images):
    source = hs.data.open_source(images)
    rows, held = split_rows(images, 0.25, seed=0)
    assert sorted(rows + held) == list(range(120))
    assert np.bincount([source.label_of(i) for i in held]).tolist() == [10, 10, 10]
    assert split_rows(images, 0.25, seed=0) == (rows, held)
    assert split_rows(images, 0.25, seed=1) != (rows, held)
    with pytest.raises(DataError, match=r"120 examples, too few for validation = 0.001"):
        split_rows(images, 0.001, seed=0)


def test_the_seed_alone_decides_the_result(images, net, tmp_path):
    options = {**FAST, "epochs": 2, "augment": {"crop_padding": 1, "flip": True}}
    torch.manual_seed(1)
    hs.train(net, images, out=tmp_path / "a", seed=5, **options)
    before = torch.random.get_rng_state()
    torch.manual_seed(2)
    hs.train(net, images, out=tmp_path / "b", seed=5, **options)
    hs.train(net, images, out=tmp_path / "c", seed=6, **options)
    assert_same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not torch.equal(weights(tmp_path / "a")["0.weight"], weights(tmp_path / "c")["0.weight"])
    torch.manual_seed(1)
    assert torch.equal(before, torch.random.get_rng_state()), "the user's random state is hers"


def test_streaming_trains_the_same_model_as_resident_images(images, net, tmp_path):
    options = {**FAST, "epochs": 2, "augment": {"crop_padding": 1, "flip": True}}
    hs.train(net, images, out=tmp_path / "a", resident=True, **options)
    hs.train(net, images, out=tmp_path / "b", resident=False, **options)
    assert_same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_dying_before_any_single_file_appears_and_resuming_gives_the_same_weights(
    images, net, tmp_path, monkeypatch
):
    options = {
        **FAST, "epochs": 2, "augment": {"flip": True}, "schedule": "one_cycle", "select": "last",
        "optimizer": {"name": "adamw"}, "loss": {"name": "cross_entropy", "ramp": "gaussian",
                                                 "ramp_epochs": 3},
    }  # fmt: skip
    hs.train(net, images, out=tmp_path / "whole", **options)
    original, renames = Path.replace, []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *a: renames.append(a[1].name) or original(*a))
        hs.train(net, images, out=tmp_path / "counted", **options)
    assert renames == [
        "run.json", "recipe.json",
        *["metrics.csv", "last.ckpt", "best.safetensors"],
        *["metrics.csv", "previous.ckpt", "last.ckpt", "best-00001.safetensors"],
        "best.safetensors",
        "model.safetensors", "model.json", "result.json", "run.json",
    ]  # fmt: skip
    for survived in range(len(renames)):
        out = tmp_path / f"run-{survived}"
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", dying_after(survived))
            with pytest.raises(Died):
                hs.train(net, images, out=out, **options)
            if not survived:  # nothing is lost, so nothing has to be resumed
                with pytest.raises(Died):
                    hs.train(net, images, out=out, **options)
        done = hs.train(net, images, out=out, resume=True, **options)
        assert_same(weights(out), weights(tmp_path / "whole"))
        assert [row["epoch"] for row in done.history] == [1, 2]


# validation accuracy of three epochs, as an interrupted run and its continuation find it: on a GPU,
# or on another machine, an epoch that is trained again does not come out the same
FIRST, AGAIN = (0.5, 0.9, 0.7), (0.5, 0.4, 0.3)


def test_the_selected_weights_are_those_of_the_selected_epoch_whatever_the_moment_of_a_kill(
    images, net, tmp_path, monkeypatch
):
    options = {**FAST, "epochs": 3}
    by_epoch = {}
    with monkeypatch.context() as patch:
        _find(patch, (0.1, 0.2, 0.3), by_epoch)  # every epoch is the best so far
        hs.train(net, images, out=tmp_path / "whole", **options)
    assert list(by_epoch) == [1, 2, 3]
    selected = []
    for survived in range(2, 13):  # after manifest and recipe: metrics, state, weights if best
        out = tmp_path / f"run-{survived}"
        with monkeypatch.context() as patch:
            _find(patch, FIRST)
            patch.setattr(Path, "replace", dying_after(survived))
            with pytest.raises(Died):
                hs.train(net, images, out=out, **options)
        with monkeypatch.context() as patch:
            _find(patch, AGAIN)
            done = hs.train(net, images, out=out, resume=True, **options)
        assert_same(weights(out), by_epoch[done.best_epoch])
        assert_same(weights(out, BEST), by_epoch[done.best_epoch])
        assert not list((out / "checkpoints").glob("best*.part"))
        selected.append(done.best_epoch)
    assert set(selected) == {1, 2}  # before and after the second epoch was on record


def _find(patch, accuracies, by_epoch=None):
    """Let validation find these accuracies, and note the weights of every epoch."""

    def found(self):
        right, count = accuracies[self.current_epoch], 1
        self.validation_tally.sums = torch.tensor([0.0, right, count], dtype=torch.float64)
        if by_epoch is not None:
            state = {name: value.clone() for name, value in self.model.state_dict().items()}
            by_epoch[self.current_epoch + 1] = state

    patch.setattr(TrainModule, "on_validation_epoch_end", found)


def interrupted(monkeypatch, net, images, out, *, after_epochs, **options):
    """A run that dies when the next epoch after ``after_epochs`` is about to be written."""
    write, done = csv.DictWriter, []

    def dying(sink, columns):
        if len(done) == after_epochs:
            raise Died
        done.append(columns)
        return write(sink, columns)

    with monkeypatch.context() as patch:
        patch.setattr(csv, "DictWriter", dying)  # of the metrics
        with pytest.raises(Died):
            hs.train(net, images, out=out, **options)


def cut(file):
    file.write_bytes(file.read_bytes()[:-1000])


def flipped(file):
    content = bytearray(file.read_bytes())
    for place in range(len(content) // 2, len(content) // 2 + 300):  # more than what is padding
        content[place] ^= 255
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flipped, Path.unlink, lambda file: file.write_bytes(b"")])
def test_a_damaged_checkpoint_costs_one_epoch_and_nothing_else(
    images, net, tmp_path, monkeypatch, damage
):
    options = {**FAST, "epochs": 4, "track": True, "augment": {"flip": True}}
    whole = hs.train(net, images, out=tmp_path / "whole", **options)
    interrupted(monkeypatch, net, images, tmp_path / "run", after_epochs=3, **options)
    damage(tmp_path / "run" / "checkpoints" / "last.ckpt")
    said = r"last.ckpt is (damaged|missing).*goes on from the checkpoint of the epoch before"
    with pytest.warns(UserWarning, match=said):
        resumed = hs.train(net, images, out=tmp_path / "run", resume=True, **options)
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert [row["epoch"] for row in resumed.history] == [1, 2, 3, 4]
    assert resumed.dynamics.to_pandas().equals(whole.dynamics.to_pandas())


@pytest.mark.parametrize(("epochs", "files"), [(1, ["last"]), (3, ["last", "previous"])])
def test_a_run_without_a_whole_checkpoint_is_refused(
    images, net, tmp_path, monkeypatch, epochs, files
):
    options = {**FAST, "epochs": 4}
    interrupted(monkeypatch, net, images, tmp_path / "run", after_epochs=epochs, **options)
    for name in files:
        cut(tmp_path / "run" / "checkpoints" / f"{name}.ckpt")
    with pytest.raises(hs.errors.CheckpointError, match=r"last.ckpt is damaged .*another out"):
        hs.train(net, images, out=tmp_path / "run", resume=True, **options)


def garbled(file):
    file.write_bytes(b"not weights at all" * 10)


@pytest.mark.parametrize("damage", [cut, garbled, lambda file: file.write_bytes(b"")])
def test_damaged_weights_of_the_best_epoch_are_refused_before_the_run_goes_on(
    images, net, tmp_path, monkeypatch, damage
):
    options = {**FAST, "epochs": 4}
    interrupted(monkeypatch, net, images, tmp_path / "run", after_epochs=2, **options)
    damage(tmp_path / "run" / "checkpoints" / "best.safetensors")
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    said = r"cannot be read from .*best.safetensors .*begin the run again .*--overwrite"
    with pytest.raises(hs.errors.CheckpointError, match=said):
        hs.train(net, images, out=tmp_path / "run", resume=True, **options)
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize("damage", [cut, garbled, Path.unlink])
def test_damaged_weights_of_a_finished_run_can_be_had_from_its_model(images, net, tmp_path, damage):
    whole = hs.train(net, images, out=tmp_path / "run", **FAST, epochs=2)
    best = tmp_path / "run" / "checkpoints" / "best.safetensors"
    damage(best)
    with pytest.raises(hs.errors.CheckpointError, match=r"copy .*model.safetensors there, which"):
        hs.train(net, images, out=tmp_path / "run", resume=True, **FAST, epochs=2)
    shutil.copy(tmp_path / "run" / "model.safetensors", best)
    again = hs.train(net, images, out=tmp_path / "run", resume=True, **FAST, epochs=2)
    assert_same(again.model.state_dict(), whole.model.state_dict())


def with_a_changed_weight(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x40
    file.write_bytes(content)


def test_a_finished_run_gives_back_the_weights_it_wrote_or_none(images, net, tmp_path):
    options = {"out": tmp_path / "run", **FAST, "epochs": 2}
    whole = hs.train(net, images, **options)
    expected = {name: value.clone() for name, value in whole.model.state_dict().items()}
    with_a_changed_weight(tmp_path / "run" / "checkpoints" / "best.safetensors")
    again = hs.train(net, images, **options, resume=True)
    assert_same(again.model.state_dict(), expected)
    with_a_changed_weight(tmp_path / "run" / "model.safetensors")
    with pytest.raises(hs.errors.ModelError, match=r"model\.safetensors was changed since"):
        hs.train(net, images, **options, resume=True)


@pytest.mark.parametrize(
    ("first", "again", "best"),
    [
        ((0.5, 0.6, 0.9), (0.0, 0.0, 0.7), 3),  # the third epoch is the best one again
        ((0.5, 0.6, 0.9), (0.0, 0.0, 0.1), 2),  # or not: the weights of the second are still there
        ((0.9, 0.6, 0.5), (0.0, 0.0, 0.1), 1),
        ((0.9, 0.6, 0.5), (0.0, 0.0, 1.0), 3),
    ],
)
def test_the_selected_weights_survive_a_damaged_checkpoint(
    images, net, tmp_path, monkeypatch, first, again, best
):
    options = {**FAST, "epochs": 3}
    by_epoch = {}
    with monkeypatch.context() as patch:
        _find(patch, first, by_epoch)
        patch.setattr(Path, "replace", not_the_result)
        with pytest.raises(Died):
            hs.train(net, images, out=tmp_path / "run", **options)
    cut(tmp_path / "run" / "checkpoints" / "last.ckpt")
    with monkeypatch.context() as patch:
        _find(patch, again, by_epoch)
        with pytest.warns(UserWarning, match="goes on from the checkpoint of the epoch before"):
            done = hs.train(net, images, out=tmp_path / "run", resume=True, **options)
    assert done.best_epoch == best
    assert_same(weights(tmp_path / "run"), by_epoch[best])
    kept = {file.name for file in (tmp_path / "run" / "checkpoints").glob("best*")}
    assert "best.safetensors" in kept
    assert len(kept) <= 2


def not_the_result(self, target, original=Path.replace):
    if Path(target).name in ("model.safetensors", "result.json"):
        raise Died
    return original(self, target)


@pytest.fixture
def one_thread():
    """Several may add up in another order in another process: then the last bits differ."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is a POSIX signal")
def test_a_killed_run_resumes_to_the_same_weights(images, net, tmp_path, forks, one_thread):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f'model = "{net}"\nepochs = 10\nbatch_size = 16\ndevice = "cpu"\nworkers = 0\n'
        f'data = "{images}"\naugment = {{crop_padding = 1, flip = true}}\nselect = "last"\n'
    )
    out = tmp_path / "killed"
    last = out / "checkpoints" / "last.ckpt"
    done = forks.run(
        "import torch; torch.set_num_threads(1); from hardsight.cli import main; "
        f"main(['train', {str(recipe)!r}, '--out', {str(out)!r}])",
        loads="lightning.pytorch",
        until=last,
    )
    assert done.status == -signal.SIGKILL, done.stderr
    assert not (out / "result.json").exists()
    from hardsight.run.train import TrainConfig, run_train

    def run(**given):
        return run_train(TrainConfig.load(recipe, **given), show_progress=False)

    epochs_done = torch.load(last, weights_only=True)["epoch"] + 1
    assert 1 <= epochs_done < 10
    resumed = run(out=str(out), resume=True)
    assert len(resumed.history) == 10
    run(out=str(tmp_path / "whole"))
    assert_same(weights(out), weights(tmp_path / "whole"))
    assert_same(weights(out, "checkpoints/best.safetensors"),
                weights(tmp_path / "whole", "checkpoints/best.safetensors"))  # fmt: skip


def test_a_run_of_a_version_that_knew_fewer_settings_is_taken_up(images, net, tmp_path):
    hs.train(net, images, out=tmp_path / "run", epochs=1, **FAST)
    file = tmp_path / "run" / "recipe.json"
    recipe = json.loads(file.read_text())
    del recipe["config"]["freeze_body"]
    del recipe["config"]["data"]["imbalance"]
    file.write_text(json.dumps(recipe))
    (tmp_path / "run" / "run.json").unlink()  # it wrote no manifest either
    again = hs.train(net, images, out=tmp_path / "run", epochs=1, resume=True, **FAST)
    assert again.best_epoch == 1
    with pytest.raises(RunMismatchError, match="it has freeze_body = False instead of True"):
        hs.train(
            net, images, out=tmp_path / "run", epochs=1, resume=True, freeze_body=True, **FAST
        )  # fmt: skip


def changed(net, old, new):
    """Write the model's file with other code."""
    file = Path(net.partition(":")[0])
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_does_not_go_on_in_changed_code_with_the_same_weights(
    images, net, tmp_path, monkeypatch, is_finished
):
    def train(**more):
        return hs.train(net, images, out=tmp_path / "run", epochs=2, device="cpu", **more)

    if is_finished:
        train()
    else:
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "finish", dying)
            with pytest.raises(KeyboardInterrupt):
                train()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    changed(net, "nn.ReLU()", "nn.Tanh()")
    with pytest.raises(
        RunMismatchError,
        match=r"the training run in .* the results of the first examples have changed \(logit .* "
        r"for .*same weights in changed code; use the code that the run began with",
    ):
        train(resume=True)
    assert {path: path.read_bytes() for path in before} == before
    changed(net, "nn.Tanh()", "nn.LeakyReLU(0.0)")  # other code, the same outputs
    assert len(train(resume=True).history) == 2


def dying(*args):
    raise KeyboardInterrupt


def test_code_that_cannot_be_compared_is_told_of(images, net, tmp_path):
    hs.train(net, images, out=tmp_path / "run", epochs=1, **FAST)
    changed(net, "    return", "    import torch; torch.rand(1)\n    return")  # draws otherwise
    with pytest.warns(HardsightWarning, match=r"py:make begins with other weights .* not known"):
        hs.train(net, images, out=tmp_path / "run", epochs=1, resume=True, **FAST)


def test_a_model_that_draws_at_random_is_not_held_to_its_outputs(images, net, tmp_path):
    changed(net, "nn.Dropout(0.1)", "Noise()")
    changed(
        net,
        "def make",
        """class Noise(nn.Module):
    def forward(self, x):
        return x + x.new_empty(x.shape).normal_()


def make""",
    )
    hs.train(net, images, out=tmp_path / "run", epochs=1, **FAST)
    assert hs.train(net, images, out=tmp_path / "run", epochs=1, resume=True, **FAST).history


def test_resuming_a_finished_run_gives_its_result(images, net, tmp_path):
    options = {**FAST, "epochs": 1}
    done = hs.train(net, images, out=tmp_path / "run", **options)
    written = (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns
    again = hs.train(net, images, out=tmp_path / "run", resume=True, **options)
    assert again.history == done.history
    assert_same(again.model.state_dict(), done.model.state_dict())
    assert (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns == written


def test_a_folder_that_is_taken_is_not_overwritten(images, net, tmp_path):
    hs.train(net, images, out=tmp_path / "run", epochs=1, **FAST)
    with pytest.raises(RunExistsError, match=r"holds a finished training run; .* with --resume"):
        hs.train(net, images, out=tmp_path / "run", epochs=1, **FAST)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").touch()
    with pytest.raises(RunExistsError, match=r"files that are not a training run \(me\.jpg\)"):
        hs.train(net, images, out=tmp_path / "photos", epochs=1, **FAST)


def test_another_recipe_cannot_continue_a_run(images, net, tmp_path):
    hs.train(net, images, out=tmp_path / "run", epochs=1, **FAST)
    with pytest.raises(RunMismatchError, match=r"it has epochs = 1 instead of 2; use the same"):
        hs.train(net, images, out=tmp_path / "run", epochs=2, resume=True, **FAST)
    stored = np.load(images)
    np.savez(images, images=stored["images"], labels=(stored["labels"] + 1) % 3)
    with pytest.raises(RunMismatchError, match="other training data"):
        hs.train(net, images, out=tmp_path / "run", epochs=1, resume=True, **FAST)


class Interrupts(nn.Module):
    """A user's module that is interrupted in its third step of training."""

    def __init__(self, body):
        super().__init__()
        self.body, self.steps, self.is_patient = body, 0, False

    def forward(self, inputs):
        self.steps += self.training
        if self.steps == 3 and not self.is_patient:
            raise KeyboardInterrupt
        return self.body(inputs)


def test_a_module_that_was_trained_in_place_does_not_begin_again_unsaid(vectors, linear, tmp_path):
    net = Interrupts(linear)
    start = {name: value.clone() for name, value in net.state_dict().items()}
    options = {**FAST, "out": tmp_path / "run", "epochs": 1, "batch_size": 10}
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        hs.train(net, vectors, **options)
    net.is_patient = True
    with pytest.raises(RunMismatchError, match=r"before its first checkpoint, .* trained in place"):
        hs.train(net, vectors, resume=True, **options)
    net.load_state_dict(start)
    assert len(hs.train(net, vectors, resume=True, **options).history) == 1
    # from a checkpoint on, the module's own weights do not matter
    assert hs.train(net, vectors, resume=True, **options).best_epoch == 1


class Breaks(nn.Module):
    """Gives NaN for inputs that are marked, from the given call on."""

    def __init__(self, after):
        super().__init__()
        self.layer, self.calls, self.after = nn.Linear(5, 3), 0, after

    def forward(self, inputs):
        self.calls += self.training
        marked = (inputs[:, 4] == 99) & (self.calls > self.after) & self.training
        return self.layer(inputs) / (~marked).float()[:, None] * (~marked).float()[:, None]


def test_a_loss_that_is_not_finite_stops_with_step_examples_and_the_last_good_checkpoint(
    vectors, tmp_path
):
    vectors.inputs[[7, 31], 4] = 99
    options = {**FAST, "epochs": 3, "validation": 0.0, "batch_size": 60, "optimizer": {"lr": 1e-4}}
    with pytest.raises(NonFiniteError) as caught:
        hs.train(Breaks(after=1), vectors, out=tmp_path / "run", **options)
    said = str(caught.value)
    assert "the loss is nan at step 1;" in said
    assert "examples with logits that are not finite:" in said
    assert {"7", "31"} == set(said.partition("finite: ")[2].partition(" (")[0].split(", "))
    assert "(2 of 60)" in said
    assert f"the checkpoint of epoch 1 is kept in {tmp_path / 'run/checkpoints/last.ckpt'}" in said
    state = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert all(value.isfinite().all() for value in state["state_dict"].values())
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_loss_that_is_never_finite_says_that_there_is_no_checkpoint(vectors, tmp_path):
    vectors.inputs[7, 4] = 99
    with pytest.raises(NonFiniteError, match=r"at step \d; .*: 7 \(1 of .*no epoch was"):
        hs.train(Breaks(after=0), vectors, out=tmp_path / "run", epochs=1, validation=0.0, **FAST)


def test_weights_that_the_last_step_makes_infinite_are_not_kept(vectors, linear, tmp_path):
    # no loss follows the step, so none could tell
    vectors.inputs *= 1e4
    options = {**FAST, "epochs": 1, "validation": 0.0, "batch_size": 60, "optimizer": {"lr": 3e38}}
    with pytest.raises(
        NonFiniteError, match=r"0\.weight \[.*not finite after epoch 1.*optimizer\.lr.*no epoch was"
    ):
        hs.train(linear, vectors, out=tmp_path / "run", **options)
    assert not (tmp_path / "run" / "result.json").exists()
    assert not list((tmp_path / "run" / "checkpoints").glob("*"))


def test_a_users_own_module_and_dataset_are_trained_in_place(vectors, linear, tmp_path):
    before = linear[0].weight.clone()
    done = hs.train(linear, vectors, out=tmp_path / "run", epochs=5, **FAST)
    assert done.model is linear
    assert not torch.equal(before, linear[0].weight)
    assert not linear.training
    assert done.history[-1]["val_accuracy"] > 0.8
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())["config"]
    assert (recipe["model"]["name"], recipe["data"]["name"]) == ("Sequential", "Bright")


def test_losses_of_angles_train_with_the_head_that_is_found(images, net, tmp_path):
    both = ["cross_entropy", {"name": "amc", "weight": 0.1, "ramp": "gaussian", "ramp_epochs": 2}]
    for name, loss in (("amc", both), ("avh", {"name": "avh", "options": {"scale": 8.0}})):
        done = hs.train(net, images, out=tmp_path / name, loss=loss, epochs=6, **FAST)
        assert done.history[-1]["train_loss"] < done.history[0]["train_loss"]
        assert max(row["val_accuracy"] for row in done.history) > 0.8
    assert not done.model[6]._forward_pre_hooks, "the model is given back as it was"


def test_a_loss_option_out_of_its_range_stops_before_an_epoch_is_over(images, net, tmp_path):
    wrong = {"name": "amc", "options": {"margin_rad": 7.0}}
    with pytest.raises(ConfigError, match=r"loss amc: expected margin_rad in \(0, pi\]"):
        hs.train(net, images, out=tmp_path / "run", loss=wrong, **FAST)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            {"name": "cross_entropy", "options": {"weight": [1.0]}},
            r"loss cross_entropy cannot be computed .*3 classes.*options \{'weight': \[1.0\]\}",
        ),
        ({"name": "cross_entropy", "options": {"label_smoothing": 2.0}}, "label_smoothing must be"),
        ({"name": "focal", "options": {"weight": [1.0, 2.0]}}, r"loss focal.*\[2\]"),
        ({"name": "avh", "options": {"scale": -1.0}}, "loss avh: expected scale"),
    ],
)
def test_a_loss_that_cannot_be_computed_is_refused_before_anything_is_written(
    images, net, tmp_path, loss, message
):
    with pytest.raises(ConfigError, match=message):
        hs.train(net, images, out=tmp_path / "run", loss=loss, **FAST)
    assert not (tmp_path / "run").exists()


def test_tracking_finds_the_planted_label_errors(images, net, tmp_path):
    stored = np.load(images)
    labels = stored["labels"].copy()
    wrong = np.array([3, 40, 77, 101])
    labels[wrong] = (labels[wrong] + 1) % 3
    np.savez(images, images=stored["images"], labels=labels)
    options = {**FAST, "epochs": 6, "track": True, "validation": 0.0}
    done = hs.train(net, images, out=tmp_path / "run", **options)
    assert done.dynamics is not None
    assert len(done.dynamics) == 120
    assert set(done.dynamics.hardest(4, by="aum")["index"]) == set(wrong)
    assert set(done.dynamics.suspects(4)["index"]) == set(wrong)
    assert set(done.dynamics.column("epochs_seen")) == {6}
    assert len(hs.read_table(tmp_path / "run" / "dynamics.parquet")) == 120
    again = hs.train(net, images, out=tmp_path / "run", resume=True, **options)
    assert again.dynamics is not None
    assert again.dynamics.to_pandas().equals(done.dynamics.to_pandas())


def test_a_tracked_run_can_be_reported_with_pictures_names_and_curves(images, net, tmp_path):
    options = {**FAST, "epochs": 3, "track": True}
    done = hs.train(net, images, out=tmp_path / "run", **options)
    assert done.dynamics.classes == ["0", "1", "2"]
    assert done.dynamics.metadata["data"]["spec"] == str(images)
    text = hs.report.write_report(tmp_path / "run").read_text("utf-8")
    assert (tmp_path / "run" / "report.html").exists()
    assert text.count("data-picture=") > 60
    assert "epoch by epoch" in text
    again = hs.train(net, images, out=tmp_path / "plain", thumbnails=0, **options)
    assert not (again.folder / "thumbnails.parquet").exists()
    assert "data-picture=" not in hs.report.write_report(again.folder).read_text("utf-8")


def test_every_training_example_has_a_row_that_says_whether_it_was_held_out(images, net, tmp_path):
    done = hs.train(net, images, out=tmp_path / "run", epochs=2, track=True, **FAST)
    assert done.dynamics is not None
    _, held = split_rows(images, 0.1, seed=0)
    assert len(held) == 12
    table = done.dynamics
    assert table.column("index").tolist() == list(range(120))
    assert table.column("index")[table.column("held_out")].tolist() == held
    assert set(table.column("epochs_seen")) == {2}
    assert not any(np.isnan(table.column(name)).any() for name in table.scores)
    assert table.metadata["sample"] == "mixed"
    assert table.metadata["tracking"]["held_out"] == 12
    stored = hs.read_table(tmp_path / "run" / "dynamics.parquet")
    assert stored.to_pandas()["held_out"].sum() == 12


def test_held_out_examples_are_measured_in_evaluation_after_every_epoch(images, net, tmp_path):
    options = {**FAST, "epochs": 3, "select": "last", "augment": {"flip": True}}
    done = hs.train(net, images, out=tmp_path / "run", track=True, **options)
    held = done.dynamics.where(done.dynamics.column("held_out"))
    # the last epoch is the model that was kept: score it by another way
    scores = hs.score(done.model, images, device="cpu", preprocessing=done.preprocessing)
    rows = held.column("index")
    np.testing.assert_allclose(held.column("final_avh"), scores.column("avh")[rows], rtol=1e-4)
    np.testing.assert_array_equal(held.column("prediction"), scores.column("prediction")[rows])
    assert done.tracked == {"held-out": tmp_path / "run" / "tracked" / "held-out"}
    found = HardnessTracker(
        120, folder=done.tracked["held-out"], resume=True, stage="evaluation"
    ).history("logit_margin")
    assert sorted(np.flatnonzero(~np.isnan(found).any(axis=0))) == sorted(rows)
    np.testing.assert_allclose(found[:, rows].mean(axis=0), held.column("aum"), rtol=1e-6)
    plain = hs.train(net, images, out=tmp_path / "plain", **options)
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "plain"))
    assert [r["val_loss"] for r in done.history] == [r["val_loss"] for r in plain.history]


def test_examples_of_another_split_are_not_held_out_of_training(net, tmp_path):
    done = hs.train(
        "small_cnn", "builtin:digits", split="train", validation_split="test", epochs=1,
        out=tmp_path / "run", track=True, thumbnails=0, **{**FAST, "batch_size": 256},
    )  # fmt: skip
    assert len(done.dynamics) == 1348
    assert not done.dynamics.column("held_out").any()
    assert done.dynamics.metadata["sample"] == "in-sample"
    assert done.tracked == {}


def test_a_run_that_began_without_held_out_rows_ends_without_them_and_says_so(
    images, net, tmp_path, monkeypatch
):
    options = {**FAST, "epochs": 3, "track": True}
    interrupted(monkeypatch, net, images, tmp_path / "run", after_epochs=2, **options)
    state = torch.load(tmp_path / "run" / LAST, weights_only=True)
    state["callbacks"] = {k: v for k, v in state["callbacks"].items() if "evaluation" not in k}
    torch.save(state, tmp_path / "run" / LAST)
    shutil.rmtree(tmp_path / "run" / "tracked")
    with pytest.warns(UserWarning, match="held-out examples have no row"):
        done = hs.train(net, images, out=tmp_path / "run", resume=True, **options)
    assert len(done.dynamics) == 108


def test_the_report_of_a_tracked_run_marks_what_was_held_out(images, net, tmp_path):
    done = hs.train(net, images, out=tmp_path / "run", epochs=3, track=True, **FAST)
    text = hs.report.write_report(done.folder).read_text("utf-8")
    assert "12 of these 120 examples were held out" in text
    assert "12 held out" in text
    assert "Held out" in text
    plain = hs.train(
        net, images, out=tmp_path / "all", epochs=3, track=True, validation=0.0, **FAST
    )
    text = hs.report.write_report(plain.folder).read_text("utf-8")
    assert "eld out" not in text.replace("Scores of held-out examples", "")


def test_training_on_what_a_sampler_names_keeps_the_numbers_of_the_dataset(
    vectors, linear, tmp_path
):
    chosen = list(range(1, 60, 2))
    loader = torch.utils.data.DataLoader(vectors, sampler=chosen)
    options = {**FAST, "epochs": 2, "track": True, "validation": 0.0}
    done = hs.train(linear, loader, out=tmp_path / "run", track_on={"same": loader}, **options)
    assert done.dynamics.column("index").tolist() == chosen
    assert done.dynamics.column("id").tolist() == [str(number) for number in chosen]
    watched = hs.read_table(done.tracked["same"] / "examples.parquet")
    assert watched.column("index").tolist() == chosen
    assert watched.column("label").tolist() == [number % 3 for number in chosen]
    people = tmp_path / "people.csv"
    people.write_text("index,frequency\n" + "".join(f"{n},{n / 60}\n" for n in chosen))
    study = hs.study_dynamics([done.folder], examples="same", human=people)
    assert study.runs[0].epochs == 2


@pytest.mark.parametrize("survived", [0, 3, 4])
def test_dynamics_of_a_resumed_run_are_those_of_a_whole_one(
    images, net, tmp_path, monkeypatch, survived
):
    options = {**FAST, "epochs": 3, "track": True, "augment": {"flip": True}}
    whole = hs.train(net, images, out=tmp_path / "whole", **options)
    replace = dying_after(survived, lambda to: Path(to).parent.name in ("checkpoints", "run"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(Died):
            hs.train(net, images, out=tmp_path / "run", **options)
    resumed = hs.train(net, images, out=tmp_path / "run", resume=True, **options)
    assert whole.dynamics is not None
    assert resumed.dynamics is not None
    assert resumed.dynamics.to_pandas().equals(whole.dynamics.to_pandas())
    assert set(resumed.dynamics.column("epochs_seen")) == {3}


def test_bfloat16_channels_last_and_clipping_train_as_well(images, net, tmp_path):
    done = hs.train(
        net, images, out=tmp_path / "run", epochs=3, precision="bfloat16", channels_last=True,
        gradient_clip=1.0, deterministic=True, **FAST,
    )  # fmt: skip
    assert done.history[-1]["train_loss"] < done.history[0]["train_loss"]
    assert all(value.dtype != torch.bfloat16 for value in weights(tmp_path / "run").values())


def test_float16_on_a_cpu_is_refused(images, net, tmp_path):
    with pytest.raises(OptionError, match="training in float16 needs a GPU; use precision"):
        hs.train(net, images, out=tmp_path / "run", precision="float16", **FAST)
    # nothing was trained, so the corrected recipe may use the folder
    hs.train(net, images, out=tmp_path / "run", precision="bfloat16", epochs=1, **FAST)


@pytest.mark.parametrize("autotune", [False, True])
def test_cudnn_tries_its_algorithms_only_when_asked(images, net, tmp_path, monkeypatch, autotune):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not autotune)
    hs.train(net, images, out=tmp_path / "run", epochs=1, autotune=autotune, **FAST)
    assert torch.backends.cudnn.benchmark is autotune


def test_autotune_and_deterministic_exclude_each_other(images, net, tmp_path):
    with pytest.raises(OptionError, match=r"autotune chooses .* leave one out"):
        hs.train(
            net, images, out=tmp_path / "run", autotune=True, deterministic=True, **FAST
        )  # fmt: skip


def test_a_compiled_model_trains_like_the_plain_one(vectors, tmp_path, monkeypatch):
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: original(model, backend="eager"))
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    two = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    two.load_state_dict(one.state_dict())
    hs.train(one, vectors, out=tmp_path / "a", epochs=1, **FAST)
    hs.train(two, vectors, out=tmp_path / "b", epochs=1, compile=True, **FAST)
    assert weights(tmp_path / "b").keys() == weights(tmp_path / "a").keys()
    for name, value in weights(tmp_path / "a").items():
        torch.testing.assert_close(weights(tmp_path / "b")[name], value)


def test_a_model_is_compiled_for_full_batches_alone(vectors, tmp_path, monkeypatch):
    torch.compiler.reset()  # what other tests have compiled is not found again
    sizes, original = [], torch.compile

    def backend(graph, inputs):
        sizes.extend(tensor.shape[0] for tensor in inputs if tuple(tensor.shape[1:]) == (5,))
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda model: original(model, backend=backend))
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    size = len(vectors) // 2 - 1  # so that the third batch of an epoch has two examples
    hs.train(
        model, vectors, out=tmp_path / "run", epochs=2, compile=True,
        **{**FAST, "batch_size": size, "validation": 0.0},
    )  # fmt: skip
    assert [each for each in sizes if each != 8] == [size]


def test_training_says_nothing_by_itself(images, net, tmp_path, capfd):
    hs.train(net, images, out=tmp_path / "run", epochs=1, device="cpu", batch_size=16)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_the_progress_bar_shows_epoch_loss_and_validation(images, net, tmp_path, capfd):
    hs.train(net, images, out=tmp_path / "run", epochs=2, **{**FAST, "show_progress": True})
    shown = capfd.readouterr().err
    assert "epoch 2 of 2: loss " in shown
    assert "validation " in shown


def test_a_setting_that_does_not_exist_is_answered_with_the_nearest(images, net, tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key 'batchsize'. Did you mean 'batch_size'\?"):
        hs.train(net, images, out=tmp_path / "run", batchsize=3)


def test_embeddings_cannot_be_trained_on(tmp_path, net):
    np.savez(tmp_path / "e.npz", embeddings=np.zeros((4, 2), np.float32), labels=[0, 1, 0, 1])
    with pytest.raises(DataError, match="holds embeddings; training needs images"):
        hs.train(net, tmp_path / "e.npz", out=tmp_path / "run", **FAST)


def test_a_stream_cannot_be_trained_on(tmp_path, linear):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield torch.zeros(5), 0

    with pytest.raises(DataError, match="Stream is a stream; training needs examples by position"):
        hs.train(linear, Stream(), out=tmp_path / "run", **FAST)


def test_a_split_with_more_classes_than_the_training_split_is_refused(tmp_path, net):
    from PIL import Image

    for name in ("train/a", "train/b", "test/a", "test/b", "test/c"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (8, 8), number).save(tmp_path / "set" / name / f"{number}.png")
    with pytest.raises(DataError, match=r"expected the 2 classes of the training split, got 3"):
        hs.train(
            net, tmp_path / "set", split="train", test_split="test", out=tmp_path / "r", **FAST
        )


def test_a_validation_split_of_its_own_is_used_instead_of_a_share(net, tmp_path):
    done = hs.train(
        "small_cnn", "builtin:digits", split="train", validation_split="test", epochs=1,
        out=tmp_path / "run", **{**FAST, "batch_size": 256},
    )  # fmt: skip
    stored = json.loads((done.folder / "result.json").read_text())
    assert (stored["train_examples"], stored["validation_examples"]) == (1348, 449)


def test_without_lightning_the_extra_is_named(images, net, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hardsight\[train\]'"):
        hs.train(net, images, out=tmp_path / "run", **FAST)


def test_a_full_disk_keeps_the_checkpoint_of_the_epoch_before(images, net, tmp_path, monkeypatch):
    import lightning.pytorch as pl

    original, calls = pl.Trainer.save_checkpoint, []

    def save(self, path, *args, **kwargs):
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return original(self, path, *args, **kwargs)

    monkeypatch.setattr(pl.Trainer, "save_checkpoint", save)
    with pytest.raises(hs.errors.OutputError, match=r"No space left .* epoch before is kept"):
        hs.train(net, images, out=tmp_path / "run", epochs=3, **FAST)
    state = torch.load(tmp_path / "run" / LAST, weights_only=True)
    assert state["epoch"] == 0


def test_a_model_that_states_its_normalisation_is_trained_with_it(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    source = MemorySource(pixels, np.arange(40) % 2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    model.preprocessing = {"mean": (0.25,), "std": (0.125,)}
    done = hs.train(model, source, out=tmp_path / "own", epochs=1, device="cpu")
    assert (done.preprocessing.mean, done.preprocessing.std) == ((0.25,), (0.125,))
    assert done.preprocessing.size == (8, 8)
    table = {"name": source, "mean": (0.5,)}
    stated = hs.train(model, table, out=tmp_path / "stated", epochs=1, device="cpu")
    assert (stated.preprocessing.mean, stated.preprocessing.std) == ((0.5,), (0.125,))


def coloured(channels):
    shape = (40, 8, 8) if channels == 1 else (40, 8, 8, channels)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return MemorySource(pixels, np.arange(40) % 2)


def coloured_file(folder):
    source = coloured(1)
    np.savez(folder / "images.npz", images=source.images, labels=source.labels)
    return folder / "images.npz"


@pytest.mark.parametrize("stated", [("mean",), ("std",), ("mean", "std")])
def test_three_means_do_not_make_grey_images_rgb_behind_the_users_back(tmp_path, stated):
    table = {"name": coloured(1), **dict.fromkeys(stated, (0.5, 0.5, 0.5))}
    expected = rf"{stated[0]} of the recipe has 3 values.*1 channel; .*set channels = 3 or 1"
    with pytest.raises(OptionError, match=expected):
        hs.train("small_cnn", table, out=tmp_path / "run", epochs=1, device="cpu")
    table["channels"] = 3  # the step that the error names
    done = hs.train("small_cnn", table, out=tmp_path / "run", epochs=1, device="cpu")
    assert done.preprocessing.channels == 3


def test_one_mean_serves_all_channels_and_leaves_the_colours(tmp_path):
    table = {"name": coloured(3), "mean": (0.5,)}
    done = hs.train("small_cnn", table, out=tmp_path / "run", epochs=1, device="cpu")
    assert (done.preprocessing.channels, done.preprocessing.mean) == (3, (0.5,))
    assert len(done.preprocessing.std) == 3
    assert len(hs.score(done.folder, coloured(3), device="cpu")) == 40


def test_a_dataset_may_have_a_spec_of_its_own(vectors, linear, tmp_path):
    vectors.spec = {"rate": 16_000}  # such as that of sounds
    hs.train(linear, vectors, out=tmp_path / "run", epochs=1, **FAST)
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())["config"]
    assert recipe["data"]["name"] == "Bright"


def test_three_means_do_not_widen_the_tensors_of_a_users_dataset(tmp_path):
    data = TensorDataset(torch.rand(40, 1, 8, 8), torch.arange(40) % 2)
    table = {"name": data, "mean": (0.5, 0.5, 0.5)}
    with pytest.raises(OptionError, match=r"mean of the recipe has 3 values.*1 channel"):
        hs.train("small_cnn", table, out=tmp_path / "run", epochs=1, device="cpu")


def test_a_model_with_three_means_asks_for_three_channels_of_grey_images(tmp_path):
    model = SmallCNN(channels=3, num_classes=2)
    model.preprocessing = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    with pytest.raises(OptionError, match=r"mean of the model has 3 values.*set channels = 3"):
        hs.train(model, coloured(1), out=tmp_path / "run", epochs=1, device="cpu")
    table = {"name": coloured(1), "channels": 3}
    done = hs.train(model, table, out=tmp_path / "run", epochs=1, device="cpu")
    assert (done.preprocessing.channels, len(done.preprocessing.mean)) == (3, 3)


def test_a_model_for_other_channels_is_refused_before_the_first_step(tmp_path):
    expected = r"SmallCNN cannot take images \[1, 8, 8\].*but got 1 channels.*set channels or size"
    with pytest.raises(ModelError, match=expected):
        hs.train(SmallCNN(channels=3), coloured(1), out=tmp_path / "run", epochs=1, device="cpu")


def test_a_model_that_fails_on_the_images_is_refused_in_words(tmp_path):
    class Strict(SmallCNN):
        def forward(self, images):
            if images.shape[-1] != 16:  # as the models of transformers do
                raise ValueError(f"Input image size {images.shape[-1]} doesn't match model (16)")
            return super().forward(images)

    with pytest.raises(ModelError, match=r"Strict cannot take images .*doesn't match model \(16\)"):
        hs.train(Strict(), coloured(1), out=tmp_path / "run", epochs=1, device="cpu")


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"size": (16, 16)}, r"16 x 16 pixels, but is trained on 8 x 8"),
        ({"size": (8, 8), "squash": True}, r"squash = True"),
        ({"size": (8, 8), "crop": 0.875}, r"crop = 0\.875"),
    ],
)
def test_a_model_that_is_trained_on_other_pictures_than_it_states_is_told_of(
    tmp_path, stated, said
):
    model = SmallCNN(num_classes=2)
    model.preprocessing = {"mean": (0.5,), "std": (0.25,), **stated}
    with pytest.warns(HardsightWarning, match=said):
        hs.train(model, coloured(1), out=tmp_path / "run", epochs=1, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", HardsightWarning)
        hs.train(
            model, {"name": coloured(1), **stated}, out=tmp_path / "two", epochs=1, device="cpu"
        )


def test_what_is_done_to_pictures_may_be_said_beside_the_data(tmp_path):
    options = {"size": (6, 6), "squash": True, "channels": 3, "white": 200.0, "classes": ["a", "b"]}
    for number, more in enumerate(({}, {"crop": 0.75})):
        given = {**options, **more}
        done = hs.train(
            "small_cnn", coloured_file(tmp_path), out=tmp_path / str(number), epochs=1,
            device="cpu", **given,
        )  # fmt: skip
        names = given.pop("classes")
        assert {key: getattr(done.preprocessing, key) for key in given} == given
        assert list(load_model(str(done.folder)).classes) == names
    floats = TensorDataset(torch.randint(0, 256, (40, 1, 8, 8)).float(), torch.arange(40) % 2)
    with pytest.raises(DataError, match="pass white=255"):
        hs.train("small_cnn", floats, out=tmp_path / "floats", epochs=1, device="cpu")
    hs.train("small_cnn", floats, white=255, out=tmp_path / "floats", epochs=1, device="cpu")


def test_training_on_from_the_folder_of_a_run_gives_a_folder_that_loads(tmp_path):
    settings = {"split": "test", "epochs": 1, "device": "cpu"}
    first = hs.train("small_cnn", "builtin:digits", out=tmp_path / "one", **settings)
    second = hs.train(str(first.folder), "builtin:digits", out=tmp_path / "two", **settings)
    loaded = load_model(str(second.folder))
    assert loaded.built_as == "small_cnn"
    assert second.preprocessing.mean == first.preprocessing.mean
    assert f"--model {second.folder} " in second.next_step


@pytest.fixture
def photos(tmp_path):
    """Pictures of three classes to train on, told apart by their brightness; two to test on."""
    for split, names in (("train", "cat dog fox"), ("test", "cat fox"), ("alien", "dog elk")):
        for number, name in enumerate(("cat", "dog", "fox", "elk")):
            folder = tmp_path / "photos" / split / name
            if name in names.split():
                folder.mkdir(parents=True)
                for picture in range(12):
                    pixels = np.random.default_rng(picture).integers(0, 20, (8, 8), dtype=np.uint8)
                    Image.fromarray(pixels + np.uint8(70 * number)).save(folder / f"{picture}.png")
    return tmp_path / "photos"


def test_a_split_that_lacks_a_class_keeps_the_labels_of_the_training_split(photos, tmp_path):
    options = {**FAST, "optimizer": {"name": "adam", "lr": 0.02}, "schedule": "constant"}
    done = hs.train("small_cnn", photos, split="train", test_split="test", out=tmp_path / "run",
                    epochs=12, track_test=True, **options)  # fmt: skip
    assert done.test["accuracy"] == 1.0
    examples = hs.read_table(done.tracked["test"] / "examples.parquet")
    assert set(examples.column("label").tolist()) == {0, 2}
    for classes in (None, ("cat", "dog", "fox")):
        table = hs.score(str(done.folder), photos, split="test", classes=classes)
        assert set(table.column("label").tolist()) == {0, 2}
        assert (table.column("label") == table.column("prediction")).all()
    quick = {"attack_examples": 0, "explain_examples": 0, "device": "cpu"}
    card = evaluation_card(str(done.folder), photos, split="test", **quick)
    assert card["models"][0]["accuracy"]["top1"]["value"] == 1.0
    with (
        pytest.warns(hs.errors.HardsightWarning, match="the model has 3 classes, the data names 2"),
        pytest.raises(hs.errors.LabelError, match=r"'fox' is label 2 in .* label 1 in"),
    ):
        evaluation_card(
            done.model, photos, split="test", train=photos, train_split="train", **quick
        )
    with pytest.raises(hs.errors.LabelError, match=r"'fox' is label 1 in .* 'more'"):
        hs.train("small_cnn", photos, split="train", out=tmp_path / "other", epochs=1,
                 track_on={"more": photos / "test"}, **FAST)  # fmt: skip


def test_a_split_of_other_classes_is_refused(photos, tmp_path):
    with pytest.raises(DataError, match=r"\(cat, dog, fox\), got dog, elk in .* pass data.classes"):
        hs.train("small_cnn", photos, split="train", test_split="alien", out=tmp_path / "r", **FAST)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda net: net.double(), "in float32, got torch.float64; pass model.float()"),
        (lambda net: net.bfloat16(), "in float32, got torch.bfloat16; pass model.float()"),
        (lambda net: net.requires_grad_(False), "requires a gradient, so nothing can learn"),
    ],
)
def test_a_model_that_cannot_learn_is_refused_before_it_is_trained(images, tmp_path, change, said):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(ModelError, match=said):
        hs.train(change(net), images, out=tmp_path / "run", epochs=1, **FAST)
    assert not (tmp_path / "run").exists()


def test_a_model_with_fewer_outputs_than_classes_is_refused_before_it_is_trained(images, tmp_path):
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    with pytest.raises(ModelError, match=r"3 outputs, one per class of .*images.npz, got 2"):
        hs.train(small, images, out=tmp_path / "run", **FAST)
    assert not (tmp_path / "run").exists()


def test_a_file_in_the_place_of_the_run_is_named(images, net, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(hs.errors.OutputError, match="file is not a folder; choose another --out"):
        hs.train(net, images, out=tmp_path / "file", **FAST)


def test_a_trained_model_is_taken_by_the_path_of_its_folder(images, tmp_path):
    first = hs.train("small_cnn", images, out=tmp_path / "first", epochs=1, **FAST)
    again = hs.train(first.folder, images, out=tmp_path / "again", epochs=1, **FAST)
    assert again.best_epoch == 1


RECORDS = "hardsight.run.train.engine._records"


@pytest.mark.parametrize(
    "where", [f"{RECORDS}.save_file", f"{RECORDS}.csv.DictWriter", "pyarrow.parquet.ParquetWriter"]
)
def test_a_disk_that_is_full_for_weights_metrics_or_examples_is_named(
    images, net, tmp_path, monkeypatch, where
):
    def full(*args, **kwargs):
        if where.endswith("save_file"):  # safetensors has an error of its own for it
            raise SafetensorError("Error while serializing: I/O error: No space left on device")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(where, full)
    with pytest.raises(hs.errors.OutputError, match=r"cannot write .*No space left .* --resume"):
        hs.train(net, images, out=tmp_path / "run", epochs=1, track=True, **FAST)


def test_a_disk_that_is_full_at_the_end_costs_no_training(images, net, tmp_path, monkeypatch):
    from hardsight.models import _known

    def full(*args, **kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_known, "save_file", full)
        with pytest.raises(hs.errors.OutputError, match=r"No space left .* --resume"):
            hs.train(net, images, out=tmp_path / "run", epochs=1, **FAST)
    done = hs.train(net, images, out=tmp_path / "run", epochs=1, resume=True, **FAST)
    assert (done.folder / "result.json").exists()


def test_examples_of_their_own_are_validated_on_after_every_epoch(tmp_path):
    train, test = (decoded(open_source("builtin:digits", split=s)) for s in ("train", "test"))
    done = hs.train(
        "small_cnn", train, out=tmp_path / "run", epochs=2, validation=test, select="last", **FAST
    )
    # every training example is trained on, and the held-out accuracy is that of the test split
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (content["train_examples"], content["validation_examples"]) == (len(train), len(test))
    card = hs.score(
        str(tmp_path / "run"), test, device="cpu", scores="model_confidence"
    ).to_pandas()
    right = (card["prediction"] == card["label"]).mean()
    assert done.history[-1]["val_accuracy"] == pytest.approx(right)
    with pytest.raises(ConfigError, match="validation and validation_split both"):
        hs.train(
            "small_cnn", train, out=tmp_path / "b", validation=test, validation_split="test", **FAST
        )
    with pytest.raises(RunMismatchError, match="other validation examples"):
        hs.train(
            "small_cnn", train, out=tmp_path / "run", epochs=2, validation=train, select="last",
            resume=True, **FAST,
        )  # fmt: skip


def test_the_normalisation_can_be_stated_in_python(images, net, tmp_path):
    done = hs.train(net, images, out=tmp_path / "run", epochs=1, mean=[0.25], std=[0.5], **FAST)
    assert (done.preprocessing.mean, done.preprocessing.std) == ((0.25,), (0.5,))


class Replays:
    """Does what a recorded step does on a GPU: writes to the tensors of the recording."""

    def __init__(self, passes, model, changed, update):
        self.count, self._passes, self._model, self._update = 0, passes, model, update
        kept = [(tensor, tensor.clone()) for tensor in changed]
        model.zero_grad(set_to_none=True)
        self.found = passes()
        self._gradients = {one: one.grad for one in model.parameters()}
        for buffer, value in kept:
            buffer.copy_(value)

    def replay(self):
        self.count += 1
        for one, gradient in self._gradients.items():
            assert one.grad is gradient  # nobody took it away
            one.grad = None
        for into, value in zip(self.found, self._passes(), strict=True):
            if into is not None:
                into.copy_(value)
        for one, gradient in self._gradients.items():
            gradient.copy_(one.grad)
            one.grad = gradient
        if self._update is not None:
            self._update()


@pytest.fixture
def replays(monkeypatch):
    """Recorded steps on a CPU; the list of what was recorded."""
    made = []

    def recorded(passes, model, changed, update):
        made.append(Replays(passes, model, changed, update))
        return made[-1].found, made[-1]

    monkeypatch.setattr("hardsight.run.train._capture.recorded", recorded)
    monkeypatch.setattr(
        "hardsight.run.train._train.records_steps", lambda config, _: bool(config.capture)
    )
    return made


def normed():
    torch.manual_seed(0)
    body = nn.Linear(5, 8, bias=False)  # batch norm would leave a bias without a gradient
    return nn.Sequential(body, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("term", ["cross_entropy", {"name": "amc", "weight": 0.5}])
def test_replayed_steps_train_like_plain_ones(term, vectors, tmp_path, replays):
    common = {**FAST, "epochs": 3, "loss": ["cross_entropy", term], "gradient_clip": 1.0}
    plain = hs.train(normed(), vectors, out=tmp_path / "a", **common)
    again = hs.train(normed(), vectors, out=tmp_path / "b", capture=True, **common)
    assert_nearly(weights(tmp_path / "a"), weights(tmp_path / "b"))
    for key in ("train_loss", "train_accuracy", "val_loss"):
        assert [row[key] for row in again.history] == pytest.approx(
            [row[key] for row in plain.history], rel=1e-5
        )
    (only,) = replays
    steps = json.loads((tmp_path / "b" / "result.json").read_text())["train_examples"] // 16
    assert only.count == 3 * steps - 1  # all but the first and the smaller rest of an epoch


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "one_cycle", "step", "gaussian_ramps"])
def test_replayed_steps_follow_every_optimizer_and_schedule(
    name, schedule, vectors, tmp_path, replays
):
    ramps = {"ramp_down_epochs": 1, "warmup_epochs": 1} if schedule == "gaussian_ramps" else {}
    common = {
        **FAST, "epochs": 3, "optimizer": {"name": name, "lr": 0.01},
        "schedule": {"name": schedule, **ramps},
    }  # fmt: skip
    hs.train(normed(), vectors, out=tmp_path / "a", **common)
    hs.train(normed(), vectors, out=tmp_path / "b", capture=True, **common)
    assert_nearly(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert replays


def test_a_recorded_run_goes_on_without_recording_and_the_reverse(
    vectors, tmp_path, replays, monkeypatch
):
    common = {**FAST, "optimizer": {"name": "adam"}, "schedule": "constant"}
    hs.train(normed(), vectors, out=tmp_path / "a", epochs=4, **common)
    for first, then in ((True, False), (False, True)):
        out = tmp_path / f"{first}"
        with monkeypatch.context() as patch:
            interrupted(
                patch, normed(), vectors, out, after_epochs=2, epochs=4, capture=first, **common
            )
        hs.train(normed(), vectors, out=out, epochs=4, capture=then, resume=True, **common)
        assert_nearly(weights(tmp_path / "a"), weights(out))


def test_replayed_steps_are_tracked_like_plain_ones(vectors, tmp_path, replays):
    common = {**FAST, "epochs": 3, "track": True}
    plain = hs.train(normed(), vectors, out=tmp_path / "a", **common).dynamics
    again = hs.train(normed(), vectors, out=tmp_path / "b", capture=True, **common).dynamics
    assert_frame_equal(again.to_pandas(), plain.to_pandas(), rtol=1e-4)


def test_a_loss_that_changes_with_time_is_recorded_again_when_it_has_come_to_rest(
    vectors, tmp_path, replays
):
    ramped = {"name": "cross_entropy", "weight": 2.0, "ramp": "linear", "ramp_epochs": 2}
    common = {**FAST, "epochs": 4, "loss": ["cross_entropy", ramped]}
    hs.train(normed(), vectors, out=tmp_path / "a", **common)
    hs.train(normed(), vectors, out=tmp_path / "b", capture=True, **common)
    assert_nearly(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert len(replays) == 2  # without and with the loss; its weight is read at every step


def test_a_bad_step_is_named_though_the_loss_of_a_recording_is_overwritten(
    tmp_path, replays, monkeypatch
):
    inputs = torch.randn(64, 5)
    inputs[9] = torch.nan
    data = TensorDataset(inputs, torch.arange(64) % 3)
    with pytest.raises(NonFiniteError, match="examples with logits that are not finite"):
        hs.train(normed(), data, out=tmp_path / "run", capture=True, epochs=2, **FAST)


def test_a_model_that_cannot_be_recorded_is_trained_step_by_step(vectors, tmp_path, monkeypatch):
    def recorded(passes, model, changed, update):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr("hardsight.run.train._capture.recorded", recorded)
    monkeypatch.setattr(
        "hardsight.run.train._train.records_steps", lambda config, _: bool(config.capture)
    )
    plain = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    again = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    again.load_state_dict(plain.state_dict())
    hs.train(plain, vectors, out=tmp_path / "a", epochs=1, **FAST)
    with pytest.warns(
        UserWarning, match=r"Sequential cannot be recorded \(operation not permitted"
    ):
        hs.train(again, vectors, out=tmp_path / "b", epochs=1, capture=True, **FAST)
    assert_nearly(weights(tmp_path / "a"), weights(tmp_path / "b"))


class Counts(nn.Sequential):
    """Counts its passes, as a layer with a schedule of its own does."""

    passes = 0

    def forward(self, inputs):
        self.passes += 1
        return super().forward(inputs)


class SkipsAtRandom(nn.Sequential):
    """Leaves out its middle by a draw on the CPU."""

    def forward(self, inputs):
        hidden = self[0](inputs)
        return self[2](self[1](hidden) if torch.rand(()) < 0.5 else hidden)


class Averages(nn.Sequential):
    """Puts another tensor in the place of a buffer: a replay would read the old one for ever."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, inputs):
        self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        return super().forward(inputs - self.mean)


class AveragesAside(Averages):
    """The same with a tensor that is no buffer."""

    def __init__(self, *layers):
        super().__init__(*layers)
        del self.mean
        self.mean = torch.zeros(5)


class Remembers(nn.Sequential):
    """Keeps what it has seen in a list."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.seen = ["nothing"]

    def forward(self, inputs):
        self.seen.append(inputs)
        return super().forward(inputs)


class RemembersTheLast(Remembers):
    """The list stays as long as it is."""

    def forward(self, inputs):
        self.seen[0] = inputs
        return nn.Sequential.forward(self, inputs)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Counts, "changes passes"),
        (SkipsAtRandom, "draws random numbers on the CPU"),
        (Averages, "changes mean"),
        (AveragesAside, "changes mean"),
        (Remembers, "changes seen"),
        (RemembersTheLast, "changes seen"),
    ],
)
def test_what_a_pass_changes_on_the_host_is_seen_and_undone(kind, why):
    model = kind(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    model.passes = 2
    before, drawn = HostState(model), torch.get_rng_state()
    held = {name: getattr(model, name) for name in ("mean", "seen") if hasattr(model, name)}
    model(torch.ones(4, 5))
    assert why in before.changed()
    before.put_back()
    assert model.passes == 2
    assert all(getattr(model, name) is value for name, value in held.items())
    assert held.get("seen", ["nothing"]) == ["nothing"]
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_plain_pass_changes_nothing_on_the_host():
    model = normed()
    before = HostState(model)
    model(torch.ones(4, 5))
    assert before.changed() == ""


def test_recorded_steps_need_a_gpu(images, net, tmp_path):
    with pytest.raises(ConfigError, match="records steps of a single CUDA device, got cpu"):
        hs.train(net, images, out=tmp_path / "run", capture=True, **FAST)
