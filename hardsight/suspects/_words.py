"""Say in plain words why a row is suspect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hardsight.suspects._evidence import FOLDS, NONE, SEEN, TRACKED, UNSEEN, Evidence, Rows
from hardsight.suspects._groups import (
    AMBIGUOUS,
    DUPLICATE,
    HARD,
    UNLIKE,
    WRONG,
    is_sure,
    usual_probabilities,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable


def evidence_in_words(table: ScoreTable, evidence: Evidence) -> str:
    """What the ranking is based on, for a heading."""
    if evidence.by is None:
        return "no score, so in the order of the table"
    title = table.about(evidence.by)["title"]
    said = {
        TRACKED: "from all epochs of training",
        FOLDS: "each example judged by a model that never saw it",
        UNSEEN: "one pass of a model that never saw these examples",
        SEEN: "one pass of a model over its own training data",
    }
    return f"{title}, {said.get(evidence.kind, 'one pass of the model')}"


class Reason:
    """Words for one row; called with its number."""

    def __init__(
        self,
        table: ScoreTable,
        evidence: Evidence,
        rows: Rows,
        group: NDArray[np.int8],
        order: NDArray[np.int32],
        twins: NDArray[np.int32] | None = None,
    ) -> None:
        self._evidence, self._rows, self._group, self._order = evidence, rows, group, order
        self._table, self._classes, self._twins = table, table.classes, twins
        self._is_tracked = evidence.kind == TRACKED
        self._by = "" if evidence.by is None else table.about(evidence.by)["title"]
        self._place: NDArray[np.int32] | None = None
        self._usual: NDArray[np.float32] | None = None

    def __call__(self, row: int) -> str:
        words = [self._fact(row), self._doubt(row), self._ranked(row)]
        return " ".join(word for word in words if word)

    def _fact(self, row: int) -> str:
        label, prediction = int(self._rows.label[row]), int(self._rows.prediction[row])
        if label < 0:
            return "It has no label." if prediction >= 0 else "It has no label or no prediction."
        if self._is_tracked and self._rows.led[row] >= 0:
            return self._of_training(row)
        if prediction < 0:
            return "The model gave no prediction."
        model = "A model that never saw it" if self._evidence.kind == FOLDS else "The model"
        if label == prediction:
            return f"{model} agrees with the label {self._name(label)}{self._sure(row)}."
        says = f"{model} says {self._name(prediction)}{self._sure(row, of_rival=True)}"
        return f"{says}, not {self._name(label)}{self._sure(row)}."

    def _of_training(self, row: int) -> str:
        led, seen = int(self._rows.led[row]), int(self._rows.seen[row])
        label, rival = int(self._rows.label[row]), int(self._rows.rival[row])
        every = "the only epoch" if seen == 1 else f"all {seen:,} epochs"
        if not led:
            return f"The label {self._name(label)} led in {every}."
        named = f", most often {self._name(rival)}" if rival >= 0 else ""
        lost = every if led == seen else f"{led:,} of {seen:,} epochs"
        return f"A rival class led in {lost}{named}."

    def _sure(self, row: int, *, of_rival: bool = False) -> str:
        rows = self._rows
        share = float(rows.rival_probability(row) if of_rival else rows.probability[row])
        return f" ({_share(share)})" if np.isfinite(share) else ""

    def _doubt(self, row: int) -> str:
        group = int(self._group[row])
        label, rival = (self._name(int(part[row])) for part in (self._rows.label, self._rows.rival))
        known = self._rows.rival[row] >= 0
        if group == DUPLICATE and self._twins is not None:
            twin = int(self._twins[row])
            index = int(self._table.column("index")[twin])
            theirs = self._name(int(self._rows.label[twin]))
            return f"It is nearly the same as example {index:,}, which is labelled {theirs}."
        if group == WRONG and not np.isnan(self._rows.margin[row]):
            return self._clear(rival if known else "another class", label, row)
        if group == AMBIGUOUS:
            both = f"{label} and {rival}" if known else f"{label} and another class"
            if self._is_tracked:
                return f"Averaged over the epochs, the model was undecided between {both}."
            return f"The model cannot decide between {both}."
        if group == UNLIKE:
            return "No class fits even half as well as one usually does."
        # a negative margin is only in this group if the estimated share of wrong labels is low
        if group == HARD and self._rows.margin[row] < 0:
            return "Most such disagreements in this data are the model's mistakes."
        if group == HARD and self._is_tracked:
            return f"The label led on average, but was less probable than is usual for {label}."
        if group == HARD:
            return f"The label leads, but is less probable than is usual for {label}."
        return ""

    def _clear(self, other: str, label: str, row: int) -> str:
        # what holds on average over training may not hold for the trained model
        if self._sure_as_usual(row):
            usual = f"as sure of {other} as it usually is of examples of that class"
            if self._is_tracked:
                return f"Averaged over the epochs, the model was {usual}."
            return f"The model is {usual}."
        if self._is_tracked:
            return f"Averaged over the epochs, {other} was more than twice as likely as {label}."
        return f"To the model, {other} is more than twice as likely as {label}."

    def _sure_as_usual(self, row: int) -> bool:
        if self._usual is None:
            self._usual = usual_probabilities(self._rows)
        return is_sure(self._rows, self._usual, row)

    def _ranked(self, row: int) -> str:
        if self._evidence.kind == NONE or self._rows.label[row] < 0:
            return ""
        if np.isnan(self._rows.hardness[row]):
            return f"{self._by} could not be computed."
        if self._place is None:
            self._place = np.empty(len(self._order), np.int32)
            self._place[self._order] = np.arange(len(self._order), dtype=np.int32)
        # the share of examples that are less suspect; rounded down, so that it is never 100%
        easier = 1 - (int(self._place[row]) + 1) / len(self._order)
        return f"It is more suspect than {np.floor(1000 * easier) / 10:.1f}% of the examples."

    def _name(self, label: int) -> str:
        return self._classes[label] if 0 <= label < len(self._classes) else str(label)


def _share(value: float) -> str:
    """A probability as text, never rounded to 0% or 100%."""
    if value < 0.005:
        return "under 1%"
    return "over 99%" if value > 0.995 else f"{value:.0%}"
