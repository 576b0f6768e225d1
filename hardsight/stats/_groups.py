r"""Compare groups of examples by accuracy, hardness and calibration.

Groups differ in the classes they hold, and classes differ in how hard they are. So a group's errors
are compared with those expected from its classes: if errors fell at random on the examples of each
class, the group's number of errors would be a sum of independent hypergeometric counts with mean
:math:`\mu = \sum_c n_{gc}\, e_c / n_c`. Such a sum has the distribution of a number of independent
yes-or-no trials. From the mean plus 1 on, its tails are no heavier than those of a binomial with as
many trials and the same mean (Hoeffding 1956). The p-values here come from that binomial, so they
are never too small, even for a handful of examples and for rare errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.errors import ShapeError, StatisticError
from hardsight.stats._estimate import Estimate
from hardsight.stats._inputs import Floats
from hardsight.stats._multiple import adjusted_p_values
from hardsight.stats._pairs import t_test_from_summary
from hardsight.stats._proportions import wilson_interval

NO_GROUP = "(none)"  # examples whose value is missing
CLASS = "class"  # the attribute that every dataset has
LEAST = 10  # fewest examples of a group that is tested
_MOST_VALUES = 12  # a column with more different numbers is cut into quarters
_BINS = 15  # of confidence, as in calibration
# pairs of classes shown per group; more would amount to a confusion matrix
_CONFUSIONS = 3


@dataclass(frozen=True)
class GroupNumbers:
    """The numbers of one group. All p-values are corrected for the number of tests.

    Attributes:
        name: its value.
        n: number of examples.
        accuracy: share of correct predictions, with Wilson's interval.
        expected_accuracy: the accuracy if its examples of each class were predicted correctly as
            often as all examples of that class.
        p_accuracy: two-sided p-value of the difference between the two accuracies; ``None`` for a
            group of fewer than ``least`` examples or of all examples.
        hardness: mean score, with its t interval; ``None`` without a score.
        p_hardness: p-value of the difference from all other examples, after removing the
            difference between classes.
        gap: mean confidence minus accuracy; above 0 the model is overconfident on this group.
        p_gap: p-value of the difference of this gap from that of all other examples.
        ece: expected calibration error over 15 bins of equal width.
        confusions: label, prediction and count of the most frequent errors.
    """

    name: str
    n: int
    accuracy: Estimate
    expected_accuracy: float
    p_accuracy: float | None = None
    hardness: Estimate | None = None
    p_hardness: float | None = None
    gap: Estimate | None = None
    p_gap: float | None = None
    ece: float | None = None
    confusions: tuple[tuple[int, int, int], ...] = ()


def group_names(values: ArrayLike) -> NDArray[Any]:
    """Return the group of each example as text; many different numbers become quarters.

    Args:
        values: a column, ``[N]``: text, booleans or numbers. A missing value (``None``, NaN or only
            blanks) is in the group ``(none)``. More than 12 different numbers, even as text, are
            cut at their quartiles.

    Returns:
        ``[N]`` of text.

    Example:
        >>> group_names(["a", None, "b"]).tolist()
        ['a', '(none)', 'b']
        >>> sorted(set(group_names(np.arange(100))))
        ['1: up to 24.8', '2: to 49.5', '3: to 74.2', '4: above 74.2']
    """
    column = np.asarray(values)
    if column.ndim != 1:
        raise ShapeError(f"expected one value per example, [N], got {list(column.shape)}")
    if column.dtype.kind in "OU":
        column = _of_numbers(column)
    if column.dtype.kind in "iuf":
        known = column[~np.isnan(column)] if column.dtype.kind == "f" else column
        if len(np.unique(known)) > _MOST_VALUES:
            # otherwise nearly every number would be a group with a single example
            return _quarters(column.astype(np.float64))
    return np.array([_name(value) for value in column.tolist()], dtype=object)


def by_group(
    groups: ArrayLike,
    labels: ArrayLike,
    predictions: ArrayLike,
    *,
    hardness: ArrayLike | None = None,
    confidence: ArrayLike | None = None,
    least: int = LEAST,
    level: float = 0.95,
) -> list[GroupNumbers]:
    """Return accuracy, hardness, calibration and confusions of every group.

    P-values are corrected together by Holm's method, over all groups and all three questions. If
    groups do not differ, the chance that any p-value is below 0.05 is at most 0.05, up to the
    normal approximation in the tests of means.

    Args:
        groups: of each example, ``[N]``; see :func:`group_names`.
        labels: class indices, ``[N]``.
        predictions: class indices, ``[N]``; -1 for no prediction, which counts as wrong.
        hardness: a score per example, ``[N]``; NaN is left out of the means.
        confidence: probability of the prediction, ``[N]`` in [0, 1]; NaN is left out.
        least: a group of fewer examples is shown but not tested.
        level: confidence level of the intervals.

    Returns:
        One entry per group, ordered by accuracy minus expected accuracy, the lowest first.

    Raises:
        ShapeError: the columns differ in length.
        StatisticError: there are no examples.

    Example:
        >>> rows = by_group(["a"] * 50 + ["b"] * 50, [0] * 100, [0] * 75 + [1] * 25)
        >>> [(row.name, row.accuracy.value, row.p_accuracy < 0.05) for row in rows]
        [('b', 0.5, True), ('a', 1.0, True)]
    """
    names = group_names(groups)
    truth, guessed = truth_and_guess(names, labels, predictions)
    wrong = truth != guessed
    known, codes = np.unique(names.astype(str), return_inverse=True)
    # expected errors by class, so that a group is not blamed for its hard classes
    rate = error_rates(truth, wrong)
    residual = None if hardness is None else _without_classes(hardness, truth)
    gap = None if confidence is None else np.asarray(confidence, np.float64) - ~wrong
    numbers = []
    for code, name in enumerate(known.tolist()):
        rows = codes == code
        # few examples show nothing, and a single group has nothing to be compared with
        is_tested = rows.sum() >= least and len(known) > 1
        numbers.append(
            GroupNumbers(
                name=name,
                n=int(rows.sum()),
                accuracy=right_share(~wrong[rows], level),
                expected_accuracy=1 - float(rate[truth[rows]].mean()),
                p_accuracy=_two_sided(wrong[rows], rate[truth[rows]]) if is_tested else None,
                hardness=_mean(hardness, rows, level),
                p_hardness=_against_others(residual, rows) if is_tested else None,
                gap=_mean(gap, rows, level),
                p_gap=_against_others(gap, rows) if is_tested else None,
                ece=None if confidence is None else _ece(confidence, ~wrong, rows),
                confusions=_confusions(truth[rows & wrong], guessed[rows & wrong]),
            )
        )
    # over all groups and all three questions at once
    numbers = _corrected(numbers)
    return sorted(numbers, key=lambda row: row.accuracy.value - row.expected_accuracy)


def upper_tail(count: int, mean: float, trials: int) -> float:
    """Upper bound of the chance of ``count`` or more, from a binomial with the same mean."""
    from scipy.stats import binom

    # up to one error more than expected the bound below does not hold, nor would that be evidence
    if count < mean + 1:
        return 1.0
    # trials with different rates spread less than a binomial with their mean rate (Hoeffding 1956)
    return float(binom.sf(count - 1, trials, min(1.0, mean / trials)))


def _two_sided(wrong: NDArray[np.bool_], expected: Floats) -> float:
    errors, n, mean = int(wrong.sum()), len(wrong), float(expected.sum())
    tails = (upper_tail(errors, mean, n), upper_tail(n - errors, n - mean, n))
    return min(1.0, 2 * min(tails))


def error_rates(
    truth: NDArray[Any], wrong: NDArray[np.bool_], rows: NDArray[np.int64] | None = None
) -> Floats:
    """Return the share of errors of each class, among all rows or some."""
    size = int(truth.max()) + 1
    labels, errors = (truth, wrong) if rows is None else (truth[rows], wrong[rows])
    counts = np.bincount(labels, minlength=size)
    # a class without rows gets 0 instead of 0 / 0; its rate is never used
    return np.bincount(labels, errors, minlength=size) / np.maximum(counts, 1)


def truth_and_guess(
    names: NDArray[Any], labels: ArrayLike, predictions: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return labels and predictions as class indices, checked against the group names.

    Raises:
        ShapeError: the columns differ in length.
        StatisticError: there are no examples, or an example has no label.
    """
    truth, guessed = np.asarray(labels), np.asarray(predictions)
    if truth.shape != names.shape or guessed.shape != names.shape:
        raise ShapeError(
            f"expected one row per example in every column, got groups {list(names.shape)}, labels "
            f"{list(truth.shape)}, predictions {list(guessed.shape)}"
        )
    if not len(truth):
        raise StatisticError("expected at least 1 example, got none")
    if truth.min() < 0:
        raise StatisticError("expected a label for every example, got -1; leave such rows out")
    return truth.astype(np.int64), guessed.astype(np.int64)


def right_share(right: NDArray[np.bool_], level: float) -> Estimate:
    """Return the share of correct predictions with Wilson's interval."""
    hits, n = int(right.sum()), len(right)
    return Estimate(hits / n, *wilson_interval(hits, n, level=level), n, level, "wilson")


def _mean(values: ArrayLike | None, rows: NDArray[np.bool_], level: float) -> Estimate | None:
    if values is None:
        return None
    from scipy import special

    chosen = np.asarray(values, np.float64)[rows]
    chosen = chosen[np.isfinite(chosen)]
    n = len(chosen)
    if not n:
        return None
    mean, reach = float(chosen.mean()), math.inf
    if n > 1:
        spread = float(chosen.std(ddof=1)) / math.sqrt(n)
        # Student's t, because the spread is estimated from the same few examples
        reach = float(special.stdtrit(n - 1, 0.5 + level / 2)) * spread
    return Estimate(mean, mean - reach, mean + reach, n, level, "t")


def _without_classes(hardness: ArrayLike, truth: NDArray[np.int64]) -> Floats:
    """Return each score minus the mean score of the example's class."""
    values = np.asarray(hardness, np.float64)
    known = np.isfinite(values)
    size = int(truth.max()) + 1
    # class means over the examples that have a score
    sums = np.bincount(truth[known], values[known], minlength=size)
    counts = np.bincount(truth[known], minlength=size)
    return np.where(known, values - (sums / np.maximum(counts, 1))[truth], np.nan)


def _against_others(values: Floats | None, rows: NDArray[np.bool_]) -> float | None:
    if values is None:
        return None
    sides = [values[side & np.isfinite(values)] for side in (rows, ~rows)]
    if min(map(len, sides)) < 2:
        return None
    facts = [(float(side.mean()), float(side.std(ddof=1)), len(side)) for side in sides]
    try:
        return t_test_from_summary(facts[0], facts[1]).p
    except StatisticError:  # nothing varies
        return 1.0 if facts[0][0] == facts[1][0] else 0.0


def _ece(confidence: ArrayLike, right: NDArray[np.bool_], rows: NDArray[np.bool_]) -> float | None:
    values = np.asarray(confidence, np.float64)
    rows = rows & np.isfinite(values)
    if not rows.any():
        return None
    # a confidence of exactly 1 belongs to the last bin
    places = np.minimum((values[rows] * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(places, values[rows] - right[rows], minlength=_BINS)
    # |sum of (confidence - right)| per bin is n_b times its gap
    return float(np.abs(gaps).sum() / rows.sum())


def _confusions(
    truth: NDArray[np.int64], guessed: NDArray[np.int64]
) -> tuple[tuple[int, int, int], ...]:
    pairs, counts = np.unique(np.stack([truth, guessed]), axis=1, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_CONFUSIONS]
    return tuple((int(pairs[0, at]), int(pairs[1, at]), int(counts[at])) for at in order)


def _corrected(rows: list[GroupNumbers]) -> list[GroupNumbers]:
    """Correct the p-values of all groups and questions together."""
    keys = ("p_accuracy", "p_hardness", "p_gap")
    places = [
        (at, key) for at, row in enumerate(rows) for key in keys if getattr(row, key) is not None
    ]
    if not places:
        return rows
    raised = adjusted_p_values([getattr(rows[at], key) for at, key in places]).tolist()
    for (at, key), p in zip(places, raised, strict=True):
        rows[at] = replace(rows[at], **{key: p})
    return rows


def _of_numbers(column: NDArray[Any]) -> NDArray[Any]:
    """Convert numbers with gaps, and numbers written as text, to floats; keep anything else."""
    # an empty cell counts as missing, not as a value of its own
    gaps = (None, "")
    known = [value for value in column.tolist() if value not in gaps]
    if any(isinstance(value, bool) or not isinstance(value, int | float | str) for value in known):
        return column
    try:
        numbers = [np.nan if value in gaps else float(value) for value in column.tolist()]
    except ValueError:
        return column
    # text with few different numbers holds codes, such as 01, which stay as they are written
    is_text = any(isinstance(value, str) for value in known)
    return column if is_text and len(set(known)) <= _MOST_VALUES else np.array(numbers)


def _name(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NO_GROUP
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    # in a column with gaps integers became floats; write 3.0 as 3
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() or NO_GROUP


def _quarters(column: Floats) -> NDArray[Any]:
    known = ~np.isnan(column)
    # unique, because many equal values leave some quarters empty
    edges = np.unique(np.quantile(column[known], [0.25, 0.5, 0.75]))
    places = np.searchsorted(edges, column, side="left")
    names = [f"{at + 1}: {'up ' if not at else ''}to {edge:.3g}" for at, edge in enumerate(edges)]
    names.append(f"{len(edges) + 1}: above {edges[-1]:.3g}")
    return np.where(known, np.array(names, dtype=object)[places], NO_GROUP)
