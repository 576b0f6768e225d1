"""Coefficients of resamples, from counts ``[B, N]``: see :mod:`hardsight.stats._bootstrap`."""

from __future__ import annotations

import numpy as np

from hardsight.stats._bootstrap import Statistic
from hardsight.stats._inputs import Floats, Integers

_ROUNDING = 1e-26  # square of the rounding error of a mean of values in [-1, 1], with room


class TieGroups:
    """Values sorted once, with runs of equal values known."""

    def __init__(self, values: Floats) -> None:
        _, group = np.unique(values, return_inverse=True)
        self._group: Integers = group.astype(np.int64)
        # sorted once; every resample then needs only sums over runs of equal values
        self._order = np.argsort(self._group, kind="stable")
        self._starts = np.flatnonzero(np.diff(self._group[self._order], prepend=-1))

    def sums(self, counts: Floats) -> Floats:
        """Counts ``[B, N]`` summed over each group of equal values, ``[B, G]``, ascending."""
        sums: Floats = np.add.reduceat(counts[:, self._order], self._starts, axis=1)
        return sums

    def midranks(self, counts: Floats) -> Floats:
        """Rank of every value in each resample, ``[B, N]``; equal values share their mean rank."""
        sums = self.sums(counts)
        # the last rank of a group less half its width, for each resample by its own counts
        midranks: Floats = (sums.cumsum(axis=1) - (sums - 1) / 2)[:, self._group]
        return midranks


def coefficients(x: Floats, y: Floats, method: str) -> Statistic:
    """The statistic from counts ``[B, N]`` to correlation coefficients ``[B]``."""
    if method == "pearson":
        # Pearson's coefficient does not change by shift and scale, its rounding does
        x, y = _standard(x), _standard(y)
        return lambda counts: _pearson(x, y, counts)
    if method == "kendall":
        return lambda counts: np.array([_kendall(x, y, row) for row in counts])
    x_ties, y_ties = TieGroups(x), TieGroups(y)
    return lambda counts: _pearson(x_ties.midranks(counts), y_ties.midranks(counts), counts)


def _pearson(x: Floats, y: Floats, counts: Floats) -> Floats:
    """Correlation of ``[N]`` or ``[B, N]`` values, each counted as often as it was drawn."""
    total = counts.sum(axis=1, keepdims=True)
    x = x - (counts * x).sum(axis=1, keepdims=True) / total
    y = y - (counts * y).sum(axis=1, keepdims=True) / total
    x_spread, y_spread = (counts * x * x).sum(axis=1), (counts * y * y).sum(axis=1)
    # one value drawn n times leaves the rounding error of its mean
    undefined = (x_spread <= _ROUNDING * total[:, 0]) | (y_spread <= _ROUNDING * total[:, 0])
    r = (counts * x * y).sum(axis=1) / np.sqrt(np.where(undefined, 1, x_spread * y_spread))
    return np.where(undefined, np.nan, np.clip(r, -1, 1))


def _standard(values: Floats) -> Floats:
    """Values moved and scaled into [-1, 1], which keeps the digits of those far from 0."""
    centred = values - values.mean()
    standard: Floats = centred / np.abs(centred).max()
    return standard


def _kendall(x: Floats, y: Floats, counts: Floats) -> float:
    from scipy import stats

    drawn = np.repeat(np.arange(len(x)), counts.astype(np.int64))
    x, y = x[drawn], y[drawn]
    # undefined, as Pearson's is above
    if (x == x[0]).all() or (y == y[0]).all():
        return float("nan")
    # the p-value is not used, and its exact form is slow
    return float(stats.kendalltau(x, y, method="asymptotic").statistic)
