"""Histories ``[E, N]`` of examples over epochs, NaN where an example was not seen."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.errors import ShapeError

Values = NDArray[np.float64]


def as_history(values: ArrayLike, name: str) -> Values:
    """A history as a float64 matrix."""
    history: Values = np.asarray(values, dtype=np.float64)
    if history.ndim != 2:
        raise ShapeError(
            f"expected {name} to have a row per epoch and a column per example, [E, N], got "
            f"{list(history.shape)}"
        )
    return history


def epochs_seen(history: Values) -> Values:
    """In how many epochs each example was seen, ``[N]``."""
    seen: Values = (~np.isnan(history)).sum(axis=0).astype(np.float64)
    return seen


def mean_seen(history: Values) -> Values:
    """Mean over the epochs seen, ``[N]``; NaN where there is none."""
    seen = epochs_seen(history)
    return np.where(seen > 0, np.nansum(history, axis=0) / np.maximum(seen, 1), math.nan)


def last_seen(history: Values) -> Values:
    """Value of the last epoch seen, ``[N]``; NaN where there is none."""
    last = np.full(history.shape[1], math.nan)
    for values in history:
        last = np.where(np.isnan(values), last, values)
    return last
