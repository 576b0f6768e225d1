"""What a scoring run works on: data, model and plan, ready on this machine or on another."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hardsight.data.pixels import decisive
from hardsight.run.score._rows import ScorePlan, Scorer, Source, piece_rows
from hardsight.run_folder import SCORE, Manifest, values_digest
from hardsight.table import error_rows

# what does not decide the result, and may be another when a run is continued; the weights are known
# by what is in them
MAY_CHANGE = ("workers", "weights", "data_root")


@dataclass(frozen=True)
class ScoreWork:
    """Everything that shards are made from.

    Attributes:
        source: the examples, with the model's numbers for their classes.
        scorer: of these examples.
        plan: which scores.
        about: metadata of the table, completed when all shards are there.
        batches_per_shard: whole batches, so that shards can be made in any order, and again.
        workers: loader processes, as asked.
    """

    source: Source
    scorer: Scorer
    plan: ScorePlan
    about: dict[str, Any]
    batches_per_shard: int
    workers: int | None

    @property
    def rows_per_shard(self) -> int:
        """Source positions of a shard."""
        return self.batches_per_shard * self.scorer.batch_size

    def shard(self, number: int) -> tuple[pa.Table, pa.Table]:
        """Rows and unreadable examples of one shard, made without those before it."""
        start = number * self.rows_per_shard
        with closing(self.scorer.pieces(start, start + self.rows_per_shard)) as made:
            pieces = list(made)
            self.scorer.check()
        return piece_rows(pieces), error_rows([error for piece in pieces for error in piece.errors])

    def made_of(self) -> Manifest:
        """What the run is made of, from the metadata of its table."""
        about = self.about
        config, model, data = about["config"], about["model"], about["data"]
        settings = {
            "data": data["spec"],
            "split": data["split"],
            "patch": [facts["digest"] for facts in data["patches"]] or None,
            "model": model["spec"],
            "weights": config["weights"],
            "head": model.get("head"),
            "output": model.get("output"),
            "scores": [
                _as_defined(name, facts["version"]) for name, facts in about["scores"].items()
            ],
            "preprocessing": decisive(about.get("preprocessing", {})),
            "class_order": about["class_order"]["taken"],
            "precision": about.get("precision", config["precision"]),
            "device": config["device"].partition(":")[0],  # any GPU of a machine will do
            "batch_size": about["batch_size"],
            "rows_per_shard": self.rows_per_shard,
            "workers": self.workers,
            "sample": about["sample"],
            "strict": config["strict"],
            "thumbnails": config["thumbnails"],
            "seed": about["seed"],
        }
        fingerprints = {
            "data": data["fingerprint"],
            "chosen rows": data.get("chosen", {}).get("fingerprint"),
            "model": model["digest"],
            "classes": values_digest([about["classes"], about["class_order"]["labels"]]),
        }
        return Manifest(
            SCORE.name, settings=settings, fingerprints=fingerprints, versions=about["versions"]
        )


def _as_defined(name: str, version: int) -> str:
    return name if version == 1 else f"{name} (version {version})"
