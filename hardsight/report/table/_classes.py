"""The table of classes: size, accuracy, mean hardness, and confused classes of each class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardsight.report.table._view import View

MOST_ROWS = 2_000  # a page with more table rows does not scroll well
_CONFUSIONS = 3


@dataclass(frozen=True)
class Confusion:
    """``count`` examples of class ``label`` were predicted as class ``prediction``."""

    label: int
    prediction: int
    label_name: str
    prediction_name: str
    count: int


@dataclass(frozen=True)
class ClassRow:
    """One row of the table of classes.

    Attributes:
        label: the class number.
        name: its name.
        count: examples with this label.
        judged: number of these examples with a finite prediction.
        accuracy: share of the judged examples that were predicted right.
        mean: mean of the score that the page ranks by.
        taken_for: where its wrong predictions went, most frequent first.
        taken_from: which other classes were predicted as this one, most frequent first.
    """

    label: int
    name: str
    count: int
    judged: int
    accuracy: float | None
    mean: float | None
    taken_for: list[Confusion]
    taken_from: list[Confusion]


def class_rows(view: View, confusions: list[Confusion]) -> list[ClassRow]:
    """One row per class that has examples, the hardest class first."""
    labels = view.labels
    counts = _per_class(view, labels >= 0)
    right, wrong = _per_class(view, view.right), _per_class(view, view.wrong)
    means = _means(view)
    taken_for = _grouped(confusions, by_prediction=False)
    taken_from = _grouped(confusions, by_prediction=True)
    rows = [
        ClassRow(
            label=label,
            name=view.class_name(label),
            count=int(counts[label]),
            judged=int(right[label] + wrong[label]),
            accuracy=_share(right[label], right[label] + wrong[label]),
            mean=None if np.isnan(means[label]) else float(means[label]),
            taken_for=taken_for.get(label, []),
            taken_from=taken_from.get(label, []),
        )
        for label in np.flatnonzero(counts).tolist()
    ]
    by = view.gallery.by
    sign = -1.0 if by is None or view.table.higher_is_harder(by) else 1.0
    return sorted(rows, key=lambda row: (row.mean is None, sign * (row.mean or 0.0), row.label))


def confusions_of(view: View) -> list[Confusion]:
    """Every pair of classes that was confused, most frequent first."""
    pairs = view.labels[view.wrong] * view.num_classes + view.predictions[view.wrong]
    codes, counts = np.unique(pairs, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [
        Confusion(label, prediction, view.class_name(label), view.class_name(prediction), n)
        for label, prediction, n in zip(
            (codes[order] // max(1, view.num_classes)).tolist(),
            (codes[order] % max(1, view.num_classes)).tolist(),
            counts[order].tolist(),
            strict=True,
        )
    ]


def _per_class(view: View, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.bincount(view.labels[rows], minlength=view.num_classes)


def _means(view: View) -> NDArray[np.float64]:
    """Mean score per class, NaN for a class without a finite one."""
    if view.gallery.by is None:
        return np.full(view.num_classes, np.nan)
    values = view.values(view.gallery.by)
    used = ~np.isnan(values) & (view.labels >= 0)
    sums = np.bincount(view.labels[used], values[used], minlength=view.num_classes)
    counts = _per_class(view, used)
    means = np.full(view.num_classes, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _grouped(confusions: list[Confusion], *, by_prediction: bool) -> dict[int, list[Confusion]]:
    groups: dict[int, list[Confusion]] = {}
    for confusion in confusions:
        group = groups.setdefault(confusion.prediction if by_prediction else confusion.label, [])
        if len(group) < _CONFUSIONS:
            group.append(confusion)
    return groups


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None
