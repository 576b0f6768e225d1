"""What every verb that writes a folder keeps to: one writer, the same settings, nothing lost.

Written against the public names: it does not know how a folder is made.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import hardsight as hs
from hardsight.cli import main
from hardsight.experiments import EXPERIMENTS, Claim, Result, experiment, run_experiment

ROOT = Path(__file__).parents[2]
QUICK = {
    "attack_examples": 0, "explain_examples": 0, "map_examples": 10, "feature_examples": 10,
    "device": "cpu",
}  # fmt: skip
NET = """
from torch import nn
def make(num_classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, num_classes))
"""


@dataclass(frozen=True)
class Verb:
    """One verb on small data.

    Attributes:
        run: from a folder and settings to what the verb returns.
        result: the file that holds its result.
        other: settings that decide the result, each with what is said about it.
        free: settings that do not.
    """

    run: Callable[..., Any]
    result: str
    other: dict[str, tuple[Any, str]]
    free: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Nothing:
    seeds: tuple[int, ...] = (0,)
    length: int = 1


@pytest.fixture(scope="module")
def verbs(tmp_path_factory):
    """Every verb by its name."""
    home = tmp_path_factory.mktemp("verbs")
    draw = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = draw.integers(0, 60, size=(60, 8, 8), dtype=np.uint8)
    images[np.arange(60), labels * 2] += 190
    np.savez(home / "images.npz", images=images, labels=labels)
    np.savez(home / "target.npz", images=255 - images, labels=labels)
    (home / "net.py").write_text(NET)
    net, data = f"{home / 'net.py'}:make", home / "images.npz"
    (home / "people.csv").write_text(
        "index,frequency\n" + "".join(f"{at},{at / 60:.3f}\n" for at in range(60))
    )
    shutil.copy(home / "people.csv", home / "moved.csv")
    scored = hs.score(net, data, out=home / "scored", device="cpu", thumbnails=0)
    hs.train(net, data, out=home / "tracked", epochs=4, device="cpu", track=True, thumbnails=0)

    def score(out, **settings):
        return hs.score(net, data, out=out, **{"device": "cpu", "batch_size": 20, **settings})

    def train(out, **settings):
        return hs.train(net, data, out=out, device="cpu", **{"epochs": 1, **settings})

    def folds(out, **settings):
        how = {"epochs": 1, "folds": 2, "thumbnails": 0, **settings}
        return hs.train(net, data, out=out, device="cpu", **how)

    def refit(out, **settings):
        how = {"labels": labels, "out_of_sample": 2, "device": "cpu", **settings}
        return hs.score(None, images.reshape(60, 64).astype(np.float32), out=out, **how)

    def adapt(out, **settings):
        how = {"rule": "source-only", "rounds": 1, "pretrain": 1, "device": "cpu", **settings}
        return hs.adapt(net, data, home / "target.npz", out=out, **how)

    def evaluate(out, **settings):
        return hs.evaluation_card(net, data, out=out, **{**QUICK, **settings})

    def human(out, *, human=home / "people.csv", **settings):
        return hs.study_human(scored, human, out=out, **settings)

    def degradation(out, **settings):
        how = {"noise": (0.0, 0.4), "contrast": (), "device": "cpu", **settings}
        return hs.study_degradation(net, data, out=out, **how)

    def dynamics(out, *, runs=(home / "tracked",), **settings):
        return hs.study_dynamics(runs, out=out, **{"examples": "train", **settings})

    def run_planted(out, **settings):
        length = settings.pop("length", 1)
        return run_experiment("contract", out=out, overrides=[f"length={length}"], **settings)

    @experiment(
        "contract", title="t", reproduces="r",
        scales={"smoke": _Nothing(), "short": _Nothing()},
    )  # fmt: skip
    def planted(lab, setting):
        """Nothing."""
        return Result(claims=[Claim("it runs", "", str(setting.length), True)])

    found = {
        "score": Verb(
            score, "table.parquet",
            {
                "batch_size": (30, "batch_size = 20 instead of 30"),
                "mean": ((0.4,), r"preprocessing\.mean = .* instead of \[0\.4\]"),
                "precision": ("bfloat16", "precision = 'float32' instead of 'bfloat16'"),
                "sample": ("in-sample", "sample = 'unknown' instead of 'in-sample'"),
                "scores": (["avh"], r"scores = \[.*\] instead of \['avh'\]"),
                "thumbnails": (5, "thumbnails = 600 instead of 5"),
            },
            {"workers": 0, "mean": (0.0,)},  # what it is without saying so
        ),
        "train": Verb(
            train, "result.json",
            {
                "epochs": (2, "epochs = 1 instead of 2"),
                "optimizer": ({"lr": 0.5}, r"optimizer\.lr = None instead of 0\.5"),
                "precision": ("bfloat16", "precision = 'float32' instead of 'bfloat16'"),
            },
            {"workers": 0, "resident": False},
        ),
        "folds": Verb(
            folds, "table.parquet",
            {
                "folds": (3, "folds = 2 instead of 3"),
                "epochs": (2, "epochs = 1 instead of 2"),
                "seed": (1, "seed = 0 instead of 1"),
            },
            {"workers": 0, "resident": False},
        ),
        "refit": Verb(
            refit, "table.parquet",
            {"out_of_sample": (3, "out_of_sample = 2 instead of 3"), "seed": (1, "seed = 0")},
        ),
        "adapt": Verb(
            adapt, "result.json",
            {"portion": (0.3, "portion = 0.2 instead of 0.3")}, {"workers": 0},
        ),
        "evaluate": Verb(
            evaluate, "card.json",
            {
                "validation_share": (0.3, "validation_share = 0.2 instead of 0.3"),
                "mean": ((0.4,), r"preprocessing\.mean = .* instead of \[0\.4\]"),
                "batch_size": (7, "batch_size = 64 instead of 7"),
            },
            {"workers": 0, "mean": (0.0,)},
        ),
        "human": Verb(
            human, "study.json", {"alpha": (0.1, "alpha = 0.05 instead of 0.1")},
            {"human": home / "moved.csv"},
        ),
        "degradation": Verb(
            degradation, "study.json",
            {
                "limit": (30, "limit = None instead of 30"),
                "noise": ((0.0, 0.2), r"noise = \[0\.0, 0\.4\] instead of \[0\.0, 0\.2\]"),
                "size": ((8, 6), r"size = None instead of \[8, 6\]"),
            },
            {"workers": 0},
        ),
        "dynamics": Verb(
            dynamics, "study.json",
            {"bins": ((0.0, 1.0), r"bins = \[.*\] instead of \[0\.0, 1\.0\]")},
            {"runs": (home / ".." / home.name / "tracked",)},
        ),
        "experiment": Verb(run_planted, "result.json", {"length": (2, "")}),
    }  # fmt: skip
    yield found
    EXPERIMENTS._specs.pop("contract")


NAMES = [
    "score", "train", "folds", "refit", "adapt", "evaluate", "human", "degradation", "dynamics",
    "experiment",
]  # fmt: skip
RESUMABLE = NAMES[:-1]


@pytest.fixture(scope="module")
def finished(verbs, tmp_path_factory):
    """A finished run of each verb, made once."""
    made = {}

    def run_of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "run"
            verbs[name].run(made[name])
        return made[name]

    return run_of


@pytest.fixture
def run(finished, tmp_path):
    """A finished run of a verb to do something to."""

    def copied(name):
        return Path(shutil.copytree(finished(name), tmp_path / "run"))

    return copied


def content(folder):
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def in_state(folder, state):
    """The same run, but in another state."""
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**manifest, "state": state}))
    return folder


# ------------------------------------------------------------------------- out of the data's way


def photos(folder):
    """Class folders of pictures in three grey values."""
    for name, grey in (("cat", 40), ("dog", 120), ("horse", 200)):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            Image.new("L", (8, 8), grey + number).save(folder / name / f"{number}.png")
    return folder


def verbs_on(net, data, other):
    """Every verb that reads pictures, from where it writes to what it returns."""
    quick = {"noise": (0.0, 0.4), "contrast": (), "device": "cpu"}
    adapting = {"rule": "source-only", "rounds": 1, "pretrain": 1, "device": "cpu"}
    return {
        "score": lambda out: hs.score(net, data, out=out, device="cpu"),
        "train": lambda out: hs.train(net, data, out=out, epochs=1, device="cpu"),
        "source": lambda out: hs.adapt(net, data, other, out=out, **adapting),
        "target": lambda out: hs.adapt(net, other, data, out=out, **adapting),
        "evaluate": lambda out: hs.evaluation_card(net, data, out=out, **QUICK),
        "foreign": lambda out: hs.evaluation_card(net, other, ood=data, out=out, **QUICK),
        "training": lambda out: hs.evaluation_card(net, other, train=data, out=out, **QUICK),
        "degradation": lambda out: hs.study_degradation(net, data, out=out, **quick),
    }


@pytest.mark.parametrize("inside", [".", "a-run", "dog/run"])
@pytest.mark.parametrize("name", sorted(verbs_on("", "", "")))
def test_a_run_does_not_become_a_class_of_the_data_it_reads(tmp_path, name, inside):
    (tmp_path / "net.py").write_text(NET)
    data, other = photos(tmp_path / "photos"), photos(tmp_path / "other")
    before = content(data)
    run = verbs_on(f"{tmp_path / 'net.py'}:make", data, other)[name]
    with pytest.raises(hs.errors.OptionError, match=r"photos.* is read as data.*another --out"):
        run(data / inside)
    assert content(data) == before
    assert sorted(path.name for path in data.iterdir()) == ["cat", "dog", "horse"]


def test_a_run_may_lie_beside_the_data_and_in_a_hidden_folder_of_it(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    data = photos(tmp_path / "photos")
    for out in (tmp_path / "photos-run", data / ".runs" / "first"):
        table = hs.score(f"{tmp_path / 'net.py'}:make", data, out=out, device="cpu")
        assert table.metadata["classes"] == ["cat", "dog", "horse"]


@pytest.mark.parametrize("name", ["data", "out"])
def test_an_empty_name_is_not_the_working_folder(tmp_path, monkeypatch, name):
    # such as --data "$PHOTOS" with a variable that is not set
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(photos(tmp_path / "photos"))
    named = {"data": str(tmp_path / "photos"), "out": str(tmp_path / "run"), name: ""}
    with pytest.raises(hs.errors.HardsightError, match="got an empty name"):
        hs.score(f"{tmp_path / 'net.py'}:make", named["data"], out=named["out"], device="cpu")
    assert sorted(os.listdir()) == ["cat", "dog", "horse"]


# ------------------------------------------------------------------------------ nothing is lost


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_run_is_not_overwritten_unasked(verbs, run, name):
    folder = run(name)
    before = content(folder)
    with pytest.raises(hs.errors.RunExistsError, match=r"holds a finished .*; choose another"):
        verbs[name].run(folder)
    assert content(folder) == before


@pytest.mark.parametrize("name", NAMES)
def test_overwriting_replaces_the_run_and_leaves_other_files(verbs, run, name):
    verb, folder = verbs[name], run(name)
    before = (folder / verb.result).read_bytes()
    (folder / "notes.txt").write_text("mine")
    setting, (value, _) = next(iter(verb.other.items()))
    verb.run(folder, overwrite=True, **{setting: value})
    assert (folder / verb.result).read_bytes() != before
    assert (folder / "notes.txt").read_text() == "mine"
    manifest = json.loads((folder / "run.json").read_text())
    assert manifest["state"] == "finished"
    assert verb.result in manifest["files"]
    assert all((folder / file).exists() for file in manifest["files"])


@pytest.mark.parametrize("how", [{}, {"overwrite": True}])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_others_in_the_place_of_the_result_is_left_alone(verbs, tmp_path, name, how):
    (tmp_path / verbs[name].result).write_text('{"mine": true}')
    with pytest.raises(hs.errors.RunExistsError, match="holds files that are not"):
        verbs[name].run(tmp_path, **how)
    assert content(tmp_path) == {verbs[name].result: b'{"mine": true}'}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("score", "refit")])
def test_a_run_of_another_verb_is_left_alone(verbs, run, name):
    folder = run("score")
    before = content(folder)
    for how in ({}, {"overwrite": True}):
        with pytest.raises(hs.errors.RunExistsError, match="holds a scored dataset, not a"):
            verbs[name].run(folder, **how)
    assert content(folder) == before


# ------------------------------------------------------------------------------ going on


@pytest.mark.parametrize("state", ["finished", "unfinished"])
@pytest.mark.parametrize("name", RESUMABLE)
def test_going_on_with_other_settings_is_refused_and_names_them(verbs, run, name, state):
    folder = in_state(run(name), state)
    before = content(folder)
    for setting, (value, said) in verbs[name].other.items():
        with pytest.raises(hs.errors.RunMismatchError, match=said):
            verbs[name].run(folder, resume=True, **{setting: value})
        assert content(folder) == before


@pytest.mark.parametrize("name", RESUMABLE)
def test_what_does_not_decide_the_result_may_change(verbs, run, name):
    verb, folder = verbs[name], run(name)
    before = content(folder)
    verb.run(folder, resume=True, **verb.free)
    assert content(folder) == before


@pytest.mark.parametrize("name", ["human", "degradation", "dynamics"])
def test_a_study_that_is_read_back_is_the_one_that_was_made(verbs, finished, tmp_path, name):
    made = verbs[name].run(tmp_path / "again")
    again = verbs[name].run(finished(name), resume=True)
    assert repr(again) == repr(made)  # NaN equals NaN here
    tables = [study.tables() for study in (made if isinstance(made, list) else [made])]
    assert tables == [study.tables() for study in (again if isinstance(again, list) else [again])]


def test_a_card_that_is_read_back_is_the_one_that_was_made(verbs, finished):
    folder = finished("evaluate")
    again = verbs["evaluate"].run(folder, resume=True)
    assert again == json.loads((folder / "card.json").read_text())


@pytest.mark.parametrize("name", RESUMABLE)
def test_going_on_and_replacing_at_once_is_refused(verbs, tmp_path, name):
    with pytest.raises(hs.errors.OptionError, match="leave one of them out"):
        verbs[name].run(tmp_path / "run", resume=True, overwrite=True)


@pytest.mark.parametrize("verb", ["score", "train", "evaluate", "study"])
def test_the_guide_lists_what_may_change(verb):
    guide = (ROOT / "docs" / "guides" / "robust-runs.md").read_text()
    row = next(line for line in guide.splitlines() if line.startswith(f"| `{verb}`"))
    room = importlib.import_module(f"hardsight.run.{verb}")
    assert set(re.findall(r"`(\w+)`", row.split("|")[2])) == set(room.MAY_CHANGE)


# ------------------------------------------------------------------------------ one writer


HOLD = """
import sys, time
from pathlib import Path
from hardsight.run_folder import held
with held(Path(sys.argv[1]) / ".lock"):
    print("held", flush=True)
    time.sleep(3600)  # as long as the tests of this module may take
"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """A folder that another process is writing to, and that process."""
    folder = tmp_path_factory.mktemp("busy")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout.readline() == "held\n"
    yield folder, process.pid
    process.kill()
    process.communicate()


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_that_another_process_writes_to_is_refused(verbs, busy, name):
    folder, pid = busy
    for how in ({}, {"overwrite": True}):
        with pytest.raises(hs.errors.RunLockedError, match=f"written to by process {pid} on .*; "):
            verbs[name].run(folder, **how)
    assert os.listdir(folder) == [".lock"]


@pytest.mark.parametrize("name", NAMES)
def test_a_verb_holds_its_folder_to_the_end_and_then_lets_go(verbs, tmp_path, name, monkeypatch):
    from hardsight.run_folder import RunFolder, held

    seen, finish = [], RunFolder.finish

    def finishing(self):
        with pytest.raises(hs.errors.RunLockedError), held(self.folder / ".lock"):
            pass
        seen.append(self.folder)
        finish(self)

    monkeypatch.setattr(RunFolder, "finish", finishing)
    verbs[name].run(tmp_path / "run")
    assert seen[-1] == tmp_path / "run"
    with held(tmp_path / "run" / ".lock"):
        pass


WAITING = """
import time
from pathlib import Path
from torch import nn
class Waiting(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.fc = nn.Linear(64, 3)
        nn.init.constant_(self.fc.weight, weight)
    def forward(self, x):
        here = Path(__file__).parent
        while list(here.glob("run/shards/rows-00000001*")) and not (here / "go").exists():
            time.sleep(0.01)
        return self.fc(x.flatten(1))
def first(): return Waiting(0.1)
def second(): return Waiting(0.2)
"""


@pytest.fixture
def owner(tmp_path, forks):
    """A process that scores with one of two models, and waits after its second shard."""
    np.savez(tmp_path / "i.npz", images=np.zeros((12, 8, 8), np.uint8), labels=np.arange(12) % 3)
    (tmp_path / "models.py").write_text(WAITING)
    words = ("score", "--model", f"{tmp_path / 'models.py'}:first", "--data",
             str(tmp_path / "i.npz"), "--out", str(tmp_path / "run"), "--batch-size", "2",
             "--shard-rows", "2", "--device", "cpu")  # fmt: skip
    process = forks.start("from hardsight.cli import main; main()", words=words)
    while not process.has_ended and not list(tmp_path.glob("run/shards/rows-00000001*")):
        time.sleep(0.01)
    assert not process.has_ended, process.stderr
    yield process
    process.kill()


def second_process(folder, *, model="second", **how):
    return hs.score(
        f"{folder / 'models.py'}:{model}", folder / "i.npz", out=folder / "run", batch_size=2,
        shard_rows=2, device="cpu", **how,
    )  # fmt: skip


def test_two_processes_with_the_same_new_folder_do_not_mix(owner, tmp_path):
    for how in ({}, {"resume": True}, {"overwrite": True}):
        said = f"is being written to by process {owner.pid} on .* score --model .*first"
        with pytest.raises(hs.errors.HardsightError, match=said):
            second_process(tmp_path, **how)
    (tmp_path / "go").touch()
    owner.wait()
    assert "12 rows" in owner.stdout
    table = hs.read_table(tmp_path / "run")
    assert len(table) == 12
    assert table.metadata["model"]["spec"].endswith("first")


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is a POSIX signal")
def test_a_killed_process_does_not_hold_its_folder(owner, tmp_path):
    owner.kill()
    (tmp_path / "go").touch()
    assert (tmp_path / "run" / ".lock").exists()  # left behind, and in nobody's way
    with pytest.raises(hs.errors.RunMismatchError, match="other model"):
        second_process(tmp_path, resume=True)
    assert len(second_process(tmp_path, model="first", resume=True)) == 12
    assert not (tmp_path / "run" / ".lock").exists()


# ------------------------------------------------------------------------------ reading


def test_the_table_of_a_run_is_read_from_its_folder(verbs, finished, tmp_path):
    assert len(hs.read_table(finished("score"))) == 60
    verbs["train"].run(tmp_path / "run", track=True)
    dynamics = hs.read_table(tmp_path / "run")
    assert "suspicion" in dynamics.scores
    assert dynamics.path == tmp_path / "run" / "dynamics.parquet"
    assert hs.write_report(tmp_path / "run") == tmp_path / "run" / "report.html"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train", r"training run without dynamics; train with `--set track=true`"),
        ("adapt", r"the files of `hardsight adapt`, which have no row per example"),
        ("evaluate", r"the files of `hardsight evaluate`, which have no row"),
        ("human", r"the files of `hardsight study`, which have no row"),
        ("experiment", r"the files of `hardsight experiment run`, which have no row"),
    ],
)
def test_a_run_without_a_table_says_what_it_is(finished, name, said):
    with pytest.raises(hs.errors.MissingDataError, match=said):
        hs.read_table(finished(name))


@pytest.mark.parametrize(
    ("name", "page"),
    [("score", "report.html"), ("adapt", "adapt.html"), ("evaluate", "card.html"),
     ("degradation", "study.md")],
)  # fmt: skip
def test_the_report_of_any_run_is_its_page(run, name, page):
    folder = run(name)
    for _ in range(2):
        assert hs.write_report(folder) == folder / page
    assert (folder / page).stat().st_size > 100


def test_the_report_of_an_experiment_is_there_already(finished):
    folder = finished("experiment")
    before = content(folder)
    assert hs.write_report(folder) == folder / "README.md"
    assert content(folder) == before
    refusal = "is an experiment, whose page has to stay beside"
    with pytest.raises(hs.errors.OptionError, match=refusal):
        hs.write_report(folder, title="Mine")


# ------------------------------------------------------------------------------ command line


@pytest.mark.parametrize(
    "words",
    ["score", "train", "adapt", "evaluate", "study human", "study degradation", "study dynamics",
     "experiment run", "report"],
)  # fmt: skip
def test_every_command_can_replace_what_it_wrote(words):
    said = CliRunner().invoke(main, [*words.split(), "--help"]).output
    assert "--overwrite" in said
    assert ("--resume" in said) == (words not in ("experiment run", "report"))


def test_the_command_line_replaces_a_card_only_when_told_to(run):
    folder = run("evaluate")
    words = [
        "evaluate", "hardsight.models:SmallCNN", "--data", "builtin:digits", "--split", "test",
        "--out", str(folder), "--attack-examples", "0", "--explain-examples", "0",
        "--map-examples", "10", "--feature-examples", "50",
    ]  # fmt: skip
    before = content(folder)
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 1
    assert "--overwrite" in refused.output
    assert content(folder) == before
    assert CliRunner().invoke(main, [*words, "--overwrite"]).exit_code == 0
    assert (folder / "card.json").read_bytes() != before["card.json"]
