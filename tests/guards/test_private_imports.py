"""Tests bind to what users call: few of them import what is private to a room."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.guards._statements import statements

TESTS = Path(__file__).parents[1]
MOST = 33  # of all tests; a bound to lower, not to raise
MOST_NAMED = 35  # by text, such as the size of a tile that a test makes small


def private_imports(code):
    """Statements that import a private module, or a private name of a public one, from hardsight.

    ``__version__`` and the like are public.
    """
    return [
        ast.unparse(node)
        for node in statements(code)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(name.split(".")[0] == "hardsight" and _is_private(name) for name in _named(node))
    ]


def private_names(code):
    """Texts that name something private of hardsight, as ``monkeypatch.setattr`` takes them."""
    if not re.search(r"hardsight(\.\w+)*\._[a-z]", code):
        return []
    return [
        node.value
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.match(r"hardsight(\.\w+)*\._[a-z]", node.value)
    ]


def _named(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names]


def _is_private(name):
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def test_few_tests_import_what_is_private():
    found = {file: private_imports(file.read_text("utf-8")) for file in TESTS.rglob("*.py")}
    told = [f"{file.relative_to(TESTS)}: {line}" for file, lines in found.items() for line in lines]
    assert len(told) <= MOST, "\n".join(told)


def test_few_tests_name_what_is_private_by_text():
    files = [file for file in TESTS.rglob("*.py") if file.parent != TESTS / "guards"]
    found = {file: private_names(file.read_text("utf-8")) for file in files}
    told = [f"{file.relative_to(TESTS)}: {name}" for file, names in found.items() for name in names]
    assert len(told) <= MOST_NAMED, "\n".join(told)


def test_a_private_name_in_a_text_is_seen():
    code = 'patch.setattr("hardsight.stats._bootstrap._ENTRIES", 3)\nopen("hardsight.stats._x.y")'
    assert private_names(code) == ["hardsight.stats._bootstrap._ENTRIES", "hardsight.stats._x.y"]
    assert private_names('"hardsight.stats.correlation"\n"see hardsight.stats._x"') == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("from hardsight.scores._avh import angular_visual_hardness", 1),
        ("from hardsight.heads import Head, _capture", 1),
        ("import hardsight.kernels._launch", 1),
        ("def test():\n    from hardsight.run.adapt import _rounds", 1),
        ("from hardsight.scores import angular_visual_hardness", 0),
        ("from hardsight import __version__", 0),
        ("from tests import _forks", 0),
    ],
)
def test_a_private_import_is_seen(code, count):
    assert len(private_imports(code)) == count
