"""Bins of a column, and correlations within them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hardsight.errors import OptionError, StatisticError
from hardsight.stats._correlation import Correlation, correlation
from hardsight.stats._inputs import Floats, Integers, check_choice, check_finite, columns

HUMAN_BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Bin edges of the AVH paper's levels of human selection frequency."""


@dataclass(frozen=True)
class BinCorrelation:
    """The correlation of the examples in one bin.

    Attributes:
        low: lower edge, which belongs to the bin.
        high: upper edge, which belongs to the bin only if it is the last one.
        n: number of examples in the bin.
        correlation: ``None`` if it is undefined.
        reason: why it is undefined; empty if it is defined.
    """

    low: float
    high: float
    n: int
    correlation: Correlation | None
    reason: str = ""


def bin_index(values: ArrayLike, edges: ArrayLike, *, outside: str = "raise") -> Integers:
    """Return the bin of every value; bins are half-open, but the last one is closed.

    Args:
        values: ``[N]``.
        edges: B + 1 increasing numbers; bin ``b`` is ``[edges[b], edges[b + 1])``, and the last
            one includes its upper edge.
        outside: ``"raise"``, or ``"drop"`` to give values outside all bins the index -1.

    Returns:
        ``[N]`` integers in ``[0, B)``, or -1.

    Raises:
        OptionError: the edges do not increase, or a value is outside them.
        NonFiniteError: a value is NaN.

    Example:
        >>> bin_index([0.0, 0.2, 0.39, 1.0], [0.0, 0.2, 0.4, 1.0])
        array([0, 1, 1, 2])

    Reference:
        Deviation: the AVH paper writes its human bins as closed on both sides, [0, .2] and so on,
        which puts .2 into two bins.
    """
    check_choice("outside", outside, ("raise", "drop"))
    bounds = _checked_edges(edges)
    vector = columns(values=values)["values"]
    # side="right": a value on an edge belongs to the bin above it
    index = np.searchsorted(bounds, vector, side="right") - 1
    # the last bin is closed, so a share of 1.0 is inside
    index[vector == bounds[-1]] = len(bounds) - 2
    beyond = (index < 0) | (index > len(bounds) - 2)
    if beyond.any() and outside == "raise":
        raise OptionError(
            f"{int(beyond.sum()):,} values are outside [{bounds[0]:g}, {bounds[-1]:g}], such as "
            f'{vector[beyond][0]:g}; widen the edges or pass outside="drop"'
        )
    return np.where(beyond, -1, index)


def quantile_edges(values: ArrayLike, count: int) -> Floats:
    """Return edges of bins that each hold about the same number of values.

    Args:
        values: ``[N]``.
        count: number of bins.

    Returns:
        Increasing edges from the smallest to the largest value. If many values are equal,
        neighbouring edges coincide and are merged, so there may be fewer than ``count`` bins.

    Raises:
        OptionError: ``count`` is less than 1.
        NonFiniteError: a value is NaN or infinite.
        StatisticError: all values are equal.

    Example:
        >>> quantile_edges([1, 2, 3, 4, 5], 2)
        array([1., 3., 5.])
        >>> quantile_edges([0, 1, 1, 1, 1, 1], 3)
        array([0., 1.])
    """
    if count < 1:
        raise OptionError(f"expected at least 1 bin, got count={count}")
    vector = columns(values=values)["values"]
    check_finite("a quantile is between two values; leave them out", values=vector)
    # unique, because many equal values would give bins of zero width
    edges: Floats = np.unique(np.quantile(vector, np.linspace(0, 1, count + 1)))
    if len(edges) < 2:
        raise StatisticError(f"all {len(vector):,} values are {vector[0]:g}: there is only one bin")
    return edges


def binned_correlations(
    x: ArrayLike,
    y: ArrayLike,
    by: ArrayLike,
    *,
    edges: ArrayLike = HUMAN_BINS,
    method: str = "spearman",
    level: float = 0.95,
) -> list[BinCorrelation]:
    """Return the correlation of two columns within each bin of a third.

    Args:
        x: values, ``[N]``.
        y: values, ``[N]``.
        by: the column to bin, ``[N]``; it may be ``y`` itself, as in the AVH paper's Table 1.
        edges: see :func:`bin_index`.
        method: see :func:`correlation`.
        level: confidence level of the intervals.

    Returns:
        One entry per bin; ``.reason`` says if a bin has too few or constant values.

    Example:
        >>> x, y = [1, 2, 3, 4, 5, 6], [0.1, 0.3, 0.2, 0.4, 0.45, 0.9]
        >>> [(b.n, b.correlation and round(b.correlation.value, 2)) for b in
        ...  binned_correlations(x, y, y, edges=[0, 0.5, 1])]
        [(5, 0.9), (1, None)]
    """
    vectors = columns(x=x, y=y, by=by)
    bounds = _checked_edges(edges)
    index = bin_index(vectors["by"], bounds)
    per_bin = []
    for b, (low, high) in enumerate(itertools.pairwise(bounds)):
        inside = index == b
        inner: Correlation | None = None
        reason = ""
        # a bin with too few or equal values is reported with its reason; the other bins go on
        try:
            x_in, y_in = vectors["x"][inside], vectors["y"][inside]
            inner = correlation(x_in, y_in, method=method, level=level)
        except StatisticError as err:
            reason = str(err)
        per_bin.append(BinCorrelation(float(low), float(high), int(inside.sum()), inner, reason))
    return per_bin


def _checked_edges(edges: ArrayLike) -> Floats:
    bounds = columns(edges=edges)["edges"]
    if len(bounds) < 2 or not (np.diff(bounds) > 0).all():
        raise OptionError(f"expected at least 2 edges that increase, got {bounds.tolist()}")
    return bounds
