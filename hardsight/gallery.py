"""Choose the examples that a report shows.

The scoring run stores thumbnails of these rows and the report shows them, so both use this module:
otherwise the report would miss pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hardsight.errors import OptionError
from hardsight.table import SUSPICION, ScoreTable, ranked_among_alike

RIGHT, WRONG, UNKNOWN = 1, 0, -1
_BUDGET = 600
_LEARNED, _HELD_OUT = "first_learned_epoch", "held_out"
_OVERALL, _PER_CLASS, _PER_CLASS_LEAST = 24, 16, 3
_WORTH_A_LOOK = 0.1  # estimated share of wrong labels down to which rows are shown
_FEW = 6  # examples of a kind whose curves a report draws
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

    def lists(self) -> tuple[NDArray[np.int64], ...]:
        """The three lists."""
        return self.hardest, self.confidently_wrong, self.easiest

    def rows(self) -> set[int]:
        """All rows of the lists, each once."""
        return set(np.concatenate(self.lists()).tolist())

    def of(self, rows: NDArray[np.int64]) -> ClassGallery:
        """The same gallery, with places in ``rows`` replaced by the rows themselves."""
        return ClassGallery(self.label, *(rows[places] for places in self.lists()))


@dataclass(frozen=True)
class Gallery:
    """The rows a report shows, as row numbers of the table.

    Attributes:
        by: the score that ranks by hardness; ``None`` if the table has none.
        confidence_by: the score that ranks the wrong predictions.
        hardest: hardest rows overall, hardest first.
        confidently_wrong: misclassified rows overall, most confident first.
        classes: one gallery per class, the class with the worst mean first.
        classes_left_out: classes for which the budget had no room.
        table: the table itself.
        shown: source positions of all shown rows, each once.
        suspects: rows whose label is most probably wrong, most suspect first; empty if the table
            has neither dynamics nor an estimate of the number of wrong labels.
        learned_last: rows that were learned last, the last one first, in a table with dynamics.
        easiest: a few of the easiest rows, easiest first, in a table with dynamics.
    """

    by: str | None
    confidence_by: str | None
    hardest: NDArray[np.int64]
    confidently_wrong: NDArray[np.int64]
    classes: tuple[ClassGallery, ...]
    classes_left_out: int
    table: ScoreTable = field(repr=False)
    shown: NDArray[np.int64]
    suspects: NDArray[np.int64] = field(default_factory=_NONE.copy)
    learned_last: NDArray[np.int64] = field(default_factory=_NONE.copy)
    easiest: NDArray[np.int64] = field(default_factory=_NONE.copy)

    @cached_property
    def source(self) -> NDArray[np.int64]:
        """Position in the source of every row of the table."""
        return self.table.column("index").astype(np.int64)

    def rows(self) -> NDArray[np.int64]:
        """Row numbers of all shown rows, each once, ascending."""
        parts = [
            self.hardest,
            self.confidently_wrong,
            self.suspects,
            self.learned_last,
            self.easiest,
        ]
        for gallery in self.classes:
            parts += gallery.lists()
        return np.unique(np.concatenate(parts))

    def indices(self) -> NDArray[np.int64]:
        """Source positions of all shown rows, each once, for storing their thumbnails."""
        return self.shown


def gallery_rows(table: ScoreTable, *, budget: int | None = None, by: str | None = None) -> Gallery:
    """The rows of ``table`` that are worth looking at, at most ``budget`` distinct ones.

    The hardest and the most confidently wrong rows overall come first. Then come, class by class
    from the worst mean on, the hardest, the most confidently wrong and the easiest rows of each
    class. With many classes there are fewer rows per class; below three of each kind, classes are
    left out, and the remaining room goes to the hardest rows overall.

    A wrong prediction is more confident the more the model prefers it to the label: by
    ``logit_margin`` if the table has it, otherwise by the next best score. If no score of the table
    uses the label, the wrong predictions with the least uncertainty come first.

    For a model that never saw the examples, the rows whose label is probably wrong are added, down
    to the rank where one label in ten is estimated to be wrong. For a table with dynamics, the rows
    with the largest ``suspicion`` are added, right or wrong, those with the largest
    ``first_learned_epoch`` among the learned ones, and a few of the easiest.

    Args:
        table: a score table; rows that are not finite or have no label are ignored.
        budget: largest number of distinct rows; by default as many as the run of the table kept
            pictures for, or 600 if it kept none.
        by: the score that says what is hard; ``"avh"`` or else the table's first score.

    Raises:
        OptionError: ``budget`` is below 1.
        TableError: ``by`` is not a score of the table.

    Example:
        >>> import pyarrow as pa
        >>> from hardsight.table import ScoreTable, with_metadata
        >>> rows = pa.table({"index": [5, 6, 7], "label": [0, 0, 1], "prediction": [0, 1, 1],
        ...                  "avh": [0.1, 0.8, 0.3]})
        >>> about = {"scores": {"avh": {"higher_is_harder": True}}}
        >>> gallery = gallery_rows(ScoreTable(with_metadata(rows, about)))
        >>> gallery.hardest, gallery.confidently_wrong, gallery.indices()
        (array([1, 2, 0]), array([1]), array([5, 6, 7]))
        >>> [part.label for part in gallery.classes]
        [0, 1]
    """
    budget = _pictures_kept(table) if budget is None else budget
    if budget < 1:
        raise OptionError(f"expected a budget of at least 1 example, got {budget}")
    by = by or _default_score(table)
    if by is None:
        return Gallery(
            by=None, confidence_by=None, hardest=_NONE, confidently_wrong=_NONE, classes=(),
            classes_left_out=0, table=table, shown=_NONE,
        )  # fmt: skip
    table.higher_is_harder(by)  # raises if it is not a score
    judges = _Judges(by, table.judge_of_mistakes() or by, SUSPICION in table.scores)
    means = _class_means(table, judges)
    overall = min(_OVERALL, max(1, budget // 4))
    # every class either adds a row or already has a row among the first ones overall
    shown = means.worst_first[: budget + 5 * overall]
    doubted = _NONE if judges.has_dynamics else _doubted(table)[: min(overall, budget // 4)]
    rows = _candidates(table, judges, means, classes=shown, hardest=2 * budget, also=doubted)

    hardest = _first(rows.hardness, overall)
    wrong = _first(rows.confidence, min(overall, budget - len(hardest)))
    taken = {*hardest.tolist(), *wrong.tolist()}
    suspects, learned_last, easiest = np.searchsorted(rows.row, doubted), _NONE, _NONE
    suspects = suspects[: max(0, budget - len(taken))]
    taken.update(suspects.tolist())
    if judges.has_dynamics:
        room = max(0, budget - len(taken)) // 3
        doubts = ranked_among_alike(rows.suspicion, rows.held_out, known=means.kinds)
        suspects = _first(doubts, min(overall, room))
        learned_last = _first(rows.learned, min(overall // 2, room))
        easiest = _first(-rows.hardness, min(_FEW, room))
        taken.update(suspects.tolist(), learned_last.tolist(), easiest.tolist())
    classes, left_out = _class_galleries(rows, means.worst_first, budget=budget, taken=taken)
    if left_out:
        taken = taken.union(*(gallery.rows() for gallery in classes))
        hardest = _filled(hardest, rows.hardness, taken, budget)
    lists = (hardest, wrong, suspects, learned_last, easiest)
    chosen = np.concatenate([*lists, *(part for gallery in classes for part in gallery.lists())])
    hardest, wrong, suspects, learned_last, easiest = (rows.row[part] for part in lists)
    return Gallery(
        by=judges.by,
        confidence_by=judges.confidence_by,
        hardest=hardest,
        confidently_wrong=wrong,
        classes=tuple(gallery.of(rows.row) for gallery in classes),
        classes_left_out=left_out,
        table=table,
        shown=np.unique(rows.index[chosen]),
        suspects=suspects,
        learned_last=learned_last,
        easiest=easiest,
    )


@dataclass(frozen=True)
class _Judges:
    """The scores by which rows are chosen."""

    by: str
    confidence_by: str
    has_dynamics: bool

    def columns(self, table: ScoreTable) -> list[str]:
        """The names of the columns to read."""
        names = ["index", "label", "prediction", "finite", self.by, self.confidence_by]
        names += [SUSPICION, _LEARNED, _HELD_OUT] if self.has_dynamics else []
        return [name for name in dict.fromkeys(names) if name in table.columns]


@dataclass(frozen=True)
class _Rows:
    """Some rows of a table, in table order, with the values they are chosen by.

    Attributes:
        row: number in the table.
        index: position in the source.
        label: class, -1 without one.
        hardness: NaN for a row that is ignored.
        confidence: how confident a wrong prediction is; NaN for all others.
        suspicion: NaN without dynamics.
        held_out: whether the example was held out of training.
        learned: when the example was first learned, the more suspect one later; NaN if never.
    """

    row: NDArray[np.int64]
    index: NDArray[np.int64]
    label: NDArray[np.int64]
    hardness: NDArray[np.float64]
    confidence: NDArray[np.float64]
    suspicion: NDArray[np.float64]
    held_out: NDArray[np.bool_]
    learned: NDArray[np.float64]

    def at(self, keep: NDArray[np.int64]) -> _Rows:
        """Return the rows at some positions."""
        return _Rows(*(getattr(self, column.name)[keep] for column in fields(self)))

    def followed_by(self, other: _Rows) -> _Rows:
        """Return these rows followed by those of the next part."""
        names = [column.name for column in fields(self)]
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return _Rows(*(np.concatenate(pair) for pair in pairs))


def _rows_of(part: ScoreTable, start: int, judges: _Judges, last_learned: float) -> _Rows:
    """Read one part of a table, which begins at row ``start``."""
    labels, outcome = class_numbers(part, "label"), outcomes(part)
    usable = is_finite(part) & (labels >= 0)
    hardness = np.where(usable, hardness_of(part, judges.by), np.nan)
    confidence = hardness_of(part, judges.confidence_by)
    if not part.about(judges.confidence_by)["needs_label"]:
        confidence = -confidence  # then the easiest wrong predictions are the most confident
    suspicion = learned = np.full(len(part), np.nan)
    if judges.has_dynamics:
        suspicion = np.where(usable, hardness_of(part, SUSPICION), np.nan)
        learned = _time_learned(part, suspicion, last_learned)
    return _Rows(
        row=np.arange(start, start + len(part)),
        index=part.column("index").astype(np.int64),
        label=labels,
        hardness=hardness,
        confidence=np.where(outcome == WRONG, confidence, np.nan),
        suspicion=suspicion,
        held_out=_is_held_out(part),
        learned=learned,
    )


def _is_held_out(table: ScoreTable) -> NDArray[np.bool_]:
    if _HELD_OUT not in table.columns:
        return np.zeros(len(table), np.bool_)
    return table.column(_HELD_OUT).astype(np.bool_)


@dataclass
class _ClassMeans:
    """Mean hardness of every class, collected part by part, and the last epoch of learning.

    Attributes:
        kinds: number of rows with a suspicion, among those trained on and those held out.
    """

    names: NDArray[np.int64] = field(default_factory=_NONE.copy)
    sums: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    counts: NDArray[np.int64] = field(default_factory=_NONE.copy)
    last_learned: float = 0.0
    kinds: tuple[int, int] = (0, 0)

    def add(self, labels: NDArray[np.int64], hardness: NDArray[np.float64]) -> None:
        """Update the means with some rows."""
        present = ~np.isnan(hardness)
        names, place = np.unique(np.concatenate([self.names, labels[present]]), return_inverse=True)
        # earlier sums come first, so the result equals that of a single pass bit for bit
        sums = np.bincount(place, np.concatenate([self.sums, hardness[present]]))
        ones = np.ones(int(present.sum()), np.int64)
        counts = np.bincount(place, np.concatenate([self.counts, ones]))
        self.names, self.sums = names, sums.astype(np.float64)
        self.counts = counts.astype(np.int64)

    @property
    def worst_first(self) -> list[int]:
        """Return the classes, that with the largest mean first."""
        order = np.argsort(-(self.sums / self.counts), kind="stable")
        return [int(name) for name in self.names[order]]


def _class_means(table: ScoreTable, judges: _Judges) -> _ClassMeans:
    means = _ClassMeans()
    for part in table.parts(judges.columns(table)):
        rows = _rows_of(part, 0, judges, np.inf)
        means.add(rows.label, rows.hardness)
        kinds = np.bincount(rows.held_out[~np.isnan(rows.suspicion)], minlength=2)
        means.kinds = (means.kinds[0] + int(kinds[0]), means.kinds[1] + int(kinds[1]))
        if judges.has_dynamics and _LEARNED in part.scores:
            first = hardness_of(part, _LEARNED)
            means.last_learned = float(np.nanmax(first, initial=means.last_learned))
    return means


def _candidates(
    table: ScoreTable,
    judges: _Judges,
    means: _ClassMeans,
    *,
    classes: Sequence[int],
    hardest: int,
    also: NDArray[np.int64],
) -> _Rows:
    """All rows that may be shown: the first ones overall, and the first ones of some classes.

    The table is read part by part to save memory. The first rows of the table are among the first
    rows of its parts, so rows that are dropped on the way are never missed.
    """
    nothing = np.empty(0)
    kept = _Rows(
        row=_NONE, index=_NONE, label=_NONE, hardness=nothing, confidence=nothing,
        suspicion=nothing, held_out=nothing.astype(np.bool_), learned=nothing,
    )  # fmt: skip
    start = 0
    for part in table.parts(judges.columns(table)):
        kept = kept.followed_by(_rows_of(part, start, judges, means.last_learned))
        named = np.flatnonzero(np.isin(kept.row, also))
        kept = kept.at(np.union1d(_worth_keeping(kept, classes, hardest), named))
        start += len(part)
    return kept


def _doubted(table: ScoreTable) -> NDArray[np.int64]:
    """Return suspects down to the rank where one label in ten is estimated to be wrong."""
    if table.metadata.get("sample") != "out-of-sample":
        return _NONE  # there is no estimate
    from hardsight.suspects import suspects_of  # which reads class numbers from here

    suspects = suspects_of(table)
    if suspects.error_share is None:
        return _NONE
    order = suspects.order[: suspects.ranked]
    return order[suspects.error_share[order] >= _WORTH_A_LOOK].astype(np.int64)


def _worth_keeping(rows: _Rows, classes: Sequence[int], hardest: int) -> NDArray[np.int64]:
    orders = (rows.hardness, rows.confidence, -rows.hardness)
    keep = [_first(values, _OVERALL) for values in (*orders, rows.learned)]
    for kind in (False, True):  # held-out rows and rows trained on are ranked separately
        keep.append(_first(np.where(rows.held_out == kind, rows.suspicion, np.nan), _OVERALL))
    keep.append(_first(rows.hardness, hardest))  # fill what classes leave of the budget
    known = np.flatnonzero(np.isin(rows.label, np.array(classes, np.int64)))
    for values in orders:
        firsts = _first_per_class(rows.label[known], values[known], _PER_CLASS)
        keep += [known[first] for first in firsts.values()]
    return np.unique(np.concatenate(keep))


def outcomes(table: ScoreTable) -> NDArray[np.int8]:
    """Per row: 1 for a right prediction, 0 for a wrong one, -1 if it is unknown.

    It is unknown without a label or a prediction, or if the row is not finite.
    """
    labels, predictions = class_numbers(table, "label"), class_numbers(table, "prediction")
    known = (labels >= 0) & (predictions >= 0) & is_finite(table)
    return np.where(known, labels == predictions, UNKNOWN).astype(np.int8)


def class_numbers(table: ScoreTable, column: str) -> NDArray[np.int64]:
    """Return a column of class numbers, all -1 if the table does not have it."""
    if column not in table.columns:
        return np.full(len(table), -1, np.int64)
    values = table.column(column)
    if values.dtype.kind not in "iu":  # nulls arrive as NaN or None
        values = np.nan_to_num(values.astype(np.float64), nan=-1.0)
    return values.astype(np.int64)


def is_finite(table: ScoreTable) -> NDArray[np.bool_]:
    """Return whether the model's output was finite, per row; true if the table does not say."""
    if "finite" not in table.columns:
        return np.ones(len(table), np.bool_)
    return table.column("finite").astype(np.bool_)


def hardness_of(table: ScoreTable, score: str) -> NDArray[np.float64]:
    """Return a score, negated if needed so larger is harder; NaN if it is not finite."""
    values = table.column(score).astype(np.float64)
    signed = values if table.higher_is_harder(score) else -values
    return np.where(np.isfinite(signed), signed, np.nan)


def _time_learned(
    table: ScoreTable, suspicion: NDArray[np.float64], last: float
) -> NDArray[np.float64]:
    """Return when examples were first learned, ties by suspicion; NaN if never learned."""
    if _LEARNED not in table.scores:
        return np.full(len(table), np.nan)
    first = hardness_of(table, _LEARNED)
    epochs = (table.metadata.get("tracking") or {}).get("epochs")
    learned = first <= epochs if isinstance(epochs, int) else first < last
    # suspicion is in [0, 1], so half of it only breaks ties within an epoch
    return np.where(learned, first + suspicion / 2, np.nan)


def _pictures_kept(table: ScoreTable) -> int:
    """Return how many pictures the run was set to keep, so a report shows rows with pictures."""
    return (table.metadata.get("config") or {}).get("thumbnails") or _BUDGET


def _filled(
    hardest: NDArray[np.int64], hardness: NDArray[np.float64], taken: set[int], budget: int
) -> NDArray[np.int64]:
    """Return the hardest rows, extended within the budget by the next ones not yet shown."""
    # twice the budget, since at most half of these rows are taken already
    following = _first(hardness, 2 * budget)[len(hardest) :]
    new = [row for row in following.tolist() if row not in taken][: max(0, budget - len(taken))]
    return np.concatenate([hardest, np.array(new, dtype=np.int64)])


def _default_score(table: ScoreTable) -> str | None:
    scores = table.scores
    return "avh" if "avh" in scores else next(iter(scores), None)


def _first(values: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """Return the positions of the ``n`` largest values, ties in table order, never NaN."""
    present = np.flatnonzero(~np.isnan(values))
    if len(present) > 4 * n > 0:  # avoids a full sort of a million rows for a few of them
        cut = np.partition(values[present], len(present) - n)[len(present) - n]
        present = present[values[present] >= cut]
    order = np.argsort(-values[present], kind="stable")
    return present[order[:n]].astype(np.int64)


def _class_galleries(
    rows: _Rows, worst_first: Sequence[int], *, budget: int, taken: set[int]
) -> tuple[list[ClassGallery], int]:
    """Build galleries of the worst classes that fit the budget, as positions in ``rows``."""
    room = budget - len(taken)
    each = int(np.clip(room // (3 * max(1, len(worst_first))), _PER_CLASS_LEAST, _PER_CLASS))
    hardest = _first_per_class(rows.label, rows.hardness, each)
    easiest = _first_per_class(rows.label, -rows.hardness, each)
    wrong = _first_per_class(rows.label, rows.confidence, each)
    chosen: list[ClassGallery] = []
    for label in worst_first:
        gallery = ClassGallery(label, hardest[label], wrong.get(label, _NONE), easiest[label])
        taken = taken | gallery.rows()
        if len(taken) > budget:
            break
        chosen.append(gallery)
    return chosen, len(worst_first) - len(chosen)


def _first_per_class(
    labels: NDArray[np.int64], values: NDArray[np.float64], n: int
) -> dict[int, NDArray[np.int64]]:
    """Return the positions of each class's ``n`` largest values, ties in table order."""
    present = np.flatnonzero(~np.isnan(values))
    order = present[np.lexsort((-values[present], labels[present]))]
    names, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    return {
        int(name): order[start : start + min(size, n)].astype(np.int64)
        for name, start, size in zip(names, starts, sizes, strict=True)
    }
