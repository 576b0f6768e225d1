"""Export a run as CSV with a row per example, and classes by number and by name."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from hardsight.patch import defused

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hardsight.exchange.tools._rows import RunRows


def write_csv(run: RunRows, rows: NDArray[np.int64], target: Path) -> list[str]:
    """Write every row with its classes, scores, suggestion, reason and decision."""
    table, suspects = run.table, run.suspects
    scores = {name: table.column(name) for name in table.scores}
    classes = [f"{name}{more}" for name in ("label", "prediction", "suggestion")
               for more in ("", "_name")]  # fmt: skip
    header = ["index", "id", *classes, "group", "reason", "verdict", "new", "new_name", *scores]
    with target.open("w", newline="", encoding="utf-8") as sink:
        writer = csv.writer(sink, lineterminator="\r\n")
        writer.writerow(defused(name) for name in header)
        for row in rows.tolist():
            numbers = (run.label[row], run.prediction[row], suspects.suggestion[row])
            named = [cell for number in numbers for cell in _both(run, int(number))]
            words = (suspects.groups[int(suspects.group[row])], suspects.reason(row))
            writer.writerow([
                int(run.index[row]), defused(run.ids[row]), *named, *map(defused, words),
                run.verdict[row], *_both(run, int(run.decided[row])),
                # nine digits are enough to restore a float32 exactly
                *(f"{values[row]:.9g}" for values in scores.values()),
            ])  # fmt: skip
    return []


def _both(run: RunRows, label: int) -> tuple[int | None, str]:
    """Number and name of a class; nothing if there is none."""
    return (None if label < 0 else label), defused(run.name_of(label))
