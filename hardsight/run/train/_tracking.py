"""The tracker of a training run, and what is kept of its records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
from torch import nn

from hardsight.run.loop import pictures
from hardsight.run.train._config import TrainConfig
from hardsight.run.train._folder import is_first_process
from hardsight.run.train._setup import Sources
from hardsight.table import (
    DYNAMICS,
    HISTORIES,
    THUMBNAILS,
    RunFolder,
    ScoreTable,
    read_table,
    with_metadata,
)
from hardsight.tracking import HardnessTracker


def tracker_of(
    config: TrainConfig, sources: Sources, layer: nn.Module, start: Path | None
) -> HardnessTracker:
    """A tracker by number in the source; rows of an epoch without a checkpoint are dropped."""
    folder = Path(config.out) / HISTORIES
    if start is None and is_first_process():
        shutil.rmtree(folder, ignore_errors=True)
    examples = sources.train.source.span
    # drawn with replacement, an example counts as what it was when it first came
    repeats = "first" if config.sampling == "class_balanced" else "error"
    return HardnessTracker(
        examples, head=layer, folder=folder, resume=start is not None, repeats=repeats
    )


def kept_dynamics(
    tracker: HardnessTracker,
    config: TrainConfig,
    sources: Sources,
    is_first: bool,
    show: bool | None,
) -> ScoreTable | None:
    """The summaries of the examples that were trained on, as a file, with pictures beside it."""
    if not is_first:
        return None
    run, source = RunFolder(config.out), sources.train.source
    table = tracker.summaries()
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
