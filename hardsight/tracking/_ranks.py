"""The ranks of a distributed run: rows of all of them together, and errors on all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hardsight.tracking._measures import Rows

T = TypeVar("T")


def world_size() -> int:
    """Number of ranks; 1 where nothing is distributed."""
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
