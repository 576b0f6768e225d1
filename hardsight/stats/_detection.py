"""How well a score detects the positive examples: areas under curves, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hardsight.errors import OptionError, StatisticError
from hardsight.stats._bootstrap import BOOTSTRAP_INTERVALS, Statistic, bootstrap_interval
from hardsight.stats._estimate import Estimate
from hardsight.stats._inputs import (
    Bools,
    Floats,
    check_choice,
    check_vectors,
    columns,
    tail,
    truths,
    two_sided_z,
)
from hardsight.stats._proportions import wilson_interval
from hardsight.stats._weighted import TieGroups


@dataclass(frozen=True)
class AurocComparison:
    """Two areas under the ROC curve on the same examples, and whether they differ.

    Attributes:
        difference: the first area minus the second.
        z: the test statistic, standard normal if there is no difference.
        p: its two-sided p-value.
        low: lower end of the interval of the difference.
        high: upper end of it.
        first: area under the curve of the first score.
        second: area under the curve of the second score.
        n: number of examples.
        level: confidence level of the interval.
    """

    difference: float
    z: float
    p: float
    low: float
    high: float
    first: float
    second: float
    n: int
    level: float


def auroc(
    scores: ArrayLike,
    positive: ArrayLike,
    *,
    interval: str = "delong",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    r"""Return the area under the ROC curve, the chance that a positive outscores a negative.

    .. math:: \Pr(s^+ > s^-) + \tfrac12 \Pr(s^+ = s^-)

    Args:
        scores: ``[N]``; larger means more likely positive. Infinities are ranked.
        positive: yes or no, ``[N]``.
        interval: ``"delong"`` (normal approximation, cut at 0 and 1), or a bootstrap over
            examples, ``"percentile"`` or ``"bca"``.
        level: confidence level.
        resamples: resamples of the bootstrap.
        seed: of the bootstrap.

    Returns:
        ``.value`` in [0, 1]; 0.5 is chance. With DeLong a perfect separation has an interval of
        zero width.

    Raises:
        ShapeError: the columns differ in length.
        NonFiniteError: a score is NaN.
        StatisticError: no positive or no negative (for DeLong, fewer than 2 of either).

    Example:
        >>> auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).value
        0.75

    Reference:
        DeLong, DeLong and Clarke-Pearson, Comparing the areas under two or more correlated
        receiver operating characteristic curves, Biometrics 1988.
    """
    check_choice("interval", interval, ("delong", *BOOTSTRAP_INTERVALS))
    values, is_positive = _scored(scores, positive)
    if interval == "delong":
        value, of_positives, of_negatives = _placements(values, is_positive)
        spread = two_sided_z(level) * math.sqrt(_delong(of_positives, of_negatives))
        low, high = max(0.0, value - spread), min(1.0, value + spread)
        return Estimate(value, low, high, len(values), level, interval)
    ties = TieGroups(values)

    def area(counts: Floats) -> Floats:
        positives = ties.sums(counts * is_positive)
        negatives = ties.sums(counts * ~is_positive)
        # the Mann-Whitney form: negatives below a positive, plus half of those equal to it
        below = negatives.cumsum(axis=1) - negatives / 2
        return _ratio((positives * below).sum(1), positives.sum(1) * negatives.sum(1))

    return _bootstrapped(
        area, len(values), kind=interval, level=level, resamples=resamples, seed=seed
    )


def compare_auroc(
    first: ArrayLike, second: ArrayLike, positive: ArrayLike, *, level: float = 0.95
) -> AurocComparison:
    """Test whether two scores of the same examples have the same area under the ROC curve.

    Args:
        first: scores, ``[N]``.
        second: scores, ``[N]``.
        positive: yes or no, ``[N]``.
        level: confidence level of the interval of the difference.

    Raises:
        ShapeError: the columns differ in length.
        NonFiniteError: a score is NaN.
        StatisticError: fewer than 2 positives or negatives.

    Example:
        >>> labels = [0, 0, 0, 1, 1, 1]
        >>> result = compare_auroc([1, 2, 4, 3, 5, 6], [1, 5, 3, 2, 4, 6], labels)
        >>> round(result.difference, 4), round(result.z, 4), round(result.p, 4)
        (0.2222, 0.8944, 0.3711)

    Reference:
        DeLong et al., Biometrics 1988.
    """
    a, is_positive = _scored(first, positive)
    b, _ = _scored(second, positive)
    value1, positives1, negatives1 = _placements(a, is_positive)
    value2, positives2, negatives2 = _placements(b, is_positive)
    difference = value1 - value2
    spread = math.sqrt(_delong(positives1 - positives2, negatives1 - negatives2))
    # no spread: both scores rank every example the same against the other kind
    if spread == 0:
        z = 0.0 if difference == 0 else math.copysign(math.inf, difference)
    else:
        z = difference / spread
    reach = two_sided_z(level) * spread
    low, high = difference - reach, difference + reach
    return AurocComparison(
        difference=difference,
        z=z,
        p=tail(z),
        low=low,
        high=high,
        first=value1,
        second=value2,
        n=len(a),
        level=level,
    )


def average_precision(
    scores: ArrayLike,
    positive: ArrayLike,
    *,
    interval: str = "percentile",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    r"""Return the mean precision at the ranks of the positives.

    .. math:: \sum_k (R_k - R_{k-1})\, P_k

    over the distinct scores in descending order, so equal scores count as one step.

    Args:
        scores: ``[N]``; larger means more likely positive.
        positive: yes or no, ``[N]``.
        interval: bootstrap over examples, ``"percentile"`` or ``"bca"``.
        level: confidence level.
        resamples: resamples of the bootstrap.
        seed: of the bootstrap.

    Returns:
        ``.value`` in (0, 1]; a random score reaches the share of positives.

    Raises:
        ShapeError: the columns differ in length.
        NonFiniteError: a score is NaN.
        StatisticError: no positive or no negative.

    Example:
        >>> round(average_precision([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).value, 4)
        0.8333
    """
    values, is_positive = _scored(scores, positive)
    # negated, so the largest scores come first
    ties = TieGroups(-values)

    def precision(counts: Floats) -> Floats:
        hits = ties.sums(counts * is_positive)
        seen = ties.sums(counts).cumsum(axis=1)
        # ties count as one step of the curve, which makes their order irrelevant
        steps = hits * hits.cumsum(axis=1) / np.where(seen == 0, 1, seen)
        return _ratio(steps.sum(axis=1), hits.sum(axis=1))

    return _bootstrapped(
        precision, len(values), kind=interval, level=level, resamples=resamples, seed=seed
    )


def precision_at_k(
    scores: ArrayLike, positive: ArrayLike, k: int, *, level: float = 0.95
) -> Estimate:
    """Return the share of positives among the ``k`` largest scores.

    If scores tie at the cut-off, the value is the mean over all ways to break the tie.

    Args:
        scores: ``[N]``; larger means more likely positive.
        positive: yes or no, ``[N]``.
        k: number of largest scores, in ``[1, N]``.
        level: confidence level of the Wilson interval.

    Returns:
        ``.value`` in [0, 1]; ``.n`` is ``k``.

    Raises:
        ShapeError: the columns differ in length.
        NonFiniteError: a score is NaN.
        OptionError: ``k`` is outside ``[1, N]``.

    Example:
        >>> precision_at_k([0.9, 0.5, 0.5, 0.1], [1, 1, 0, 0], 2).value
        0.75
    """
    values, is_positive = _matched(scores, positive)
    if not 1 <= k <= len(values):
        raise OptionError(f"expected k in [1, {len(values)}], got k={k}")
    # the k-th largest score, without sorting all of them
    border = np.partition(values, len(values) - k)[len(values) - k]
    above, at = values > border, values == border
    # scores equal to the cut-off count in proportion, the average over all orders of the ties
    hits = is_positive[above].sum() + (k - above.sum()) * is_positive[at].mean()
    low, high = wilson_interval(float(hits), k, level=level)
    return Estimate(float(hits / k), low, high, k, level, "wilson")


def _bootstrapped(
    statistic: Statistic, n: int, *, kind: str, level: float, resamples: int, seed: int
) -> Estimate:
    """Return the statistic of all examples with a bootstrap interval."""
    low, high = bootstrap_interval(
        statistic, n, kind=kind, level=level, resamples=resamples, seed=seed
    )
    return Estimate(float(statistic(np.ones((1, n)))[0]), low, high, n, level, kind)


def _scored(scores: ArrayLike, positive: ArrayLike) -> tuple[Floats, Bools]:
    values, is_positive = _matched(scores, positive)
    if is_positive.all() or not is_positive.any():
        raise StatisticError(
            f"expected positives and negatives, got {int(is_positive.sum()):,} positives among "
            f"{len(is_positive):,} examples"
        )
    return values, is_positive


def _matched(scores: ArrayLike, positive: ArrayLike) -> tuple[Floats, Bools]:
    values = columns(scores=scores)["scores"]
    is_positive = truths(positive, "positive")
    check_vectors(scores=values, positive=is_positive)
    return values, is_positive


def _placements(values: Floats, is_positive: Bools) -> tuple[float, Floats, Floats]:
    """Return the area, and each example's share of the other kind on the correct side."""
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    if min(positives, negatives) < 2:
        raise StatisticError(
            f"expected at least 2 positives and 2 negatives for DeLong's variance, got "
            f"{positives} and {negatives}"
        )
    everyone = np.ones((1, len(values)))
    ranks = TieGroups(values).midranks(everyone)[0]
    among_positives = TieGroups(values[is_positive]).midranks(everyone[:, :positives])[0]
    among_negatives = TieGroups(values[~is_positive]).midranks(everyone[:, :negatives])[0]
    # rank among all minus rank among its own kind is the number of the other kind below it
    of_positives = (ranks[is_positive] - among_positives) / negatives
    of_negatives = 1 - (ranks[~is_positive] - among_negatives) / positives
    return float(of_positives.mean()), of_positives, of_negatives


def _delong(of_positives: Floats, of_negatives: Floats) -> float:
    return float(
        of_positives.var(ddof=1) / len(of_positives) + of_negatives.var(ddof=1) / len(of_negatives)
    )


def _ratio(above: Floats, below: Floats) -> Floats:
    # a resample may hold no positives or no negatives, and its area is then undefined
    return np.where(below == 0, np.nan, above / np.where(below == 0, 1, below))
