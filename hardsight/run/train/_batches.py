"""Batches of an epoch: augmented for training, plain for evaluation."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hardsight.run.train._config import AugmentConfig
from hardsight.run.train._images import (
    Decoded,
    Draws,
    Examples,
    Pixels,
    Shard,
    TrainBatch,
    cropped,
    loaded,
    padded,
)


class TrainBatches(ABC):
    """Augmented batches of one epoch after the other; what Lightning iterates over.

    Not named as a sampler: what Lightning itself would tell a sampler after a resume is not the
    epoch. The module tells it.

    Args:
        pixels: normalisation and layout.
        augment: random crop and flip.
        length: number of training examples.
        batch_size: over all processes.
        seed: of order and augmentation.
        shard: this process's part.
        balanced: labels ``[N]``, to draw every class equally often; ``None`` for every example
            once per epoch.
    """

    def __init__(
        self,
        pixels: Pixels,
        augment: AugmentConfig,
        *,
        length: int,
        batch_size: int,
        seed: int,
        shard: Shard,
        balanced: Tensor | None = None,
    ) -> None:
        self.pixels, self.augment, self.length, self.seed = pixels, augment, length, seed
        self._balanced = balanced
        self.batch_size, self.shard, self.device = batch_size, shard, pixels.device
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch whose draws the next iteration uses."""
        self.epoch = epoch

    def __len__(self) -> int:
        full, rest = divmod(self.length, self.batch_size)
        return full + (rest >= self.shard.count)  # a rest that not every process shares is left

    def __iter__(self) -> Iterator[TrainBatch]:
        # a generator: on a resume Lightning makes the iterator before the epoch is known
        draws = Draws.of_epoch(
            self.length, self.augment, seed=self.seed, epoch=self.epoch, balanced=self._balanced
        )
        yield from self.drawn(draws)

    @abstractmethod
    def drawn(self, draws: Draws) -> Iterator[TrainBatch]:
        """The batches of an epoch with these draws."""

    def parts(self, draws: Draws) -> list[Draws]:
        """This process's part of each batch."""
        each = (
            [self.shard.of(part) for part in drawn.split(self.batch_size)[: len(self)]]
            for drawn in (draws.order, draws.offsets, draws.flips)
        )
        return [Draws(*part) for part in zip(*each, strict=True)]


class ResidentBatches(TrainBatches):
    """Batches from images that lie decoded on the device.

    Args:
        whole: all training examples, raw.
        options: of :class:`TrainBatches`.
    """

    def __init__(self, whole: TrainBatch, *args: Any, **options: Any) -> None:
        super().__init__(*args, length=len(whole.labels), **options)
        self._index, self._labels = whole.index.to(self.device), whole.labels.to(self.device)
        self._are_images = whole.inputs.ndim == 4
        images = whole.inputs.to(self.device)
        padding = self.augment.crop_padding
        self._frames = padded(images, padding) if self._are_images else images
        self._rows: Tensor | None = None

    def subset(self, rows: Tensor, *, seed: int) -> ResidentBatches:
        """Batches of some rows, drawn by another seed; the images are shared."""
        part = copy.copy(self)
        part._rows, part.length = rows.to(self.device), len(rows)
        part.seed, part.epoch = seed, 0
        return part

    def drawn(self, draws: Draws) -> Iterator[TrainBatch]:
        """The batches, gathered on the device."""
        for part in self.parts(draws.to(self.device)):
            rows = part.order if self._rows is None else self._rows[part.order]
            yield self._batch(rows, part.offsets, part.flips)

    def plain(self, rows: Tensor) -> TrainBatch:
        """Some rows as they are, without augmentation."""
        rows = rows.to(self.device)
        middle = rows.new_full((len(rows), 2), self.augment.crop_padding)
        return self._batch(rows, middle, torch.zeros_like(rows, dtype=torch.bool))

    def _batch(self, rows: Tensor, offsets: Tensor, flips: Tensor) -> TrainBatch:
        raw = self._frames[rows] if not self._are_images else cropped(
            self._frames, rows, offsets, flips, self.augment.crop_padding
        )  # fmt: skip
        return TrainBatch(self._index[rows], self.pixels.normalised(raw), self._labels[rows])


class StreamedBatches(TrainBatches):
    """The same batches from loader processes, for images that do not fit on the device.

    Args:
        data: the training examples.
        workers: loader processes.
        options: of :class:`TrainBatches`.
    """

    def __init__(self, data: Examples, *args: Any, workers: int, **options: Any) -> None:
        super().__init__(*args, length=len(data), **options)
        self._data, self._workers = data, workers

    def drawn(self, draws: Draws) -> Iterator[TrainBatch]:
        """The batches, read and decoded by the loader processes."""
        parts = self.parts(draws)
        size = max((len(part.order) for part in parts), default=1)
        order = torch.cat([part.order for part in parts])
        batches = loaded(self._data, order, batch_size=size, workers=self._workers)
        for part, (index, images, labels) in zip(parts, batches, strict=True):
            images = images.to(self.device, non_blocking=True)
            if images.ndim == 4:
                padding = self.augment.crop_padding
                at = torch.arange(len(images), device=self.device)
                own = part.to(self.device)
                images = cropped(padded(images, padding), at, own.offsets, own.flips, padding)
            yield TrainBatch(
                index.to(self.device),
                self.pixels.normalised(images),
                labels.to(self.device, non_blocking=True),
            )


class EvaluationBatches:
    """Batches in source order, without augmentation.

    Args:
        data: the examples.
        pixels: normalisation and layout.
        batch_size: per process.
        shard: this process's part of the examples.
        workers: loader processes.
        whole: the same examples decoded already; ``None`` reads them each time.
    """

    def __init__(
        self,
        data: Decoded,
        pixels: Pixels,
        *,
        batch_size: int,
        shard: Shard,
        workers: int,
        whole: TrainBatch | None = None,
    ) -> None:
        self._data, self._pixels, self._batch_size = data, pixels, batch_size
        self._workers, self._whole = workers, None if whole is None else whole.to(pixels.device)
        # unlike in training nobody is left out: a process may take one example more than others
        self._rows = torch.arange(shard.rank, len(data), shard.count)

    def __len__(self) -> int:
        return -(-len(self._rows) // self._batch_size)

    def __iter__(self) -> Iterator[TrainBatch]:
        for index, images, labels in self._raw():
            inputs = self._pixels.normalised(images)
            yield TrainBatch(index.to(inputs.device), inputs, labels.to(inputs.device))

    def _raw(self) -> Iterator[Sequence[Tensor]]:
        size, whole = self._batch_size, self._whole
        if whole is None:
            yield from loaded(self._data, self._rows, batch_size=size, workers=self._workers)
            return
        for rows in self._rows.to(whole.labels.device).split(size):
            yield whole.index[rows], whole.inputs[rows], whole.labels[rows]
