"""Pieces of a run as rows of the table, and what only the whole table can say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from hardsight.registry import ScoreSpec
from hardsight.run.score._scorers import Piece, ScorePlan


def piece_rows(pieces: list[Piece]) -> pa.Table:
    """Rows of consecutive pieces; one copy from the device for all of them."""
    columns: dict[str, Any] = {
        "index": _array([piece.index for piece in pieces]),
        "id": pa.chunked_array([piece.ids for piece in pieces], pa.string()).combine_chunks(),
        "label": _array([piece.labels for piece in pieces]),
        "prediction": _array([piece.prediction for piece in pieces]),
        "finite": _array([piece.finite for piece in pieces]),
    }
    for name in pieces[0].scores:
        columns[name] = _array([piece.scores[name] for piece in pieces])
    bent = [piece.bent for piece in pieces if piece.bent is not None]
    count = int(torch.cat(bent).sum()) if bent else 0
    # the count travels with the rows, so that a resumed run knows it too
    return pa.table(columns).replace_schema_metadata({b"bent": str(count).encode()})


def bent_count(shards: Iterable[pa.Table]) -> int:
    """How many predictions of a run the head's bias decides."""
    return sum(int((shard.schema.metadata or {}).get(b"bent", b"0")) for shard in shards)


def finished_rows(rows: pa.Table, plan: ScorePlan) -> pa.Table:
    """``rows`` of a whole run with the scores that need all of them, in table order."""
    for spec in plan.dataset_specs:
        values = _dataset_score(rows, spec)
        rows = rows.append_column(spec.name, pa.array(values.numpy()))
    keys = ["index", "id", "label", "prediction", "finite"]
    return rows.select(keys + [spec.name for spec in plan.specs])


def _dataset_score(rows: pa.Table, spec: ScoreSpec) -> Tensor:
    norms = torch.tensor(rows["feature_norm"].to_numpy())
    values: Tensor = spec.formula(norms, torch.tensor(rows["label"].to_numpy()))
    return values


def _array(parts: list[Tensor]) -> pa.Array:
    return pa.array(torch.cat(parts).cpu().numpy())
