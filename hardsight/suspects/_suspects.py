"""Rank the suspects of a table, each with a group, a suggestion and a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.errors import OptionError
from hardsight.suspects._duplicates import twins_of
from hardsight.suspects._evidence import Rows, evidence_of, rows_of
from hardsight.suspects._groups import DUPLICATE, GROUPS, groups_of
from hardsight.suspects._share import error_shares, wrong_chances
from hardsight.suspects._words import Reason, evidence_in_words
from hardsight.table import SUSPICION, ranked_among_alike

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

_FIRST = ("index", "id", "label", "prediction", "suggestion", "group", "reason", SUSPICION,
          "error_share", "evidence")  # fmt: skip
_AT_ONCE = 1 << 20  # rows


@dataclass(frozen=True)
class Suspects:
    """Evidence about the label of every row of a table.

    Attributes:
        by: the column that judges labels best; ``None`` if the table has no score.
        kind: of evidence, such as ``"training dynamics"`` or ``"one pass"``.
        evidence: what the ranking rests on, in words.
        order: all rows, most suspect first; those that cannot be ranked come last.
        ranked: how many of them can be ranked.
        suggestion: the label that each row should perhaps have, -1 for none.
        suspicion: chance of the rival in a duel with the label, in ``[0, 1]``; NaN if not known.
        group: of each row, as a place in ``groups``.
        groups: names of the groups.
        is_suspect: the rows that are worth a look, which the queue begins with.
        error_share: estimated share of wrong labels at the rank of each row; ``None`` if there is
            no estimate.
        reason: why a row is suspect, in words.
        share_note: why there is no estimate of the share, or why the true one is probably lower,
            in words; else empty.
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
    kind: str = "one pass"
    ranked: int = 0
    share_note: str = ""
    suspicion: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))


def suspects_of(table: ScoreTable, *, by: str | None = None) -> Suspects:
    """The evidence of a table about each of its labels.

    The best evidence is used: the dynamics of training if it was tracked, otherwise the output of
    the model, which is strongest if it never saw the example. This takes about 130 bytes per row at
    the peak, because columns are read one group of rows at a time.

    Args:
        table: of any kind.
        by: the score that ranks the rows; by default the best judge of labels that is there, and
            for examples that the model never saw also what the estimate of wrong labels says.

    Raises:
        TableError: ``by`` is not a score of the table.
    """
    evidence = evidence_of(table, by)
    if evidence.by is not None:
        table.higher_is_harder(evidence.by)  # raises if it is not a score
    rows = rows_of(table, evidence)
    estimate = wrong_chances(table, rows, evidence)
    group, twins = groups_of(rows, estimate.order), twins_of(table)
    suggestion, is_suspect = rows.rival, _is_suspect(rows)
    if twins is not None:
        has_twin = twins >= 0
        group[has_twin] = DUPLICATE
        # the label of the twin is a suggestion only if nothing better is known
        suggestion = np.where(has_twin & (suggestion < 0), rows.label[twins], suggestion)
        is_suspect |= has_twin
    order, ranked = _order(_ranks(rows, estimate.order, by))
    return Suspects(
        by=evidence.by,
        kind=evidence.kind,
        evidence=evidence_in_words(table, evidence),
        order=order,
        ranked=ranked,
        suggestion=suggestion,
        suspicion=rows.duel(),
        group=group,
        groups=GROUPS,
        is_suspect=is_suspect,
        error_share=None
        if estimate.share is None
        else error_shares(estimate.share, order[:ranked]),
        share_note=estimate.why_not,
        reason=Reason(table, evidence, rows, group, order, twins),
    )


def most_suspect(table: ScoreTable, count: int) -> NDArray[np.int32]:
    """The rows that :func:`suspects_of` ranks first, and nothing else.

    This takes about 60 bytes per row at the peak, half as much.

    Args:
        table: of any kind.
        count: how many; fewer if fewer are ranked.
    """
    evidence = evidence_of(table)
    rows = rows_of(table, evidence, without=("prediction", "led", "seen"))
    estimate = wrong_chances(table, rows, evidence, with_shares=False)
    ranks = _ranks(rows, estimate.order, None)
    del rows  # a third of a gigabyte for ten million rows, which sorting needs
    order, ranked = _order(ranks)
    return order[: min(count, ranked)]


def _ranks(rows: Rows, chance: NDArray[np.float32] | None, by: str | None) -> NDArray[np.float64]:
    """The values that rows are ranked by, largest first; NaN for rows without a rank."""
    # a column that the caller asked for is used as it is
    if chance is not None and by is None:
        return _by_chance(rows, chance)
    return ranked_among_alike(rows.hardness, rows.held_out)


def _is_suspect(rows: Rows) -> NDArray[np.bool_]:
    differs = (rows.label >= 0) & (rows.prediction >= 0) & (rows.label != rows.prediction)
    suspect: NDArray[np.bool_] = differs | (rows.margin < 0)
    return suspect


def _by_chance(rows: Rows, chance: NDArray[np.float32]) -> NDArray[np.float64]:
    """The values that rank examples judged by models that never saw them.

    This is the sum of the log-odds of a wrong label, limited to 1 to 99%, and half the log-odds of
    the rival against the label. The first takes into account which classes are confused and how
    common errors are; the second is more stable with few examples.
    """
    ranks = np.empty(len(chance))
    for start in range(0, len(chance), _AT_ONCE):  # bounds what is in float64
        part = slice(start, start + _AT_ONCE)
        margin = rows.margin[part]
        # a label that the model agrees with is less suspect the more certain the model is
        differs = chance[part].astype(np.float64) * (margin < 0)
        # limited, so that the margin still ranks rows that are almost certain
        sure = np.clip(differs, 0.01, 0.99)
        ranks[part] = np.log(sure) - np.log1p(-sure) - margin.astype(np.float64) / 2
    ranks[np.isnan(rows.hardness)] = np.nan
    return ranks


def _order(ranks: NDArray[np.float64]) -> tuple[NDArray[np.int32], int]:
    """All rows, most suspect first, and how many of them can be ranked."""
    # stable, so that ties keep the order of the table; NaN sorts last
    order = np.argsort(-ranks, kind="stable").astype(np.int32)
    return order, len(order) - int(np.isnan(ranks).sum())


def suspects_frame(table: ScoreTable, n: int, *, by: str | None = None) -> pd.DataFrame:
    """The ``n`` most suspect rows of a table; see :meth:`ScoreTable.suspects`."""
    if n < 0:
        raise OptionError(f"expected n to be 0 or more, got {n}")
    suspects = suspects_of(table, by=by)
    rows = suspects.order[: min(n, suspects.ranked)]
    taken = table.rows_at(rows)
    share = (
        np.full(len(rows), np.nan) if suspects.error_share is None else suspects.error_share[rows]
    )
    added: dict[str, Any] = {
        "suggestion": suspects.suggestion[rows].astype(np.int64),
        "group": [suspects.groups[place] for place in suspects.group[rows].tolist()],
        "reason": [suspects.reason(row) for row in rows.tolist()],
        "error_share": share.astype(np.float64),
        "evidence": [suspects.kind] * len(rows),
    }
    if SUSPICION not in table.columns:
        added[SUSPICION] = suspects.suspicion[rows].astype(np.float64)
    return _joined(taken, added)


def _joined(taken: pa.Table, added: dict[str, Any]) -> pd.DataFrame:
    """Rows of a table with the added columns first."""
    # a column of the table with the same name as an added one is kept under another name
    names = [f"table_{name}" if name in added else name for name in taken.column_names]
    frame: pd.DataFrame = taken.rename_columns(names).to_pandas()
    frame = frame.assign(**added)
    first = [name for name in _FIRST if name in frame.columns]
    return frame[[*first, *(name for name in frame.columns if name not in first)]]
