"""Pieces of a run as rows of the table, and what only the whole table can say."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

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


class Totals:
    """What only all rows together can say, gathered shard by shard.

    Args:
        plan: which scores.

    Attributes:
        rows: how many.
        finite: how many of them are finite.
        bent: how many predictions the head's bias decides.
    """

    def __init__(self, plan: ScorePlan) -> None:
        self._plan = plan
        self._passes = {
            spec.name: spec.over_dataset() for spec in plan.dataset_specs if spec.over_dataset
        }
        self.rows = self.finite = self.bent = 0

    def add(self, shard: pa.Table) -> None:
        """Take account of one shard."""
        self.rows += shard.num_rows
        self.finite += pc.sum(shard["finite"].cast(pa.int64())).as_py() or 0
        self.bent += int((shard.schema.metadata or {}).get(b"bent", b"0"))
        for over_dataset in self._passes.values():
            over_dataset.add(*_norms_and_labels(shard))

    def finished(self, rows: pa.Table) -> pa.Table:
        """Some rows with the scores that need all of them, in table order."""
        for name, over_dataset in self._passes.items():
            values = over_dataset.values(*_norms_and_labels(rows))
            rows = rows.append_column(name, pa.array(values.numpy()))
        keys = ["index", "id", "label", "prediction", "finite"]
        return rows.select(keys + [spec.name for spec in self._plan.specs])


def _norms_and_labels(rows: pa.Table) -> tuple[Tensor, Tensor]:
    return torch.tensor(rows["feature_norm"].to_numpy()), torch.tensor(rows["label"].to_numpy())


def _array(parts: list[Tensor]) -> pa.Array:
    return pa.array(torch.cat(parts).cpu().numpy())
