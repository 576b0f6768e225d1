"""Check that a resumed or finished run would still give the rows it has on record."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from hardsight.run.score._rows import ModelScorer, Scorer, piece_rows
from hardsight.run_folder import SCORE, TABLE, RunFolder, check_same_values, open_parquet

if TYPE_CHECKING:
    import pandas as pd


def check_same_outputs(folder: RunFolder, scorer: Scorer) -> None:
    """Raise if the first batch gives other scores than those on record.

    The digest of a model covers its weights but not its code, so a changed forward pass shows only
    here. A user's own dataset may draw at random, so it is not compared.

    Raises:
        RunMismatchError: the model computes something else.
    """
    if not isinstance(scorer, ModelScorer) or scorer.source.is_model_ready:
        return
    with closing(scorer.pieces(0)) as pieces:
        first = next(pieces, None)
    stored = _first_rows(folder)
    if first is None or stored is None:
        return
    both = piece_rows([first]).to_pandas().merge(stored, on="index", suffixes=("", " before"))
    compared = stored.columns.intersection([spec.name for spec in scorer.plan.row_specs])
    for name in compared:  # a finished table lacks columns that only its shards had
        now, before = (both[column].to_numpy(np.float64) for column in (name, f"{name} before"))
        if len(both):
            check_same_values(
                SCORE.what, folder.folder, name, now=now, before=before, example=both["id"][0],
                smallest=0.1,
            )  # fmt: skip


def _first_rows(folder: RunFolder) -> pd.DataFrame | None:
    """The first rows on record, of a finished table or an unfinished one."""
    if folder.is_done:
        parts = open_parquet(folder.folder / TABLE).iter_batches(1 << 16)
    else:
        parts = folder.shards()
    first = next(iter(parts), None)
    return None if first is None else first.to_pandas()
