"""Read what reviewers decided as a table. All other parts of the package read it through here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from hardsight.gallery import class_numbers
from hardsight.review._store import KEEP, RELABEL, SKIP, Record, standing_records
from hardsight.review._suspects import suspects_of
from hardsight.run_folder import open_parquet
from hardsight.table import read_table

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

COLUMNS = ("index", "id", "old", "new", "verdict", "reviewer", "time", "reason")


def decisions(run: str | os.PathLike[str]) -> pd.DataFrame:
    """The decisions about a run, with a row per example and reviewer, ordered by time.

    Decisions that were undone and examples that were skipped are left out. If two reviewers decided
    about an example, it has two rows, which may disagree. Decisions can be read while the app runs.

    Args:
        run: folder of the run, or its table.

    Returns:
        columns ``index`` (of the example in its data), ``id``, ``old`` and ``new`` (classes; -1 if
        the reviewer could not tell), ``verdict`` (``"keep"``, ``"relabel"`` or ``"cannot tell"``),
        ``reviewer``, ``time`` (UTC) and ``reason`` (why the example was suspect, in words).

    Raises:
        MissingDataError: there is no finished run there.
        TableError: the decisions belong to other data, or to a newer version of hardsight.
    """
    import pandas as pd

    table = read_table(run)
    records = [record for record in standing_records(table) if record.action != SKIP]
    index = np.array([record.index for record in records], np.int64)
    rows = _rows_of(table, index)
    reason = suspects_of(table).reason if len(rows) else str
    columns = {
        "index": index,
        "id": _ids(table, rows),
        "old": np.array([record.old for record in records], np.int64),
        "new": np.array([_new_label(record) for record in records], np.int64),
        "verdict": [_verdict(record) for record in records],
        "reviewer": [record.reviewer for record in records],
        "time": pd.to_datetime([record.time for record in records], utc=True, format="ISO8601"),
        "reason": [reason(row) for row in rows.tolist()],
    }
    return pd.DataFrame({name: columns[name] for name in COLUMNS})


def _verdict(record: Record) -> str:
    # logs of older versions may have a relabelling to the class that the example already had
    is_same = record.action == RELABEL and record.new == record.old
    return KEEP if is_same else record.action


def _new_label(record: Record) -> int:
    return {RELABEL: record.new, KEEP: record.old}.get(record.action, -1)


def _rows_of(table: ScoreTable, index: NDArray[np.int64]) -> NDArray[np.int64]:
    known = class_numbers(table, "index")
    order = np.argsort(known, kind="stable")
    return order[np.searchsorted(known, index, sorter=order)] if len(index) else index


def _ids(table: ScoreTable, rows: NDArray[np.int64]) -> list[str]:
    if not len(rows):
        return []
    assert table.path is not None
    with open_parquet(table.path) as opened:
        found = opened.read(["id"]).column("id").take(rows).to_pylist()
    return ["" if text is None else str(text) for text in found]
