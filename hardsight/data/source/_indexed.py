"""Whether values that stand in pandas' order may be read by their position beside the data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from hardsight.errors import DataError


def check_index(values: Any, data: Any, *, option: str) -> None:
    """Refuse values whose index pairs them with other examples than their positions do.

    Only pandas' objects have an index. Values that count their rows from 0, or have the index of
    the data, mean their positions.

    Args:
        values: one per example, in any form.
        data: what the user named or passed as the data.
        option: what the values are called, for the message.

    Raises:
        DataError: the index holds the entries of the data's index in another order; or the data
            has no index, and it holds the numbers of the rows in another order.

    Example:
        >>> import pandas as pd
        >>> check_index(pd.Series([5, 6], index=[1, 0]), [[0.5], [1.5]], option="labels")
        Traceback (most recent call last):
        ...
        hardsight.errors.DataError: the index of labels holds the numbers 0 to 1 in another order...
    """
    index = _index(values)
    if index is None or _counts_rows(index):
        return
    of_data = _index(data)
    by_place = f"if they belong to the rows by position, pass {option}.reset_index(drop=True)"
    if of_data is not None:
        # counted only if it matters: entries may be there twice, and need not have an order
        if len(of_data) != len(index) or of_data.equals(index):
            return
        if Counter(of_data) == Counter(index):
            raise DataError(
                f"the index of {option} holds the entries of the data's index in another order, "
                f"so that there are two ways to read them; {by_place}; if by name, pass "
                f"{option}.reindex(X.index), X being the data"
            )
    elif _counts_rows(index.sort_values() if _is_whole(index) else index):
        raise DataError(
            f"the index of {option} holds the numbers 0 to {len(index) - 1:,} in another order, "
            f"so that there are two ways to read them; {by_place}; if by these numbers, pass "
            f"{option}.sort_index()"
        )


def _index(values: Any) -> Any:
    # a list has a member of that name as well
    return values.index if hasattr(values, "iloc") else None


def _is_whole(index: Any) -> bool:
    return bool(index.dtype.kind in "iu")


def _counts_rows(index: Any) -> bool:
    """Whether it is 0, 1, 2 and so on."""
    return _is_whole(index) and np.array_equal(index.to_numpy(), np.arange(len(index)))
