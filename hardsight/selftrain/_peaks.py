"""Summarise every row in a first pass, so that few rows have to be read again.

Thresholds are known only after all rows were read. So the first pass keeps the largest entry of
each row, and bounds on all other entries. If the bounds decide a row, it is not read a second time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hardsight.selftrain._rows import (
    AngularConfidences,
    Floats,
    Integers,
    Probabilities,
    entries,
    over_tiles,
)

_CLEAR = 0.8  # above this confidence, the other entries of a row are small anyway
_MOST = 1.02  # upper bound of the sum of a row, in any precision
_LISTED = 4  # listed angles of a row: listing is cheap, computing angles again is not
_SAMPLES, _SAMPLED_ROWS = 16, 64


@dataclass(frozen=True)
class Peaks:
    """The largest entries of each row, and bounds on the rest.

    Attributes:
        columns: of the listed entries, in descending order of their values, ``[N, K]``. If
            several tie, the first comes first.
        values: of the listed entries, ``[N, K]``.
        others: upper bound of every entry that is not listed, ``[N]``.
        squares: upper bound of the sum of the squares of all entries but the largest, ``[N]``;
            only for rules that add up powers.
    """

    columns: Integers
    values: Floats
    others: Floats
    squares: Floats | None = None

    @property
    def predictions(self) -> Integers:
        """Column of the largest entry, ``[N]``."""
        return self.columns[:, 0]

    @property
    def confidence(self) -> Floats:
        """Largest entry, ``[N]``."""
        return self.values[:, 0]

    def largest_ratios(self, thresholds: Floats) -> tuple[Integers, Floats, Floats]:
        """Class of the largest listed ratio to a threshold, the ratio, and a bound on the others.

        If ratios tie, the bound equals the ratio.
        """
        ratios = self.values / thresholds[self.columns]
        best = ratios.argmax(axis=1) if ratios.shape[1] > 1 else np.zeros(len(ratios), np.intp)
        largest = entries(ratios, best)
        bound = self.others / thresholds.min()
        if ratios.shape[1] > 1:
            ratios[np.arange(len(ratios)), best] = 0
            bound = np.maximum(bound, ratios.max(axis=1))
        return entries(self.columns, best), largest, bound

    def largest_sums(self, thresholds: Floats, power: float) -> Floats:
        r"""Upper bound of :math:`\sum_c (p_c/\lambda_c)^q` for q of 2 or more, ``[N]``.

        With l the lowest threshold, the classes other than the largest add at most
        :math:`(\max p/l)^{q-2} \sum p^2/l^2`.
        """
        assert self.squares is not None
        lowest = thresholds.min()
        own = self.confidence / thresholds[self.predictions]
        rest = (self.others / lowest) ** (power - 2) * self.squares / lowest**2
        bound: Floats = own**power + rest
        return bound


def peaks_of_probabilities(rows: Probabilities, portion: float, alpha: float | None) -> Peaks:
    """Check every row, and return its largest entry and bounds.

    Bounds are made tight for rows that are likely to be near a threshold, which is cheap now, while
    the row is in the cache.
    """
    likely = _likely_threshold(rows, portion)
    low = 0.9 * likely  # a margin, since powers magnify an error in the threshold
    columns = np.empty((rows.num_rows, 1), dtype=np.int32)
    values = np.empty((rows.num_rows, 1), dtype=rows.tile(0, 1).dtype)
    others = np.empty(rows.num_rows, dtype=values.dtype)
    squares = np.empty_like(others) if alpha is not None and alpha <= 0.5 else None

    def look(start: int, stop: int) -> None:
        tile = rows.tile(start, stop)
        best, largest = rows.largest(tile, start)
        columns[start:stop, 0] = best
        values[start:stop, 0] = largest
        rest = _MOST - largest  # bounds any other entry, since entries are not negative
        others[start:stop] = np.minimum(rest, largest)
        asked = (largest >= likely) & (largest < _CLEAR)
        if alpha is not None and squares is not None:
            squares[start:stop] = others[start:stop] * rest
            asked = (largest >= least_confidence(low, alpha)) & (largest < _CLEAR)
            at = np.flatnonzero(asked)
            if 2 * len(at) < len(tile):  # copy the rows if they are few, else use the whole tile
                squares[start + at] = _other_squares(tile.take(at, axis=0), largest[at])
            else:
                squares[start:stop] = _other_squares(tile, largest)
            ratio = largest / low
            sums = ratio ** (1 / alpha - 2) * (ratio**2 + squares[start:stop] / low**2)
            asked &= sums >= 1
        at = np.flatnonzero(asked)
        others[start + at] = _second(tile, at, best[at])

    over_tiles(rows, look)
    return Peaks(columns, values, others, squares)


def peaks_of_angles(angular: AngularConfidences) -> Peaks:
    """A few of the largest entries of each row."""
    listed = min(_LISTED, angular.num_classes)
    columns = np.empty((angular.num_rows, listed), dtype=np.int32)
    values = np.empty(columns.shape, dtype=angular.tile(0, 1).dtype)

    def look(start: int, stop: int) -> None:
        tile = angular.tile(start, stop)
        for k in range(listed):
            best = tile.argmax(axis=1)
            columns[start:stop, k] = best
            values[start:stop, k] = entries(tile, best)
            tile[np.arange(len(tile)), best] = -1

    over_tiles(angular, look)
    return Peaks(columns, values, values[:, -1])


def least_confidence(threshold: float, alpha: float) -> float:
    r"""A confidence below which :math:`\sum_c (p_c/\lambda_c)^{1/\alpha}` stays below 1.

    ``threshold`` is the lowest of all.
    """
    if alpha >= 1:
        return 0.0
    # with q = 1 / alpha, sum (p/l)^q <= (max p / min l)^(q-1) sum p / min l
    return 0.99 * threshold * math.pow(threshold / _MOST, alpha / (1 - alpha))


def sums_of_squares(tile: Floats) -> Floats:
    """Sum of squares of each row, by a batched matrix product, which is faster than einsum."""
    sums: Floats = np.matmul(tile[:, None, :], tile[:, :, None])[:, 0, 0]
    return sums


def _other_squares(tile: Floats, largest: Floats) -> Floats:
    """Upper bound of the sum of squares of all entries but the largest, including rounding."""
    limits, classes = np.finfo(tile.dtype), tile.shape[1]
    sums = sums_of_squares(tile).astype(np.float64) + classes * float(limits.tiny)
    rest: Floats = sums * (1 + (classes + 8) * float(limits.eps)) - largest.astype(np.float64) ** 2
    return rest


def _second(tile: Floats, at: Integers, best: Integers) -> Floats:
    """Second-largest entry of some rows."""
    rest = tile.take(at, axis=0)
    rest[np.arange(len(at)), best] = 0
    second: Floats = entries(rest, rest.argmax(axis=1))
    return second


def _likely_threshold(rows: Probabilities, portion: float) -> float:
    """Estimate the lowest threshold from some rows; a bad estimate only costs time."""
    starts = np.linspace(0, max(0, rows.num_rows - _SAMPLED_ROWS), _SAMPLES).astype(np.int64)
    largest = [rows.tile(at, at + _SAMPLED_ROWS).max(axis=1) for at in starts.tolist()]
    with np.errstate(invalid="ignore"):  # later checks refuse infinity and name its row
        return 0.9 * float(np.quantile(np.concatenate(largest), 1 - portion))
