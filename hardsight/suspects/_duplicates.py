"""Examples that are nearly the same as one with another label, by the embeddings of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hardsight.run_folder import NEIGHBOURS, read_parquet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

_ROUNDING = 2e-6  # 1 - cosine of equal vectors, kept in half precision


def twins_of(table: ScoreTable) -> NDArray[np.int32] | None:
    """Of each row the row that it is nearly the same as, and that has another label; -1 for none.

    ``None`` if the run of the table kept no embeddings.

    An example is a near-duplicate if it is much nearer to one with another label than examples
    are to their nearest one: its distance, 1 - cosine, lies far out below those of all examples,
    by Tukey's rule on their logarithms (three times the interquartile range below the lower
    quartile), or is 0 but for rounding.
    """
    file = None if table.path is None else table.path.parent / NEIGHBOURS
    if file is None or not file.exists():
        return None
    rows = read_parquet(file)
    index = table.column("index").astype(np.int64)
    if len(index) != rows.num_rows or (index != rows["index"].to_numpy()).any():
        return None  # of another table, such as one that was copied here
    distance = np.maximum(1 - rows["nearest"].to_numpy().astype(np.float64), _ROUNDING)
    known = distance[np.isfinite(distance)]
    if not len(known):
        return np.full(len(index), -1, np.int32)
    low, high = np.quantile(np.log(known), [0.25, 0.75])
    limit = max(np.exp(low - 3 * (high - low)), _ROUNDING)
    other = rows["other"].to_numpy()
    near = (other >= 0) & (1 - rows["similarity"].to_numpy().astype(np.float64) <= limit)
    order = np.argsort(index, kind="stable")
    place = order[np.searchsorted(index, np.where(near, other, index[:1]), sorter=order)]
    return np.where(near, place, -1).astype(np.int32)
