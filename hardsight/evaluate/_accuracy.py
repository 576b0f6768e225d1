"""Accuracy with its interval: overall, by class, and for frequent and rare classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.errors import LabelError, OptionError, ShapeError, StatisticError
from hardsight.stats import Estimate, wilson_interval

SHOTS = ("many", "medium", "few")


def accuracy(predictions: ArrayLike, labels: ArrayLike, *, level: float = 0.95) -> Estimate:
    """Return the share of examples whose prediction is their label, with Wilson's interval.

    Args:
        predictions: class indices, ``[N]``; -1 for no prediction, which is never right.
        labels: class indices, ``[N]``.
        level: confidence level.

    Returns:
        ``.value`` in [0, 1].

    Raises:
        ShapeError: the columns differ in length.
        StatisticError: there is no example.

    Example:
        >>> accuracy([0, 1, 1, 2], [0, 1, 2, 2]).value
        0.75
    """
    right = _right(predictions, labels)
    return _share(right, level)


def class_accuracy(
    predictions: ArrayLike, labels: ArrayLike, num_classes: int, *, level: float = 0.95
) -> list[Estimate | None]:
    """Return the accuracy on the examples of each class, or ``None`` for a class without examples.

    Args:
        predictions: class indices, ``[N]``.
        labels: class indices in ``[0, num_classes)``, ``[N]``.
        num_classes: C.
        level: confidence level.

    Returns:
        C estimates; the position of an estimate is its class.

    Raises:
        ShapeError: the columns differ in length.
        LabelError: a label is outside ``[0, num_classes)``.

    Example:
        >>> result = class_accuracy([0, 1, 1], [0, 0, 1], 3)
        >>> [None if estimate is None else estimate.value for estimate in result]
        [0.5, 1.0, None]
    """
    right, truth = _right(predictions, labels), np.asarray(labels)
    _check_classes(truth, num_classes)
    counts = np.bincount(truth, minlength=num_classes)
    hits = np.bincount(truth[right], minlength=num_classes)
    return [
        counted(int(hits[c]), int(counts[c]), level) if counts[c] else None
        for c in range(num_classes)
    ]


def shot_accuracy(
    predictions: ArrayLike,
    labels: ArrayLike,
    training_counts: ArrayLike,
    *,
    many_above: int = 100,
    few_below: int = 20,
    level: float = 0.95,
) -> dict[str, Estimate | None]:
    """Return the accuracy on classes with many, some and few training examples.

    Many means more than ``many_above`` training examples of a class, and few means fewer than
    ``few_below``. Medium is everything in between, including both ends.

    Args:
        predictions: class indices, ``[N]``.
        labels: class indices, ``[N]``.
        training_counts: number of training examples of each class, ``[C]``.
        many_above: classes with more examples are many-shot.
        few_below: classes with fewer examples are few-shot.
        level: confidence level.

    Returns:
        ``many``, ``medium`` and ``few``; each is ``None`` if its group has no examples.

    Raises:
        ShapeError: the columns differ in length.
        LabelError: a label has no training count.
        OptionError: ``few_below`` is above ``many_above``.

    Example:
        >>> result = shot_accuracy([0, 1, 0], [0, 1, 2], [500, 50, 5])
        >>> [result[name].value for name in ("many", "medium", "few")]
        [1.0, 1.0, 0.0]

    Reference:
        Zhao et al., Well-classified Examples are Underestimated, AAAI 2022, section on imbalance.
    """
    if few_below > many_above + 1:
        raise OptionError(
            f"expected few_below <= many_above + 1, got few_below={few_below}, "
            f"many_above={many_above}"
        )
    right, truth = _right(predictions, labels), np.asarray(labels)
    counts = np.asarray(training_counts)
    _check_classes(truth, len(counts))
    own = counts[truth]
    groups = {
        "many": own > many_above,
        "medium": (own >= few_below) & (own <= many_above),
        "few": own < few_below,
    }
    return {name: _share(right[rows], level) if rows.any() else None
            for name, rows in groups.items()}  # fmt: skip


def _right(predictions: ArrayLike, labels: ArrayLike) -> NDArray[np.bool_]:
    guessed, truth = np.asarray(predictions), np.asarray(labels)
    if guessed.shape != truth.shape or truth.ndim != 1:
        raise ShapeError(
            "expected one row per example in every tensor, got predictions "
            f"{list(guessed.shape)}, labels {list(truth.shape)}"
        )
    right: NDArray[np.bool_] = guessed == truth
    return right


def _check_classes(labels: NDArray[np.int64], num_classes: int) -> None:
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        raise LabelError(
            f"expected labels in [0, {num_classes}), got values from {labels.min()} to "
            f"{labels.max()}"
        )


def _share(right: NDArray[np.bool_], level: float) -> Estimate:
    if not len(right):
        raise StatisticError("expected at least 1 example, got none")
    return counted(int(right.sum()), len(right), level)


def counted(hits: int, trials: int, level: float) -> Estimate:
    """Return a share with its Wilson interval."""
    low, high = wilson_interval(hits, trials, level=level)
    return Estimate(hits / trials, low, high, trials, level, "wilson")
