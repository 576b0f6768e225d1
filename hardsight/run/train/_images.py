"""Decode examples into tensors once, keep them as bytes, and measure their mean and deviation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hardsight.data import ExampleSource, pixels_of, raw_pixels
from hardsight.errors import BadExampleError, DataError, HardsightError
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop import free_bytes, progress

Rows = Sequence[int]
Row = tuple[int, Tensor, int]
_KEPT_BYTES = 2**28  # of images that were decoded to be measured, so they are decoded only once


class TrainBatch(NamedTuple):
    """The batch of a training step, in the order in which a tracker reads it.

    Attributes:
        index: numbers of the examples in the source, ``[B]``.
        inputs: normalised images ``[B, C, H, W]``, or a user's own tensors.
        labels: class indices ``[B]``.
    """

    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    inputs: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> TrainBatch:
        """Return the batch on a device."""
        return TrainBatch(self.index.to(device), self.inputs.to(device), self.labels.to(device))


class Examples(Dataset[Row | DataError], ABC):
    """Examples by position; each is a row, or the error that prevents it."""

    @abstractmethod
    def __len__(self) -> int: ...


class Decoded(Examples):
    """A source as tensors: images as uint8 ``[C, H, W]`` if that is lossless, else as float32.

    Args:
        source: any source of examples.
        how: size and channels; images are normalised later, on the device.
        rows: positions to use.
        kept: pixels that were decoded earlier, by position.
    """

    def __init__(
        self,
        source: ExampleSource,
        how: Preprocessing,
        rows: Rows,
        *,
        kept: dict[int, Tensor] | None = None,
    ) -> None:
        self.source, self.how, self.rows = source, how, rows
        self.kept = {} if kept is None else kept

    def __getstate__(self) -> dict[str, Any]:
        # a forked loader process shares this memory, but for a spawned one it would be pickled
        return {**self.__dict__, "kept": {}}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Row | DataError:
        """Return the example, or an error as a value; raised in a worker, it would be garbled."""
        try:
            return self.row(at)
        except HardsightError as err:
            return DataError(str(err))

    def row(self, at: int) -> Row:
        """Return number in the source, raw pixels and label.

        Raises:
            DataError: the example cannot be read.
        """
        index = self.rows[at]
        number = int(self.source.numbered(index))
        if index in self.kept:
            return number, self.kept[index], self.source.label_of(index)
        try:
            example = self.source[index]
        except BadExampleError as err:
            raise DataError(
                f"{self.source.spec}: example {index} ({self.source.id_of(index)}) cannot be read: "
                f"{err}; remove or repair it before training"
            ) from err
        return number, self._tensor(example.content), example.label

    def keep(self, rows: Tensor, images: Tensor) -> None:
        """Keep decoded pixels for the next reading, if there is room in memory."""
        room = _KEPT_BYTES - sum(image.nbytes for image in self.kept.values())
        if images.nbytes <= room:
            self.kept |= {
                self.rows[at]: image for at, image in zip(rows.tolist(), images, strict=True)
            }

    @property
    def is_ready(self) -> bool:
        """Whether the pictures are in memory already, in the right size and channels."""
        if self.source.images is None:
            return False
        shape = self.source.images.shape
        channels = 1 if len(shape) == 3 else shape[3]
        how = self.how
        keeps_all = how.crop == 1 and how.resize is None and not how.crop_first
        is_size = how.size is None or (how.size == shape[1:3] and keeps_all)
        return is_size and how.channels in (None, channels) and not how.bgr

    def ready(self) -> TrainBatch:
        """Return all examples at once, if :attr:`is_ready`."""
        assert self.source.images is not None
        rows = np.asarray(self.rows)
        images = torch.from_numpy(self.source.images[rows])
        images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
        index = torch.from_numpy(self.source.numbered(rows))
        return TrainBatch(index, images.contiguous(), self.labels)

    @property
    def labels(self) -> Tensor:
        """Class indices of the rows, ``[N]``."""
        return torch.from_numpy(self.source.labels[np.asarray(self.rows)])

    @property
    def are_ours(self) -> bool:
        """Whether we resize and scale the images, rather than a user's own dataset."""
        content = self.source[self.rows[0]].content
        pixels = pixels_of(content, self.how, self.source)
        if pixels is not None:
            return not pixels.is_model_ready
        return not isinstance(content, Tensor) and not self.source.is_model_ready

    def _tensor(self, content: Any) -> Tensor:
        """Return raw pixels, as in scoring before normalisation; a user's tensors stay as is."""
        pixels = pixels_of(content, self.how, self.source)
        if pixels is not None:
            return torch.from_numpy(raw_pixels(pixels.content, pixels.how))
        if isinstance(content, Tensor) or self.source.is_model_ready:
            return torch.as_tensor(content)
        if isinstance(content, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(content, dtype=np.float32))
        raise DataError(
            f"cannot train on {type(content).__name__} from {self.source.spec}; expected images, "
            "arrays or tensors"
        )


def decoded_whole(data: Decoded, *, workers: int, show: bool | None) -> TrainBatch:
    """Return all examples, stacked in the order of ``data``, as raw pixels."""
    if data.is_ready:
        return data.ready()
    parts: list[list[Tensor]] = [[], [], []]
    with progress(f"decoding {data.source.spec}", total=len(data), show=show) as advance:
        for batch in loaded(data, torch.arange(len(data)), batch_size=256, workers=workers):
            for part, tensor in zip(parts, batch, strict=True):
                part.append(tensor)
            advance(len(batch[0]))
    data.kept.clear()  # the result holds all of it now
    return TrainBatch(*(torch.cat(part) for part in parts))


def loaded(
    data: Examples, order: Tensor, *, batch_size: int, workers: int, pin: bool = False
) -> Iterator[list[Tensor]]:
    """Yield batches of positions, raw pixels and labels in a given order.

    Args:
        data: the examples.
        order: positions of the examples.
        batch_size: number of examples at once.
        workers: number of loader processes.
        pin: whether to use page-locked memory, which is copied while the GPU works; this starts
            CUDA.

    Raises:
        DataError: an example cannot be read, or its size differs.
    """
    batches: DataLoader[Any] = DataLoader(
        data,
        batch_size=batch_size,
        sampler=order.tolist(),
        num_workers=workers,
        collate_fn=_stacked,
        pin_memory=pin,
        generator=torch.Generator().manual_seed(0),  # leaves the user's random state alone
    )
    for batch in batches:
        if isinstance(batch, DataError):
            raise batch
        yield batch


def _stacked(rows: list[Row | DataError]) -> list[Tensor] | DataError:
    for row in rows:
        if isinstance(row, DataError):
            return row
    good = [row for row in rows if not isinstance(row, DataError)]
    shapes = {tuple(image.shape) for _, image, _ in good}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        return DataError(
            f"expected images of one size, got {list(first)} and {list(second)} (channels, height, "
            "width); set data.size = [H, W], and data.channels if some are grey"
        )
    index, images, labels = zip(*good, strict=True)
    return [torch.tensor(index), torch.stack(images), torch.tensor(labels)]


def fits(data: Decoded, device: torch.device, padding: int) -> bool:
    """Return whether the decoded examples take at most a quarter of the device's free memory."""
    _, example, _ = data.row(0)
    grown = 1.0
    if example.ndim == 3:
        height, width = example.shape[1:]
        # resident images are kept with their padding
        grown = (height + 2 * padding) * (width + 2 * padding) / (height * width)
    wanted = example.numel() * example.element_size() * grown * len(data)
    return wanted <= free_bytes(device) / 4


def statistics(data: Decoded, rows: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if data.is_ready:
        mean, std = _counted(data, rows.numpy())
    else:
        mean, std = _summed(data, rows)
    # rounded, because people print these numbers and type them into recipes
    centre, spread = ([round(value, 4) for value in values.tolist()] for values in (mean, std))
    # a channel without any variation would otherwise be divided by 0
    return tuple(centre), tuple(max(value, 1e-4) for value in spread)


def _summed(data: Decoded, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of every channel, from images as they are read."""
    total = squares = torch.zeros(1, dtype=torch.float64)
    count = 0
    white = data.how.white or 255
    batches = loaded(data, rows, batch_size=256, workers=0)
    for part, (_, images, _) in zip(rows.split(256), batches, strict=True):
        data.keep(part, images)
        values = images.double() / (white if images.dtype == torch.uint8 else 1)
        total = total + values.sum(dim=(0, 2, 3))
        squares = squares + (values**2).sum(dim=(0, 2, 3))
        count += values.numel() // values.shape[1]
    mean = total / count
    return mean, (squares / count - mean**2).clamp_min(1e-12).sqrt()


def _counted(data: Decoded, rows: NDArray[Any]) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of pictures in memory, faster, by counting their 256 values."""
    assert data.source.images is not None
    counts = _value_counts(data.source.images, np.asarray(data.rows)[rows])
    share = torch.from_numpy(counts / counts.sum(axis=1, keepdims=True))
    values = torch.arange(256, dtype=torch.float64) / (data.how.white or 255)
    mean = share @ values
    return mean, (share @ values**2 - mean**2).clamp_min(1e-12).sqrt()


def _value_counts(images: NDArray[np.uint8], rows: NDArray[Any]) -> NDArray[np.int64]:
    """Return how often each value occurs in each channel, ``[channels, 256]``."""
    channels = 1 if images.ndim == 3 else images.shape[3]
    counts = np.zeros((channels, 256), dtype=np.int64)
    for some in np.array_split(rows, max(1, len(rows) // 64)):
        pixels = images[some].reshape(-1, channels)
        for channel in range(channels):
            counts[channel] += np.bincount(pixels[:, channel], minlength=256)
    return counts
