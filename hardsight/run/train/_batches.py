"""Make the batches of an epoch: augmented for training, plain for evaluation."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hardsight.errors import DataError
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop import chosen_layout, generator
from hardsight.run.train._config import AugmentConfig, TrainConfig
from hardsight.run.train._data import Sources
from hardsight.run.train._images import (
    Decoded,
    Examples,
    TrainBatch,
    decoded_whole,
    fits,
    loaded,
)
from hardsight.run.train._ranks import Shard, Share

EpochRows = Callable[[int, torch.Generator], Tensor]


@dataclass(frozen=True)
class Draws:
    """All random draws of one epoch, the same on every device and for any number of devices.

    Attributes:
        order: training rows in the order of the epoch, ``[N]``: a permutation, or draws with
            replacement.
        offsets: corner of each crop, ``[N, 2]``, in ``[0, 2 padding]``.
        flips: whether to mirror each image, ``[N]``.
    """

    order: Tensor
    offsets: Tensor
    flips: Tensor

    @classmethod
    def of_epoch(
        cls,
        length: int,
        how: AugmentConfig,
        *,
        seed: int,
        epoch: int,
        rows: EpochRows | None = None,
    ) -> Draws:
        """Return the draws of an epoch.

        Order, crop and flip each have their own generator, so that switching one of them off leaves
        the others as they are. ``rows`` draws the examples; without it, each is drawn once.
        """
        draw = [generator(seed, purpose, epoch) for purpose in ("order", "crop", "flip")]
        reach = 2 * how.crop_padding + 1
        offsets = torch.randint(reach, (length, 2), generator=draw[1])
        flips = torch.rand(length, generator=draw[2]) < (0.5 if how.flip else 0.0)
        if rows is not None:  # a row that comes twice gets another crop each time
            return cls(rows(epoch, draw[0]), offsets, flips)
        order = torch.randperm(length, generator=draw[0])
        return cls(order, offsets[order], flips[order])

    def to(self, device: torch.device) -> Draws:
        """Return the draws on a device."""
        return Draws(*(getattr(self, f.name).to(device) for f in dataclasses.fields(self)))


class Ticket(NamedTuple):
    """The draws for a batch of resident images, on their device.

    A recorded step reads them and makes the images itself, as part of the recording.

    Attributes:
        index: numbers of the examples in the source, ``[B]``.
        rows: places of the images, ``[B]``.
        labels: class indices, ``[B]``; third, where a tracker reads them in any kind of batch.
        offsets: corner of each crop, ``[B, 2]``.
        flips: whether to mirror each image, ``[B]``.
    """

    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    rows: Tensor
    labels: Tensor
    offsets: Tensor
    flips: Tensor


def class_balanced_rows(labels: Tensor, draw: torch.Generator) -> Tensor:
    """Draw as many rows as there are labels, each from a random class and then at random from it.

    Args:
        labels: class indices, ``[N]``; a class without examples is never drawn.
        draw: generator of both draws.
    """
    length = len(labels)
    _, position, counts = labels.unique(return_inverse=True, return_counts=True)
    sorted_rows = position.argsort(stable=True)  # class after class
    starts = counts.cumsum(0) - counts
    drawn = torch.randint(len(counts), (length,), generator=draw)
    # float32 has 24 bits, so of more than 2^24 examples it would never draw some
    share = torch.rand(length, generator=draw, dtype=torch.float64)
    rows: Tensor = sorted_rows[starts[drawn] + (share * counts[drawn]).long()]
    return rows


class Pixels:
    """Turns raw images into model inputs, on one device.

    Args:
        how: the normalisation.
        channels_last: whether the result has channels last in memory.
        device: device of the images.
    """

    def __init__(self, how: Preprocessing, *, channels_last: bool, device: torch.device) -> None:
        self.device = device
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        mean, std = (torch.tensor(v).double().view(-1, 1, 1) for v in (how.mean, how.std))
        # (x / white - mean) / std is computed as x * scale + shift, one fused operation
        self._scale = (1 / std).float().to(device)
        self._scale_of_bytes = (1 / ((how.white or 255) * std)).float().to(device)
        self._shift = (-mean / std).float().to(device)

    def normalised(self, images: Tensor) -> Tensor:
        """Return images ``[B, C, H, W]``, on the pixel scale, as the model expects them."""
        images = images.to(self.device, non_blocking=True)
        if images.ndim < 4:  # not images, so there is no pixel scale to normalise
            return images.float()
        scale = self._scale_of_bytes if images.dtype == torch.uint8 else self._scale
        values = torch.addcmul(self._shift, images.float(), scale)
        return values.contiguous(memory_format=self._layout)


def padded(images: Tensor, padding: int) -> Tensor:
    """Return images ``[N, C, H, W]`` with a black frame, stored as ``[N, H, W, C]``."""
    if padding:
        images = functional.pad(images, (padding,) * 4)
    return images.permute(0, 2, 3, 1).contiguous()


def cropped(frames: Tensor, rows: Tensor, offsets: Tensor, flips: Tensor, padding: int) -> Tensor:
    """Crop windows out of padded images, and mirror some, in a single gather.

    Args:
        frames: images from :func:`padded`, ``[N, H + 2p, W + 2p, C]``.
        rows: the images to take, ``[B]``.
        offsets: upper left corner of each window, ``[B, 2]``.
        flips: whether to mirror each window, ``[B]``.
        padding: p.

    Returns:
        ``[B, C, H, W]``, a view with channels last.
    """
    height, width = (side - 2 * padding for side in frames.shape[1:3])
    down = torch.arange(height, device=frames.device) + offsets[:, :1]  # [B, H]
    # a mirrored window reads its columns from right to left
    right = torch.arange(width, device=frames.device).expand(len(rows), -1)
    right = torch.where(flips[:, None], width - 1 - right, right) + offsets[:, 1:]  # [B, W]
    windows = frames[rows[:, None, None], down[:, :, None], right[:, None, :]]
    return windows.permute(0, 3, 1, 2)


class TrainBatches(ABC):
    """Augmented batches for Lightning to iterate over, one epoch after the other.

    It does not look like a sampler to Lightning, which would call ``set_epoch`` with a wrong number
    after a resume. The module calls it instead.

    Args:
        pixels: normalisation and layout.
        augment: random crop and flip.
        length: number of training examples.
        batch_size: batch size over all processes.
        seed: seed of order and augmentation.
        shard: the part of this process.
        rows: draws the examples of an epoch, ``[N]``; ``None`` uses each of them once.

    Attributes:
        gives_tickets: whether batches of resident images come as tickets, for :meth:`made`.
        forks: whether every epoch starts loader processes.
    """

    gives_tickets = False
    forks = False

    def __init__(
        self,
        pixels: Pixels,
        augment: AugmentConfig,
        *,
        length: int,
        batch_size: int,
        seed: int,
        shard: Shard,
        rows: EpochRows | None = None,
    ) -> None:
        self.pixels, self.augment, self.length, self.seed = pixels, augment, length, seed
        self._rows_of_epoch = rows
        self.batch_size, self.shard, self.device = batch_size, shard, pixels.device
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose draws the next iteration uses."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.length // self.batch_size)

    def __iter__(self) -> Iterator[TrainBatch | Ticket]:
        # A generator, because on a resume Lightning makes the iterator before the epoch is known.
        # Nothing may be drawn until the first batch is read.
        draws = Draws.of_epoch(
            self.length, self.augment, seed=self.seed, epoch=self.epoch, rows=self._rows_of_epoch
        )
        yield from self.drawn(draws)

    @abstractmethod
    def drawn(self, draws: Draws) -> Iterator[TrainBatch | Ticket]:
        """Yield the batches of an epoch with these draws."""

    def made(self, batch: TrainBatch | Ticket) -> TrainBatch:
        """Return the batch itself, if an iteration gave a ticket for it."""
        assert not isinstance(batch, Ticket)
        return batch

    def share_of(self, step: int) -> Share:
        """Return this process's part of step ``step`` of an epoch, counted from 0."""
        left = self.length - step * self.batch_size
        return self.shard.share_of(min(self.batch_size, left))

    def parts(self, draws: Draws) -> list[Draws]:
        """Return this process's part of each batch."""
        each = (
            [self.shard.of(part) for part in drawn.split(self.batch_size)]
            for drawn in (draws.order, draws.offsets, draws.flips)
        )
        return [Draws(*part) for part in zip(*each, strict=True)]


class ResidentBatches(TrainBatches):
    """Batches of decoded images that stay on the device.

    Args:
        whole: all training examples, raw.
        options: options of :class:`TrainBatches`.
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
        """Return batches of some rows, drawn with another seed; the images are shared."""
        part = copy.copy(self)
        part._rows, part.length = rows.to(self.device), len(rows)
        part.seed, part.epoch = seed, 0
        return part

    def drawn(self, draws: Draws) -> Iterator[TrainBatch | Ticket]:
        """Yield the batches, gathered on the device."""
        for part in self.parts(draws.to(self.device)):
            rows = part.order if self._rows is None else self._rows[part.order]
            ticket = self._ticket(rows, part.offsets, part.flips)
            yield ticket if self.gives_tickets else self.made(ticket)

    def plain(self, rows: Tensor) -> TrainBatch:
        """Return some rows as they are, without augmentation."""
        rows = rows.to(self.device)
        # frames are padded, so an offset equal to the padding leaves the image where it was
        middle = rows.new_full((len(rows), 2), self.augment.crop_padding)
        return self.made(self._ticket(rows, middle, torch.zeros_like(rows, dtype=torch.bool)))

    def made(self, batch: TrainBatch | Ticket) -> TrainBatch:
        """Return the images of a ticket, cropped, mirrored and normalised."""
        if not isinstance(batch, Ticket):
            return batch
        raw = self._frames[batch.rows] if not self._are_images else cropped(
            self._frames, batch.rows, batch.offsets, batch.flips, self.augment.crop_padding
        )  # fmt: skip
        return TrainBatch(batch.index, self.pixels.normalised(raw), batch.labels)

    def _ticket(self, rows: Tensor, offsets: Tensor, flips: Tensor) -> Ticket:
        return Ticket(self._index[rows], rows, self._labels[rows], offsets, flips)


class StreamedBatches(TrainBatches):
    """The same batches, read by loader processes, for images that do not fit on the device.

    Args:
        data: the training examples.
        workers: number of loader processes.
        options: options of :class:`TrainBatches`.
    """

    def __init__(self, data: Examples, *args: Any, workers: int, **options: Any) -> None:
        super().__init__(*args, length=len(data), **options)
        self._data, self._workers = data, workers
        self.forks = workers > 0

    def drawn(self, draws: Draws) -> Iterator[TrainBatch]:
        """Yield the batches, read and decoded by the loader processes."""
        parts = self.parts(draws)
        size = max((len(part.order) for part in parts), default=1)
        order = torch.cat([part.order for part in parts])
        pin, workers = self.device.type == "cuda", self._workers
        batches = loaded(self._data, order, batch_size=size, workers=workers, pin=pin)
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
        batch_size: batch size per process.
        shard: the part of the examples that this process takes.
        workers: number of loader processes.
        whole: the same examples, already decoded; ``None`` reads them in every iteration.

    Attributes:
        forks: whether every iteration starts loader processes.
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
        self.forks = whole is None and workers > 0
        # no example may be left out or counted twice, so some processes may have one more
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
            pin = self._pixels.device.type == "cuda"
            yield from loaded(
                self._data, self._rows, batch_size=size, workers=self._workers, pin=pin
            )
            return
        for rows in self._rows.to(whole.labels.device).split(size):
            yield whole.index[rows], whole.inputs[rows], whole.labels[rows]


def evaluation_batches(
    data: Decoded,
    pixels: Pixels,
    config: TrainConfig,
    *,
    shard: Shard,
    workers: int,
    resident: bool,
    show: bool | None,
) -> EvaluationBatches:
    """Return batches for evaluation, of at least 256 examples, since no gradients are kept."""
    whole = decoded_whole(data, workers=workers, show=show) if resident else None
    size = max(256, config.batch_size)
    return EvaluationBatches(
        data, pixels, batch_size=size, shard=shard, workers=workers, whole=whole
    )


def batches_of(
    sources: Sources,
    config: TrainConfig,
    *,
    device: torch.device,
    shard: Shard,
    workers: int,
    show: bool | None,
    rows: EpochRows | None = None,
) -> tuple[TrainBatches, EvaluationBatches | None, Pixels]:
    """Return training and validation batches, resident on the device if they fit.

    ``rows`` draws the examples of an epoch, see :func:`epoch_rows`; ``None`` draws each once.
    """
    layout = chosen_layout(config.channels_last, device)
    pixels = Pixels(sources.train.how, channels_last=layout, device=device)
    resident = config.resident
    if resident is None:
        resident = fits(sources.train, device, config.augment.crop_padding)

    common: dict[str, Any] = {
        "batch_size": config.batch_size, "seed": config.seed, "shard": shard,
        "rows": rows,
    }  # fmt: skip
    train: TrainBatches
    decoded = decoded_whole(sources.train, workers=workers, show=show) if resident else None
    if decoded is not None:
        train = ResidentBatches(decoded, pixels, config.augment, **common)
    else:
        train = StreamedBatches(sources.train, pixels, config.augment, workers=workers, **common)
    held = sources.validation
    for what, data in (("train on", sources.train), ("validate on", held)):
        if data is not None and len(data) < shard.count:
            raise DataError(
                f"{len(data)} examples to {what} are too few for {shard.count} devices; use fewer "
                "devices"
            )
    if held is None:
        return train, None, pixels
    validation = evaluation_batches(
        held, pixels, config, shard=shard, workers=workers, resident=resident, show=show
    )
    return train, validation, pixels
