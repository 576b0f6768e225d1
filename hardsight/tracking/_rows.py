"""The rows of an unfinished epoch, and those of all ranks of a distributed run together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

MEASURES = ("target_angle", "avh", "avc", "confidence", "norm", "logit_margin", "loss", "el2n")
T = TypeVar("T")


@dataclass(frozen=True)
class Rows:
    """Measured examples, in the order in which they were seen; on the device until the epoch ends.

    Attributes:
        index: positions of the examples, ``[n]``.
        labels: class indices, ``[n]``.
        prediction: class indices, ``[n]``.
        values: the measures, ``[n, len(MEASURES)]``, float32.
        order: when a row was seen among those of all ranks, ``[n]``.
    """

    index: Tensor
    labels: Tensor
    prediction: Tensor
    values: Tensor
    order: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def no_rows() -> Rows:
    """Rows of nothing, on the CPU."""
    nobody = torch.empty(0, dtype=torch.int64)
    return Rows(nobody, nobody, nobody, torch.empty(0, len(MEASURES)), nobody)


def joined(parts: list[Rows]) -> Rows:
    """Rows one after another, on the CPU; the one place that waits for the device."""
    fields = [field.name for field in dataclasses.fields(Rows)]
    return Rows(
        *(_joined([getattr(part, name) for part in parts or [no_rows()]]) for name in fields)
    )


def _joined(parts: list[Tensor]) -> Tensor:
    if len({part.device for part in parts}) == 1:
        return torch.cat(parts).cpu()
    return torch.cat([part.cpu() for part in parts])


def world_size() -> int:
    """Number of ranks; 1 if nothing is distributed."""
    return dist.get_world_size() if _is_distributed() else 1


def rank() -> int:
    """Number of this process among the ranks."""
    return dist.get_rank() if _is_distributed() else 0


def gathered(rows: Rows) -> Rows:
    """The rows of all ranks, on every rank; all ranks must call it.

    Args:
        rows: of this rank, on the CPU, as many as it has.
    """
    if world_size() == 1:
        return rows
    counts = _gathered_equal(torch.tensor([len(rows)]))
    sizes = [int(count) for count in counts]
    fields = [field.name for field in dataclasses.fields(Rows)]
    columns = [_gathered_padded(getattr(rows, name), sizes) for name in fields]
    return Rows(*(torch.cat(parts) for parts in columns))


def of_all(value: T) -> list[T]:
    """The values of all ranks, in their order, on every rank; all ranks must call it."""
    values = [value] * world_size()
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def on_every_rank(action: Callable[[], None]) -> None:
    """Run ``action`` on all ranks; what one of them raises is raised on each: none waits."""
    raised: Exception | None = None
    try:
        action()
    except Exception as err:  # passed on to all ranks below
        if world_size() == 1:
            raise
        raised = err
    for error in of_all(raised):
        if error is not None:
            raise error


def on_first_rank(action: Callable[[], None]) -> None:
    """Run ``action`` on rank 0 alone, otherwise as :func:`on_every_rank`; all ranks call it."""
    on_every_rank(action if rank() == 0 else lambda: None)


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _gathered_padded(column: Tensor, sizes: list[int]) -> list[Tensor]:
    padded = column.new_zeros((max(sizes), *column.shape[1:]))
    padded[: len(column)] = column
    parts = _gathered_equal(padded)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def _gathered_equal(tensor: Tensor) -> list[Tensor]:
    """Tensors of one shape from all ranks, on the CPU."""
    moved = tensor.contiguous().to(_device())
    parts = [torch.empty_like(moved) for _ in range(world_size())]
    dist.all_gather(parts, moved)
    return [part.cpu() for part in parts]


def _device() -> torch.device:
    """Where the backend wants its tensors: NCCL moves those of a GPU only."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
