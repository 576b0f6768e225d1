"""The command line as a stranger meets it."""

from __future__ import annotations

import errno
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hardsight.experiments
from hardsight.cli import main
from hardsight.experiments import Claim, Result, Table
from hardsight.run.doctor import findings

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
COMMANDS = main.list_commands(click.Context(main))


@pytest.fixture
def run():
    def invoke(*args: object):
        return CliRunner().invoke(main, [str(arg) for arg in args])

    return invoke


@pytest.fixture
def embeddings(tmp_path):
    draw = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", draw.normal(size=(40, 6)).astype("f2"))
    np.save(tmp_path / "y.npy", np.arange(40) % 3)
    np.save(tmp_path / "w.npy", draw.normal(size=(3, 6)).astype("f4"))
    return [
        "--data", tmp_path / "x.npy", "--labels", tmp_path / "y.npy",
        "--class-weights", tmp_path / "w.npy",
    ]  # fmt: skip


def test_help_lists_every_command_and_a_first_step(run):
    text = run("--help").output
    assert "\\b" not in text
    assert "\n  hardsight report run " in text.replace("    hardsight", "  hardsight")
    for word in ("demo", "score", "report", "doctor", "Start here", "hardsight demo"):
        assert word in text


@pytest.mark.parametrize(
    "command",
    [*COMMANDS, "study human", "study degradation", "study dynamics", "experiment list",
     "experiment run"],
)  # fmt: skip
def test_every_command_explains_itself(run, command):
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 4
    assert "\\b" not in result.output


def test_python_m_hardsight_is_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "hardsight", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"hardsight, version {hardsight.__version__}\n"


def test_score_then_report(run, embeddings, tmp_path):
    scored = run("score", *embeddings, "--out", tmp_path / "run", "--classes", "a,b,c")
    assert scored.exit_code == 0, scored.output
    assert "40 rows" in scored.output
    assert f"next: hardsight report {tmp_path / 'run'}" in scored.output
    reported = run("report", tmp_path / "run")
    assert reported.exit_code == 0, reported.output
    page = (tmp_path / "run" / "report.html").read_text()
    assert "avh" in page.lower()


def test_a_folder_with_a_colon_is_not_an_address(run, embeddings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["score", *embeddings, "--out", "run:1"], ["report", "run:1"]):
        result = run(*words)
        assert result.exit_code == 0, result.output
    assert len(hardsight.read_table("run:1")) == 40


def test_a_parquet_file_with_a_colon_is_not_an_address(run, embeddings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"embedding": list(np.load("x.npy")), "label": np.load("y.npy")})
    pq.write_table(rows, tmp_path / "mine:v2.parquet")
    result = run("score", "--data", "mine:v2.parquet", "--class-weights", "w.npy", "--out", "run")
    assert result.exit_code == 0, result.output
    assert "40 rows" in result.output


@pytest.mark.parametrize("name", ["[/b]", "[red]run", "a b", "back\\slash\\"])
def test_a_folder_is_printed_as_it_is_called(run, embeddings, tmp_path, name):
    scored = run("score", *embeddings, "--out", tmp_path / name)
    assert scored.exit_code == 0, scored.output
    assert f" -> {tmp_path / name / 'table.parquet'}\n" in scored.output
    step = next(line for line in scored.output.splitlines() if line.startswith("next: hardsight"))
    reported = run(*shlex.split(step)[2:])
    assert reported.exit_code == 0, reported.output
    assert (tmp_path / name / "report.html").exists()


def test_evaluate_writes_a_card_and_says_where(run, tmp_path):
    result = run(
        "evaluate", "hardsight.models:SmallCNN", "--data", "builtin:digits", "--split", "test",
        "--out", tmp_path / "card", "--attack-examples", 0, "--explain-examples", 2,
        "--map-examples", 10, "--feature-examples", 50,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "hardsight.models:SmallCNN: accuracy" in result.output
    assert "n 449" in result.output
    names = {file.name for file in (tmp_path / "card").iterdir()}
    assert names == {"card.json", "card.html", "run.json"}
    assert "next: open it in a browser: file://" in result.output


def test_a_config_file_with_overrides(run, embeddings, tmp_path):
    lines = [f'{key[2:].replace("-", "_")} = "{value}"' for key, value in
             zip(embeddings[::2], embeddings[1::2], strict=True)]  # fmt: skip
    (tmp_path / "c.toml").write_text("\n".join([*lines, 'out = "unused"', "seed = 1"]))
    result = run("score", tmp_path / "c.toml", "--set", "seed=5", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert hardsight.read_table(tmp_path / "run").metadata["seed"] == 5


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["scor"], 2, "unknown command 'scor'. Did you mean 'score'?"),
        (["score"], 2, "name the data: --data photos/"),
        (["score", "--data", "builtin:digits"], 2, "name the output folder: --out run"),
        (["score", "--data", "nowhere", "--out", "OUT"], 2, "nowhere"),
        (["score", "--data", "builtin:digit", "--out", "OUT"], 2, "Did you mean 'builtin:digits'"),
        (["score", "--data", "builtin:digits", "--out", "OUT"], 2, "images and texts need a model"),
        (["score", "--data", "x", "--out", "OUT", "--size", "big"], 2, "expected 224 or 224x160"),
        (["score", "--data", "x", "--out", "OUT", "--mean", "a"], 2, "expected numbers such as"),
        (["score", "nothing.toml"], 2, "no config file at nothing.toml"),
        (["report", "nowhere"], 2, "no score table at nowhere"),
        (
            ["score", "--data", "builtin:digits", "--out", "OUT", "--model", "nowhere"],
            2,
            "cannot tell what model 'nowhere' is",
        ),
        (
            ["score", "--data", "builtin:digits", "--out", "OUT", "--model", "smal_cnn"],
            2,
            "Did you mean 'small_cnn'",
        ),
        (["evaluate", "a.py:b", "--out", "OUT"], 2, "Missing option '--data'"),
        (["evaluate", "a.py:b", "--data", "nowhere", "--out", "OUT"], 2, "nowhere"),
        (
            ["evaluate", "a.py:b", "--data", "x", "--out", "OUT", "--epsilons", "1/0"],
            2,
            "expected numbers such as 0,1/255,0.03",
        ),
        (
            [
                "evaluate",
                "hardsight.models:SmallCNN",
                "--data",
                "builtin:digits",
                "--split",
                "test",
                "--out",
                "OUT",
                "--epsilons",
                "0,8/255",
            ],
            2,
            "pass --mean and --std",
        ),
    ],
)
def test_wrong_usage_says_what_to_do_and_exits_2(run, tmp_path, args, code, message):
    result = run(*[tmp_path / "run" if arg == "OUT" else arg for arg in args])
    assert message in result.output
    assert result.exit_code == code
    assert "Traceback" not in result.output
    assert not (tmp_path / "run").exists()


def test_an_unknown_key_in_a_config_is_named_with_its_neighbour(run, tmp_path):
    (tmp_path / "c.toml").write_text('data = "x"\nbatchsize = 3\n')
    result = run("score", tmp_path / "c.toml")
    assert result.exit_code == 2
    assert "unknown key 'batchsize'. Did you mean 'batch_size'?" in result.output
    result = run("score", "--data", "x", "--out", "y", "--set", "batch_size=many")
    assert "expected batch_size to be int, got 'many'" in result.output
    result = run("score", "--data", "x", "--out", "y", "--set", "batch_size")
    assert "expected KEY=VALUE, got 'batch_size'" in result.output


def test_a_failed_run_exits_1(run, embeddings, tmp_path):
    np.save(tmp_path / "w.npy", np.ones((3, 9), "f4"))
    result = run("score", *embeddings, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "as wide as the embeddings" in result.output
    assert not (tmp_path / "run").exists()


def test_an_unknown_score_exits_2_with_the_nearest_name(run, embeddings, tmp_path):
    result = run("score", *embeddings, "--out", tmp_path / "run", "--scores", "avh,entropi")
    assert result.exit_code == 2
    assert "unknown score 'entropi'. Did you mean 'entropy'?" in result.output


def test_a_pickle_with_code_as_weights_is_refused_and_never_runs(run, tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    (tmp_path / "w.pt").write_bytes(pickle.dumps({"a": Evil()}))
    result = run(
        "score", "--model", "hardsight.models:SmallCNN", "--weights", tmp_path / "w.pt",
        "--data", "builtin:digits", "--out", tmp_path / "run",
    )  # fmt: skip
    assert result.exit_code == 1
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "run").exists()
    assert "Error:" in result.output


LEAVES = """
import sys
from torch import nn

class Net(nn.Sequential):
    passes = 0

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, images):
        type(self).passes += 1
        if type(self).passes > {after}:
            sys.exit(0)
        return super().forward(images)
"""


@pytest.mark.parametrize("after", [0, 5])
@pytest.mark.parametrize("verb", ["score", "evaluate", "degradation", "train", "adapt"])
def test_a_model_that_leaves_python_does_not_end_with_success(run, tmp_path, verb, after):
    (tmp_path / "net.py").write_text(LEAVES.format(after=after))
    (tmp_path / "r.toml").write_text(
        f'model = "{tmp_path}/net.py:Net"\nout = "{tmp_path}/run"\nepochs = 1\ndevice = "cpu"\n'
        '[data]\nname = "builtin:digits"\nsplit = "test"\n'
    )
    net, out = f"{tmp_path}/net.py:Net", ["--out", f"{tmp_path}/run", "--device", "cpu"]
    data = ["--data", "builtin:digits", "--split", "test"]
    words = {
        "score": ["score", "--model", net, *data, *out],
        "evaluate": ["evaluate", net, *data, *out],
        "degradation": ["study", "degradation", "--model", net, *data, *out],
        "train": ["train", f"{tmp_path}/r.toml"],
        "adapt": ["adapt", "--model", net, "--source", "builtin:digits", "--source-split", "train",
                  "--target", "builtin:digits", "--target-split", "test", *out],
    }  # fmt: skip
    result = run(*words[verb])
    assert result.exit_code == 1
    assert "SystemExit" in result.output
    assert "Traceback" not in result.output


def test_interrupting_says_how_to_continue(run, embeddings, tmp_path, monkeypatch):
    from hardsight.table import RunFolder

    def interrupted(*args, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write_shard", interrupted)
    result = run("score", *embeddings, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "continue with the same command and --resume" in result.output


def test_doctor_names_missing_parts_and_how_to_install_them(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab", None)  # makes the import fail as if it were absent
    result = run("doctor")
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    for word in ("torch", "pyarrow", "cpu", "threads"):
        assert word in words
    assert "hardsight[experiments]" in words.replace(" ", "")


def test_a_part_whose_import_warns_is_found_whole(tmp_path, monkeypatch):
    package = tmp_path / "elderly"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import elderly.inner\nimport warnings\nwarnings.warn('old', DeprecationWarning)\n"
    )
    (package / "inner.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    parts = [("", {"elderly": "a test"})]
    monkeypatch.setattr("hardsight.run.doctor._PARTS", parts)
    (part,) = [found for found in findings() if found.part == "elderly"]
    assert (part.ok, part.found) == (True, "found")
    assert sys.modules.pop("elderly").inner is sys.modules.pop("elderly.inner")


def test_doctor_promises_no_command_and_no_part_that_is_not_there(monkeypatch):
    def absent(name, *args):
        if name in ("torch", "hardsight"):
            return plain(name, *args)
        looked_for.append(name)
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    plain, looked_for = importlib.import_module, []
    monkeypatch.setattr(importlib, "import_module", absent)
    parts = [found for found in findings() if found.step.startswith("pip install")]
    assert len(parts) == len(looked_for) > 10
    folder = Path(hardsight.__file__).parent
    code = "".join(file.read_text() for file in folder.rglob("*.py") if file.name != "doctor.py")
    for module, part in zip(looked_for, parts, strict=True):
        for command in re.findall(r"hardsight (\w+)", part.purpose):
            assert command in COMMANDS, part.purpose
        assert re.search(rf"(import|from) {module}\b|\"{module}[\".]", code), module
        for extra in re.findall(r"hardsight\[(\w+)\]", part.step):
            assert re.search(rf"^{extra} = ", PROJECT.read_text(), re.M), part.step


def test_evaluate_finds_named_datasets_below_a_root(run, tmp_path):
    missing = run("evaluate", "small_cnn", "--data", "mnist", "--split", "test", "--data-root",
                  tmp_path / "nowhere", "--out", tmp_path / "card")  # fmt: skip
    assert missing.exit_code == 2
    assert "nowhere; the data root is the one above mnist/" in missing.output


def test_what_an_experiment_says_is_printed_as_it_is(run, tmp_path, monkeypatch):
    table = Table("[bold]?", ("[a]",), [("[b] 1",)], note="in [pixels]")
    claim = Claim("in [brackets]", "", "[seen]", True)
    monkeypatch.setattr(
        hardsight.experiments, "run_experiment", lambda *_, **__: Result([table], [claim])
    )
    result = run("experiment", "run", "el-table1", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for text in ("[bold]?", "[a]", "[b] 1", "in [pixels]", "holds: in [brackets] ([seen])"):
        assert text in result.output


def test_a_model_without_weights_is_mentioned(run, tmp_path):
    result = run(
        "score", "--model", "hardsight.models:SmallCNN", "--data", "builtin:digits",
        "--split", "test", "--out", tmp_path / "run",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "no --weights were given: the model was scored as made by" in result.output


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "work in a copy of your own"),
        (errno.EROFS, "work in a copy of your own"),
        (errno.ENOSPC, "free some space and run again"),
    ],
)
def test_what_the_system_refuses_is_one_line(run, monkeypatch, embeddings, tmp_path, number, said):
    def refused(*args, **options):
        raise OSError(number, os.strerror(number), "theirs.npy")

    monkeypatch.setattr("hardsight.run.score.run_score", refused)
    result = run("score", *embeddings, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert f"theirs.npy: {os.strerror(number)}" in result.output
    assert said in result.output
    assert "Traceback" not in result.output
    verbose = run("score", *embeddings, "--out", tmp_path / "run", "--verbose")
    assert "Traceback" in verbose.output


@pytest.mark.parametrize("flag", ["data", "model"])
def test_a_flag_that_only_a_recipe_has_is_explained(run, tmp_path, flag):
    (tmp_path / "r.toml").write_text('model = "small_cnn"\ndata = "builtin:digits"\n')
    result = run("train", tmp_path / "r.toml", f"--{flag}", "x")
    assert result.exit_code == 2
    assert f"""the recipe says it, as {flag}.name; --set '{flag}.name="..."'""" in result.output
    assert "Did you mean" not in result.output
    changed = run(
        "train", tmp_path / "r.toml", "--set", f'{flag}.name="x"', "--out", tmp_path / "o"
    )
    assert changed.exit_code == 2
    assert "x" in changed.output


@pytest.mark.parametrize("body", ["raise SystemExit(0)", "def make():\n    import sys; sys.exit()"])
def test_a_model_file_that_ends_the_program_is_a_failure(run, tmp_path, body):
    (tmp_path / "net.py").write_text(body)
    out = ("--data", "builtin:digits", "--split", "test", "--out", tmp_path / "run")
    result = run("score", "--model", f"{tmp_path / 'net.py'}:make", *out)
    assert result.exit_code == 1, result.output
    assert "SystemExit" in result.output
    assert not (tmp_path / "run").exists()


FIFTEEN = "the model has 15 classes, the data names 10: is it the model of this data?"


@pytest.mark.parametrize(
    "words",
    [
        ("score", "--model"),
        ("evaluate", "--explain-examples", "0", "--attack-examples", "0", "--map-examples", "10"),
    ],
)
def test_a_model_of_more_classes_than_the_data_is_mentioned_once(run, tmp_path, words):
    data = ("--data", "builtin:digits", "--split", "test")
    result = run(*words, "small_cnn:num_classes=15", *data, "--out", tmp_path / "wide")
    assert result.exit_code == 0, result.output
    assert result.output.count(FIFTEEN) == 1
    result = run(*words, "small_cnn", *data, "--out", tmp_path / "fitting")
    assert "the data names" not in result.output
