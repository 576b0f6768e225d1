"""The page "How a row travels" names files that are there and that a row really passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.walks import PACKAGE, taken

PAGE = Path(__file__).parents[2] / "docs" / "inside" / "how-a-row-travels.md"
WALKS = {
    "From a picture to its row in the report": ("score → table", "table → report"),
    "From a training example to its dynamics": ("train → dynamics",),
}
# an idea is in one file, so that who follows an example does not open more than these
MOST_FILES = {"score → table": 30, "table → report": 20, "train → dynamics": 45}


def sections(text):
    """The page by its headings."""
    parts = re.split(r"^## (.+)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def named_files(text):
    """Files that a text names; those of a run's folder do not end in ``.py``."""
    return set(re.findall(r"[\w/]+\.py\b", text))


def missing(text):
    """What a text names below the package, file or folder, that is not there."""
    named = named_files(text) | set(re.findall(r"`(\w[\w/]*/)`", text))
    return {name for name in named if not (PACKAGE / name).exists()}


@pytest.fixture(scope="module")
def passed():
    """Files that each walk passes, by the walk's name."""
    return {name: {file for file, _ in functions} for name, functions in taken().items()}


def test_every_file_the_page_names_is_there():
    text = PAGE.read_text(encoding="utf-8")
    assert missing(text) == set()
    assert sections(text).keys() >= WALKS.keys()
    assert all(len(named_files(sections(text)[title])) > 15 for title in WALKS)


@pytest.mark.parametrize("title", WALKS)
def test_a_row_passes_every_file_of_its_walk(passed, title):
    on_the_way = set().union(*(passed[walk] for walk in WALKS[title]))
    assert named_files(sections(PAGE.read_text(encoding="utf-8"))[title]) - on_the_way == set()


@pytest.mark.parametrize(("walk", "most"), MOST_FILES.items())
def test_a_walk_does_not_grow(passed, walk, most):
    assert 10 < len(passed[walk]) <= most, sorted(passed[walk])


def test_a_file_that_is_gone_or_not_passed_is_found(passed):
    text = "## A\n data/_opened.py and `data/forms/`, but `data/formats/`\n## B\n losses/_amc.py\n"
    assert missing(text) == {"data/_opened.py", "data/forms/"}
    assert named_files(sections(text)["B"]) - passed["score → table"] == {"losses/_amc.py"}
