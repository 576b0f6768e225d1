"""Subpackages: private files, one export line per public name, nothing forgotten."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hardsight"
SUBPACKAGES = sorted(file.parent for file in PACKAGE.glob("*/**/__init__.py"))
REGISTERING = [
    folder
    for folder in SUBPACKAGES
    if folder.relative_to(PACKAGE).as_posix() in ("scores", "losses")
]
DECORATORS = ("score", "loss")
EXPORT = re.compile(r"from (hardsight(?:\.\w+)*) import (\w+) as (\w+)")


def place(folder):
    return folder.relative_to(PACKAGE).as_posix()


def exports(text):
    """``{module: names}`` of the export lines of an ``__init__.py``."""
    found = {}
    for module, name, public in EXPORT.findall(text):
        if name == public:
            found.setdefault(module, set()).add(name)
    return found


def registered_names(source):
    """What a registering decorator (``@score``, ``@loss``) stands over, or is given."""
    names = set()
    for node in ast.parse(source).body:
        for decorator in getattr(node, "decorator_list", []):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in DECORATORS:
                names.add(node.name)
                names |= {ast.unparse(k.value) for k in decorator.keywords if k.arg == "function"}
    return names


def missing_exports(files, text):
    """Registered functions, given as ``{module: source}``, without their line in ``text``."""
    listed = exports(text)
    return {
        f"{module}.{name}"
        for module, source in files.items()
        for name in registered_names(source) - listed.get(module, set())
    }


def sources(folder):
    return {
        f"hardsight.{folder.name}.{file.stem}": file.read_text(encoding="utf-8")
        for file in folder.glob("_[!_]*.py")
    }


@pytest.mark.parametrize("folder", REGISTERING, ids=place)
def test_every_registered_function_has_its_export_line(folder):
    files = sources(folder)
    assert any(registered_names(source) for source in files.values())
    assert missing_exports(files, (folder / "__init__.py").read_text()) == set()


def test_a_forgotten_export_line_is_found():
    source = '@score("avh", inputs=())\ndef hardness(): ...\n\ndef _helper(): ...\n'
    files = {"hardsight.scores._avh": source}
    assert missing_exports(files, "") == {"hardsight.scores._avh.hardness"}
    line = "from hardsight.scores._avh import hardness as hardness\n"
    assert missing_exports(files, line) == set()
    source = '@loss("avh", function=avh_loss, inputs=())\nclass AVHLoss: ...\n'
    files = {"hardsight.losses._avh": source}
    line = "from hardsight.losses._avh import AVHLoss as AVHLoss\n"
    assert missing_exports(files, line) == {"hardsight.losses._avh.avh_loss"}


@pytest.mark.parametrize("folder", SUBPACKAGES, ids=place)
def test_files_of_a_subpackage_are_private(folder):
    public = {file.name for file in folder.glob("*.py") if not file.name.startswith("_")}
    singly = {"demo.py", "doctor.py"} if folder == PACKAGE / "run" else set()
    assert public == singly


@pytest.mark.parametrize("folder", SUBPACKAGES, ids=place)
def test_an_init_is_a_list_of_exports_and_nothing_else(folder):
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    docstring, *lines = tree.body
    assert isinstance(docstring, ast.Expr)
    for line in lines:
        assert EXPORT.fullmatch(ast.unparse(line)), ast.unparse(line)
