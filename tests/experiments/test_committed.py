"""What is committed under ``results/`` says what was run, and can be judged and made again."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from hardsight.errors import ConfigError
from hardsight.experiments import EXPERIMENTS, Result
from hardsight.experiments.lab import page, plain, read_result, setting_of, stored_setting

RESULTS = Path(__file__).parents[2] / "results"
FOLDERS = sorted(file.parent for file in RESULTS.glob("*/result.json"))
each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
# their tables need what a file does not have: numbers by bin, intervals within a picture
NOT_JUDGED_AGAIN = {"avh-human", "avh-degradation"}


def setting_made_by(command):
    """The setting that a printed command gives today."""
    words = shlex.split(command)
    assert words[:3] == ["hardsight", "experiment", "run"]
    assert words[4] == "--scale"
    overrides = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    return dataclasses.asdict(setting_of(EXPERIMENTS[words[3]], words[5], overrides))


def test_a_command_without_its_changes_gives_another_setting():
    shorter = "hardsight experiment run avh-geometry --scale short"
    changed = setting_made_by(f"{shorter} --set train_limit=5000 --set 'seeds=[4]'")
    assert (changed["train_limit"], changed["seeds"]) == (5000, (4,))
    assert plain(setting_made_by(shorter)) != plain(changed)
    with pytest.raises(ConfigError, match="unknown key"):
        setting_made_by(shorter + " --set 'epoch=1'")


@each_folder
def test_the_printed_command_gives_the_setting_of_the_result(folder):
    # it does not after a change of the defaults: docs/_build_tools/pages.py renews the commands
    _, facts = read_result(folder)
    assert plain(setting_made_by(facts["command"])) == plain(facts["setting"])


@each_folder
def test_a_page_is_its_result_in_words(folder):
    result, facts = read_result(folder)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert page(result, facts) == text
    for figure in result.figures:
        assert (folder / figure.file).exists()
    assert all(alt.strip() for alt in re.findall(r"!\[(.*?)\]", text))


@each_folder
def test_the_stored_numbers_give_the_stored_tables_and_claims(folder):
    result, facts = read_result(folder)
    spec = EXPERIMENTS[facts["name"]]
    assert (spec.asks is None) == (spec.name in NOT_JUDGED_AGAIN)
    if spec.asks is None:
        return
    tables, claims = spec.judge(stored_setting(spec, facts), result.data)
    again = plain(dataclasses.asdict(Result(tables, claims)))
    stored = plain(dataclasses.asdict(result))
    assert again["claims"] == stored["claims"]
    assert again["tables"] == stored["tables"]


def test_the_overview_names_every_table_and_figure_of_the_papers():
    stated = tomllib.loads((RESULTS / "papers.toml").read_text(encoding="utf-8"))
    counts = {"avh": (9, 23), "amc": (2, 7), "el": (5, 7)}  # of tables and of figures
    for paper, (tables, figures) in counts.items():
        listed = {"Table": [], "Figure": []}
        for entry in stated[paper]:
            kind, numbers = re.fullmatch(r"(Table|Figure)s? ([\d, ]+)", entry["item"]).groups()
            listed[kind] += map(int, numbers.split(", "))
            assert ("why" in entry) != ("pages" in entry)
        assert sorted(listed["Table"]) == list(range(1, tables + 1)), paper
        assert sorted(listed["Figure"]) == list(range(1, figures + 1)), paper
    shown = {name for paper in counts for entry in stated[paper] for name in entry.get("pages", ())}
    others = {
        "active", "curriculum", "el-combine", "el-gradients", "few-labels", "groups",
        "label-errors", "label-fixing", "label-fixing-cifar10", "pruning",
    }  # fmt: skip
    assert {folder.name for folder in FOLDERS} - shown == others


def test_the_overview_says_what_the_results_say():
    # PYTHONPATH=. python docs/_build_tools/overview.py writes it
    file = Path(__file__).parents[2] / "docs" / "_build_tools" / "overview.py"
    spec = importlib.util.spec_from_file_location("overview", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.overview() == (RESULTS / "README.md").read_text(encoding="utf-8")


def built_by(name):
    """A script of docs/_build_tools as a module."""
    file = Path(__file__).parents[2] / "docs" / "_build_tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("paper", ["avh", "amc", "el"])
def test_the_page_of_a_paper_begins_with_the_verdicts_of_its_results(paper):
    # PYTHONPATH=. python docs/_build_tools/papers.py writes them
    papers = built_by("papers")
    text = (papers.PAPERS / papers.FILES[paper]).read_text(encoding="utf-8")
    assert papers.renewed(paper) == text
    assert papers.verdicts(paper) in text


def summary_of(paper):
    papers = built_by("papers")
    text = (papers.PAPERS / papers.FILES[paper]).read_text(encoding="utf-8")
    return text.partition("## In short")[2].partition(papers.BEGIN)[0]


@pytest.mark.parametrize("paper", ["avh", "amc", "el"])
def test_a_number_in_the_summary_of_a_paper_stands_on_a_page_that_it_names(paper):
    summary = summary_of(paper)
    for part in ("What these runs cannot tell.", "On what evidence."):
        assert part in summary
    pages = "".join(
        (RESULTS / name / "README.md").read_text(encoding="utf-8")
        for name in set(re.findall(r"\(\.\./results/([\w-]+)\.md\)", summary))
    )
    # with a sign, a point or a separator: counts of runs and epochs are words of people
    numbers = re.findall(r"[+−]?\d+\.\d+|\d{1,3},\d{3}|(?<![\w.])\d{2,3}(?= seeds)", summary)
    assert len(numbers) >= 8
    for number in numbers:
        assert number.replace("−", "-") in pages, number


def test_the_check_of_summaries_can_fail():
    pages = (RESULTS / "avh-human-paper" / "README.md").read_text(encoding="utf-8")
    assert "-0.333" in pages
    assert "-0.334" not in pages
