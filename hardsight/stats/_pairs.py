"""Tests of whether one of two models, or of two recipes, does better."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike

from hardsight.errors import OptionError, StatisticError
from hardsight.stats._bootstrap import bootstrap_interval, replicates
from hardsight.stats._inputs import (
    Floats,
    check_finite,
    check_level,
    check_vectors,
    columns,
    truths,
)

_EXACT_BELOW = 25  # disagreements; the usual lower limit for the normal approximation


@dataclass(frozen=True)
class McNemar:
    """Result of McNemar's test of two classifiers on the same examples.

    Attributes:
        difference: accuracy of the first minus accuracy of the second.
        only_first: number of examples that only the first classifies correctly.
        only_second: number of examples that only the second classifies correctly.
        p: two-sided p-value of the hypothesis that both are equally accurate.
        n: number of examples.
        exact: whether the p-value comes from the binomial test.
    """

    difference: float
    only_first: int
    only_second: int
    p: float
    n: int
    exact: bool


@dataclass(frozen=True)
class Difference:
    """The difference of two means with its interval.

    Attributes:
        difference: mean of the first minus mean of the second.
        low: lower end of the interval.
        high: upper end of the interval.
        p: two-sided p-value of the hypothesis that there is no difference.
        n: number of pairs.
        level: confidence level of the interval.
        interval: ``"percentile"`` or ``"bca"``.
    """

    difference: float
    low: float
    high: float
    p: float
    n: int
    level: float
    interval: str


@dataclass(frozen=True)
class TTest:
    """The difference of two means with its t test.

    Attributes:
        difference: mean of the first minus mean of the second.
        low: lower end of the interval.
        high: upper end of the interval.
        t: the test statistic.
        dof: degrees of freedom, a fraction for Welch's test.
        p: two-sided p-value.
        level: confidence level of the interval.
        test: ``"welch"`` or ``"paired"``.
    """

    difference: float
    low: float
    high: float
    t: float
    dof: float
    p: float
    level: float
    test: str


def mcnemar(first: ArrayLike, second: ArrayLike, *, exact: bool | None = None) -> McNemar:
    r"""Run McNemar's test of two classifiers on the same examples.

    Only examples on which exactly one of them is right count. If there is no difference, each such
    example falls to either side like a fair coin. This gives the binomial test or, with the
    continuity correction,

    .. math:: \chi^2 = \frac{(|b - c| - 1)^2}{b + c}

    Args:
        first: whether the first classifier is right, ``[N]``.
        second: whether the second is, ``[N]``.
        exact: use the binomial distribution; ``None`` uses it below 25 disagreements.

    Raises:
        ShapeError: the columns differ in length.
        OptionError: a value is neither yes nor no.
        StatisticError: there are no examples.

    Example:
        >>> result = mcnemar([1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 0, 1])
        >>> result.only_first, result.only_second, round(result.p, 4)
        (5, 1, 0.2188)

    Reference:
        McNemar, Note on the sampling error of the difference between correlated proportions or
        percentages, Psychometrika 1947; continuity correction by Edwards 1948.
    """
    from scipy import special

    right, other = truths(first, "first"), truths(second, "second")
    check_vectors(first=right, second=other)
    if not len(right):
        raise StatisticError("expected at least 1 example, got none")
    b, c = int((right & ~other).sum()), int((~right & other).sum())
    use_exact = b + c < _EXACT_BELOW if exact is None else exact
    if use_exact:
        # under the hypothesis both sides are equally likely, like a coin per disagreement
        p = min(1.0, 2 * float(special.bdtr(min(b, c), b + c, 0.5)))
    else:
        # with the correction for continuity
        chi = max(0, abs(b - c) - 1) / math.sqrt(b + c) if b + c else 0.0
        p = math.erfc(chi / math.sqrt(2))
    return McNemar((b - c) / len(right), b, c, p, len(right), use_exact)


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    *,
    interval: str = "percentile",
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Difference:
    """Return the difference of two means over the same examples, by resampling examples.

    Args:
        first: a value per example, such as whether the first classifier is right, ``[N]``.
        second: the same for the second, ``[N]``.
        interval: ``"percentile"`` or ``"bca"``.
        level: confidence level.
        resamples: number of resamples.
        seed: the same seed gives the same result.

    Returns:
        The difference, its interval, and the two-sided p-value: twice the smaller share of
        resamples on one side of 0. The estimate itself counts as one of them, so p is never 0.

    Raises:
        ShapeError: the columns differ in length.
        NonFiniteError: a value is NaN or infinite.
        StatisticError: fewer than 2 examples.

    Example:
        >>> result = paired_bootstrap([1, 1, 1, 0, 1, 1], [0, 1, 0, 0, 1, 0])
        >>> result.difference, result.low, round(result.high, 4)
        (0.5, 0.16666666666666666, 0.8333)
    """
    pair = columns(first=first, second=second, least=2)
    check_finite("a mean needs finite values", **pair)
    apart = pair["first"] - pair["second"]
    n = len(apart)

    def mean(counts: Floats) -> Floats:
        means: Floats = (counts * apart).sum(axis=1) / counts.sum(axis=1)
        return means

    low, high = bootstrap_interval(
        mean, n, kind=interval, level=level, resamples=resamples, seed=seed
    )
    values = replicates(mean, n, resamples=resamples, seed=seed)
    # how often the difference falls on the rarer side of 0
    side = min(int((values <= 0).sum()), int((values >= 0).sum()))
    # one more than counted, since a finite number of draws cannot show a p-value of 0
    p = min(1.0, 2 * (side + 1) / (len(values) + 1))
    return Difference(float(apart.mean()), low, high, p, n, level, interval)


def t_test(
    first: ArrayLike, second: ArrayLike, *, paired: bool = False, level: float = 0.95
) -> TTest:
    """Return the difference of the means of two sets of runs, with a t test.

    Args:
        first: results, one per run, ``[N]``.
        second: results, ``[M]``; with ``paired``, of the same seeds in the same order, ``[N]``.
        paired: test the differences of pairs; by default use Welch's test, which allows for
            unequal variances.
        level: confidence level of the interval.

    Raises:
        ShapeError: a column is not one-dimensional or, with ``paired``, lengths differ.
        NonFiniteError: a value is NaN or infinite.
        StatisticError: fewer than 2 values, or nothing varies.

    Example:
        >>> result = t_test([82.9, 83.1, 82.8], [82.5, 82.6, 82.4])
        >>> round(result.difference, 2), round(result.t, 2), round(result.p, 3)
        (0.43, 4.11, 0.02)
    """
    if paired:
        pair = columns(first=first, second=second, least=2)
        check_finite("a mean needs finite values", **pair)
        apart = pair["first"] - pair["second"]
        # spread of the differences, in which the effect of a shared seed cancels
        spread = float(apart.std(ddof=1)) / math.sqrt(len(apart))
        return _t_test(float(apart.mean()), spread, len(apart) - 1, level, "paired")
    a, b = columns(first=first, least=2)["first"], columns(second=second, least=2)["second"]
    check_finite("a mean needs finite values", first=a, second=b)
    return t_test_from_summary(
        (float(a.mean()), float(a.std(ddof=1)), len(a)),
        (float(b.mean()), float(b.std(ddof=1)), len(b)),
        level=level,
    )


def t_test_from_summary(
    first: tuple[float, float, int], second: tuple[float, float, int], *, level: float = 0.95
) -> TTest:
    """Run Welch's test on means and spreads, such as those printed in a paper.

    Args:
        first: mean, standard deviation (of the sample, n - 1) and number of runs.
        second: the same for the other set.
        level: confidence level of the interval.

    Raises:
        OptionError: a standard deviation is negative.
        StatisticError: fewer than 2 runs, or no spread in either set.

    Example:
        AMC-Loss, Table 1, CIFAR-10: 82.97 ± 0.20 against 82.60 ± 0.21, 5 runs, p = 0.0214.

        >>> round(t_test_from_summary((82.97, 0.20, 5), (82.60, 0.21, 5)).p, 4)
        0.0214
    """
    (mean1, sd1, n1), (mean2, sd2, n2) = first, second
    if min(n1, n2) < 2:
        raise StatisticError(f"expected at least 2 values on each side, got {n1} and {n2}")
    if min(sd1, sd2) < 0:
        raise OptionError(f"expected standard deviations of 0 or more, got {sd1} and {sd2}")
    v1, v2 = sd1**2 / n1, sd2**2 / n2
    # Welch-Satterthwaite
    dof = (v1 + v2) ** 2 / (v1**2 / (n1 - 1) + v2**2 / (n2 - 1)) if v1 + v2 else 1.0
    return _t_test(mean1 - mean2, math.sqrt(v1 + v2), dof, level, "welch")


def _t_test(difference: float, spread: float, dof: float, level: float, test: str) -> TTest:
    from scipy import special

    check_level(level)
    if spread == 0:
        raise StatisticError("all runs have the same result, so there is no spread to test against")
    t = difference / spread
    reach = float(special.stdtrit(dof, 0.5 + level / 2)) * spread
    p = float(2 * special.stdtr(dof, -abs(t)))
    return TTest(difference, difference - reach, difference + reach, t, dof, p, level, test)
