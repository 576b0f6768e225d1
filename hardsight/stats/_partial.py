"""Correlation within classes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from hardsight.errors import OptionError, StatisticError
from hardsight.stats._correlation import (
    METHODS,
    Correlation,
    check_usable,
    correlation_interval,
)
from hardsight.stats._inputs import Floats, Integers, check_choice, check_vectors, columns


def partial_correlation(
    x: ArrayLike,
    y: ArrayLike,
    classes: ArrayLike,
    *,
    method: str = "spearman",
    level: float = 0.95,
) -> Correlation:
    r"""Return how two columns rise and fall together among examples of the same class.

    The class mean is subtracted from each column, from its values (Pearson) or from its ranks over
    all examples (Spearman), and the remainders are correlated. This is the partial correlation
    given one indicator per class. With K classes it costs K - 1 degrees of freedom:

    .. math:: t = r\sqrt{\frac{n - 2 - (K - 1)}{1 - r^2}}

    Args:
        x: values, ``[N]``.
        y: values, ``[N]``.
        classes: class of each example, ``[N]``: numbers or names.
        method: ``"spearman"`` or ``"pearson"``.
        level: confidence level of the interval.

    Returns:
        The coefficient, its interval by Fisher z, its p-value and, in ``.controls``, K - 1. A
        class with only one example only costs its degree of freedom.

    Raises:
        ShapeError: the columns differ in length.
        NonFiniteError: a column holds NaN.
        OptionError: ``method="kendall"``.
        StatisticError: fewer than K + 3 examples, or a column that is constant in every class.

    Example:
        Within both classes y falls as x rises; over all examples it rises.

        >>> x, y = [1, 2, 3, 4, 11, 12, 13, 14], [4, 2, 3, 1, 14, 13, 11, 12]
        >>> round(partial_correlation(x, y, list("aaaabbbb")).value, 4)
        -0.8
    """
    check_choice("method", method, METHODS)
    if method == "kendall":
        raise OptionError('a partial Kendall correlation is not offered; use method="spearman"')
    pair = columns(x=x, y=y, least=4)
    check_usable(method, **pair)
    names = np.asarray(classes)
    check_vectors(classes=names, **pair)
    _, group = np.unique(names, return_inverse=True)
    # number of classes - 1: the dummy variables of a regression with an intercept
    controls = int(group.max())
    if len(names) < controls + 4:
        raise StatisticError(
            f"expected at least {controls + 4} examples for {controls + 1} classes, got "
            f"{len(names)}"
        )
    rests = [_rest(_ranked(pair[name], method), group, name) for name in ("x", "y")]
    # both have length 1, so their product is the coefficient
    r = float(np.clip(rests[0] @ rests[1], -1, 1))
    low, high = correlation_interval(r, len(names), method=method, level=level, controls=controls)
    p = _p_value(r, len(names) - 2 - controls)
    return Correlation(r, low, high, len(names), level, "fisher-z", p, method, controls)


def _ranked(values: Floats, method: str) -> Floats:
    from scipy import stats

    ranked: Floats = stats.rankdata(values) if method == "spearman" else values
    return ranked


def _rest(values: Floats, group: Integers, name: str) -> Floats:
    """Return the values minus their class means, scaled to a vector of length 1."""
    centred = values - values.mean()
    means = np.bincount(group, weights=centred) / np.bincount(group)
    # subtracting class means equals a regression on dummy variables, without building them
    rest = centred - means[group]
    length = float(np.linalg.norm(rest))
    # a column that is constant within classes leaves only rounding error
    if length <= 1e-12 * float(np.linalg.norm(centred)):
        raise StatisticError(
            f"{name} is constant within every class, so nothing can correlate with it"
        )
    unit: Floats = rest / length
    return unit


def _p_value(r: float, dof: int) -> float:
    from scipy import special

    if abs(r) == 1:
        return 0.0
    t = abs(r) * math.sqrt(dof / (1 - r * r))
    return float(2 * special.stdtr(dof, -t))
