"""Test whether one correlation is stronger than another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hardsight.errors import OptionError, StatisticError
from hardsight.stats._bootstrap import replicates
from hardsight.stats._correlation import (
    METHODS,
    check_usable,
    coefficient,
    correlation_interval,
    fisher_z,
    z_variance,
)
from hardsight.stats._inputs import Floats, check_choice, check_level, columns, tail
from hardsight.stats._weighted import coefficients

TESTS = ("steiger", "meng", "fisher", "bootstrap")


@dataclass(frozen=True)
class CorrelationComparison:
    """Two correlations with the same column, and whether they differ.

    Attributes:
        difference: the first coefficient minus the second.
        z: the test statistic, standard normal if there is no difference.
        p: its p-value.
        low: lower end of the interval of the difference.
        high: upper end of it.
        first: coefficient of the first column.
        second: coefficient of the second column.
        between: coefficient of the two columns with each other; ``None`` if unknown.
        n: number of examples.
        level: confidence level of the interval.
        method: kind of coefficient.
        test: the test.
        alternative: ``"two-sided"``, ``"greater"`` or ``"less"``.
    """

    difference: float
    z: float
    p: float
    low: float
    high: float
    first: float
    second: float
    between: float | None
    n: int
    level: float
    method: str
    test: str
    alternative: str


def compare_correlations(
    x1: ArrayLike,
    x2: ArrayLike,
    y: ArrayLike,
    *,
    method: str = "spearman",
    test: str = "steiger",
    magnitudes: bool = False,
    alternative: str = "two-sided",
    level: float = 0.95,
    nan: str = "raise",
    resamples: int = 2000,
    seed: int = 0,
) -> CorrelationComparison:
    r"""Test whether ``x1`` correlates more strongly with ``y`` than ``x2`` does.

    Both correlations come from the same examples and share ``y``, so they are not independent. The
    tests differ in how they allow for that. With :math:`z_k` as the Fisher z of each coefficient:

    - ``"steiger"``: :math:`(z_1 - z_2)\sqrt{n-3}/\sqrt{2 - 2s}`, where :math:`s` is the
      correlation of the two z under the hypothesis, computed from the mean of both coefficients.
    - ``"meng"``: :math:`(z_1 - z_2)\sqrt{(n-3)/(2(1-r_{12})h)}`.
    - ``"fisher"``: :math:`(z_1 - z_2)/\sqrt{2/(n-3)}`, as if they were independent. This is the
      test of the AVH paper, kept for comparison. It misses differences if both scores agree.
    - ``"bootstrap"``: the difference of the coefficients over its standard deviation among
      resamples of the examples. Slow, but correct for ties and for any distribution.

    Steiger and Meng are derived for Pearson. Spearman uses the same formulas on the rank
    coefficients. Kendall uses the variance 0.437/(n - 4) and takes :math:`\sin(\pi\tau/2)` for
    the correlations inside :math:`s` and :math:`h`; with many ties prefer ``"bootstrap"``.

    Args:
        x1: values of the first score, ``[N]``, N at least 4.
        x2: values of the second score, ``[N]``.
        y: the column that both are correlated with, ``[N]``.
        method: ``"spearman"``, ``"pearson"`` or ``"kendall"``.
        test: see above.
        magnitudes: compare strengths. A score that correlates negatively is negated first, which
            allows comparing a hardness (negative) with a confidence (positive).
        alternative: ``"two-sided"``, or ``"greater"`` if only a stronger ``x1`` counts (the
            paper's p-values), or ``"less"``.
        level: confidence level of the interval of the difference.
        nan: ``"raise"``, or ``"omit"`` to leave out rows in which any column holds NaN.
        resamples: resamples of the bootstrap test.
        seed: of the bootstrap test.

    Returns:
        ``.difference``, ``.z``, ``.p``, the coefficients, and the interval of the difference by
        Zou's method (for ``"bootstrap"``, the quantiles of the resamples).

    Raises:
        ShapeError: the columns differ in length.
        NonFiniteError: a column holds NaN, or for Pearson an infinity.
        StatisticError: fewer than 4 values (5 for Kendall), a constant column, or a coefficient
            of -1 or 1, whose z is infinite.

    Example:
        >>> y = [1, 2, 3, 4, 5, 6, 7, 8]
        >>> result = compare_correlations([1, 2, 4, 3, 5, 6, 8, 7], [3, 1, 2, 8, 4, 5, 7, 6], y)
        >>> round(result.difference, 4), round(result.z, 4), round(result.p, 4)
        (0.2857, 1.9233, 0.0544)

    Reference:
        Steiger, Tests for comparing elements of a correlation matrix, Psychological Bulletin
        1980, Eq. (14). Meng, Rosenthal and Rubin, Comparing correlated correlation coefficients,
        Psychological Bulletin 1992, Eq. (1). Zou, Toward using confidence intervals to compare
        correlations, Psychological Methods 2007. Independent test: Chen et al., Angular Visual
        Hardness, ICML 2020, Hypothesis 3.
    """
    check_choice("test", test, TESTS)
    check_choice("method", method, METHODS)
    # Kendall's variance divides by n - 4, the others by n - 3
    vectors = columns(x1=x1, x2=x2, y=y, nan=nan, least=5 if method == "kendall" else 4)
    check_usable(method, **vectors)
    a, b, target = vectors["x1"], vectors["x2"], vectors["y"]
    first, second = coefficient(a, target, method)[0], coefficient(b, target, method)[0]
    between = coefficient(a, b, method)[0]
    if magnitudes:
        # scores are turned to rise with y, and their correlation with each other turns with them
        between *= math.copysign(1, first) * math.copysign(1, second)
        a, b = math.copysign(1, first) * a, math.copysign(1, second) * b
        first, second = abs(first), abs(second)
    # tests by formula need only the three coefficients, so printed ones are enough
    if test != "bootstrap":
        return compare_coefficients(
            first,
            second,
            n=len(target),
            between=between,
            method=method,
            test=test,
            alternative=alternative,
            level=level,
        )
    z, low, high = _bootstrapped(
        x1=a,
        x2=b,
        y=target,
        method=method,
        difference=first - second,
        level=level,
        resamples=resamples,
        seed=seed,
    )
    how = {"method": method, "test": test, "alternative": alternative, "level": level}
    return _compared(first, second, between, len(target), (z, low, high), how)


def compare_coefficients(
    first: float,
    second: float,
    *,
    n: int,
    between: float | None = None,
    method: str = "spearman",
    test: str = "steiger",
    alternative: str = "two-sided",
    level: float = 0.95,
) -> CorrelationComparison:
    """Compare correlations given only the coefficients, such as those printed in a paper.

    See :func:`compare_correlations`.

    Args:
        first: correlation of the first score with the common column.
        second: correlation of the second score with it.
        n: number of examples.
        between: correlation of the two scores with each other; only ``"fisher"`` works without it.
        method: kind of coefficient.
        test: ``"steiger"``, ``"meng"`` or ``"fisher"``.
        alternative: ``"two-sided"``, ``"greater"`` or ``"less"``.
        level: confidence level of the interval of the difference.

    Raises:
        OptionError: ``between`` is missing, or a coefficient is outside [-1, 1].
        StatisticError: fewer than 4 values (5 for Kendall), a coefficient of -1 or 1, or three
            coefficients that no data can have.

    Example:
        The AVH paper's Table 2, first row: Spearman, n = 29,987, printed as z = 4.85.

        >>> round(compare_coefficients(0.360, 0.325, n=29987, test="fisher").z, 2)
        4.86
    """
    check_choice("test", test, ("steiger", "meng", "fisher"))
    check_choice("method", method, METHODS)
    # Kendall's variance divides by n - 4, the others by n - 3
    least = 5 if method == "kendall" else 4
    if n < least:
        raise StatisticError(f"expected at least {least} values for this test, got n={n}")
    if between is None and test != "fisher":
        raise OptionError(
            f'test="{test}" needs the correlation of the two scores with each other: pass '
            'between=, or test="fisher" if they come from different examples'
        )
    z = _test_statistic(first, second, between, n, method, test)
    low, high = _zou_interval(
        first, second, None if test == "fisher" else between, n, method, level
    )
    how = {"method": method, "test": test, "alternative": alternative, "level": level}
    return _compared(first, second, between, n, (z, low, high), how)


def _compared(
    first: float,
    second: float,
    between: float | None,
    n: int,
    found: tuple[float, float, float],
    how: Mapping[str, Any],
) -> CorrelationComparison:
    """What is reported of two coefficients and of the z and the interval that were found."""
    z, low, high = found
    return CorrelationComparison(
        difference=first - second, z=z, p=tail(z, how["alternative"]), low=low, high=high,
        first=first, second=second, between=between, n=n, **how,
    )  # fmt: skip


def _test_statistic(
    first: float, second: float, between: float | None, n: int, method: str, test: str
) -> float:
    z1, z2 = fisher_z(first), fisher_z(second)
    if first == second:
        return 0.0
    if math.isinf(z1) or math.isinf(z2):
        raise StatisticError(
            f"the coefficients are {first:g} and {second:g}, and Fisher's z of 1 or -1 is "
            'infinite: use compare_correlations(..., test="bootstrap")'
        )
    if test == "fisher" or between is None:
        return (z1 - z2) / math.sqrt(2 / (n - 3))  # the paper's variance, for all three kinds
    r1, r2, r12 = (_as_pearson(r, method) for r in (first, second, between))
    # the determinant of the three correlations; if it is negative, they contradict each other.
    # Only for Pearson's, since translated Kendall coefficients need not satisfy it
    if 1 - r1 * r1 - r2 * r2 - r12 * r12 + 2 * r1 * r2 * r12 < -1e-9 and method == "pearson":
        raise StatisticError(
            f"no data can have the correlations {first:g}, {second:g} and, with each other, "
            f"{between:g}"
        )
    # variance of each z under the hypothesis; at r = 0 Spearman's is the same as Pearson's
    variance = z_variance(0.0, n, method)
    apart = _steiger_apart(r1, r2, r12) if test == "steiger" else _meng_apart(r1, r2, r12)
    if apart <= 0:
        raise StatisticError(
            f"the two scores correlate {between:g} with each other, so by these formulas their "
            'coefficients cannot differ by chance; use test="bootstrap"'
        )
    return (z1 - z2) / math.sqrt(2 * apart * variance)


def _steiger_apart(r1: float, r2: float, r12: float) -> float:
    """One minus the correlation of the two z, at the mean of the coefficients (Eqs. 3 and 14)."""
    # Steiger pools the two coefficients, which are equal under the hypothesis
    mean = ((r1 + r2) / 2) ** 2
    psi = r12 * (1 - 2 * mean) - 0.5 * mean * (1 - 2 * mean - r12**2)
    return 1 - psi / (1 - mean) ** 2


def _meng_apart(r1: float, r2: float, r12: float) -> float:
    """``(1 - r_x) h`` (Eqs. 1 to 3)."""
    mean = (r1 * r1 + r2 * r2) / 2
    # f is bounded at 1 in the paper
    f = min(1.0, (1 - r12) / (2 * (1 - mean)))
    return (1 - r12) * (1 - f * mean) / (1 - mean)


def _zou_interval(
    first: float, second: float, between: float | None, n: int, method: str, level: float
) -> tuple[float, float]:
    """Interval of the difference from the intervals of both coefficients."""
    low1, high1 = correlation_interval(first, n, method=method, level=level)
    low2, high2 = correlation_interval(second, n, method=method, level=level)
    shared = 0.0 if between is None else _estimates_correlation(first, second, between, method)
    # Zou (2007): squared distances of the estimates to their bounds add up, minus the shared part
    down, up = (first - low1, high2 - second), (high1 - first, second - low2)
    # rounding may push the sum just below 0
    low = math.sqrt(max(0.0, down[0] ** 2 + down[1] ** 2 - 2 * shared * down[0] * down[1]))
    high = math.sqrt(max(0.0, up[0] ** 2 + up[1] ** 2 - 2 * shared * up[0] * up[1]))
    return first - second - low, first - second + high


def _estimates_correlation(first: float, second: float, between: float, method: str) -> float:
    """Correlation of the two estimates, :math:`corr(r_1, r_2)`."""
    r1, r2, r12 = (_as_pearson(r, method) for r in (first, second, between))
    scale = (1 - r1 * r1) * (1 - r2 * r2)
    # a coefficient of 1 has an interval of zero width
    if scale == 0:
        return 0.0
    shared = (r12 - r1 * r2 / 2) * (1 - r1 * r1 - r2 * r2 - r12 * r12) + r12**3
    return float(np.clip(shared / scale, -1, 1))


def _as_pearson(r: float, method: str) -> float:
    """Pearson's coefficient of a normal pair with this Kendall coefficient (Greiner 1909)."""
    return math.sin(math.pi * r / 2) if method == "kendall" else r


def _bootstrapped(
    x1: Floats,
    x2: Floats,
    y: Floats,
    method: str,
    difference: float,
    level: float,
    resamples: int,
    seed: int,
) -> tuple[float, float, float]:
    check_level(level)
    first, second = coefficients(x1, y, method), coefficients(x2, y, method)
    values = replicates(
        lambda counts: first(counts) - second(counts), len(y), resamples=resamples, seed=seed
    )
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    spread = float(values.std(ddof=1))
    if spread <= 1e-12:  # both columns have the same ranks
        return (0.0 if abs(difference) <= 1e-12 else math.copysign(math.inf, difference)), low, high
    return difference / spread, float(low), float(high)
