"""Find out which evidence a table has about its labels, and what it says about every row.

There are three kinds, best first: the dynamics of training, the output of models that never saw the
example, and one pass of a model over its data. All of them are reduced to a comparison of the label
with the strongest other class, the rival, so the rest of the package need not tell them apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.gallery import class_numbers, is_finite
from hardsight.table import SUSPICION, ScoreTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRACKED, FOLDS, UNSEEN, SEEN, ONE_PASS, NONE = (
    "training dynamics",
    "out-of-sample folds",
    "one pass, out-of-sample",
    "one pass, in-sample",
    "one pass",
    "none",
)
_MARGIN = "logit_margin"
_RIVAL, _SEEN, _RIGHT = "rival", "epochs_seen", "map_correctness"
_RIVAL_SHARE = "rival_confidence"
_LAST_MARGIN, _LAST_SHARE = "last_margin", "last_confidence"
_PROBABILITY = {TRACKED: "map_confidence"}  # of the label; else model_confidence
_NEVER = np.int16(-1)
# counts are kept in 16 bits; no run has more epochs
_MOST_EPOCHS = np.iinfo(np.int16).max


@dataclass(frozen=True)
class Evidence:
    """The columns by which the labels of a table are judged.

    Attributes:
        kind: the kind of evidence, in a few words.
        by: the column that ranks the rows; ``None`` if the table has no score.
        duel: the column that compares the label with its rival; ``None`` if there is none.
        probability: the column with the probability of the label; ``None`` if there is none.
    """

    kind: str
    by: str | None
    duel: str | None
    probability: str | None

    def columns(self, table: ScoreTable) -> list[str]:
        """The names of all columns to read."""
        wanted = ["index", "label", "prediction", "finite", "held_out", self.by, self.duel]
        wanted += [self.probability]
        wanted += [_RIVAL, _RIVAL_SHARE, _SEEN, _RIGHT] if self.kind == TRACKED else []
        return [name for name in dict.fromkeys(wanted) if name and name in table.columns]


@dataclass(frozen=True)
class Rows:
    """What the evidence says about some rows, about 30 bytes per row.

    Attributes:
        label: the class of the label, -1 without one.
        prediction: the prediction, in the last epoch if training was tracked; -1 without one.
        rival: the class that was ahead of the label; -1 if there was none or it is unknown.
        margin: log-odds of the label against its rival; NaN if unknown.
        probability: probability of the label; NaN if unknown.
        hardness: the score that ranks the rows, larger is harder; NaN for a row without a rank.
        held_out: whether the example was held out of training.
        led: number of epochs in which a rival led; -1 if training was not tracked.
        seen: number of epochs in which the example was seen.
        rival_share: mean probability of the rival through training, NaN if it was not stored;
            empty for other evidence.
    """

    label: NDArray[np.int32]
    prediction: NDArray[np.int32]
    rival: NDArray[np.int32]
    margin: NDArray[np.float32]
    probability: NDArray[np.float32]
    hardness: NDArray[np.float64]
    held_out: NDArray[np.bool_]
    led: NDArray[np.int16]
    seen: NDArray[np.int16]
    rival_share: NDArray[np.float32]

    def duel(self) -> NDArray[np.float32]:
        """Probability of the rival if only it and the label were possible; NaN if unknown."""
        return _chance(-self.margin)

    def odds(self) -> NDArray[np.float32]:
        """Log-odds of the label against its rival, from mean probabilities for tracked training.

        The margin of tracked training gives late epochs more weight. That ranks rows better, but
        says less about how probable label and rival were.
        """
        if not len(self.rival_share):
            return self.margin
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.log(self.probability) - np.log(self.rival_share)
        return np.where(np.isnan(means), self.margin, means).astype(np.float32)

    def rival_probability(
        self, at: NDArray[np.integer] | slice | int = slice(None)
    ) -> NDArray[np.float32]:
        """Probability of the rival, from the margin and the probability of the label.

        Tracked training stores the mean probability of the rival, because it does not follow from
        the averages of margin and label.
        """
        margin, label = self.margin[at], self.probability[at]
        # clipped, because exp overflows; beyond e^80 the ratio is 0 or infinite in float32 anyway
        odds = np.exp(-np.clip(margin, -80, 80))
        # if the probability of the label underflows to 0, the rival gets all of it
        rival = np.where(label > 0, label * odds, np.where(margin < 0, 1, 0))
        rival = np.minimum(rival, 1 - label).astype(np.float32)
        if not len(self.rival_share):
            return rival
        known = self.rival_share[at]
        return np.where(np.isnan(known), rival, known)


def evidence_of(table: ScoreTable, by: str | None = None) -> Evidence:
    """The best evidence of a table; ``by`` only changes the column that ranks the rows."""
    judge = table.judge_of_labels()
    # without a score that judges labels, rows are ranked by the first score there is
    by = by or judge or next(iter(table.scores), None)
    if judge == SUSPICION:
        kind, duel = TRACKED, _found(table, SUSPICION)
    else:
        kind, duel = _kind_of_pass(table), _found(table, _MARGIN)
    return Evidence(
        kind=NONE if by is None else kind,
        by=by,
        duel=duel,
        probability=_found(table, _PROBABILITY.get(kind, "model_confidence")),
    )


def _found(table: ScoreTable, column: str) -> str | None:
    return column if column in table.columns else None


def _kind_of_pass(table: ScoreTable) -> str:
    sample = table.metadata.get("sample")
    if sample == "out-of-sample":
        return FOLDS if "fold" in table.columns else UNSEEN
    return SEEN if sample == "in-sample" else ONE_PASS


def rows_of(table: ScoreTable, evidence: Evidence, *, without: Collection[str] = ()) -> Rows:
    """What the evidence says about all rows, read in groups of rows to save memory.

    Args:
        table: the table.
        evidence: the columns to read.
        without: attributes to leave empty.
    """
    without = {*without, *(() if evidence.kind == TRACKED else ("rival_share",))}
    length = {column.name: 0 if column.name in without else len(table) for column in fields(Rows)}
    whole: Rows | None = None
    start = 0
    for part in _parts(table, evidence):
        rows = _part(part, evidence, table)
        if whole is None:  # the first part has the types of the columns
            dtypes = {name: getattr(rows, name).dtype for name in length}
            whole = Rows(**{name: np.empty(n, dtypes[name]) for name, n in length.items()})
        for name in (name for name in length if name not in without):
            getattr(whole, name)[start : start + len(part)] = getattr(rows, name)
        start += len(part)
    assert whole is not None, "there is at least one part, which may be empty"
    # arrow keeps freed memory for later: about 50 MiB after ten million rows
    pa.default_memory_pool().release_unused()
    return whole


def _parts(table: ScoreTable, evidence: Evidence) -> Iterator[ScoreTable]:
    """The parts of a table, a group of rows each; an empty table has one part without rows."""
    if len(table):
        yield from table.parts(evidence.columns(table))
    else:
        yield ScoreTable(table.rows_at(np.empty(0, np.int64)))


def _part(part: ScoreTable, evidence: Evidence, table: ScoreTable) -> Rows:
    label, prediction = class_numbers(part, "label"), class_numbers(part, "prediction")
    is_known = (label >= 0) & is_finite(part)
    led, seen = _epochs(part, is_known)
    hardness = np.full(len(part), np.nan)
    if evidence.by is not None:
        sign = 1.0 if table.higher_is_harder(evidence.by) else -1.0
        hardness = sign * part.column(evidence.by).astype(np.float64)
    return Rows(
        label=np.where(is_known, label, -1).astype(np.int32),
        prediction=np.where(is_finite(part), prediction, -1).astype(np.int32),
        rival=_rival(part, label, prediction, is_known),
        margin=np.where(is_known, _margin(part, evidence), np.nan).astype(np.float32),
        probability=_column(part, evidence.probability, is_known),
        hardness=np.where(is_known, hardness, np.nan),
        held_out=_flags(part, "held_out"),
        led=led,
        seen=seen,
        rival_share=_column(part, _RIVAL_SHARE if evidence.kind == TRACKED else None, is_known),
    )


def held_out_rows(table: ScoreTable) -> tuple[NDArray[np.int64], Rows] | None:
    """Examples that were held out of tracked training, and what the last epoch says about them.

    Returns:
        their rows in the table, and the evidence of a model that never saw them; ``None`` if there
        are none, or if the table does not have their probabilities.
    """
    wanted = ("held_out", _LAST_MARGIN, _LAST_SHARE)
    if not set(wanted) <= set(table.columns):
        return None
    last = Evidence(UNSEEN, by=None, duel=_LAST_MARGIN, probability=_LAST_SHARE)
    places, found, start = [], [], 0
    for part in table.parts(last.columns(table)):
        own = _flags(part, "held_out")
        places.append(start + np.flatnonzero(own))
        found.append(_part(part.where(own), last, table))
        start += len(part)
    at = np.concatenate(places) if places else np.empty(0, np.int64)
    if not len(at):
        return None
    names = [column.name for column in fields(Rows)]
    rows = Rows(*(np.concatenate([getattr(part, name) for part in found]) for name in names))
    # the rival of the last epoch, not the one that led most often
    differs = (rows.label >= 0) & (rows.prediction >= 0) & (rows.prediction != rows.label)
    return at, replace(rows, rival=np.where(differs, rows.prediction, -1).astype(np.int32))


def _margin(part: ScoreTable, evidence: Evidence) -> NDArray[np.float64]:
    if evidence.duel is None:
        return np.full(len(part), np.nan)
    values = part.column(evidence.duel).astype(np.float64)
    if evidence.duel != SUSPICION:
        return values
    with np.errstate(divide="ignore"):  # a chance of 0 or 1 has infinite odds
        # suspicion is the mean probability of losing; its log-odds are used as the margin
        odds: NDArray[np.float64] = np.log1p(-values) - np.log(values)
    return odds


def _chance(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The logistic function, without overflow."""
    small = np.exp(-np.abs(logits))
    chance: NDArray[np.float32] = np.where(logits >= 0, np.float32(1), small) / (1 + small)
    return chance


def _rival(
    part: ScoreTable,
    label: NDArray[np.int64],
    prediction: NDArray[np.int64],
    is_known: NDArray[np.bool_],
) -> NDArray[np.int32]:
    differs = is_known & (prediction >= 0) & (prediction != label)
    rival = np.where(differs, prediction, -1)
    if _RIVAL in part.columns:  # the class that led before the model memorised the label
        remembered = class_numbers(part, _RIVAL)
        rival = np.where(is_known & (remembered >= 0) & (remembered != label), remembered, rival)
    return rival.astype(np.int32)


def _column(part: ScoreTable, name: str | None, is_known: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Probabilities of known rows; NaN for others, or if the table does not have the column."""
    if name is None or name not in part.columns:
        return np.full(len(part), np.nan, np.float32)
    values = part.column(name).astype(np.float32)
    known: NDArray[np.float32] = np.where(is_known, np.clip(values, 0, 1), np.float32(np.nan))
    return known


def _epochs(
    part: ScoreTable, is_known: NDArray[np.bool_]
) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """In how many epochs a rival led, and in how many the example was seen; -1 if unknown."""
    if not {_SEEN, _RIGHT} <= set(part.columns):
        return np.full(len(part), _NEVER), np.full(len(part), _NEVER)
    seen = np.minimum(np.maximum(class_numbers(part, _SEEN), 0), _MOST_EPOCHS)
    # the share of epochs in which the label led
    right = part.column(_RIGHT).astype(np.float64)
    told = is_known & np.isfinite(right) & (seen > 0)
    led = np.where(told, np.rint(seen * (1 - np.where(told, right, 0.0))), _NEVER)
    return led.astype(np.int16), np.where(told, seen, _NEVER).astype(np.int16)


def _flags(part: ScoreTable, name: str) -> NDArray[Any]:
    if name not in part.columns:
        return np.zeros(len(part), np.bool_)
    return part.column(name).astype(np.bool_)
