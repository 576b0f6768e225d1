"""``--json`` of the commands that train, judge and decide: one value, which names what was made."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import hardsight as hs
from hardsight.cli import main
from tests.review.made import App

APART = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
RECIPE = """
model = "small_cnn"
out = "{folder}/run"
epochs = 1
batch_size = 32
device = "cpu"
track = true
track_test = true
[data]
name = "{folder}/stripes"
split = "train"
test_split = "test"
"""


def told(*words: object):
    """What a command prints for programs, which has to be all of its standard output."""
    done = CliRunner(**APART).invoke(main, [*(str(word) for word in words), "--json"])
    assert done.exit_code == 0, done.stdout + done.stderr
    return json.loads(done.stdout, parse_constant=pytest.fail)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    """Stripes in three classes to train on, to test with, and paler ones of another domain."""
    folder = tmp_path_factory.mktemp("stripes")
    draw = np.random.default_rng(0)
    labels = np.arange(60) % 3
    for split in ("train", "test", "pale"):
        noise, bright = (150, 40) if split == "pale" else (60, 150)
        pixels = draw.integers(0, noise, size=(60, 8, 8), dtype=np.uint8)
        for row, label in enumerate(labels):
            pixels[row, 2 * label : 2 * label + 3] += bright
            place = folder / "stripes" / split / "abc"[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[row]).save(place / f"{row}.png")
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder))
    return folder


@pytest.fixture(scope="module")
def trained(stripes):
    return told("train", stripes / "recipe.toml")


def test_training(trained, stripes):
    assert trained["out"] == str(stripes / "run")
    assert Path(trained["model"]).is_file()
    assert len(hs.read_table(trained["dynamics"])) == 60
    assert trained["best_epoch"] == 1
    assert [epoch["epoch"] for epoch in trained["history"]] == [1]
    assert 0 <= trained["test"]["accuracy"] <= 1


def test_training_by_folds(stripes):
    words = ("--folds", 2, "--set", "track=false", "--set", "track_test=false")
    made = told("train", stripes / "recipe.toml", "--out", stripes / "folds", *words)
    table = hs.read_table(made["table"])
    assert (made["rows"], made["accuracy"]) == (60, pytest.approx(table.accuracy()))
    assert len(made["folds"]) == 2


def test_adapting(trained, stripes):
    made = told(
        "adapt", "--model", stripes / "run", "--source", stripes / "stripes/train",
        "--target", stripes / "stripes/pale", "--out", stripes / "adapted", "--device", "cpu",
        "--rounds", 1, "--epochs", 1, "--batch-size", 32,
        "--rule", "cbst+avh", "--rule", "source-only",
    )  # fmt: skip
    assert Path(made["page"]).is_file()
    assert set(made["rules"]) == {"cbst+avh", "source-only"}
    (before, after) = made["rules"]["cbst+avh"]["accuracy"]  # of the model as it came, by round
    assert before == made["rules"]["source-only"]["accuracy"][0]
    assert 0 <= after <= 1
    # a target without labels has no accuracies, so a script needs the rest
    rule = made["rules"]["cbst+avh"]
    assert (Path(rule["model"]) / "model.safetensors").is_file()
    assert rule["selected"][0] is None
    assert rule["selected"][1] > 0


def test_evaluating(trained, stripes):
    made = told(
        "evaluate", stripes / "run", "--data", stripes / "stripes/test", "--attack-examples", 0,
        "--explain-examples", 0, "--out", stripes / "card", "--device", "cpu",
    )  # fmt: skip
    (model,) = made["models"]
    assert model["accuracy"]["n"] == 60
    assert model["accuracy"]["value"] == trained["test"]["accuracy"]
    assert json.loads(Path(made["card"]).read_text())["models"]


def test_studies(trained, stripes):
    rows = "\n".join(f"{index},{index / 60:.3f}" for index in range(60))
    (stripes / "people.csv").write_text(f"index,frequency\n{rows}\n")
    words = ("--data", stripes / "stripes/test", "--device", "cpu")
    told("score", "--model", stripes / "run", *words, "--out", stripes / "scores")
    for made in (
        told("study", "human", stripes / "scores", "--human", stripes / "people.csv",
             "--gallery", 0, "--out", stripes / "human"),
        told("study", "dynamics", stripes / "run", "--out", stripes / "dynamics"),
        told("study", "degradation", "--model", stripes / "run", *words, "--noise", "0,0.2",
             "--contrast", "1,0.5", "--out", stripes / "degradation"),
    ):  # fmt: skip
        assert Path(made["page"]).is_file()
        assert Path(made["study"]).is_file()
        assert made["tables"]
        for table in made["tables"]:
            assert all(len(row) == len(table["columns"]) for row in table["rows"])


def test_the_queue(trained, stripes):
    made = told(
        "queue", stripes / "run", "--data", stripes / "stripes/pale", "--budget", 5, "--out",
        stripes / "next.parquet", "--device", "cpu",
    )  # fmt: skip
    assert (made["rows"], made["of"], made["unreadable"]) == (5, 60, 0)
    assert len(hs.read_table(made["out"])) == 5


def test_a_patch_and_its_copy(trained, stripes):
    app = App(stripes / "run")
    assert app.decide(vars(app.example(4)), "relabel", 2).status_code == 200
    app.close()
    made = told("patch", "export", stripes / "run", "--out", stripes / "fixes.csv")
    assert (made["decisions"], made["out"]) == (1, str(stripes / "fixes.csv"))
    copy = stripes / "fixed"
    told("patch", "apply", made["out"], "--data", stripes / "stripes/train", "--out", copy)
    moved = hs.read_table(trained["dynamics"]).to_pandas().id[4].split("/")[-1]
    assert (copy / "c" / moved).is_file()
    assert len(list(copy.glob("*/*.png"))) == 60
