"""Who may import whom: read from the source, so that a lazy import counts too."""

import ast
import re
from pathlib import Path

import pytest

from tests.guards._statements import statements

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hardsight"
LAYERS = {
    0: {"errors", "registry", "table", "_checks", "gallery", "preprocessing", "config"}
    | {"notebook", "run_folder", "suspects"},
    1: {"geometry", "patch", "ranks", "selection", "stats"},
    2: {"kernels", "heads", "data", "models"},
    3: {"scores", "losses"},
    4: {"tracking", "selftrain", "evaluate"},
    5: {"run", "report"},
    6: {"review"},
    7: {"exchange"},
    8: {"experiments"},
    9: {"cli"},
    10: {"__main__"},
}
# the second level: rooms of a part that has them, by the same rule
ROOMS = {
    "data": {
        0: {"source"},
        1: {"pixels", "texts", "graphs"},
        2: {"formats", "variants"},
        3: {"named"},
        4: {"opening", "_batches", "_cache", "_groups"},
    },
    "run": {
        0: {"loop"},
        1: {"score"},
        2: {"train"},
        3: {"adapt", "study", "evaluate", "queue"},
        4: {"demo", "doctor"},
    },
    "report": {
        0: {"page"},
        1: {"figures"},
        2: {"table", "card", "study", "adaptation"},
        3: {"_run"},
    },
    "exchange": {
        0: {"copies", "tools"},
        1: {"_decided", "_apply", "_export"},
    },
    "experiments": {0: {"lab"}, 1: {"acting", "amc", "avh", "el", "labels"}},
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names}
LAYER_OF |= {
    f"{part}.{room}": layer
    for part, layers in ROOMS.items()
    for layer, rooms in layers.items()
    for room in rooms
}


def modules_imported(source):
    """Modules of hardsight that a file imports, without the leading name; '.' if relative."""
    modules = set()
    for node in statements(source):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                modules.add(".")
            elif node.module == "hardsight":
                modules |= {alias.name for alias in node.names if alias.name != "__version__"}
            elif (node.module or "").startswith("hardsight."):
                module = node.module.removeprefix("hardsight.")
                names = {f"{module}.{alias.name}": alias.name for alias in node.names}
                # a room or a private module that is imported whole
                whole = {name for name in names if name in LAYER_OF or _is_private(names[name])}
                modules |= {module} | whole
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("hardsight."):
                    modules.add(alias.name.removeprefix("hardsight."))
    return modules


def room_of(module):
    """``run.score`` of ``run.score._rows``; the part alone for a part without rooms."""
    part, _, rest = module.partition(".")
    room = rest.split(".")[0]
    return f"{part}.{room}" if part in ROOMS and room else part


def violations(module, source):
    """What the file of a module may not import."""
    room = room_of(module)
    if room not in LAYER_OF:
        return [f"{room} is in no layer: add it to the tables here and in CONTRIBUTING"]
    complaints = []
    for other in sorted(modules_imported(source)):
        if other == ".":
            complaints.append("relative import")
            continue
        complaints += _part_violations(room, other)
        # checks of arguments are the one private module that everybody may use
        if _is_private(other.removeprefix("_checks")) and room_of(other) != room:
            complaints.append(f"{room} imports {other}, which is private to its room")
    return complaints


def _part_violations(room, other):
    part, other_part = room.split(".")[0], other.split(".")[0]
    mine, theirs = room, room_of(other)
    if part != other_part:
        mine, theirs = part, other_part
    elif part not in ROOMS or "." not in theirs:
        return []
    if theirs not in LAYER_OF:
        return [f"{theirs} is in no layer"]
    if LAYER_OF[theirs] > LAYER_OF[mine]:
        return [f"{mine} (layer {LAYER_OF[mine]}) imports {theirs} above it"]
    # the foundation is the one line whose parts build on each other
    if mine != theirs and LAYER_OF[theirs] == LAYER_OF[mine] and (part in ROOMS or LAYER_OF[mine]):
        return [f"{mine} imports its neighbour {theirs}"]
    return []


def _is_private(module):
    return any(name.startswith("_") for name in module.split("."))


def module_of(file):
    names = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


# the root loads its subpackages on first use; test_imports.py watches that it stays cheap. The
# list of a part with rooms names what its rooms offer.
FILES = [
    file
    for file in sorted(PACKAGE.rglob("*.py"))
    if file != PACKAGE / "__init__.py" and module_of(file) not in ROOMS
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_a_file_imports_only_from_layers_below(file):
    assert violations(module_of(file), file.read_text(encoding="utf-8")) == []


def named_in_layout(text):
    """Parts and rooms by the two drawings of CONTRIBUTING, with their layers."""
    drawings = re.findall(r"```text\n(.*?)```", text.partition("## The layout")[2], flags=re.S)
    named, part = {}, ""
    for line in "".join(drawings[:2]).splitlines():
        found = re.fullmatch(r"(?:(\w+/) +| +)((?:[\w.]+/? +)+)(\d) .*", f"{line} ")
        if found is None:
            continue
        part = found[1] or part
        for name in found[2].split():
            named[(part + name).strip("/").removesuffix(".py").replace("/", ".")] = int(found[3])
    return named


def test_contributing_draws_the_layout_that_is_guarded():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    beside = {
        "run_folder": 0,
        "notebook": 0,
        "_checks": 0,
        "__main__": 10,
    }  # on a line without a number
    assert named_in_layout(text) | beside == LAYER_OF
    for module in LAYER_OF:
        place = PACKAGE.joinpath(*module.split("."))
        assert place.is_dir() or place.with_suffix(".py").is_file(), module


def test_a_room_that_is_not_drawn_is_missed():
    drawn = "## The layout\n```text\nhardsight/\n  errors  0  x\n  run/ cli/  5  y\n```\n"
    drawn += "```text\nrun/   loop/  0  x\n       demo.py  3  y\n```\n"
    assert named_in_layout(drawn) == {"errors": 0, "run": 5, "cli": 5, "run.loop": 0, "run.demo": 3}


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("scores", "from hardsight.report import write_report", "scores .* imports report above"),
        ("scores", "import hardsight.run.score", "scores .* imports run above"),
        ("scores", "from hardsight import cli", "scores .* imports cli above"),
        ("table", "def f():\n    from hardsight.geometry import widen", "table .* geometry above"),
        ("heads", "from hardsight.data import open_source", "heads imports its neighbour data"),
        (
            "run.score._run",
            "from hardsight.report import write_report",
            "run imports its neighbour report",
        ),
        ("scores", "from . import _avh", "relative import"),
        ("scores", "from ..table import read_table", "relative import"),
        ("utils", "import os", "utils is in no layer"),
        ("run.helpers._x", "import os", "run.helpers is in no layer"),
        ("scores", "from hardsight.helpers import x", "helpers is in no layer"),
        ("run.score._run", "from hardsight.run.train import train", "imports run.train above"),
        ("run.loop._device", "from hardsight.run.score import score", "imports run.score above"),
        ("run.adapt._data", "from hardsight.run.train._images import Row", "private to its room"),
        ("experiments.el._fig5", "from hardsight.run.loop._pass import x", "private to its room"),
        ("experiments.el._fig5", "from hardsight.experiments.avh import x", "its neighbour"),
        ("experiments.el._fig5", "from hardsight.experiments import avh", "its neighbour"),
        (
            "table",
            "try:\n    pass\nexcept OSError:\n    with x:\n        import hardsight.geometry",
            "table .* geometry above",
        ),
        (
            "table",
            "match x:\n    case 1:\n        pass\n    case _:\n        import hardsight.geometry",
            "table .* geometry above",
        ),
        ("run.loop._device", "from hardsight.run import train as t", "imports run.train above"),
        ("data.source._view", "from hardsight.data.formats import x", "imports data.formats above"),
        ("run.loop._heads", "from hardsight.data.source._view import x", "private to its room"),
        ("tracking._steps", "from hardsight.heads._head import agree", "private to its room"),
        ("tracking._steps", "from hardsight.scores import _tiles", "private to its room"),
        ("tracking._steps", "from hardsight._checks import _words", "private to its room"),
        ("tracking._steps", "import hardsight.scores._tiles", "private to its room"),
    ],
)
def test_a_planted_violation_is_found(module, source, complaint):
    (found,) = violations(module, source)
    with pytest.raises(AssertionError, match=complaint):
        raise AssertionError(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("scores._avh", "from hardsight.geometry import widen"),
        ("scores._avh", "from hardsight.scores._tiles import Scratch"),
        ("table", "from hardsight.registry import SCORES"),
        ("scores._avh", "from hardsight._checks import check_rows"),
        ("run.score._score", "import hardsight\nfrom hardsight import __version__"),
        ("run.score._score", "from hardsight.run.score._rows import rows"),
        ("run.adapt._adapt", "from hardsight.run.train.engine import TrainModule"),
        ("cli._score", "from hardsight.run.score import score"),
        ("experiments.el._fig5", "from hardsight.experiments import lab as kit"),
    ],
)
def test_what_is_allowed_is_not_complained_about(module, source):
    assert violations(module, source) == []
