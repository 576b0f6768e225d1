"""The correlation of two columns with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike

from hardsight.errors import OptionError, StatisticError
from hardsight.stats._bootstrap import BOOTSTRAP_INTERVALS, bootstrap_interval
from hardsight.stats._estimate import Estimate
from hardsight.stats._inputs import (
    Floats,
    check_choice,
    check_finite,
    check_varies,
    columns,
    two_sided_z,
)
from hardsight.stats._weighted import coefficients

METHODS = ("spearman", "pearson", "kendall")
INTERVALS = ("analytic", *BOOTSTRAP_INTERVALS)


@dataclass(frozen=True)
class Correlation(Estimate):
    """A correlation coefficient with its interval and its p-value.

    Attributes:
        p: two-sided p-value of the hypothesis that there is no correlation.
        method: ``"spearman"``, ``"pearson"`` or ``"kendall"``.
        controls: number of variables held fixed; see :func:`partial_correlation`.
    """

    p: float
    method: str
    controls: int = 0


def correlation(
    x: ArrayLike,
    y: ArrayLike,
    *,
    method: str = "spearman",
    interval: str = "analytic",
    level: float = 0.95,
    nan: str = "raise",
    resamples: int = 2000,
    seed: int = 0,
) -> Correlation:
    r"""Return how strongly two columns rise and fall together.

    Args:
        x: values, ``[N]``, N at least 4.
        y: values, ``[N]``.
        method: ``"spearman"`` (ranks; equal values share their mean rank), ``"pearson"``
            (values), or ``"kendall"`` (pairs; tau-b, which allows for ties).
        interval: ``"analytic"`` (Fisher z, see :func:`correlation_interval`), or a bootstrap over
            examples, ``"percentile"`` or ``"bca"``.
        level: confidence level of the interval.
        nan: ``"raise"``, or ``"omit"`` to leave out rows in which either column holds NaN.
        resamples: resamples of the bootstrap.
        seed: of the bootstrap; the same seed gives the same interval.

    Returns:
        ``.value`` in [-1, 1], ``.low``, ``.high``, ``.p``, ``.n``, ``.method`` and how the
        interval was made. The p-value is two-sided. It comes from the t distribution for Spearman
        and Pearson; for Kendall it is exact for few values without ties, else from the normal.

    Raises:
        ShapeError: the columns differ in length.
        NonFiniteError: a column holds NaN, or for Pearson an infinity. Ranks allow infinities.
        StatisticError: fewer than 4 values (5 for an analytic Kendall interval), or a constant
            column.

    Example:
        >>> result = correlation([1, 2, 3, 4, 5, 6], [1, 3, 2, 5, 4, 6])
        >>> round(result.value, 4), round(result.low, 4), round(result.high, 4), round(result.p, 4)
        (0.8857, 0.0664, 0.9916, 0.0188)
    """
    check_choice("method", method, METHODS)
    check_choice("interval", interval, INTERVALS)
    x, y = _usable(x, y, method=method, nan=nan)
    value, p = coefficient(x, y, method)
    if interval == "analytic":
        low, high = correlation_interval(value, len(x), method=method, level=level)
        return Correlation(value, low, high, len(x), level, "fisher-z", p, method)
    low, high = bootstrap_interval(
        coefficients(x, y, method),
        len(x),
        kind=interval,
        level=level,
        resamples=resamples,
        seed=seed,
    )
    return Correlation(value, low, high, len(x), level, interval, p, method)


def fisher_z(r: float) -> float:
    r"""Return Fisher's z of a coefficient, nearly normal even if the coefficient is not.

    .. math:: z = \tfrac12 \ln\frac{1 + r}{1 - r}

    Returns:
        A number of the same sign, infinite if ``r`` is -1 or 1; ``math.tanh`` inverts it.

    Raises:
        OptionError: ``r`` is outside [-1, 1].

    Example:
        >>> round(fisher_z(0.36), 3), round(fisher_z(0.325), 3)
        (0.377, 0.337)
    """
    if not -1 <= r <= 1:
        raise OptionError(f"expected a correlation coefficient in [-1, 1], got {r}")
    # atanh(1) raises in Python, but intervals and tests need the limit
    return math.copysign(math.inf, r) if abs(r) == 1 else math.atanh(r)


def correlation_interval(
    r: float, n: int, *, method: str = "spearman", level: float = 0.95, controls: int = 0
) -> tuple[float, float]:
    r"""Return the interval of a coefficient by Fisher's z, with the variance of its kind.

    .. math:: \tanh\left(z \pm q\,\sigma\right), \qquad \sigma^2 =
        \frac{1}{n - 3} \text{ (Pearson)}, \quad
        \frac{1 + r^2/2}{n - 3} \text{ (Spearman)}, \quad
        \frac{0.437}{n - 4} \text{ (Kendall)}

    Args:
        r: the coefficient.
        n: number of pairs; each controlled variable counts as one less.
        method: ``"spearman"``, ``"pearson"`` or ``"kendall"``.
        level: confidence level.
        controls: number of variables held fixed.

    Returns:
        The two ends, in [-1, 1]. A coefficient of -1 or 1 has an interval of zero width.

    Raises:
        StatisticError: fewer than 4 pairs, or 5 for Kendall.

    Example:
        >>> low, high = correlation_interval(0.36, 29987)
        >>> round(low, 3), round(high, 3)
        (0.35, 0.37)

    Reference:
        Bonett and Wright, Sample size requirements for estimating Pearson, Kendall and Spearman
        correlations, Psychometrika 2000. Kendall's 0.437: Fieller, Hartley and Pearson 1957.
    """
    check_choice("method", method, METHODS)
    z, q = fisher_z(r), two_sided_z(level)
    # z_variance divides by n - 4 and n - 3
    least = 5 if method == "kendall" else 4
    if n - controls < least:
        raise StatisticError(
            f"expected at least {least + controls} values for the analytic interval of a "
            f"{method} correlation, got {n}"
        )
    spread = q * math.sqrt(z_variance(r, n - controls, method))
    return math.tanh(z - spread), math.tanh(z + spread)


def z_variance(r: float, n: int, method: str) -> float:
    """Return the variance of Fisher's z; see :func:`correlation_interval`."""
    if method == "kendall":
        # Fieller, Hartley and Pearson (1957)
        return 0.437 / (n - 4)
    # Bonett and Wright (2000) for ranks; 1 / (n - 3) is exact for a normal pair
    return (1 + r * r / 2 if method == "spearman" else 1) / (n - 3)


def coefficient(x: Floats, y: Floats, method: str) -> tuple[float, float]:
    """Return coefficient and two-sided p-value of columns that were already checked."""
    from scipy import stats  # importing it takes half a second, so only when it is used

    function = {
        "spearman": stats.spearmanr,
        "pearson": stats.pearsonr,
        "kendall": stats.kendalltau,
    }[method]
    result = function(x, y)
    value = float(result.statistic)
    if abs(value) > 1 - 2e-15:  # a perfect correlation, up to rounding
        value = math.copysign(1, value)
    return value, float(result.pvalue)


def _usable(x: ArrayLike, y: ArrayLike, *, method: str, nan: str) -> tuple[Floats, Floats]:
    pair = columns(x=x, y=y, nan=nan, least=4)
    check_usable(method, **pair)
    return pair["x"], pair["y"]


def check_usable(method: str, **vectors: Floats) -> None:
    """Raise if a column is constant or, for Pearson, infinite."""
    if method == "pearson":
        check_finite('use method="spearman", which ranks them', **vectors)
    check_varies(**vectors)
