"""Find examples that are nearly the same as another example, by the embeddings of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hardsight.run_folder import NEIGHBOURS, read_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

_ROUNDING = 2e-6  # 1 - cosine of two equal vectors, if they were stored in half precision
_FARTHEST = 0.1  # 26 degrees; vectors further apart are never near-duplicates


def twins_of(table: ScoreTable) -> NDArray[np.int32] | None:
    """For each row, a row that is nearly the same but has another label; -1 if there is none.

    ``None`` if the run of the table kept no embeddings.

    An example is a near-duplicate if it is much nearer to an example with another label than
    examples usually are to their nearest one. Its distance, 1 - cosine, must be an outlier among
    the distances of all examples, by Tukey's rule on their logarithms (three times the
    interquartile range below the lower quartile), and at most 0.1; or it must be 0 up to rounding.
    """
    rows = _neighbours(table)
    return None if rows is None else _near(table, rows, "other", "similarity")


def repeats_of(table: ScoreTable) -> NDArray[np.int32] | None:
    """For each row, the nearest earlier row that is nearly the same and has the same label.

    -1 if there is none; ``None`` if the run of the table kept no embeddings, or was made by a
    version that did not look for these. :func:`twins_of` says what counts as nearly the same.
    """
    rows = _neighbours(table)
    if rows is None or "earlier" not in rows.column_names:
        return None
    return _near(table, rows, "earlier", "earlier_similarity")


def _neighbours(table: ScoreTable) -> pa.Table | None:
    """The nearest neighbours of all rows, as stored beside a table; ``None`` without them."""
    file = None if table.path is None else table.path.parent / NEIGHBOURS
    if file is None or not file.exists():
        return None
    rows = read_parquet(file)
    index = table.column("index")
    if len(index) != rows.num_rows or (index != rows["index"].to_numpy()).any():
        return None  # they belong to another table, such as one that was copied here
    return rows


def _near(table: ScoreTable, rows: pa.Table, which: str, cosine: str) -> NDArray[np.int32]:
    """For each row, the row of its neighbour if that is a near-duplicate, otherwise -1."""
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
