"""The public contract of one commit, to compare with another's: ``python -m benchmarks.contract``.

Writes down every public name with its signature, the help of every command, and what runs of a
fixed seed give: columns of the tables value by value, the report's facts, trained weights. Run it
in two checkouts, then compare::

    python -m benchmarks.contract --out before.json      # in the older checkout
    python -m benchmarks.contract --against before.json  # in the newer one

Numbers are compared bit for bit, so both must run on the same machine with the same packages.
Types are compared as a reader sees them, whether they are written as text or not; an option that
was added is listed apart from one that was changed or taken away. Of training dynamics the rows
of trained examples are compared, since older tables do not hold the others.
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
from typing import Any

import click
import numpy as np
import torch
from click.testing import CliRunner

import hardsight as hs
from hardsight.cli import main as command
from hardsight.models import SmallCNN
from hardsight.table import ScoreTable, read_table

Snapshot = dict[str, str]


def snapshot() -> Snapshot:
    """Everything of the contract, each entry as one comparable text."""
    entries = dict(_names())
    entries |= dict(_helps(command, ("hardsight",)))
    with tempfile.TemporaryDirectory() as folder:
        entries |= dict(_runs(Path(folder)))
    return entries


def _names() -> Iterator[tuple[str, str]]:
    for name in hs.__all__:
        value = getattr(hs, name)
        if not inspect.ismodule(value):
            yield f"name hs.{name}", _signature(value)
            continue
        for inner in sorted(vars(value)):
            if not inner.startswith("_") and not inspect.ismodule(vars(value)[inner]):
                yield f"name hs.{name}.{inner}", _signature(vars(value)[inner])
    for room in ("score", "train", "adapt", "study", "evaluate", "demo", "doctor"):
        module = importlib.import_module(f"hardsight.run.{room}")
        for inner, value in sorted(vars(module).items()):
            # what a room only uses itself is not offered by it
            ours = getattr(value, "__module__", "").startswith(f"hardsight.run.{room}")
            if not inner.startswith("_") and ours:
                yield f"name hardsight.run.{room}.{inner}", _signature(value)


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
        if kind in ("name", "files", "metadata") and not lost:
            wider.append(f"> {name} also: {', '.join(sorted(added))}")
        else:
            changed.append(f"~ {name}\n    before: {sorted(lost)}\n    after:  {sorted(added)}")
    return [*gone, *changed, *wider, *new]


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
        lines = differences(json.loads(options.against.read_text(encoding="utf-8")), now)
        print("\n".join(lines))
        print(f"{len(now)} entries, {len(lines)} differ")


if __name__ == "__main__":
    main()
