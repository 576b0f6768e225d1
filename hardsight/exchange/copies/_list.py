"""A corrected copy of a CSV list of pictures, or of texts."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hardsight.exchange.copies._values import stored_values
from hardsight.run_folder import write_bytes

if TYPE_CHECKING:
    from hardsight.data import ExampleSource
    from hardsight.data.source import FixedLabels

_MARK = "\ufeff"  # which some spreadsheets write before the first name


def write_list(source: ExampleSource, fixed: FixedLabels, target: Path, out: Path) -> list[str]:
    """Write the same lines with corrected labels, and paths that lead to the same pictures.

    Args:
        source: the data to copy.
        fixed: its corrected labels.
        target: file to write.
        out: the final place of the file, from which relative paths start.

    Returns:
        notes about the copy.
    """
    place = source.label_place
    assert place is not None
    file = place.files[0]
    text = file.read_bytes().decode("utf-8")
    begin = _MARK if text.startswith(_MARK) else ""
    first = text.partition("\n")[0]
    # the most frequent of the three in the header, as when it was read
    separator = max((",", ";", "\t"), key=first.count)
    lines = csv.reader(io.StringIO(text.removeprefix(_MARK), newline=""), delimiter=separator)
    header, *rows = [row for row in lines if any(cell.strip() for cell in row)]
    names = [cell.strip() for cell in header]
    label = names.index(place.name)
    # rows of one split, if the list has several
    own = np.arange(len(rows)) if place.rows is None else place.rows
    raw = [rows[row][label].strip() for row in own.tolist()]
    values = stored_values(raw, source.labels, fixed, where=f"column {place.name!r} of {file.name}")
    for at in fixed.changed.tolist():
        rows[int(own[at])][label] = values[int(fixed.labels[at])]
    rebased = _rebase(rows, names.index(place.paths), file, out) if place.paths else 0
    gone = set(own[~fixed.kept].tolist())
    sink = io.StringIO(newline="")
    ending = "\r\n" if first.endswith("\r") else "\n"
    # a lone carriage return is quoted only if it could end a line
    if ending == "\n" and "\r" in text:
        writer = csv.writer(sink, delimiter=separator, lineterminator=ending, quoting=csv.QUOTE_ALL)
    else:
        writer = csv.writer(sink, delimiter=separator, lineterminator=ending)
    writer.writerows([header, *(row for at, row in enumerate(rows) if at not in gone)])
    write_bytes(target, (begin + sink.getvalue()).encode("utf-8"))
    return [said_of_paths(rebased)] if rebased else []


def _rebase(rows: list[list[str]], path: int, file: Path, out: Path) -> int:
    """Make the paths of rows relative to the copy, and return how many changed."""
    count = 0
    for row in rows:
        there = rebased_path(row[path].strip(), file, out)
        count += there != row[path].strip()
        # a path that does not change keeps the spaces around it
        row[path] = there if there != row[path].strip() else row[path]
    return count


def rebased_path(path: str, file: Path, out: Path) -> str:
    """A path of a list, relative to the folder of its copy, that leads to the same picture."""
    before, after = file.parent.resolve(), out.parent.resolve()
    if os.path.isabs(path) or before == after:
        return path
    try:
        return Path(os.path.relpath(before / path, after)).as_posix()
    except ValueError:  # another drive
        return str(before / path)


def said_of_paths(count: int) -> str:
    """A note that paths were changed."""
    return f"{count:,} paths were changed to lead to the same pictures from the new place"
