"""What a table has to say about its own labels: the one place that the app asks.

The order of the queue, the suggested label, the reason in words and the group of every example come
from :func:`suspects_of`. The app knows nothing else about evidence, so that better evidence needs a
change here alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.gallery import class_numbers, is_finite
from hardsight.table import SUSPICION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

DIFFERS, AGREES, UNKNOWN = range(3)
GROUPS = ("the model says another class", "the model agrees", "no prediction")


@dataclass(frozen=True)
class Suspects:
    """Evidence about the label of every row of a table.

    Attributes:
        by: the column that ranks the rows; ``None`` if the table has no score.
        evidence: what the ranking rests on, in words.
        order: all rows, most suspect first; those that cannot be ranked come last.
        suggestion: the label that each row should perhaps have, -1 for none.
        group: of each row, as a place in ``groups``.
        groups: names of the groups.
        is_suspect: the rows that are worth a look, which the queue begins with.
        error_share: estimated share of wrong labels at the rank of each row; ``None`` if there is
            no estimate.
        reason: why a row is suspect, in words.
    """

    by: str | None
    evidence: str
    order: NDArray[np.int32]
    suggestion: NDArray[np.int32]
    group: NDArray[np.int8]
    groups: tuple[str, ...]
    is_suspect: NDArray[np.bool_]
    error_share: NDArray[np.float32] | None = None
    reason: Callable[[int], str] = field(repr=False, default=lambda row: "")


def suspects_of(table: ScoreTable) -> Suspects:
    """The evidence of a table: hardest first by its best judge of labels, the prediction suggested.

    Ranked as :meth:`ScoreTable.suspects` ranks them. A row is worth a look if the model says
    another class, or if training doubted its label for more than half of the time.
    """
    label, prediction = class_numbers(table, "label"), class_numbers(table, "prediction")
    by = table.judge_of_labels() or next(iter(table.scores), None)
    known = (label >= 0) & (prediction >= 0) & is_finite(table)
    differs = known & (label != prediction)
    hardness = np.where(is_finite(table), 0.0 if by is None else _hardness(table, by), np.nan)
    # stable, so that ties keep the order of the table; NaN sorts last
    order = np.argsort(-hardness, kind="stable").astype(np.int32)
    doubted = _doubted(table, by)
    return Suspects(
        by=by,
        evidence=_evidence(table, by),
        order=order,
        suggestion=np.where(differs, prediction, -1).astype(np.int32),
        group=np.select([differs, known], [DIFFERS, AGREES], UNKNOWN).astype(np.int8),
        groups=GROUPS,
        is_suspect=differs | doubted,
        reason=_Reason(table, by, label, prediction, order),
    )


def _hardness(table: ScoreTable, by: str) -> NDArray[np.float64]:
    values = table.hardness_among_alike(by)
    return np.where(np.isfinite(values), values, np.nan)


def _doubted(table: ScoreTable, by: str | None) -> NDArray[np.bool_]:
    if by != SUSPICION:
        return np.zeros(len(table), np.bool_)
    doubted: NDArray[np.bool_] = table.column(SUSPICION) > 0.5  # its rival led most of the time
    return doubted


def _evidence(table: ScoreTable, by: str | None) -> str:
    if by is None:
        return "no score: in the order of the table"
    title = table.about(by)["title"]
    if by == SUSPICION:
        return f"{title}, from all epochs of training"
    sample = table.metadata.get("sample")
    if sample == "in-sample":
        return f"{title}, one pass of a model over its own training data"
    if sample == "out-of-sample":
        return f"{title}, one pass of a model that never saw these examples"
    return f"{title}, one pass of the model"


class _Reason:
    """Words for one row, from what the columns of the table state about themselves."""

    def __init__(
        self,
        table: ScoreTable,
        by: str | None,
        label: NDArray[np.int64],
        prediction: NDArray[np.int64],
        order: NDArray[np.int32],
    ) -> None:
        self._table, self._by, self._label, self._prediction = table, by, label, prediction
        self._order = order
        self._place: NDArray[np.int32] | None = None

    def __call__(self, row: int) -> str:
        label, prediction = int(self._label[row]), int(self._prediction[row])
        words = []
        if label < 0:
            words.append("It has no label.")
        elif prediction < 0:
            words.append("The model gave no prediction.")
        elif label != prediction:
            words.append(f"The model says {self._name(prediction)}, not {self._name(label)}.")
        else:
            words.append(f"The model agrees with the label {self._name(label)}.")
        if self._by is not None:
            words.append(self._ranked(row, self._by))
        return " ".join(words)

    def _name(self, label: int) -> str:
        names = self._table.classes
        return names[label] if label < len(names) else str(label)

    def _ranked(self, row: int, by: str) -> str:
        value = float(self._table.column(by)[row])
        title = self._table.about(by)["title"]
        if not np.isfinite(value):
            return f"{title} could not be computed."
        if self._place is None:
            self._place = np.empty(len(self._order), np.int32)
            self._place[self._order] = np.arange(len(self._order), dtype=np.int32)
        easier = 1 - (int(self._place[row]) + 1) / len(self._order)
        if by == SUSPICION:
            return (
                f"Through training a rival class had a chance of {value:.0%} against the label: "
                f"more doubt than for {_share(easier)} of the examples."
            )
        return f"By {_in_sentence(title)} it is more suspect than {_share(easier)} of the examples."


def _in_sentence(title: str) -> str:
    """A heading within a sentence; abbreviations keep their letters."""
    return title if title[1:2].isupper() else title[:1].lower() + title[1:]


def _share(value: float) -> str:
    return f"{np.floor(1000 * value) / 10:.1f}%"


def nearest_classes(table: ScoreTable, row: int) -> list[dict[str, Any]]:
    """Classes by their angle to an example, nearest first, as far as the table tells.

    A table has the angle to the labelled class and the lead over the nearest other one. That one
    is the prediction if the model does not agree with the label; else its name is not known.
    """
    if not {"target_angle", "angular_margin"} <= set(table.columns):
        return []
    own = float(table.column("target_angle")[row])
    other = own + float(table.column("angular_margin")[row])
    if not (np.isfinite(own) and np.isfinite(other)):
        return []
    label = int(class_numbers(table, "label")[row])
    prediction = int(class_numbers(table, "prediction")[row])
    rival = prediction if prediction != label else -1
    found = [{"label": label, "angle": own}, {"label": rival, "angle": other}]
    return sorted(found, key=lambda one: float(one["angle"]))
