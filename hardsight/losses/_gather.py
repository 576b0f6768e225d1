"""Rows of all ranks in one tensor, with gradients."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hardsight.errors import GradientError


def gather_rows(rows: Tensor) -> Tensor:
    """The rows of every rank, in rank order; ranks may hold different numbers of rows.

    Backward sums the gradient over ranks and hands each rank its own rows. A loss that every rank
    computes from the gathered rows therefore gives ``world_size`` times its gradient, which
    ``DistributedDataParallel`` divides by ``world_size`` again: parameters receive exactly the
    gradient of one process that holds the whole batch.

    Args:
        rows: ``[n, ...]``; all but the first dimension agree between ranks.

    Returns:
        ``[sum of n, ...]``; ``rows`` itself if there is only one process.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return rows
    gathered: Tensor = _GatherRows.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        sizes = _row_counts(rows)
        rank = dist.get_rank()
        ctx.begin, ctx.length = sum(sizes[:rank]), sizes[rank]
        # all_gather needs equal shapes: pad to the longest, then cut
        padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise GradientError("gather=True is differentiable once, got create_graph=True")
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad)
        return grad[ctx.begin : ctx.begin + ctx.length]


def _row_counts(rows: Tensor) -> list[int]:
    count = torch.tensor([len(rows)], device=rows.device)
    counts = [torch.empty_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    return [int(number) for number in counts]
