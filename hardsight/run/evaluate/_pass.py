"""Run one forward pass over a dataset, and keep its outputs on disk to save memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight.data import Batch, ExampleSource, batches
from hardsight.errors import DataError, ShapeError
from hardsight.run.evaluate._subjects import Subject
from hardsight.run.loop import ModelPass, Outputs, check_labels, length_of, moved, parameters


def collected(
    subject: Subject,
    source: ExampleSource,
    folder: Path,
    *,
    batch_size: int,
    workers: int,
    advance: Callable[[int], None],
    has_own_labels: bool = True,
) -> Outputs:
    """Run a model over a dataset, with logits and embeddings on disk.

    Args:
        subject: the model.
        source: the data.
        folder: for the outputs; two files are written to it.
        batch_size: examples at once.
        workers: loader processes.
        advance: called with the number of positions that were just done.
        has_own_labels: whether the labels are classes of the model, unlike those of foreign data.

    Raises:
        LabelError: a label is not a class of the model.
        ShapeError: inputs of another shape than those of the subject's own data.
        DataError: no example could be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "logits", folder / "embeddings"]
    index, labels, errors = [], [], 0
    with (
        ModelPass(subject.model, subject.head, device=subject.device) as running,
        files[0].open("wb") as logit_sink,
        files[1].open("wb") as embedding_sink,
    ):
        for passed in running.over(
            source,
            subject.preprocessing,
            num_classes=subject.head.num_classes,
            batch_size=batch_size,
            workers=workers,
            check=partial(_check, subject=subject, source=source, has_own_labels=has_own_labels),
        ):
            advance(passed.positions)
            errors += len(passed.batch.errors)
            if not len(passed.batch.index):
                continue
            assert passed.embeddings is not None
            logit_sink.write(passed.logits.float().cpu().numpy().tobytes())
            embedding_sink.write(passed.embeddings.float().cpu().numpy().tobytes())
            index.append(passed.batch.index.numpy())
            labels.append(passed.batch.labels)
    if not index:
        raise DataError(f"none of the examples of {source.spec} could be read")
    rows, head = sum(map(len, index)), subject.head
    return Outputs(
        embeddings=_mapped(files[1], rows, head.width),
        logits=_mapped(files[0], rows, head.num_classes),
        labels=torch.cat(labels),
        **parameters(head),
        index=np.concatenate(index),
        errors=errors,
    )


def inputs_at(
    subject: Subject, source: ExampleSource, positions: NDArray[np.int64], *, at_once: int
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Inputs at chosen positions in batches, with the positions; unreadable ones are missing."""
    for first in range(0, len(positions), at_once):
        inputs, kept = [], []
        for position in positions[first : first + at_once].tolist():
            loaded = batches(source, subject.preprocessing, start=position, stop=position + 1,
                          batch_size=1, workers=0)  # fmt: skip
            with closing(loaded):
                for batch in loaded:
                    if len(batch.index):
                        inputs.append(batch.inputs)
                        kept.append(position)
        if inputs:
            yield np.array(kept), moved(torch.cat(inputs), subject.device)


def spread_positions(source: ExampleSource, most: int) -> NDArray[np.int64]:
    """At most ``most`` positions, spread evenly over the data."""
    length = length_of(source)
    assert length is not None
    return np.unique(np.linspace(0, length - 1, min(most, length)).round().astype(np.int64))


def _check(batch: Batch, subject: Subject, source: ExampleSource, has_own_labels: bool) -> None:
    shape = tuple(batch.inputs.shape[1:]) if isinstance(batch.inputs, Tensor) else None
    if shape != subject.shape:
        raise ShapeError(
            f"expected inputs of shape {list(subject.shape or ())}, as the evaluated data has for "
            f"{subject.name}, got {list(shape or ())} from {source.spec}; pass --size "
            "(size=) and --channels (channels=), or name data with as many channels"
        )
    if has_own_labels:
        check_labels(batch, subject.head.num_classes, whose=subject.name, verb="evaluate")


def _mapped(file: Path, *shape: int) -> Tensor:
    """A file of float32 as a memory-mapped tensor."""
    # shared, since the system would reserve memory for a private mapping of the whole file
    numbers = torch.from_file(os.fspath(file), shared=True, size=math.prod(shape))
    return numbers.reshape(shape)
