"""The worst slices of a dataset, in which a model fails most: one or two attribute values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.errors import OptionError, ShapeError
from hardsight.stats._estimate import Estimate
from hardsight.stats._groups import (
    CLASS,
    LEAST,
    by_group,
    error_rates,
    group_names,
    right_share,
    truth_and_guess,
    upper_tail,
)
from hardsight.stats._inputs import Floats
from hardsight.stats._multiple import adjusted_p_values


class _Candidate(NamedTuple):
    """A candidate for a slice, before p-values are corrected.

    Attributes:
        where: the values, by attribute.
        rows: positions of the examples.
        expected: accuracy expected from the classes of the examples.
        p: chance of as many errors or more, not corrected for other slices.
    """

    where: tuple[tuple[str, str], ...]
    rows: NDArray[np.int64]
    expected: float
    p: float


@dataclass(frozen=True)
class Slice:
    """Examples with one or two values in common, on which a model fails more than expected.

    Attributes:
        where: attribute and value, one or two pairs.
        n: number of examples.
        errors: number of wrong predictions.
        accuracy: share of correct predictions, with Wilson's interval.
        expected_accuracy: as in :class:`GroupNumbers`.
        p: chance of as many errors or more, corrected for all slices that were examined.
    """

    where: tuple[tuple[str, str], ...]
    n: int
    errors: int
    accuracy: Estimate
    expected_accuracy: float
    p: float


def worst_slices(
    attributes: Mapping[str, ArrayLike],
    labels: ArrayLike,
    predictions: ArrayLike,
    *,
    least: int | None = None,
    level: float = 0.05,
    most: int = 10,
    classes: ArrayLike | None = None,
) -> list[Slice]:
    """Find slices of one or two attributes with more errors than their classes explain.

    Examines every value of an attribute, every pair of values of two attributes, and every value
    within every class, if it has enough examples. A pair counts only if it is worse than the rest
    of either of its values; a value within a class counts only if it is worse there than in the
    other classes. A value that fails only because of pairs already found in it is left out. All
    p-values are corrected together by Holm's method: if errors fall at random within classes, the
    chance of finding any slice is at most ``level``.

    Args:
        attributes: columns ``[N]`` by name; see :func:`group_names`.
        labels: class indices, ``[N]``.
        predictions: class indices, ``[N]``.
        least: fewest examples of a slice; by default a hundredth of all, but at least 30.
        level: of the test.
        most: largest number of slices to return.
        classes: names of the classes, position = label; their numbers by default.

    Returns:
        The slices, ordered by how far their accuracy is below the expected one, the worst first;
        empty if there are none.

    Raises:
        ShapeError: the columns differ in length.
        StatisticError: there are no examples.
        OptionError: ``least`` is below 2.

    Example:
        >>> sex, night = np.arange(400) % 2, np.arange(400) // 2 % 2
        >>> guessed = np.where((sex == 1) & (night == 1), np.arange(400) % 3, 0)
        >>> [found] = worst_slices({"sex": sex, "night": night}, np.zeros(400, int), guessed)
        >>> found.where, found.n
        ((('sex', '1'), ('night', '1')), 100)
    """
    if not attributes:
        raise OptionError("expected at least one attribute to cut slices by, got none")
    columns = {name: group_names(values).astype(str) for name, values in attributes.items()}
    truth, guessed = truth_and_guess(next(iter(columns.values())), labels, predictions)
    for name, values in columns.items():
        if len(values) != len(truth):
            raise ShapeError(f"expected {len(truth)} values of {name}, got {len(values)}")
    fewest = _least_of_slices(len(truth)) if least is None else least
    if fewest < 2:
        raise OptionError(f"expected slices of at least 2 examples, got least={least}")
    wrong = truth != guessed
    titles = None if classes is None else [str(name) for name in np.asarray(classes).tolist()]
    candidates = [
        *_single_slices(columns, truth, wrong, fewest),
        *_pair_slices(columns, truth, wrong, fewest),
        *_class_slices(columns, truth, wrong, fewest, titles),
    ]
    if not candidates:
        return []
    # every examined slice counts as a test, including those without a finding
    raised = adjusted_p_values([candidate.p for candidate in candidates]).tolist()
    failing = [(candidate, p) for candidate, p in zip(candidates, raised, strict=True) if p < level]
    failing = _without_explained(
        [candidate for candidate, _ in failing], failing, truth, wrong, level
    )
    slices = [
        Slice(
            where, len(rows), int(wrong[rows].sum()), right_share(~wrong[rows], 0.95), expected, p
        )
        for (where, rows, expected, _), p in failing
    ]
    return sorted(slices, key=lambda row: row.accuracy.value - row.expected_accuracy)[:most]


def _without_explained(
    slices: list[_Candidate],
    failing: list[tuple[_Candidate, float]],
    truth: NDArray[np.int64],
    wrong: NDArray[np.bool_],
    level: float,
) -> list[tuple[_Candidate, float]]:
    """Drop single values that no longer fail once the pairs found in them are left out."""
    rate = error_rates(truth, wrong)
    kept = []
    for candidate, p in failing:
        where, rows = candidate.where, candidate.rows
        # pairs that hold this value
        inner = [
            other.rows for other in slices if len(other.where) == 2 and where[0] in other.where
        ]
        if len(where) == 1 and inner:
            rest = np.setdiff1d(rows, np.concatenate(inner))
            if not len(rest) or _judged(rest, truth, wrong, rate)[1] >= level:
                continue
        kept.append((candidate, p))
    return kept


def group_findings(
    attributes: Mapping[str, ArrayLike],
    labels: ArrayLike,
    predictions: ArrayLike,
    *,
    hardness: ArrayLike | None = None,
    hardness_title: str = "score",
    confidence: ArrayLike | None = None,
    classes: ArrayLike | None = None,
) -> dict[str, Any]:
    """Return groups and worst slices of a dataset as plain values, for pages and cards.

    Args:
        attributes: columns ``[N]`` by name.
        labels: class indices, ``[N]``.
        predictions: class indices, ``[N]``.
        hardness: a score per example, ``[N]``.
        hardness_title: its name on a page.
        confidence: probability of the prediction, ``[N]``.
        classes: names of the classes, position = label.

    Returns:
        ``attributes``: :func:`by_group` of each attribute; ``slices``: :func:`worst_slices`;
        ``least``: fewest examples of a slice; ``tested_from``: fewest examples of a group that is
        tested.

    Example:
        >>> found = group_findings({"even": [0, 1] * 20}, [0] * 40, [0] * 40)
        >>> [row["name"] for row in found["attributes"]["even"]], found["slices"]
        (['0', '1'], [])
    """
    rows = {
        name: by_group(values, labels, predictions, hardness=hardness, confidence=confidence)
        for name, values in attributes.items()
    }
    slices = worst_slices(attributes, labels, predictions, classes=classes)
    return {
        "attributes": {name: [asdict(row) for row in numbers] for name, numbers in rows.items()},
        "slices": [asdict(row) for row in slices],
        "least": _least_of_slices(len(np.asarray(labels))),
        "tested_from": LEAST,
        "hardness_title": hardness_title,
    }


def _least_of_slices(rows: int) -> int:
    # a hundredth of the rows, but at least 30: smaller slices are found by chance
    return max(30, math.ceil(rows / 100))


def _single_slices(
    columns: Mapping[str, NDArray[Any]], truth: NDArray[Any], wrong: NDArray[np.bool_], least: int
) -> Iterator[_Candidate]:
    rate = error_rates(truth, wrong)
    for name, values in columns.items():
        for (value,), rows in _parts((values,), least):
            # a value that all examples share is not a slice
            if len(rows) < len(truth):
                yield _Candidate(((name, value),), rows, *_judged(rows, truth, wrong, rate))


def _pair_slices(
    columns: Mapping[str, NDArray[Any]], truth: NDArray[Any], wrong: NDArray[np.bool_], least: int
) -> Iterator[_Candidate]:
    rate = error_rates(truth, wrong)
    for (first, a), (second, b) in combinations(columns.items(), 2):
        rates = {
            (name, value): error_rates(truth, wrong, rows)
            for name, values in ((first, a), (second, b))
            for (value,), rows in _parts((values,), least)
        }
        for pair, rows in _parts((a, b), least):
            where = ((first, pair[0]), (second, pair[1]))
            expected, p = _judged(rows, truth, wrong, rate)
            # the pair must be worse than the rest of each value, or that value fails, not the pair
            p = max(p, *(_judged(rows, truth, wrong, rates[value])[1] for value in where))
            yield _Candidate(where, rows, expected, p)


def _class_slices(
    columns: Mapping[str, NDArray[Any]],
    truth: NDArray[Any],
    wrong: NDArray[np.bool_],
    least: int,
    titles: list[str] | None,
) -> Iterator[_Candidate]:
    rate = error_rates(truth, wrong)
    has_classes = len(np.unique(truth)) > 1
    for name, values in columns.items() if has_classes else ():
        wholes = {value: rows for (value,), rows in _parts((values,), least)}
        for (label, value), rows in _parts((truth, values), least):
            title = str(label) if titles is None else titles[int(label)]
            expected, p = _judged(rows, truth, wrong, rate)
            # if the value fails as much in the other classes, the class adds nothing
            others = wholes[value][truth[wholes[value]] != label]
            shift = _shift(others, truth, wrong, rate)
            errors, mean = int(wrong[rows].sum()), float(rate[label]) * len(rows)
            # must also be worse than in the other classes, or the value fails as a whole
            p = max(p, upper_tail(errors, min(len(rows), mean * shift), len(rows)))
            yield _Candidate(((CLASS, title), (name, str(value))), rows, expected, p)


def _shift(
    rows: NDArray[np.int64], truth: NDArray[Any], wrong: NDArray[np.bool_], rate: Floats
) -> float:
    """Return how many times more errors there are than expected, at least 1."""
    mean = float(rate[truth[rows]].sum())
    return max(1.0, float(wrong[rows].sum()) / mean) if mean else 1.0


def _parts(
    columns: tuple[NDArray[Any], ...], least: int
) -> Iterator[tuple[tuple[Any, ...], NDArray[np.int64]]]:
    """Yield values and rows of every combination of values that has enough rows."""
    pairs = [np.unique(column, return_inverse=True) for column in columns]
    names: list[NDArray[Any]] = [pair[0] for pair in pairs]
    # combine the codes of several columns into one number, to find all combinations by one sort
    codes: list[NDArray[Any]] = [pair[1] for pair in pairs]
    joined = np.ravel_multi_index(tuple(codes), [len(values) for values in names])
    order = np.argsort(joined, kind="stable")
    starts = np.flatnonzero(np.diff(joined[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if len(rows) >= least:
            first = rows[0]
            values = (name[code[first]].item() for name, code in zip(names, codes, strict=True))
            yield tuple(values), rows


def _judged(
    rows: NDArray[np.int64], truth: NDArray[Any], wrong: NDArray[np.bool_], rate: Floats
) -> tuple[float, float]:
    """Return the expected accuracy and the chance of as many errors or more."""
    mean = float(rate[truth[rows]].sum())
    return 1 - mean / len(rows), upper_tail(int(wrong[rows].sum()), mean, len(rows))
