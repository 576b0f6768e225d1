"""What all commands share: loudness, JSON, examples, completion, exit codes, one vocabulary."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import shlex
from inspect import signature
from logging.handlers import BufferingHandler
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pytest
from click.testing import CliRunner

import hardsight as hs
import hardsight.run.score
from hardsight.cli import main
from hardsight.errors import ConfigError
from hardsight.run.doctor import Finding
from hardsight.run.loop import progress

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location(
    "options", ROOT / "docs" / "_build_tools" / "options.py"
)
options = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(options)

COMMANDS = options.commands()
WITHOUT_JSON = {"demo", "review"}  # a story, and a page


# what click 8.2 always does, and has no name for any more
APART = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}


def run(*words, code=0, **named):
    """What a command prints: on standard output, on standard error, and in all."""
    done = CliRunner(**APART).invoke(main, [str(word) for word in words], **named)
    output = done.stdout + done.stderr
    assert done.exit_code == code, output
    return SimpleNamespace(stdout=done.stdout, stderr=done.stderr, output=output)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Flags that name 40 stored embeddings, and the folder of a run over them."""
    folder = tmp_path_factory.mktemp("shared")
    draw = np.random.default_rng(0)
    np.save(folder / "x.npy", draw.normal(size=(40, 6)).astype("f4"))
    np.save(folder / "y.npy", np.arange(40) % 3)
    np.save(folder / "w.npy", draw.normal(size=(3, 6)).astype("f4"))
    words = ["score", "--data", folder / "x.npy", "--labels", folder / "y.npy",
             "--class-weights", folder / "w.npy"]  # fmt: skip
    run(*words, "--out", folder / "run")
    return words, folder / "run"


ON_RANKS = {"train", "doctor"}  # processes train together, and each has devices to look for


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - ON_RANKS))
def test_a_command_that_one_process_does_is_refused_to_several(name, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ["hardsight", *name.split()]
    context = None
    for word in words:
        context = click.Context(main, info_name=word, parent=context)
    with pytest.raises(
        ConfigError,
        match=f"a launcher started 2 processes, and `{' '.join(words)}` is done by one "
        "process; start it alone, with RANK and WORLD_SIZE unset",
    ):
        COMMANDS[name].invoke(context)


def test_scoring_on_ranks_ends_at_once_with_the_engine_for_many_machines(scored, monkeypatch):
    words, folder = scored
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    said = run(*words, "--out", folder.with_name("ranks"), code=2).stderr
    assert "torchrun started 2 processes, and `hardsight score` is done by one process" in said
    assert "start it without torchrun, or spread the work by --engine ray" in said
    assert not folder.with_name("ranks").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_quiet_verbose_and_read_by_programs(name):
    flags = {flag for option in COMMANDS[name].params for flag in option.opts}
    assert {"-q", "--quiet", "-v", "--verbose"} <= flags
    assert ("--json" in flags) == (name not in WITHOUT_JSON)


def examples_of(command) -> list[list[str]]:
    lines = (command.epilog or "").replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.strip().startswith("hardsight ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_ends_with_examples_that_the_command_takes(name):
    examples = examples_of(COMMANDS[name])
    assert any(words[: len(name.split())] == name.split() for words in examples)
    for words in examples:
        context, command = click.Context(main), main
        while isinstance(command, click.Group):
            command, words = command.get_command(context, words[0]), words[1:]
        command.make_context(command.name, list(words))  # wrong usage raises


def commands_of(page: str) -> list[list[str]]:
    """The words after ``$ hardsight`` in the console blocks of a page, without comments."""
    blocks = re.findall(r"^ *```console\n(.*?)```", page, re.M | re.S)
    lines = re.sub(r"\\\n\s*", " ", "".join(blocks)).splitlines()
    typed = [line.partition("$ ")[2] for line in lines]
    return [shlex.split(line, comments=True)[1:] for line in typed if line.startswith("hardsight ")]


def test_every_command_on_a_page_is_one_that_the_program_takes():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    typed = [words for page in pages for words in commands_of(page.read_text(encoding="utf-8"))]
    assert len(typed) > 60
    for words in typed:
        context, command = click.Context(main), main
        while isinstance(command, click.Group):
            command, words = command.get_command(context, words[0]), words[1:]
        command.make_context(command.name, list(words))  # wrong usage raises


def test_an_example_that_the_command_does_not_take_is_found():
    with pytest.raises(click.NoSuchOption):
        COMMANDS["report"].make_context("report", ["run", "--no-such-flag"])


LONG = ["score", "evaluate", "adapt", "queue", "study degradation"]


@pytest.mark.parametrize("name", LONG)
def test_a_long_help_has_sections(name):
    said = run(*name.split(), "--help-all").output
    headings = re.findall(r"^([A-Z][^\n]*):$", said, re.M)
    assert headings[0] == "Options"
    assert {"Data", "Pictures", "The run"} <= set(headings)
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", said, re.M)
    shown = [flag for option in COMMANDS[name].params for flag in option.opts
             if flag.startswith("--")]  # fmt: skip
    assert sorted(listed) == sorted([*shown, "--help", "--help-all"])  # each option once


@pytest.mark.parametrize("name", ["", "study", "patch", "experiment", "cache", *COMMANDS])
def test_a_help_fits_a_screen_and_ends_with_an_example(name):
    said = run(*name.split(), "--help", env={"COLUMNS": "80"}).output
    lines = said.rstrip().splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    last = said.replace("\\\n", " ").rstrip().splitlines()[-1]
    assert last.strip().startswith("hardsight ")
    if name not in COMMANDS:
        return
    words = set(re.findall(r"--[\w-]+", re.sub(r"-\n\s+", "-", said)))
    assert ("--help-all" in words) == ("More options" in said)
    for option in COMMANDS[name].params:  # each is at least named
        assert option.param_type_name != "option" or option.hidden or words & set(option.opts)


def test_a_sentence_of_the_short_help_has_whole_brackets():
    said = run("adapt", "--help", terminal_width=100).output
    whole = r"--source-epochs .* Epochs on the source \(10; 0 for a trained model\)\n"
    assert re.search(whole, said)
    assert re.search(r"--epochs .* Epochs of every round \(2\)\n", said)


def test_results_as_json(scored, tmp_path):
    words, folder = scored
    told = json.loads(run(*words, "--out", tmp_path / "again", "--json").stdout)
    table = hs.read_table(folder)
    assert told["rows"] == 40
    assert told["accuracy"] == pytest.approx(table.accuracy())
    assert told["scores"] == list(table.scores)
    assert Path(told["table"]).is_file()
    rows = tmp_path / "rows.parquet"
    told = json.loads(run("select", folder, "--keep", 0.5, "--out", rows, "--json").stdout)
    assert told == {"rows": 20, "of": 40, "out": str(rows)}
    told = json.loads(run("report", folder, "--json").stdout)
    assert told["bytes"] == Path(told["page"]).stat().st_size
    csv = tmp_path / "run.csv"
    told = json.loads(run("export", folder, "--to", "csv", "--out", csv, "--json").stdout)
    assert (told["rows"], told["out"]) == (40, str(csv))


def test_lists_as_json(monkeypatch, tmp_path):
    found = [Finding("torch", "2.13", True, "scoring", "")]
    monkeypatch.setattr("hardsight.run.doctor.findings", lambda: found)  # which imports everything
    assert json.loads(run("doctor", "--json").stdout) == [
        {"part": "torch", "found": "2.13", "ok": True, "purpose": "scoring", "step": ""}
    ]
    named = {one["name"] for one in json.loads(run("experiment", "list", "--json").stdout)}
    assert "avh-human" in named
    assert json.loads(run("cache", "list", "--json").stdout)["folder"] is None
    monkeypatch.setenv("HARDSIGHT_CACHE", str(tmp_path))
    assert json.loads(run("cache", "list", "--json").stdout)["entries"] == []
    assert json.loads(run("cache", "clear", "--json").stdout) == {"freed_bytes": 0}


def test_patches_as_json(tmp_path):
    rows = {"index": 3, "id": "3", "old": 0, "new": 1, "verdict": "relabel", "data": "d"}
    for who, new in (("anna", 1), ("ben", 2)):
        line = {**rows, "new": new, "reviewer": who, "time": "2026-01-01T00:00:00+00:00"}
        (tmp_path / f"{who}.jsonl").write_text(json.dumps(line) + "\n")
    files = [tmp_path / "anna.jsonl", tmp_path / "ben.jsonl"]
    told = json.loads(run("patch", "merge", *files, "--json", code=1).stdout)
    assert (told["decisions"], told["out"], len(told["conflicts"])) == (2, None, 1)
    out = tmp_path / "both.csv"
    merged = run("patch", "merge", *files, "--resolve", "newest", "--out", out, "--json")
    assert json.loads(merged.stdout)["out"] == str(out)


def test_failures_as_json(scored, tmp_path):
    words, folder = scored
    for code, typed, reason in (
        (1, [*words, "--out", folder], "--resume"),  # there is a run already
        (2, [*words, "--out", tmp_path / "x", "--scores", "avhh"], "Did you mean 'avh'"),
        (2, ["score", "--no-such-flag"], "No such option"),
        (2, ["nonsense"], "unknown command 'nonsense'"),
    ):
        done = run(*typed, "--json", code=code)
        told = json.loads(done.stdout)
        assert told["exit_code"] == code
        assert reason in told["error"]
        assert told["error"] in done.stderr  # for people, as without the flag
        assert run(*typed, code=code).stdout == ""


def test_json_is_one_value_that_every_parser_and_locale_reads(monkeypatch):
    odd = Finding("ü\udce4", float("nan"), True, Path("x"), np.float32("inf"))
    monkeypatch.setattr("hardsight.run.doctor.findings", lambda: [odd])
    said = run("doctor", "--json").stdout
    assert said.isascii()
    (told,) = json.loads(said, parse_constant=pytest.fail)
    assert told == {"part": "ü\udce4", "found": None, "ok": True, "purpose": "x", "step": None}


def test_quiet_leaves_results_and_warnings_and_nothing_else(scored, tmp_path, monkeypatch):
    words, _ = scored
    log, at_work, run_score = logging.getLogger("hardsight"), [], hs.run.score.run_score
    before = log.level, os.environ.get("HARDSIGHT_PROGRESS")

    def seen(settings):
        at_work.append((log.level, os.environ.get("HARDSIGHT_PROGRESS")))
        return run_score(settings)

    monkeypatch.setattr("hardsight.run.score.run_score", seen)
    said = [
        run(*words, "--out", tmp_path / f"{loud}", f"--{loud}") for loud in ("quiet", "verbose")
    ]
    run(*words, "--out", tmp_path / "usual")
    assert at_work == [(logging.WARNING, "off"), (logging.DEBUG, None), (logging.INFO, None)]
    assert all("40 rows" in done.stdout for done in said)
    assert (log.level, os.environ.get("HARDSIGHT_PROGRESS")) == before


def test_progress_can_be_turned_off_for_all(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes any stream for a terminal

    def shown(show=None):
        with progress("work", total=1, show=show):
            pass
        return bool(capsys.readouterr().err)

    monkeypatch.delenv("HARDSIGHT_PROGRESS", raising=False)
    assert shown()
    monkeypatch.setenv("HARDSIGHT_PROGRESS", "off")
    assert not shown()
    assert shown(show=True)  # who asks for a bar gets it


@pytest.fixture
def log():
    """What is logged meanwhile, of the level INFO and above."""
    logger, kept = logging.getLogger("hardsight"), BufferingHandler(capacity=1000)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(kept)
    yield kept
    logger.removeHandler(kept)
    logger.setLevel(level)


def test_a_log_has_a_line_of_progress_every_half_minute(monkeypatch, log):
    monkeypatch.delenv("HARDSIGHT_PROGRESS", raising=False)

    def lines(**named):
        clock = iter([0, 10, 31, 40])
        with monkeypatch.context() as at:
            at.setattr("time.monotonic", lambda: next(clock))
            with progress("scoring", total=4000, **named) as advance:
                for units in (1000, 200, 0):
                    advance(units)
        said = [record.getMessage() for record in log.buffer]
        log.flush()
        return said

    assert lines() == ["scoring: 1,200 of 4,000"]
    assert lines(show=False) == []
    monkeypatch.setenv("HARDSIGHT_PROGRESS", "off")
    assert lines() == []


def test_verbose_says_where_an_error_came_from(tmp_path):
    words = ("report", tmp_path / "nothing")
    assert "Traceback" not in run(*words, code=2).output
    assert "Traceback" in run(*words, "-v", code=2).output


def test_exit_codes(scored, tmp_path):
    words, folder = scored
    run("cache", "list", code=0)
    run(*words, "--out", folder, code=1)  # there is a run already
    run(*words, "--out", tmp_path / "x", "--scores", "avhh", code=2)
    run("score", "--no-such-flag", code=2)
    run("nonsense", code=2)
    for page in ("docs/reference/cli.md", "docs/guides/robust-runs.md"):
        codes = re.findall(r"^\| (\d) \| (.*) \|$", (ROOT / page).read_text(encoding="utf-8"), re.M)
        assert [code for code, _ in codes] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("select RUN --keep 0.5 --out OUT --by nope", "unknown score 'nope'"),
        ("study human RUN --human people.csv --out OUT --scores nope", "unknown score 'nope'"),
        ("select RUN --keep 0.5 --out OUT --by avg", "Known: angular_margin, avh, class_"),
        ("select RUN --keep 1 --out OUT", "write 1.0 for every row, or 2 or more for a number"),
        ("select RUN --keep 0.5 --out OUT --how nope", "'nope' is not one of"),
        ("export RUN --to nope --out OUT", "'nope' is not one of"),
        ("score --model mlp --data builtin:digits --split nope --out OUT", "splits train and test"),
        ("SCORE --group nope --out OUT", "stores no column 'nope'"),
        ("score --data x.npy --out OUT --group ''", "expected a name, got an empty one"),
        ("score --model mlp --data cifar10 --split nope --out OUT", "unknown split of cifar10"),
        ("score --model small_cnn:num_classes=10 --data builtin:digits --split test --head nope "
         "--out OUT", "unknown layer of SmallCNN 'nope'"),
        ("score --model nope --data builtin:digits --out OUT", "'nope'"),
        ("queue mlp --data builtin:digits --by nope --budget 5 --out OUT", "'nope'"),
        ("adapt --model mlp --source builtin:digits --target builtin:digits --rule nope --out OUT",
         "unknown rule 'nope'"),
        ("experiment run nope", "'nope'"),
    ],
)  # fmt: skip
def test_an_unknown_name_or_bad_value_is_wrong_usage(scored, tmp_path, monkeypatch, typed, reason):
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text("id,frequency\n0,1.0\n")
    words = {"RUN": [scored[1]], "OUT": ["out.parquet"], "SCORE": scored[0]}
    typed = [word for part in shlex.split(typed) for word in words.get(part, [part])]
    said = run(*typed, code=2).stderr
    assert reason in said


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hardsight sc", {"score"}),
        ("hardsight patch ", {"apply", "export", "merge"}),
        ("hardsight score --out-of", {"--out-of-sample"}),
        ("hardsight export run --to ", {"csv", "cleanlab", "huggingface", "argilla"}),
    ],
)
def test_the_shell_completes(line, expected):
    words = line.split() + ([""] if line.endswith(" ") else [])
    asked = {"_HARDSIGHT_COMPLETE": "bash_complete", "COMP_WORDS": line,
             "COMP_CWORD": str(len(words) - 1)}  # fmt: skip
    done = CliRunner().invoke(main, [], prog_name="hardsight", env=asked)
    assert expected <= {answer.partition(",")[2] for answer in done.output.splitlines()}


def test_earlier_names_of_options_work_and_say_the_new_ones(scored, tmp_path):
    _, folder = scored
    words = ("export", folder, "--to", "csv", "--out")
    old = run(*words, tmp_path / "old.csv", "--rows", "suspects", "--limit", 5)
    assert "--rows is now called --examples: --examples suspects" in old.stderr
    new = run(*words, tmp_path / "new.csv", "--examples", "suspects", "--limit", 5)
    assert "called" not in new.stderr
    assert (tmp_path / "old.csv").read_bytes() == (tmp_path / "new.csv").read_bytes()
    said = "rows of export_run is now called examples"
    with pytest.warns(hs.errors.HardsightWarning, match=said):
        hs.exchange.export_run(folder, "csv", out=tmp_path / "py.csv", rows="suspects", limit=5)
    assert (tmp_path / "py.csv").read_bytes() == (tmp_path / "new.csv").read_bytes()
    assert "--rows" not in run("export", "--help").output


# ---------------------------------------------------------------------------------- vocabulary


def test_flags_keywords_and_keys_have_the_same_names():
    assert options.differences() == []
    for command, option in options.OTHER_NAMES:  # none that is not there any more
        assert option in options.options_of(COMMANDS[command])


def test_a_flag_that_python_calls_otherwise_is_found(monkeypatch):
    monkeypatch.setitem(COMMANDS["report"].__dict__, "params", [
        *COMMANDS["report"].params, click.Option(["--headline"])
    ])  # fmt: skip
    assert options.differences() == ["report --headline"]


def test_the_table_of_options_names_every_flag_and_where_it_appears():
    table = options.tables()
    for name, command in COMMANDS.items():
        for option in options.options_of(command):
            if option == "overrides":
                continue
            line = re.search(rf"^\| `{option}` \| ([^|]*) \|", table, re.M)
            assert name in line[1].split(", ")
    assert re.search(r"^\| `batch_size` \| score, .*`hs.score`, `hs.train`.* score, train", table,
                     re.M)  # fmt: skip


# ------------------------------------------------------------------------- a hostile afternoon


def test_names_that_the_locale_cannot_read_are_said_with_the_way_out(monkeypatch, tmp_path):
    def unreadable(*_, **__):
        "\udcc3".encode()

    monkeypatch.setattr("hardsight.report.write_report", unreadable)
    assert isinstance(CliRunner().invoke(main, ["report", "run"]).exception, UnicodeEncodeError)
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "ascii")
    assert (
        "encodes names as ascii; run it again with PYTHONUTF8=1"
        in run("report", "run", code=1).stderr
    )


def test_a_list_of_rows_that_cannot_be_written_is_an_error_in_words(scored, tmp_path):
    _, folder = scored
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "rows.parquet"
    said = run("select", folder, "--keep", 0.5, "--out", out, code=1).stderr
    assert f"cannot write to {out}" in said
    assert "choose another file" in said
