"""Examples that are nearly the same as another one, by the embeddings of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hardsight.run_folder import NEIGHBOURS, read_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

_ROUNDING = 2e-6  # 1 - cosine of equal vectors, kept in half precision
_FARTHEST = 0.1  # 26 degrees: vectors farther apart are not nearly the same, however rare that is


def twins_of(table: ScoreTable) -> NDArray[np.int32] | None:
    """Of each row the row that it is nearly the same as, and that has another label; -1 for none.

    ``None`` if the run of the table kept no embeddings.

    An example is a near-duplicate if it is much nearer to one with another label than examples
    are to their nearest one: its distance, 1 - cosine, lies far out below those of all examples,
    by Tukey's rule on their logarithms (three times the interquartile range below the lower
    quartile), and is at most 0.1; or it is 0 but for rounding.
    """
    rows = _neighbours(table)
    return None if rows is None else _near(table, rows, "other", "similarity")


def repeats_of(table: ScoreTable) -> NDArray[np.int32] | None:
    """Of each row the nearest one before it that it repeats: nearly the same, and the same label.

    -1 for a row that repeats none; ``None`` if the run of the table kept no embeddings, or did so
    in a version that did not look for these. What is nearly the same, :func:`twins_of` says.
    """
    rows = _neighbours(table)
    if rows is None or "earlier" not in rows.column_names:
        return None
    return _near(table, rows, "earlier", "earlier_similarity")


def _neighbours(table: ScoreTable) -> pa.Table | None:
    """What is stored beside a table about its rows, in their order."""
    file = None if table.path is None else table.path.parent / NEIGHBOURS
    if file is None or not file.exists():
        return None
    rows = read_parquet(file)
    index = table.column("index")
    if len(index) != rows.num_rows or (index != rows["index"].to_numpy()).any():
        return None  # of another table, such as one that was copied here
    return rows


def _near(table: ScoreTable, rows: pa.Table, which: str, cosine: str) -> NDArray[np.int32]:
    """Place of the row in a column of neighbours, if it is a near-duplicate; else -1."""
    index = table.column("index").astype(np.int64)
    distance = np.maximum(1 - rows["nearest"].to_numpy().astype(np.float64), _ROUNDING)
    known = distance[np.isfinite(distance)]
    if not len(known):
        return np.full(len(index), -1, np.int32)
    low, high = np.quantile(np.log(known), [0.25, 0.75])
    limit = max(min(np.exp(low - 3 * (high - low)), _FARTHEST), _ROUNDING)
    neighbour = rows[which].to_numpy()
    near = (neighbour >= 0) & (1 - rows[cosine].to_numpy().astype(np.float64) <= limit)
    order = np.argsort(index, kind="stable")
    place = order[np.searchsorted(index, np.where(near, neighbour, index[:1]), sorter=order)]
    return np.where(near, place, -1).astype(np.int32)
