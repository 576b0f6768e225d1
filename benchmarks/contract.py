"""The public contract of one commit, to compare with another's: ``python -m benchmarks.contract``.

Records every public name with its signature, the help of every command, and the results of runs
with a fixed seed: columns of the tables value by value, trained weights, and every number of an
adaptation, an evaluation and the three studies. Run it in two checkouts, then compare::

    python -m benchmarks.contract --out before.json      # in the older checkout
    python -m benchmarks.contract --against before.json  # in the newer one

Numbers are compared bit for bit, so both must run on the same machine with the same packages.
Types are compared as a reader sees them, whether they are written as text or not. Added options are
listed separately from changed or removed ones, and numbers that the older commit did not have are
counted separately from those that both have. In training dynamics, only rows of trained examples
are compared, because older tables do not hold the others. The last lines count what is the same,
wider, changed and gone; only the last two break the contract.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
import torch
from click.testing import CliRunner

import hardsight as hs
from hardsight.cli import main as command
from hardsight.models import SmallCNN
from hardsight.table import ScoreTable, read_table

Snapshot = dict[str, str]
_FOUNDATION = ("config", "gallery", "preprocessing", "registry")
# parts of a result that record how it was made, and how long that took
_RECORDS = {"config", "settings", "preprocessing", "versions", "class_order", "seconds"}


def snapshot() -> Snapshot:
    """Everything of the contract, each entry as one comparable text."""
    entries = dict(_names())
    entries |= dict(_helps(command, ("hardsight",)))
    with tempfile.TemporaryDirectory() as folder:
        entries |= dict(_runs(Path(folder)))
        entries |= dict(_results(Path(folder)))
    return entries


def _names() -> Iterator[tuple[str, str]]:
    for name in hs.__all__:
        value = getattr(hs, name)
        if not inspect.ismodule(value):
            yield f"name hs.{name}", _signature(value)
            continue
        for inner in sorted(vars(value)):
            if not inner.startswith("_") and _is_offered(vars(value)[inner]):
                yield f"name hs.{name}.{inner}", _signature(vars(value)[inner])
    rooms = ("score", "train", "adapt", "study", "evaluate", "demo", "doctor")
    for place in (*(f"run.{room}" for room in rooms), *_FOUNDATION):
        module = importlib.import_module(f"hardsight.{place}")
        for inner, value in sorted(vars(module).items()):
            # what a room only uses itself is not offered by it
            ours = getattr(value, "__module__", "").startswith(f"hardsight.{place}")
            if not inner.startswith("_") and ours and not isinstance(value, TypeVar):
                yield f"name hardsight.{place}.{inner}", _signature(value)


def _is_offered(value: Any) -> bool:
    """Whether a name is more than what a module imports for itself from other packages."""
    if inspect.ismodule(value):
        return False
    return getattr(value, "__module__", "hardsight").startswith("hardsight")


def _signature(value: Any) -> str:
    if not callable(value):
        return type(value).__name__
    try:
        signature = inspect.signature(value)
    except ValueError:  # a type without a readable one, such as an enumeration
        return "callable"
    stated = [f"{each.kind.description} {each}" for each in signature.parameters.values()]
    return "\n".join(map(_as_read, [*stated, f"gives {signature.return_annotation}"]))


def _as_read(parameter: str) -> str:
    """The same text for ``'Tensor'``, ``torch.Tensor`` and ``<class 'torch.Tensor'>``."""
    plain = re.sub(r"<class '([^']*)'>", r"\1", parameter)
    plain = re.sub(r" at 0x[0-9a-f]+>", ">", plain)  # where a function of a default value lies
    return re.sub(r"\b[a-zA-Z_]\w*\.(?=[a-zA-Z_])", "", plain).replace("'", "")


def _helps(group: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    result = CliRunner().invoke(command, [*path[1:], "--help"], terminal_width=100)
    yield f"help {' '.join(path)}", result.output
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            inner = group.get_command(context, name)
            if inner is not None:
                yield from _helps(inner, (*path, name))


def _runs(folder: Path) -> Iterator[tuple[str, str]]:
    torch.set_num_threads(1)
    quiet: dict[str, Any] = {"device": "cpu", "show_progress": False}
    data = {"split": "test"}
    model = SmallCNN(num_classes=10, seed=0).eval()
    table = hs.score(model, "builtin:digits", out=folder / "score", **data, **quiet)
    yield from _columns("score", table)
    hs.write_report(folder / "score")
    yield "files score", _files(folder / "score")
    trained = hs.train(
        "small_cnn", "builtin:digits", split="train", epochs=2, track=True, seed=0,
        out=folder / "train", **quiet,
    )  # fmt: skip
    weights = b"".join(value.numpy().tobytes() for value in trained.model.state_dict().values())
    yield "value train weights", hashlib.sha256(weights).hexdigest()
    dynamics = read_table(folder / "train" / "dynamics.parquet")
    trained_on = np.ones(len(dynamics), dtype=bool)
    if "held_out" in dynamics.columns:
        trained_on = ~np.asarray(dynamics.column("held_out"), dtype=bool)
    yield from _columns("dynamics", dynamics, trained_on)
    yield "files train", _files(folder / "train")


def _results(folder: Path) -> Iterator[tuple[str, str]]:
    """The numbers of the other verbs, by the runs that :func:`_runs` left."""
    quiet: dict[str, Any] = {"device": "cpu", "show_progress": False}
    digits = {"name": "builtin:digits", "split": "train"}
    dim = hs.data.DegradedSource(hs.data.open_source("builtin:digits", split="test"), contrast=0.5)
    out = folder / "adapt"
    hs.adapt("small_cnn", digits, dim, out=out, rule="cbst", rounds=2, pretrain=1, **quiet)
    for number in (1, 2):
        file = out / "cbst" / f"round-{number:02d}" / "pseudo_labels.parquet"
        yield from _columns(f"adapt round {number}", read_table(file))
    yield "numbers adapt", _numbers(out / "result.json")
    model = SmallCNN(num_classes=10, seed=0).eval()
    on_test = {"split": "test", **quiet}
    hs.evaluation_card(
        model, "builtin:digits", out=folder / "evaluate", attack_examples=16, explain_examples=4,
        map_examples=60, feature_examples=120, **on_test,
    )  # fmt: skip
    yield "numbers evaluate", _numbers(folder / "evaluate" / "card.json")
    counts = np.random.default_rng(0).integers(1, 9, size=(len(read_table(folder / "score")), 10))
    np.save(folder / "counts.npy", counts)
    hs.study_human(folder / "score", folder / "counts.npy", out=folder / "human")
    hs.study_degradation(
        model, "builtin:digits", noise=(0.0, 0.2), contrast=(1.0, 0.5), out=folder / "degradation",
        **on_test,
    )  # fmt: skip
    hs.study_dynamics([folder / "train"], examples="train", out=folder / "dynamics")
    for study in ("human", "degradation", "dynamics"):
        yield f"numbers study {study}", _numbers(folder / study / "study.json")


def _numbers(file: Path) -> str:
    """Every number of a result and where it stands, without the records of how it was made."""
    return " ".join(_leaves(json.loads(file.read_text(encoding="utf-8")), ""))


def _leaves(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, bool | int | float):
        yield f"{path}={value!r}".replace(" ", "_")
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in _RECORDS:
                yield from _leaves(inner, f"{path}/{key}")


def _columns(run: str, table: ScoreTable, rows: Any = slice(None)) -> Iterator[tuple[str, str]]:
    for name in table.columns:
        values = np.asarray(table.column(name))[rows]
        content = values.tobytes() if values.dtype != object else json.dumps(list(values)).encode()
        yield f"column {run} {name}", f"{values.dtype} {hashlib.sha256(content).hexdigest()}"
    yield f"metadata {run}", " ".join(sorted(table.metadata))


def _files(folder: Path) -> str:
    names = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return " ".join(sorted(name for name in names if "tfevents" not in name))


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """What was taken away, changed, widened and added, in this order."""
    gone = [f"- {name}" for name in before if name not in after]
    new = [f"+ {name}" for name in after if name not in before]
    changed, wider = [], []
    for name in before:
        if name not in after or before[name] == after[name]:
            continue
        kind = name.split()[0]
        if kind == "help":
            wider.append(f"> {name}: {_options(after[name]) - _options(before[name]) or 'words'}")
            changed += [
                f"~ {name} lost {x}" for x in _options(before[name]) - _options(after[name])
            ]
            continue
        parts = [
            set(each.splitlines() if kind == "name" else each.split())
            for each in (before[name], after[name])
        ]
        lost, added = parts[0] - parts[1], parts[1] - parts[0]
        lost = {part for part in lost if not any(_takes_more(part, other) for other in added)}
        if kind == "numbers" and not lost:
            wider.append(f"> {name}: {len(parts[0])} the same, {len(added)} more {_where(added)}")
        elif kind in ("name", "files", "metadata") and not lost:
            wider.append(f"> {name} also: {', '.join(sorted(added))}")
        else:
            changed.append(f"~ {name}\n    before: {sorted(lost)}\n    after:  {sorted(added)}")
    return [*gone, *changed, *wider, *new]


def _where(numbers: set[str]) -> str:
    """The keys below which numbers of a result stand, places in lists left out.

    Example:
        >>> _where({"/models/0/groups/n=3", "/models/1/groups/low=0.5", "/seed=0"})
        '(groups, seed)'
    """
    paths = ([k for k in n.partition("=")[0].split("/") if k and not k.isdigit()] for n in numbers)
    # the first key says only that these are results: of models of a card, or of a study
    below = {path[min(1, len(path) - 1)] for path in paths}
    return f"({', '.join(sorted(below))})"


def summary(before: Snapshot, after: Snapshot) -> list[str]:
    """How many entries of each kind are the same, wider, changed and gone."""
    signs = [line.split()[:3] for line in differences(before, after)]
    lines = []
    for kind in ("name", "help", "column", "value", "numbers", "files", "metadata"):
        of_kind = [name for name in before if name.split()[0] == kind]
        gone, changed, wider = (
            sum(1 for found in signs if found[0] == sign and found[1] == kind) for sign in "-~>"
        )
        same = sum(after.get(name) == before[name] for name in of_kind)
        lines.append(
            f"{kind}: {len(of_kind)} before, {same} the same, {wider} wider, {changed} changed, "
            f"{gone} gone"
        )
    return lines


def _takes_more(before: str, after: str) -> bool:
    """Whether a parameter takes all that it took, by the same name and with the same default.

    Example:
        >>> _takes_more("keyword-only n: int = 3", "keyword-only n: int | str = 3")
        True
    """
    parameter = re.compile(r"(?P<name>[^:]*): (?P<kinds>.*?)(?P<default> = .*)?")
    old, new = parameter.fullmatch(before), parameter.fullmatch(after)
    if old is None or new is None or (old["name"], old["default"]) != (new["name"], new["default"]):
        return False
    return set(old["kinds"].split(" | ")) <= set(new["kinds"].split(" | "))


def _options(help_text: str) -> set[str]:
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", help_text, flags=re.MULTILINE))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the contract to this file")
    parser.add_argument("--against", type=Path, help="compare with the contract in this file")
    options = parser.parse_args(arguments)
    now = snapshot()
    if options.out:
        options.out.write_text(json.dumps(now, indent=1, sort_keys=True), encoding="utf-8")
    if options.against:
        before = json.loads(options.against.read_text(encoding="utf-8"))
        print("\n".join([*differences(before, now), *summary(before, now)]))


if __name__ == "__main__":
    main()
