"""Which examples a report shows: decided once, by the scoring run and the report alike.

The scoring run stores thumbnails of exactly these rows; the report shows exactly these rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hardsight.errors import OptionError
from hardsight.table import SUSPICION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

RIGHT, WRONG, UNKNOWN = 1, 0, -1
_OVERALL, _PER_CLASS, _PER_CLASS_LEAST = 24, 16, 3
_FEW = 6  # of a kind whose curves a report draws
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class ClassGallery:
    """The shown rows of one class, as row numbers of the table.

    Attributes:
        label: the class.
        hardest: hardest first.
        confidently_wrong: misclassified rows, most confident first.
        easiest: easiest first.
    """

    label: int
    hardest: NDArray[np.int64]
    confidently_wrong: NDArray[np.int64]
    easiest: NDArray[np.int64]


@dataclass(frozen=True)
class Gallery:
    """The rows a report shows, as row numbers of the table.

    Attributes:
        by: the score that says what is hard; ``None`` where the table has none.
        confidence_by: the score that ranks the wrong predictions.
        hardest: hardest rows overall, hardest first.
        confidently_wrong: misclassified rows overall, most confident first.
        classes: one gallery per class, the class with the worst mean first.
        classes_left_out: classes for which the budget had no room.
        source: position in the source of every row of the table.
        suspects: rows whose label is most probably wrong, most suspect first; none where the
            table has no dynamics.
        learned_last: rows learned after all others, the last one first; likewise.
        easiest: a few of the easiest rows, easiest first; likewise.
    """

    by: str | None
    confidence_by: str | None
    hardest: NDArray[np.int64]
    confidently_wrong: NDArray[np.int64]
    classes: tuple[ClassGallery, ...]
    classes_left_out: int
    source: NDArray[np.int64]
    suspects: NDArray[np.int64] = field(default_factory=_NONE.copy)
    learned_last: NDArray[np.int64] = field(default_factory=_NONE.copy)
    easiest: NDArray[np.int64] = field(default_factory=_NONE.copy)

    def rows(self) -> NDArray[np.int64]:
        """Row numbers of all shown rows, each once, ascending."""
        parts = [
            self.hardest,
            self.confidently_wrong,
            self.suspects,
            self.learned_last,
            self.easiest,
        ]
        for one in self.classes:
            parts += [one.hardest, one.confidently_wrong, one.easiest]
        return np.unique(np.concatenate(parts))

    def indices(self) -> NDArray[np.int64]:
        """Source positions of all shown rows, each once: the thumbnails worth storing."""
        return np.unique(self.source[self.rows()])


def gallery_rows(table: ScoreTable, *, budget: int = 600, by: str | None = None) -> Gallery:
    """The rows of ``table`` worth looking at, at most ``budget`` distinct ones.

    The hardest and the most confidently wrong rows overall come first, then, class by class from
    the worst mean on, each class's hardest, most confidently wrong and easiest rows. The number
    per class shrinks with the number of classes; below three per kind, classes are left out.

    A wrong prediction is the more confident, the more the model prefers it to the label: by
    ``logit_margin`` where the table has it, else the next best score. Where no score of the table
    knows the label, the wrong predictions with the least uncertainty come first.

    A table with dynamics also gives the rows with the largest ``suspicion``, whatever the
    prediction, those with the largest ``first_learned_epoch`` among the learned ones, and a few of
    the easiest.

    Args:
        table: a score table; rows that are not finite, or lack a label, take no part.
        budget: most distinct rows to choose.
        by: the score that says what is hard; ``"avh"``, else the table's first score.

    Raises:
        OptionError: ``budget`` is below 1.
        TableError: ``by`` is no score of the table.

    Example:
        >>> import pyarrow as pa
        >>> from hardsight.table import ScoreTable, with_metadata
        >>> rows = pa.table({"index": [5, 6, 7], "label": [0, 0, 1], "prediction": [0, 1, 1],
        ...                  "avh": [0.1, 0.8, 0.3]})
        >>> about = {"scores": {"avh": {"higher_is_harder": True}}}
        >>> gallery = gallery_rows(ScoreTable(with_metadata(rows, about)))
        >>> gallery.hardest, gallery.confidently_wrong, gallery.indices()
        (array([1, 2, 0]), array([1]), array([5, 6, 7]))
        >>> [one.label for one in gallery.classes]
        [0, 1]
    """
    if budget < 1:
        raise OptionError(f"expected a budget of at least 1 example, got {budget}")
    source = table.column("index").astype(np.int64)
    by = by or _default_score(table)
    if by is None:
        return Gallery(None, None, _NONE, _NONE, (), 0, source)
    confidence_by = table.judge_of_mistakes() or by
    labels, outcome = class_numbers(table, "label"), outcomes(table)
    usable = is_finite(table) & (labels >= 0)
    hardness = np.where(usable, hardness_of(table, by), np.nan)
    confidence = hardness_of(table, confidence_by)
    if not table.about(confidence_by)["needs_label"]:
        confidence = -confidence  # the easy end of a wrong prediction is the confident one
    confidence = np.where(outcome == WRONG, confidence, np.nan)

    overall = min(_OVERALL, max(1, budget // 4))
    hardest = _first(hardness, overall)
    wrong = _first(confidence, min(overall, budget - len(hardest)))
    taken = {*hardest.tolist(), *wrong.tolist()}
    suspects = learned_last = easiest = _NONE
    if SUSPICION in table.scores:
        room = max(0, budget - len(taken)) // 3
        suspicion = np.where(usable, hardness_of(table, SUSPICION), np.nan)
        suspects = _first(suspicion, min(overall, room))
        learned_last = _first(_time_learned(table, suspicion), min(overall // 2, room))
        easiest = _first(-hardness, min(_FEW, room))
        taken.update(suspects.tolist(), learned_last.tolist(), easiest.tolist())
    classes, left_out = _class_galleries(labels, hardness, confidence, budget=budget, taken=taken)
    return Gallery(
        by, confidence_by, hardest, wrong, classes, left_out, source, suspects, learned_last,
        easiest,
    )  # fmt: skip


def outcomes(table: ScoreTable) -> NDArray[np.int8]:
    """Per row: 1 for a right prediction, 0 for a wrong one, -1 where that cannot be said.

    It cannot be said without a label or a prediction, or where the row is not finite.
    """
    labels, predictions = class_numbers(table, "label"), class_numbers(table, "prediction")
    known = (labels >= 0) & (predictions >= 0) & is_finite(table)
    return np.where(known, labels == predictions, UNKNOWN).astype(np.int8)


def class_numbers(table: ScoreTable, column: str) -> NDArray[np.int64]:
    """A column of class numbers, -1 where the table has none."""
    if column not in table.columns:
        return np.full(len(table), -1, np.int64)
    values = table.column(column)
    if values.dtype.kind not in "iu":  # nulls arrive as NaN or None
        values = np.nan_to_num(values.astype(np.float64), nan=-1.0)
    return values.astype(np.int64)


def is_finite(table: ScoreTable) -> NDArray[np.bool_]:
    """Per row: whether the model's output was finite; true where the table does not say."""
    if "finite" not in table.columns:
        return np.ones(len(table), np.bool_)
    return table.column("finite").astype(np.bool_)


def hardness_of(table: ScoreTable, score: str) -> NDArray[np.float64]:
    """A score, turned so that larger is harder; NaN where it is not finite."""
    values = table.column(score).astype(np.float64)
    signed = values if table.higher_is_harder(score) else -values
    return np.where(np.isfinite(signed), signed, np.nan)


def _time_learned(table: ScoreTable, suspicion: NDArray[np.float64]) -> NDArray[np.float64]:
    """When an example was first learned, the more suspect one later; NaN where it never was."""
    if "first_learned_epoch" not in table.scores:
        return np.full(len(table), np.nan)
    first = hardness_of(table, "first_learned_epoch")
    epochs = (table.metadata.get("tracking") or {}).get("epochs")
    learned = first <= epochs if isinstance(epochs, int) else first < np.nanmax(first, initial=0.0)
    return np.where(learned, first + suspicion / 2, np.nan)  # suspicion is in [0, 1]


def _default_score(table: ScoreTable) -> str | None:
    scores = table.scores
    return "avh" if "avh" in scores else next(iter(scores), None)


def _first(values: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """Row numbers of the ``n`` largest values, ties in table order, NaN never."""
    present = np.flatnonzero(~np.isnan(values))
    if len(present) > 4 * n > 0:  # a full sort of a million rows is not needed for 24 of them
        cut = np.partition(values[present], len(present) - n)[len(present) - n]
        present = present[values[present] >= cut]
    order = np.argsort(-values[present], kind="stable")
    return present[order[:n]].astype(np.int64)


def _class_galleries(
    labels: NDArray[np.int64],
    hardness: NDArray[np.float64],
    confidence: NDArray[np.float64],
    *,
    budget: int,
    taken: set[int],
) -> tuple[tuple[ClassGallery, ...], int]:
    """Galleries of the worst classes, as many as the budget has room for."""
    worst_first = _classes_worst_first(labels, hardness)
    room = budget - len(taken)
    each = int(np.clip(room // (3 * max(1, len(worst_first))), _PER_CLASS_LEAST, _PER_CLASS))
    hardest = _first_per_class(labels, hardness, each)
    easiest = _first_per_class(labels, -hardness, each)
    wrong = _first_per_class(labels, confidence, each)
    chosen: list[ClassGallery] = []
    for label in worst_first:
        one = ClassGallery(label, hardest[label], wrong.get(label, _NONE), easiest[label])
        taken = taken.union(*(rows.tolist() for rows in (one.hardest, one.confidently_wrong)))
        taken.update(one.easiest.tolist())
        if len(taken) > budget:
            break
        chosen.append(one)
    return tuple(chosen), len(worst_first) - len(chosen)


def _classes_worst_first(labels: NDArray[np.int64], hardness: NDArray[np.float64]) -> list[int]:
    present = ~np.isnan(hardness)
    names, inverse = np.unique(labels[present], return_inverse=True)
    means = np.bincount(inverse, hardness[present]) / np.bincount(inverse)
    return [int(name) for name in names[np.argsort(-means, kind="stable")]]


def _first_per_class(
    labels: NDArray[np.int64], values: NDArray[np.float64], n: int
) -> dict[int, NDArray[np.int64]]:
    """For each class, the row numbers of its ``n`` largest values, ties in table order."""
    present = np.flatnonzero(~np.isnan(values))
    order = present[np.lexsort((-values[present], labels[present]))]
    names, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    return {
        int(name): order[start : start + min(size, n)].astype(np.int64)
        for name, start, size in zip(names, starts, sizes, strict=True)
    }
