"""The top of the page: the few numbers and warnings that everyone should see."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hardsight.gallery import is_finite
from hardsight.report.page import NONE, count, number, percent, plural
from hardsight.report.table._classes import ClassRow, Confusion
from hardsight.report.table._view import View
from hardsight.stats import wilson_interval
from hardsight.table import SUSPICION

_SAMPLE_NOTES = {
    "in-sample": "These scores are in-sample: the model was trained on these examples, so it may "
    "have memorised wrong labels and made them look easy. Scores of held-out examples are safer.",
    "mixed": "{} were held out: they were used to select the model and never trained on, and their "
    "numbers come from the validation pass after each epoch. The others are in-sample: their "
    "numbers were taken while the model was trained on them, with augmentation, so they may look "
    "easier.",
    "out-of-sample": "These scores are out-of-sample: the model was not trained on these examples.",
    "unknown": "It is not recorded whether the model was trained on these examples. If it was, "
    "wrong labels that it has memorised may look easy.",
}
_DEPENDS = {
    "batch": "The model's output for an example depends on the other examples in its batch, so "
    "these numbers change with the batch size and with the order of the examples.",
    "draw": "The model is random and gives a different output for the same example every time, so "
    "these numbers change from run to run.",
}


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
    """Numbers, notes, the most confused pairs of classes, and the number of unreadable examples."""

    facts: list[Fact]
    notes: list[Note]
    blurred: list[Confusion]
    unreadable: int


def summary_of(view: View, classes: list[ClassRow], blurred: list[Confusion]) -> Summary:
    """The summary of one table."""
    facts = [
        _accuracy(view),
        Fact("Tokens" if _sentences(view) else "Examples", count(len(view.table)), _judged(view)),
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
    if held_out.any():  # their accuracy is the honest one: they cannot have been memorised
        interval += f"; {percent(float(view.right[held_out].mean()))} of those held out"
    return Fact("Accuracy", percent(right / (right + wrong)), interval)


def _sentences(view: View) -> int:
    """The number of sentences in a table of tokens; 0 for any other table."""
    return int((view.metadata.get("data") or {}).get("sentences") or 0)


def _judged(view: View) -> str:
    unjudged = len(view.table) - int(view.right.sum()) - int(view.wrong.sum())
    judged = f"{count(view.right.sum())} right, {count(view.wrong.sum())} wrong"
    judged += f", {count(unjudged)} not judged" if unjudged else ""
    held_out = int(view.held_out.sum())
    judged += f"; {count(held_out)} held out" if held_out else ""
    return f"{judged}; of {plural(_sentences(view), 'sentence')}" if _sentences(view) else judged


def _classes_detail(view: View, classes: list[ClassRow]) -> str:
    missing = view.num_classes - len(classes)
    return f"{count(missing)} without an example" if missing > 0 else "each with examples"


def _hardest_class(view: View, classes: list[ClassRow]) -> list[Fact]:
    ranked = [row for row in classes if row.mean is not None]
    if len(ranked) < 2 or view.gallery.by is None:
        return []
    worst = ranked[0]
    title = view.title_of(view.gallery.by)
    # not "mean Mean AVH" for a summary of training
    said = title if title.startswith("Mean ") else f"mean {title}"
    mean = f"{said} {number(worst.mean)}"
    return [Fact("Hardest class", worst.name, f"{mean}, accuracy {percent(worst.accuracy)}")]


def _suspect(view: View) -> list[Fact]:
    """The estimated number of wrong labels; without an estimate, the labels that a rival beat."""
    shares = view.doubts.error_share if len(view.gallery.suspects) else None
    if shares is not None:
        wrong, judged = float(np.nansum(shares)), int((~np.isnan(shares)).sum())
        said = f"estimated; {percent(wrong / max(1, judged))} of the labels"
        most = "at most " if view.doubts.share_note else ""
        return [Fact("Wrong labels", f"{most}about {count(round(wrong))}", said)]
    if SUSPICION not in view.table.scores:
        return []
    suspect = int((view.values(SUSPICION) > 0.5).sum())
    return [Fact("Suspect labels", count(suspect), "suspicion above 0.5: another class led")]


def _unusable(view: View) -> Fact:
    unread = _unreadable(view)
    broken = int((~is_finite(view.table)).sum())
    return Fact("Unusable", count(unread + broken), f"{unread:,} unreadable, {broken:,} not finite")


def _unreadable(view: View) -> int:
    """The number of unreadable examples; a table outside its run only has the count."""
    counts = view.metadata.get("counts") or {}
    return max(len(view.errors), int(counts.get("errors") or 0))


def _notes(view: View) -> list[Note]:
    sample = str(view.metadata.get("sample") or "unknown")
    text = _SAMPLE_NOTES.get(sample, _SAMPLE_NOTES["unknown"])
    if sample == "mixed":
        held_out = int(view.held_out.sum())
        text = text.format(f"{count(held_out)} of these {plural(len(view.table), 'example')}")
    if sample in ("in-sample", "mixed") and SUSPICION in view.table.scores:
        text += (
            " Suspicion is an average over all of training, so it still shows labels that the "
            "model only memorised later."
        )
    notes = [Note(text, warning=sample in ("in-sample", "mixed"))]
    missing = view.metadata.get("missing") or {}
    flips = (view.metadata.get("bias") or {}).get("flip_rate")
    # without a linear head there are no angles, so a bias makes no difference
    if not missing and isinstance(flips, int | float) and math.isfinite(flips):
        text = (
            f"The head's bias changes {percent(flips)} of the predictions. Angles ignore the bias"
            f"{', so for those examples AVH and the prediction disagree' if flips else ''}."
        )
        # below 2%, angles and predictions agree well enough not to warn
        notes.append(Note(text, warning=flips > 0.02))
    if missing:
        text = f"Missing: {', '.join(missing['scores'])}, because {missing['reason']}."
        notes.append(Note(text, warning=True))
    depends = (view.metadata.get("model") or {}).get("rows_depend_on")
    if depends in _DEPENDS:
        notes.append(Note(_DEPENDS[depends], warning=True))
    notes += [Note(text, warning=True) for text in _said_of_texts(view)]
    unknown = int((view.outcome < 0).sum())
    if unknown > 0:
        text = f"{plural(unknown, 'example')} without a label or a finite prediction"
        notes.append(Note(f"{text} count neither as right nor as wrong."))
    return notes


def _said_of_texts(view: View) -> list[str]:
    """Notes about texts that were cut, left out or not in the vocabulary."""
    counts = view.metadata.get("counts") or {}
    cut, unknown = int(counts.get("truncated") or 0), int(counts.get("unknown") or 0)
    whole = _sentences(view) or len(view.table)
    said = []
    if cut:
        said.append(
            f"{count(cut)} of {plural(whole, 'sentence' if _sentences(view) else 'text')} are "
            "longer than the model can read. The rest was cut off and has no influence."
        )
    if unknown:
        said.append(
            f"{count(unknown)} of {plural(len(view.table), 'token')} are not in the vocabulary, so "
            "their numbers are those of the unknown token."
        )
    if _sentences(view) and counts.get("passed_over"):
        parts = (f"{what} ({count(n)})" for what, n in counts["passed_over"].items())
        said.append(f"Left out: {', '.join(parts)}.")
    return said
