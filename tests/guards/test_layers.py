"""Who may import whom: read from the source, so that a lazy import counts too."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hardsight"
LAYERS = {
    0: {"errors", "registry", "table", "_checks", "_optional", "_plots"}
    | {"gallery", "preprocessing", "config"},
    1: {"geometry", "stats"},
    2: {"kernels", "heads", "data", "models"},
    3: {"scores", "losses"},
    4: {"tracking", "selftrain", "evaluate"},
    5: {"run", "report"},
    6: {"app", "experiments"},
    7: {"cli"},
    8: {"__main__"},
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names}


def parts_imported(source):
    """Parts of hardsight (``scores``, ``table``, ...) that a file imports; '.' if relative."""
    parts = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                parts.add(".")
            elif node.module == "hardsight":
                parts |= {alias.name for alias in node.names if alias.name != "__version__"}
            elif (node.module or "").startswith("hardsight."):
                parts.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("hardsight."):
                    parts.add(alias.name.split(".")[1])
    return parts


def violations(part, source):
    """What a file of ``part`` may not import."""
    if part not in LAYER_OF:
        return [f"{part} is in no layer: add it to the table here and in the style guide"]
    found = []
    for other in sorted(parts_imported(source) - {part}):
        if other == ".":
            found.append("relative import")
        elif other not in LAYER_OF:
            found.append(f"{other} is in no layer")
        elif LAYER_OF[other] > LAYER_OF[part]:
            found.append(f"{part} (layer {LAYER_OF[part]}) imports {other} above it")
        elif LAYER_OF[other] == LAYER_OF[part] and LAYER_OF[part] > 0:
            found.append(f"{part} imports its neighbour {other}")
    return found


def part_of(file):
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


# the root loads its subpackages on first use; test_imports.py watches that it stays cheap
FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if file != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_a_file_imports_only_from_layers_below(file):
    assert violations(part_of(file), file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("part", "source", "complaint"),
    [
        ("scores", "from hardsight.report import write_report", "scores .* imports report above"),
        ("scores", "import hardsight.run.score", "scores .* imports run above"),
        ("scores", "from hardsight import cli", "scores .* imports cli above"),
        ("table", "def f():\n    from hardsight.geometry import widen", "table .* geometry above"),
        ("heads", "from hardsight.data import open_source", "heads imports its neighbour data"),
        ("run", "from hardsight.report import write_report", "run imports its neighbour report"),
        ("scores", "from . import _avh", "relative import"),
        ("scores", "from ..table import read_table", "relative import"),
        ("utils", "import os", "utils is in no layer"),
        ("scores", "from hardsight.helpers import x", "helpers is in no layer"),
    ],
)
def test_a_planted_violation_is_found(part, source, complaint):
    (found,) = violations(part, source)
    with pytest.raises(AssertionError, match=complaint):
        raise AssertionError(found)


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("scores", "from hardsight.geometry import widen"),
        ("scores", "from hardsight.scores._tiles import Scratch"),
        ("table", "from hardsight.registry import SCORES"),
        ("run", "import hardsight\nfrom hardsight import __version__"),
        ("cli", "from hardsight.run.score import score"),
    ],
)
def test_what_is_allowed_is_not_complained_about(part, source):
    assert violations(part, source) == []
