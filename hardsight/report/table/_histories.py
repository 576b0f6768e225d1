"""Curves over epochs of the shown examples, from the files a tracker wrote beside the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.errors import TableError
from hardsight.run_folder import read_parquet

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLUMNS = ["confidence", "label", "prediction"]


@dataclass(frozen=True)
class Histories:
    """What became of some examples.

    Attributes:
        confidence: probability of the label by epoch, ``[E, n]``, NaN where not seen.
        right: whether the prediction was the label, ``[E, n]``.
        quartiles: of the confidence of all examples by epoch, ``[E, 3]``.
    """

    confidence: NDArray[np.float64]
    right: NDArray[np.bool_]
    quartiles: NDArray[np.float64]


def histories_of(
    folder: Path | None,
    index: NDArray[np.int64],
    *,
    epochs: int,
    num_examples: int,
    held_out: Path | None = None,
) -> Histories | None:
    """Histories of the examples at ``index``, one epoch in memory at a time.

    Args:
        folder: of the epochs.
        index: positions of the examples.
        epochs: how many there are.
        num_examples: rows of each.
        held_out: folder of the epochs of examples that the others never saw.

    Returns:
        ``None`` where the folder does not hold these epochs of these examples.

    Raises:
        TableError: an epoch is there and damaged.
    """
    if folder is None or not epochs:
        return None
    parts: list[tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]] = []
    for epoch in range(1, epochs + 1):
        columns = _epoch(folder, epoch, num_examples)
        if columns is None:
            return None
        others = None if held_out is None else _epoch(held_out, epoch, num_examples)
        if others is not None:
            is_other = columns[1] < 0
            columns = [np.where(is_other, b, a) for a, b in zip(columns, others, strict=True)]
        confidence, label, prediction = columns
        seen = confidence[label >= 0]
        quartiles = np.quantile(seen, [0.25, 0.5, 0.75]) if len(seen) else np.full(3, np.nan)
        right = (label == prediction)[index]
        parts.append((confidence[index].astype(np.float64), right, quartiles))
    confidences, rights, spreads = (np.stack(part) for part in zip(*parts, strict=True))
    return Histories(confidences, rights, spreads)


def _epoch(folder: Path, epoch: int, num_examples: int) -> list[NDArray[Any]] | None:
    """The columns of one epoch; ``None`` where the folder does not hold it."""
    file = folder / f"epoch-{epoch:05d}.parquet"
    if not file.exists():
        return None
    try:
        rows = read_parquet(file, columns=_COLUMNS)
    except (OSError, pa.ArrowException) as err:
        raise TableError(
            f"{file} cannot be read ({err}); remove it to report without curves, or train again"
        ) from err
    if rows.num_rows != num_examples:
        return None
    return [rows[name].to_numpy() for name in _COLUMNS]
