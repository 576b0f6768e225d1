"""``hardsight train`` as a stranger meets it."""

from __future__ import annotations

import json
import shlex
import signal

import numpy as np
import pytest
from click.testing import CliRunner

import hardsight as hs
from hardsight.cli import main

RECIPE = """
model = "small_cnn"
out = "{out}"
epochs = 2
batch_size = 256
device = "cpu"
[data]
name = "builtin:digits"
split = "train"
test_split = "test"
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE.format(out=tmp_path / "run"))
    return tmp_path / "recipe.toml"


def run(*args: object):
    return CliRunner().invoke(main, ["train", *[str(arg) for arg in args]])


def test_a_recipe_ends_with_the_model_and_the_next_command(recipe, tmp_path):
    done = run(recipe)
    assert done.exit_code == 0, done.output
    assert "of 2 selected: train loss" in done.output
    assert "test accuracy" in done.output
    assert "of 449 examples (test)" in done.output
    assert f"model -> {tmp_path / 'run' / 'model.safetensors'}" in done.output
    step = next(line for line in done.output.splitlines() if line.startswith("next: "))
    words = step.removeprefix("next: hardsight ").split()
    scored = CliRunner().invoke(main, [*words, "--device", "cpu"])
    assert scored.exit_code == 0, scored.output
    assert "449 rows" in scored.output


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("setting", "said"),
    [("loss=amc", "the head is not trained"), ("freeze_body=true", "freeze_body keeps a body")],
)
def test_what_is_not_trained_is_said_in_one_line(recipe, setting, said):
    done = run(recipe, "--epochs", 1, "--set", setting)
    assert done.exit_code == 0, done.output
    assert done.output.count(said) == 1
    assert ".py" not in done.output.partition(said)[0]


@pytest.mark.filterwarnings("default")
def test_what_plays_no_part_is_said_in_one_line_before_the_result(recipe):
    done = run(recipe, "--epochs", 1, "--set", "thumbnails=3")
    assert done.exit_code == 0, done.output
    told, _, result = done.output.partition("thumbnails plays no part without track = true\n")
    assert "selected: train loss" in result
    assert ".py" not in told


def test_a_folder_is_printed_as_it_is_called(recipe, tmp_path):
    folder = tmp_path / "[/b] [red]"
    done = run(recipe, "--epochs", 1, "--set", "track=true", "--out", folder)
    assert done.exit_code == 0, done.output
    assert f" -> {folder / 'dynamics.parquet'}\n" in done.output
    assert f"model -> {folder / 'model.safetensors'}\n" in done.output
    for what, verb in (("look at them", "report"), ("fix their labels", "review")):
        assert f"{what}: hardsight {verb} {shlex.quote(str(folder))}\n" in done.output


def test_a_folder_with_a_colon_is_not_an_address(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracked = ["--set", "track=true", "--set", "track_test=true"]
    done = run(recipe, "--epochs", 2, *tracked, "--out", "run:1")
    assert done.exit_code == 0, done.output
    for words in (["report", "run:1"], ["study", "dynamics", "run:1"]):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output


def test_flags_and_overrides_go_over_the_recipe(recipe, tmp_path):
    changes = ["--set", "optimizer.lr=0.01", "--epochs", 1, "--out", tmp_path / "other"]
    done = run(recipe, *changes, "--seed", 3)
    assert done.exit_code == 0, done.output
    stored = (tmp_path / "other" / "recipe.json").read_text()
    assert '"lr": 0.01' in stored
    assert '"seed": 3' in stored
    again = run(recipe, *changes)
    assert again.exit_code == 1
    assert "holds a finished training run" in again.output


def test_the_data_root_is_a_flag(recipe, tmp_path):
    done = run(recipe, "--set", "data.name=svhn", "--data-root", tmp_path / "no'where")
    assert done.exit_code == 2
    assert "no'where; the data root is the one above" in done.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epohcs=3", "unknown key 'epohcs'. Did you mean 'epochs'?"),
        ("model=resnet19", "Did you mean 'resnet18'?"),
        ("device=warp", "device 'warp' cannot be used here"),
    ],
)
def test_a_mistake_is_one_line(recipe, change, message):
    done = run(recipe, "--set", change)
    assert done.exit_code in (1, 2)
    assert message in done.output
    assert "Traceback" not in done.output


def test_a_missing_recipe_is_named(tmp_path):
    done = run(tmp_path / "none.toml")
    assert done.exit_code == 2
    assert "no config file at" in done.output


def test_an_interrupt_says_how_to_continue(recipe, tmp_path, monkeypatch):
    from hardsight.run.train.engine import TrainModule

    before = signal.getsignal(signal.SIGINT)

    def interrupted(self, batch, batch_idx):
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainModule, "training_step", interrupted)
    done = run(recipe)
    assert done.exit_code == 1
    assert f"interrupted; continue with: hardsight train {recipe} --resume" in done.output
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    resumed = run(recipe, "--resume")
    assert resumed.exit_code == 0, resumed.output


def test_being_told_to_end_is_an_interrupt_and_no_fault_of_the_model(recipe, monkeypatch):
    from hardsight.run.train.engine import TrainModule

    step = TrainModule.training_step

    def told_to_end(self, batch, batch_idx):  # as by a cluster that wants its machine back
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        signal.raise_signal(signal.SIGTERM)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(TrainModule, "training_step", told_to_end)
    done = run(recipe)
    assert done.exit_code == 1
    assert f"interrupted; continue with: hardsight train {recipe} --resume" in done.output
    monkeypatch.undo()
    assert run(recipe, "--resume").exit_code == 0


def test_the_command_that_continues_has_the_options_of_the_one_interrupted(
    recipe, tmp_path, monkeypatch
):
    from hardsight.run.train.engine import TrainModule

    def interrupted(self, batch, batch_idx):
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainModule, "training_step", interrupted)
    out = tmp_path / "my run"
    done = run(recipe, "--out", out, "--seed", "3", "--set", "optimizer.lr=0.01")
    command = shlex.split(done.output.partition("continue with: hardsight train ")[2])
    monkeypatch.undo()
    resumed = run(*command)
    assert resumed.exit_code == 0, resumed.output
    config = json.loads((out / "recipe.json").read_text())["config"]
    assert (config["seed"], config["optimizer"]["lr"]) == (3, 0.01)
    typed = shlex.split(resumed.output.partition("next: ")[2])
    assert typed[typed.index("--model") + 1] == str(out)


def test_the_weights_of_a_run_score_as_the_run_itself_does(recipe, tmp_path):
    assert run(recipe, "--set", "data.mean=[0.9]", "--set", "data.std=[0.05]").exit_code == 0
    common = ["--data", "builtin:digits", "--split", "test", "--device", "cpu", "--out"]
    folder = ["--model", str(tmp_path / "run")]
    weights = ["--model", "small_cnn", "--weights", str(tmp_path / "run" / "model.safetensors")]
    tables = []
    for number, words in enumerate((folder, weights)):
        out = tmp_path / f"scores-{number}"
        done = CliRunner().invoke(main, ["score", *words, *common, str(out)])
        assert done.exit_code == 0, done.output
        assert ("model.json describes the weights" in done.output) == (words is weights)
        tables.append(hs.read_table(out))
    one, two = tables
    assert two.metadata["preprocessing"]["mean"] == [0.9]
    assert "model.json describes" in two.metadata["model"]["weights"]
    np.testing.assert_array_equal(one.column("avh"), two.column("avh"))
