"""Track examples that are never trained on, by a pass over them after every epoch."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from hardsight.data import EmbeddingSource, open_source
from hardsight.errors import DataError, OptionError
from hardsight.run.loop import borrowed, check_labels_agree, chosen_workers
from hardsight.run.train import (
    Decoded,
    EvaluationBatches,
    Pixels,
    Shard,
    Sources,
    TrainConfig,
    evaluation_batches,
    fits,
    is_first_process,
    write_examples,
)
from hardsight.run.train.engine._module import TrainModule
from hardsight.table import HELD_OUT, TRACKED
from hardsight.tracking import HardnessTracker

TEST = "test"


def watched_sets(
    config: TrainConfig, sources: Sources, track_on: Mapping[str, Any] | None
) -> dict[str, Decoded]:
    """Return the sets of examples to watch, by name: the test split, and those of ``track_on``.

    Raises:
        OptionError: a name cannot be the name of a folder.
        DataError: there are more classes than the training data has.
        LabelError: the classes are the same, but in another order.
    """
    sets = {}
    if config.track_test:
        assert sources.test is not None  # the recipe is checked for it
        sets[TEST] = sources.test
    for name, data in (track_on or {}).items():
        if not re.fullmatch(r"\w[\w.-]*", name) or name in (*sets, HELD_OUT):
            raise OptionError(
                f"expected names of tracked examples of letters, digits, '.', '-' and '_', each "
                f"once, got {name!r}"
                + (", which is the share that the run itself holds out" if name == HELD_OUT else "")
            )
        source = open_source(data, data_root=config.data.root)
        if isinstance(source, EmbeddingSource):
            raise DataError(f"{source.spec} holds embeddings; only images can be watched")
        if len(source.classes) > len(sources.classes):
            raise DataError(
                f"expected the {len(sources.classes)} classes of the training data in the tracked "
                f"examples {name!r}, got {len(source.classes)}"
            )
        order = sources.order
        own = order.data_classes if order is not None and order.labels else sources.classes
        check_labels_agree(
            own, source.classes, whose="the training data",
            where=f"the tracked examples {name!r}", step="a source opened with classes=",
        )  # fmt: skip
        numbered = source if order is None else order.of(source)
        sets[name] = Decoded(numbered, sources.train.how, range(len(source)))
    return sets


@dataclass(frozen=True)
class Watched:
    """A set of examples that is watched, with its tracker."""

    batches: EvaluationBatches
    tracker: HardnessTracker


class EvaluationTracking(pl.Callback):
    """Runs a pass over each watched set after every epoch, in eval mode and float32.

    The pass draws nothing at random and changes no weight, so training continues as if it were not
    there. On a GPU it waits for the device once per set and epoch, when the rows are written.

    Args:
        watched: the sets, by name.

    Attributes:
        forks: whether a pass starts loader processes.
    """

    def __init__(self, watched: Mapping[str, Watched]) -> None:
        self._watched = watched
        self.forks = any(each.batches.forks for each in watched.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the number of epochs written, from which a resumed run continues."""
        return {
            name: watched.tracker.state_dict(gather=True) for name, watched in self._watched.items()
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint; rows of later epochs are removed."""
        for name, watched in self._watched.items():
            watched.tracker.load_state_dict(state_dict[name])

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Run and write one pass over each set."""
        assert isinstance(pl_module, TrainModule)
        with borrowed(pl_module.model, pl_module.device):
            for watched in self._watched.values():
                for batch in watched.batches:
                    embeddings, logits = pl_module.evaluated(batch.inputs)
                    assert embeddings is not None  # a run that watches has a head
                    watched.tracker.update(batch.index, embeddings, logits, batch.labels)
                pl_module.check_steps()
                watched.tracker.end_epoch()


def evaluation_tracking(
    config: TrainConfig,
    sets: Mapping[str, Decoded],
    layer: nn.Module,
    pixels: Pixels,
    *,
    shard: Shard,
    classes: tuple[str, ...],
    start: Path | None,
    show: bool | None,
) -> EvaluationTracking:
    """The callback, with a folder per set; folders of an earlier run are removed unless resumed."""
    watched = {}
    for name, data in sets.items():
        folder = Path(config.out) / TRACKED / name
        if is_first_process():
            if start is None:
                shutil.rmtree(folder, ignore_errors=True)
            write_examples(folder, data, classes)
        workers = chosen_workers(config.workers, length=len(data))
        resident = fits(data, pixels.device, 0) if config.resident is None else config.resident
        batches = evaluation_batches(
            data, pixels, config, shard=shard, workers=workers, resident=resident, show=show
        )
        tracker = HardnessTracker(
            data.source.span, head=layer, folder=folder, resume=start is not None,
            stage="evaluation",
        )  # fmt: skip
        watched[name] = Watched(batches, tracker)
    return EvaluationTracking(watched)
