"""A corrected copy of a file with a JSON object per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hardsight.exchange.copies._values import stored_values
from hardsight.run_folder import write_bytes

if TYPE_CHECKING:
    from hardsight.data import ExampleSource
    from hardsight.data.source import FixedLabels


def write_lines(source: ExampleSource, fixed: FixedLabels, target: Path) -> list[str]:
    """Write the same lines with corrected labels; lines with the same label are copied exactly.

    Args:
        source: the data to copy.
        fixed: its corrected labels.
        target: file to write.

    Returns:
        notes about the copy.
    """
    place = source.label_place
    assert place is not None
    lines = place.files[0].read_bytes().splitlines(keepends=True)
    filled = [at for at, line in enumerate(lines) if line.strip()]  # blank lines are not rows
    own = np.arange(len(filled)) if place.rows is None else place.rows
    objects = {at: json.loads(lines[filled[at]].decode("utf-8-sig")) for at in own.tolist()}
    raw = [objects[at][place.name] for at in own.tolist()]
    raw = [value.strip() if isinstance(value, str) else value for value in raw]
    where = f"{place.name!r} of {place.files[0].name}"
    values = stored_values(raw, source.labels, fixed, where=where)
    for at in fixed.changed.tolist():
        row = int(own[at])
        line = lines[filled[row]]
        ending = line[len(line.rstrip(b"\r\n")) :]
        changed = {**objects[row], place.name: values[int(fixed.labels[at])]}
        lines[filled[row]] = json.dumps(changed, ensure_ascii=False).encode("utf-8") + ending
    gone = {filled[row] for row in own[~fixed.kept].tolist()}
    write_bytes(target, b"".join(line for at, line in enumerate(lines) if at not in gone))
    return []
