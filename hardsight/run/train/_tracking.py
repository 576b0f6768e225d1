"""The tracker of a training run, and what is kept of its records."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch import nn

from hardsight.errors import HardsightWarning
from hardsight.run.loop import pictures
from hardsight.run.train._config import TrainConfig
from hardsight.run.train._folder import is_first_process
from hardsight.run.train._images import Decoded
from hardsight.run.train._setup import Sources
from hardsight.run_folder import write_parquet
from hardsight.table import (
    DYNAMICS,
    HELD_OUT,
    HISTORIES,
    THUMBNAILS,
    TRACKED,
    RunFolder,
    ScoreTable,
    read_table,
    with_metadata,
)
from hardsight.tracking import HardnessTracker

EXAMPLES = "examples.parquet"


@dataclass(frozen=True)
class Trackers:
    """Who records a training run.

    Attributes:
        trained: the examples that are trained on, as the training step sees them.
        held_out: those of the same data that are held out, as the validation pass sees them:
            without augmentation, by the model after each epoch. It costs no pass of its own.
            ``None`` where none are held out, or where they come from a split of their own.
    """

    trained: HardnessTracker
    held_out: HardnessTracker | None = None

    def callbacks(self) -> list[Any]:
        """One for the training steps, one for the validation steps."""
        both = [self.trained] if self.held_out is None else [self.trained, self.held_out]
        return [tracker.lightning_callback() for tracker in both]


def trackers_of(
    config: TrainConfig, sources: Sources, layer: nn.Module, start: Path | None
) -> Trackers:
    """Trackers by number in the source; rows of an epoch without a checkpoint are dropped."""
    run, examples = Path(config.out), sources.train.source.span
    folder, aside = run / HISTORIES, run / TRACKED / HELD_OUT
    if start is None and is_first_process():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)
    # drawn with replacement, an example counts as what it was when it first came
    repeats = "first" if config.sampling == "class_balanced" else "error"
    common: dict[str, Any] = {"head": layer, "resume": start is not None}
    trained = HardnessTracker(examples, folder=folder, repeats=repeats, **common)
    if not sources.holds_out:
        return Trackers(trained)
    if is_first_process():
        assert sources.validation is not None
        write_examples(aside, sources.validation, sources.classes)
    return Trackers(trained, HardnessTracker(examples, folder=aside, stage="evaluation", **common))


def write_examples(folder: Path, data: Decoded, classes: tuple[str, ...]) -> None:
    """Who the examples are, so that a study can join what people said of them."""
    source = data.source
    every = range(len(source))
    rows = pa.table(
        {
            "index": pa.array(source.numbered(every), pa.int64()),
            "id": [source.id_of(index) for index in every],
            "label": pa.array(source.labels, pa.int64()),
        }
    )
    facts = {
        "classes": list(classes),
        "data": {"spec": source.spec, "fingerprint": source.fingerprint()},
        "sample": "out-of-sample",
    }
    folder.mkdir(parents=True, exist_ok=True)
    rows = with_metadata(rows, facts)
    write_parquet(folder / EXAMPLES, [rows], rows.schema, compression="snappy")


def kept_dynamics(
    trackers: Trackers,
    config: TrainConfig,
    sources: Sources,
    is_first: bool,
    show: bool | None,
) -> ScoreTable | None:
    """The summaries of all training examples, as a file, with pictures beside it."""
    if not is_first:
        return None
    run, source = RunFolder(config.out), sources.train.source
    table = _summaries(trackers)
    seen = table.where(table.column("epochs_seen") > 0)
    positions = [source.position_of(index) for index in seen.column("index").tolist()]
    names = pa.array([source.id_of(position) for position in positions], pa.string())
    rows = seen.to_arrow()
    rows = rows.set_column(rows.column_names.index("id"), "id", names)
    about = {
        "classes": list(sources.classes),
        "data": {
            "spec": config.data.name,
            "split": config.data.split,
            "fingerprint": sources.fingerprint,
        },
        "model": {"spec": config.model.name},
        "seed": config.seed,
        "config": {"thumbnails": config.thumbnails},
    }
    named = ScoreTable(with_metadata(rows, {**seen.metadata, **about}))
    if config.thumbnails:
        found = pictures(source, named, most=config.thumbnails, show=show)
        run.write_side_file(THUMBNAILS, found)
    run.write_side_file(DYNAMICS, named.to_arrow())
    return read_table(run.folder / DYNAMICS)


def _summaries(trackers: Trackers) -> ScoreTable:
    """A row per training example, held out or not; ``held_out`` tells."""
    trained, held_out = trackers.trained, trackers.held_out
    if held_out is not None and held_out.epochs == trained.epochs:
        return trained.summaries(held_out=held_out)
    if held_out is not None:
        warnings.warn(
            "held-out examples have no row: the first epochs of this run were recorded by a "
            "version that did not measure them",
            HardsightWarning,
            stacklevel=2,
        )
    table = trained.summaries()
    rows = table.to_arrow()
    none = pa.array(np.zeros(len(table), np.bool_))
    at = rows.column_names.index("epochs_seen") + 1
    return ScoreTable(with_metadata(rows.add_column(at, "held_out", none), table.metadata))
