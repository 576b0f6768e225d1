"""The head of the page and its classes: the few numbers and warnings everyone should see."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hardsight.gallery import is_finite
from hardsight.report.page import NONE, count, number, percent, plural
from hardsight.stats import wilson_interval
from hardsight.table import SUSPICION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.report.table._view import View


MOST_ROWS = 2_000  # a page with more table rows than this no longer scrolls well
_CONFUSIONS = 3
_SAMPLE_NOTES = {
    "in-sample": "These scores are in-sample: the model was trained on these examples, so it may "
    "have memorised wrong labels and made them look easy. Scores of held-out examples are safer.",
    "mixed": "{} were held out: they selected the model and were never trained on, and their "
    "numbers are of the validation pass after each epoch. The others are in-sample: each number "
    "was taken while the model was trained on them, with augmentation, so they may look easier.",
    "out-of-sample": "These scores are out-of-sample: the model was not trained on these examples.",
    "unknown": "It is not recorded whether the model was trained on these examples. If it was, "
    "memorised mistakes may look easy.",
}


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
    """What the table of classes says about one class.

    Attributes:
        label: the class number.
        name: its name.
        count: examples with this label.
        judged: those with a finite prediction.
        accuracy: share of them predicted right.
        mean: mean score that the page ranks by.
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
    sign = -1.0 if _higher_is_harder(view) else 1.0
    return sorted(rows, key=lambda row: (row.mean is None, sign * (row.mean or 0.0), row.label))


def confusions_of(view: View) -> list[Confusion]:
    """Every pair of classes that was mixed up, most frequent first."""
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
    for one in confusions:
        group = groups.setdefault(one.prediction if by_prediction else one.label, [])
        if len(group) < _CONFUSIONS:
            group.append(one)
    return groups


def _higher_is_harder(view: View) -> bool:
    return view.gallery.by is None or view.table.higher_is_harder(view.gallery.by)


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


@dataclass(frozen=True)
class Fact:
    """One number of the summary, with a line below it."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Note:
    """One sentence of the summary; a warning is marked as such."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Summary:
    """Numbers, sentences, the pairs of classes that blur most, and how many were unreadable."""

    facts: list[Fact]
    notes: list[Note]
    blurred: list[Confusion]
    unreadable: int


def summary_of(view: View, classes: list[ClassRow], blurred: list[Confusion]) -> Summary:
    """The summary of one table."""
    facts = [
        _accuracy(view),
        Fact("Examples", count(len(view.table)), _examples_detail(view)),
        Fact("Classes", count(view.num_classes), _classes_detail(view, classes)),
        *_hardest_class(view, classes),
        *_suspect(view),
        _unusable(view),
    ]
    return Summary(facts, _notes(view), blurred, _unreadable(view))


def _accuracy(view: View) -> Fact:
    right, wrong = int(view.right.sum()), int(view.wrong.sum())
    if right + wrong == 0:
        return Fact("Accuracy", NONE, "no example has both a label and a finite prediction")
    low, high = wilson_interval(right, right + wrong)
    interval = f"95% interval {100 * low:.1f} to {100 * high:.1f}%"
    held_out = view.held_out & (view.right | view.wrong)
    if held_out.any():  # of which nobody can say that they were memorised
        interval += f"; {percent(float(view.right[held_out].mean()))} of those held out"
    return Fact("Accuracy", percent(right / (right + wrong)), interval)


def _examples_detail(view: View) -> str:
    unjudged = len(view.table) - int(view.right.sum()) - int(view.wrong.sum())
    judged = f"{count(view.right.sum())} right, {count(view.wrong.sum())} wrong"
    judged += f", {count(unjudged)} not judged" if unjudged else ""
    held_out = int(view.held_out.sum())
    return f"{judged}; {count(held_out)} held out" if held_out else judged


def _classes_detail(view: View, classes: list[ClassRow]) -> str:
    missing = view.num_classes - len(classes)
    return f"{count(missing)} without an example" if missing > 0 else "each with examples"


def _hardest_class(view: View, classes: list[ClassRow]) -> list[Fact]:
    ranked = [row for row in classes if row.mean is not None]
    if len(ranked) < 2 or view.gallery.by is None:
        return []
    worst = ranked[0]
    title = view.title_of(view.gallery.by)
    # a summary of training may be a mean by name: no "mean Mean AVH"
    said = title if title.startswith("Mean ") else f"mean {title}"
    mean = f"{said} {number(worst.mean)}"
    return [Fact("Hardest class", worst.name, f"{mean}, accuracy {percent(worst.accuracy)}")]


def _suspect(view: View) -> list[Fact]:
    """How many labels lost against another class on the average of the epochs."""
    if SUSPICION not in view.table.scores:
        return []
    suspect = int((view.values(SUSPICION) > 0.5).sum())
    return [Fact("Suspect labels", count(suspect), "suspicion above 0.5: a rival class led")]


def _unusable(view: View) -> Fact:
    unread = _unreadable(view)
    broken = int((~is_finite(view.table)).sum())
    return Fact("Unusable", count(unread + broken), f"{unread:,} unreadable, {broken:,} not finite")


def _unreadable(view: View) -> int:
    """Examples that could not be read; the list may lie in a folder this table was taken from."""
    counts = view.metadata.get("counts") or {}
    return max(len(view.errors), int(counts.get("errors") or 0))


def _notes(view: View) -> list[Note]:
    sample = str(view.metadata.get("sample") or "unknown")
    text = _SAMPLE_NOTES.get(sample, _SAMPLE_NOTES["unknown"])
    if sample == "mixed":
        held_out = int(view.held_out.sum())
        text = text.format(f"{count(held_out)} of these {plural(len(view.table), 'example')}")
    if sample in ("in-sample", "mixed") and SUSPICION in view.table.scores:
        text += " Suspicion is an average over all of training, and remembers how it began."
    notes = [Note(text, warning=sample in ("in-sample", "mixed"))]
    missing = view.metadata.get("missing") or {}
    flips = (view.metadata.get("bias") or {}).get("flip_rate")
    if not missing and isinstance(flips, int | float) and math.isfinite(flips):
        text = (
            f"The head's bias changes {percent(flips)} of the predictions. Angles ignore the bias"
            f"{', so for those examples AVH and the prediction disagree' if flips else ''}."
        )
        notes.append(Note(text, warning=flips > 0.02))
    if missing:
        text = f"Missing: {', '.join(missing['scores'])}, because {missing['reason']}."
        notes.append(Note(text, warning=True))
    unknown = int((view.outcome < 0).sum())
    if unknown > 0:
        text = f"{plural(unknown, 'example')} without a label or a finite prediction"
        notes.append(Note(f"{text} count neither as right nor as wrong."))
    return notes
