"""Summaries as columns of the one table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hardsight._checks import versions_of
from hardsight.errors import DataError, RunMismatchError
from hardsight.registry import SUMMARIES, described
from hardsight.table import ScoreTable, with_metadata
from hardsight.tracking._epochs import EpochStore

_KEYS = ("label", "prediction")


def summary_table(
    store: EpochStore,
    about: Mapping[str, Any],
    *,
    el2n_epochs: int,
    held_out: EpochStore | None = None,
) -> ScoreTable:
    """Every summary of every example, read block by block.

    Args:
        store: the epochs.
        about: facts for the metadata; ``stage`` and ``epochs`` among them.
        el2n_epochs: how many epochs count as early.
        held_out: epochs of evaluation passes over examples that the others never saw.

    Raises:
        DataError: an example is in both.
    """
    columns = _columns(store, el2n_epochs=el2n_epochs)
    sample = "in-sample" if about["stage"] == "train" else "unknown"
    if held_out is not None:
        columns = _with_held_out(columns, _columns(held_out, el2n_epochs=el2n_epochs))
        count = int(columns["held_out"].sum())
        sample, about = ("mixed" if count else sample), {**about, "held_out": count}
    index = np.arange(len(columns["label"]))
    keys = {"index": index, "id": pa.array(index).cast(pa.string())}
    metadata = {
        **described(SUMMARIES.values()),
        "sample": sample,
        "tracking": {**about, "el2n_epochs": el2n_epochs},
        "versions": versions_of("torch", "numpy", "pyarrow"),
    }
    return ScoreTable(with_metadata(pa.table({**keys, **columns}), metadata))


def _columns(store: EpochStore, *, el2n_epochs: int) -> dict[str, NDArray[Any]]:
    """Keys and summaries of all examples of a store."""
    inputs = {name for spec in SUMMARIES.values() for name in spec.inputs} - {"correct"}
    blocks = [
        _block_columns(block, el2n_epochs=el2n_epochs)
        for block in store.blocks([*_KEYS, *sorted(inputs)])
    ]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _with_held_out(
    trained: Mapping[str, NDArray[Any]], evaluated: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """The columns of training, with those of evaluation for examples never trained on."""
    held_out = evaluated["epochs_seen"] > 0
    both = np.flatnonzero(held_out & (trained["epochs_seen"] > 0))
    if len(both):
        shown = ", ".join(map(str, both[:5])) + (", ..." if len(both) > 5 else "")
        raise DataError(
            f"{len(both)} examples {shown} were trained on, and are recorded as held out; give "
            "held_out a tracker of examples that training never sees"
        )
    columns: dict[str, NDArray[Any]] = {}
    for name, values in trained.items():
        columns[name] = np.where(held_out, evaluated[name], values)
        if name == "epochs_seen":
            columns["held_out"] = held_out
    return columns


def joined_table(scores: ScoreTable, summaries: ScoreTable) -> ScoreTable:
    """``scores`` with the columns of ``summaries``, by index."""
    index = scores.column("index")
    _check_same_data(index, scores.column("label"), summaries)
    rows = scores.to_arrow()
    marks = [name for name in ("epochs_seen", "held_out") if name in summaries.columns]
    for name in (*marks, *summaries.scores):
        values = pa.array(summaries.column(name)[index])
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


def _block_columns(
    block: Mapping[str, NDArray[Any]], *, el2n_epochs: int
) -> dict[str, NDArray[Any]]:
    """Keys and summaries of some examples from their histories ``[E, n]``."""
    seen = block["label"] >= 0
    right = np.where(seen, block["label"] == block["prediction"], math.nan)
    histories = {**block, "correct": right}
    label = block["label"].max(axis=0).astype(np.int64)  # -1 where never seen
    last = seen.shape[0] - 1 - seen[::-1].argmax(axis=0)  # the last epoch seen
    columns: dict[str, NDArray[Any]] = {
        "label": label,
        "prediction": block["prediction"][last, np.arange(len(label))].astype(np.int64),
        "finite": label >= 0,
        "epochs_seen": seen.sum(axis=0),
    }
    for spec in SUMMARIES.values():
        options = {"window_epochs": el2n_epochs} if spec.name == "early_el2n" else {}
        columns[spec.name] = spec.function(*(histories[name] for name in spec.inputs), **options)
    return columns


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
            f"{int(index[first])} is {int(labels[first])} there and was {int(tracked[first])} in "
            "training; track and score the same dataset, in the same order"
        )
