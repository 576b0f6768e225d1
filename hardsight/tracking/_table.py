"""Join a table of scores with the summaries of the same dataset, by index."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from hardsight.errors import RunMismatchError
from hardsight.table import ScoreTable, with_metadata

# columns of summaries that are not scores
_MARKS = ("epochs_seen", "held_out", "rival", "rival_confidence", "last_margin", "last_confidence")


def joined_table(scores: ScoreTable, summaries: ScoreTable) -> ScoreTable:
    """``scores`` with the columns of ``summaries``, by index."""
    index = scores.column("index")
    _check_same_data(index, scores.column("label"), summaries)
    rows = scores.to_arrow()
    marks = [name for name in _MARKS if name in summaries.columns]
    for name in (*marks, *summaries.scores):
        # by index, since the table of scores may have only some of the examples
        values = pa.array(summaries.column(name)[index])
        # if the table was joined before, replace the old values
        if name in rows.column_names:
            rows = rows.set_column(rows.column_names.index(name), name, values)
        else:
            rows = rows.append_column(name, values)
    about, ours = scores.metadata, summaries.metadata
    metadata = {
        **about,
        **{part: {**about.get(part, {}), **ours[part]} for part in ("scores", "columns")},
        "tracking": ours["tracking"],
    }
    return ScoreTable(with_metadata(rows, metadata))


def _check_same_data(index: NDArray[Any], labels: NDArray[Any], summaries: ScoreTable) -> None:
    if len(index) and (index.min() < 0 or index.max() >= len(summaries)):
        raise RunMismatchError(
            f"the table has the index {index.max()}, but {len(summaries)} examples were tracked; "
            "track and score the same dataset"
        )
    tracked = summaries.column("label")[index]
    differ = (tracked >= 0) & (tracked != labels)
    if differ.any():
        first = int(differ.argmax())
        raise RunMismatchError(
            f"{int(differ.sum())} labels of the table differ from those tracked: example "
            f"{int(index[first])} is {int(labels[first])} in the table and was "
            f"{int(tracked[first])} in training; track and score the same dataset, in the same "
            "order"
        )
