"""Correlation coefficients of resamples, given as counts ``[B, N]``.

See :mod:`hardsight.stats._bootstrap`.
"""

from __future__ import annotations

import numpy as np

from hardsight.stats._bootstrap import Statistic
from hardsight.stats._inputs import Floats, Integers

_ROUNDING = 1e-26  # square of the rounding error of a mean of values in [-1, 1], with some margin


class TieGroups:
    """Sorted values with their runs of equal values, prepared once for all resamples."""

    def __init__(self, values: Floats) -> None:
        _, group = np.unique(values, return_inverse=True)
        self._group: Integers = group.astype(np.int64)
        # every resample then needs only sums over runs of equal values
        self._order = np.argsort(self._group, kind="stable")
        self._starts = np.flatnonzero(np.diff(self._group[self._order], prepend=-1))

    def sums(self, counts: Floats) -> Floats:
        """Sum counts ``[B, N]`` over each group of equal values, to ``[B, G]``, ascending."""
        sums: Floats = np.add.reduceat(counts[:, self._order], self._starts, axis=1)
        return sums

    def midranks(self, counts: Floats) -> Floats:
        """Rank every value in each resample, ``[B, N]``; equal values share their mean rank."""
        sums = self.sums(counts)
        # per resample: the last rank of a group minus half its width
        midranks: Floats = (sums.cumsum(axis=1) - (sums - 1) / 2)[:, self._group]
        return midranks


def coefficients(x: Floats, y: Floats, method: str) -> Statistic:
    """Return the statistic that maps counts ``[B, N]`` to correlation coefficients ``[B]``."""
    if method == "pearson":
        # shift and scale do not change Pearson's coefficient, only its rounding error
        x, y = _standard(x), _standard(y)
        return lambda counts: _pearson(x, y, counts)
    if method == "kendall":
        return lambda counts: np.array([_kendall(x, y, row) for row in counts])
    x_ties, y_ties = TieGroups(x), TieGroups(y)
    return lambda counts: _pearson(x_ties.midranks(counts), y_ties.midranks(counts), counts)


def _pearson(x: Floats, y: Floats, counts: Floats) -> Floats:
    """Correlate ``[N]`` or ``[B, N]`` values, each counted as often as it was drawn."""
    total = counts.sum(axis=1, keepdims=True)
    x = x - (counts * x).sum(axis=1, keepdims=True) / total
    y = y - (counts * y).sum(axis=1, keepdims=True) / total
    x_spread, y_spread = (counts * x * x).sum(axis=1), (counts * y * y).sum(axis=1)
    # a single value drawn n times has a spread of rounding error only
    undefined = (x_spread <= _ROUNDING * total[:, 0]) | (y_spread <= _ROUNDING * total[:, 0])
    r = (counts * x * y).sum(axis=1) / np.sqrt(np.where(undefined, 1, x_spread * y_spread))
    return np.where(undefined, np.nan, np.clip(r, -1, 1))


def _standard(values: Floats) -> Floats:
    """Shift and scale values into [-1, 1], which keeps precision for values far from 0."""
    centred = values - values.mean()
    standard: Floats = centred / np.abs(centred).max()
    return standard


def _kendall(x: Floats, y: Floats, counts: Floats) -> float:
    from scipy import stats

    drawn = np.repeat(np.arange(len(x)), counts.astype(np.int64))
    x, y = x[drawn], y[drawn]
    # undefined for a constant column, like Pearson's above
    if (x == x[0]).all() or (y == y[0]).all():
        return float("nan")
    # the p-value is not used, and its exact form is slow
    return float(stats.kendalltau(x, y, method="asymptotic").statistic)
