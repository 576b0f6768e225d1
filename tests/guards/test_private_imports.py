"""Tests bind to what users call: few of them import what is private to a room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MOST = 33  # of all tests; a bound to lower, not to raise


def private_imports(code):
    """Statements that import a private module, or a private name of a public one, from hardsight.

    ``__version__`` and the like are public.
    """
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(name.split(".")[0] == "hardsight" and _is_private(name) for name in _named(node))
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
