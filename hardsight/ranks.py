"""Gather rows and classes that are distributed over ranks.

Two conventions hold in all of hardsight. Gathered rows are in the order of ranks. And parameters
receive the gradient of a single process with the whole batch, once ``DistributedDataParallel`` has
averaged it over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hardsight.errors import GradientError, OptionError, ShapeError

Group = Any  # dist.ProcessGroup, which is missing if torch was built without distributed


def gather_rows(rows: Tensor, *, group: Group = None) -> Tensor:
    """Return the rows of all ranks, in rank order; ranks may hold different numbers of rows.

    The backward pass sums the gradient over ranks and returns each rank's own rows. A loss that
    every rank computes from the gathered rows therefore has ``world_size`` times its gradient,
    which ``DistributedDataParallel`` divides by ``world_size`` again: parameters get exactly the
    gradient of a single process that holds the whole batch.

    Args:
        rows: ``[n, ...]``; all but the first dimension agree between ranks.
        group: of the ranks; all of them by default.

    Returns:
        ``[sum of n, ...]``; ``rows`` itself if there is only one process.
    """
    # a single process has all rows already
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return rows
    return _gathered(rows, [counts[0] for counts in _counts(rows, group)], group)


def shard_of(count: int, group: Group) -> slice:
    """The default classes of this rank, in parts as ``torch.chunk`` makes them.

    Example:
        >>> [chunk.tolist() for chunk in torch.arange(5).chunk(3)]
        [[0, 1], [2, 3], [4]]
    """
    check_group(group)
    # rounded up like torch.chunk, which torch's distributed checkpoints assume
    part = -(-count // dist.get_world_size(group))
    begin = min(dist.get_rank(group) * part, count)
    return slice(begin, min(begin + part, count))


def check_group(group: Group) -> None:
    """Raise unless ``group`` is a group of ranks that this process belongs to.

    Raises:
        OptionError: it is not such a group, or ranks have not been started.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise OptionError(
            "expected process_group in a process that has joined others; start it with torchrun "
            "and call torch.distributed.init_process_group() first"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise OptionError(
            f"expected process_group to be a torch.distributed process group, got {group!r}; "
            "torch.distributed.group.WORLD is that of all ranks"
        )


@dataclass(frozen=True)
class Spread:
    """The places of this rank's rows and classes among those of a group.

    Attributes:
        group: the ranks.
        sizes: number of rows of each rank.
        rows: slice of this rank among all rows.
        classes: slice of this rank among all classes.
        num_classes: number of classes of all ranks together.
    """

    group: Group
    sizes: tuple[int, ...]
    rows: slice
    classes: slice
    num_classes: int

    def gathered(self, rows: Tensor) -> Tensor:
        """Rows of all ranks; in backward, each rank gets the sum of the gradients of its rows."""
        return _gathered(rows, list(self.sizes), self.group)

    def gathered_for_shards(self, rows: Tensor) -> Tensor:
        """Gather the rows of all ranks, for a loss of which each rank computes its classes' part.

        The parts add up to the gradient once, and not ``world_size`` times as with
        :meth:`gathered`, so this multiplies by the factor that ``DistributedDataParallel`` divides
        by.
        """
        everyone = self.gathered(rows)
        if everyone.requires_grad:
            # a sum instead of a mean over ranks: each rank adds another part, and DDP will divide
            # by their number
            everyone.register_hook(lambda grad: grad * len(self.sizes))
        return everyone

    def own(self, values: Tensor) -> Tensor:
        """This rank's rows of values that all ranks have; backward sums gradients over ranks."""
        own: Tensor = _OwnRows.apply(values, self)  # type: ignore[no-untyped-call]
        return own

    def places(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the class of each row is on this rank, and its place there (arbitrary if not)."""
        begin, count = self.classes.start, self.classes.stop - self.classes.start
        place = labels - begin
        here = (place >= 0) & (place < count)
        return here, place.clamp(0, max(count - 1, 0))

    def stacked(self, values: Tensor) -> Tensor:
        """The values of all ranks for the same rows, ``[ranks, ...]``; only ours have a gradient.

        Only this rank's own part has a gradient. Use this for sums over ranks: it exchanges a few
        numbers per row, and sums of exponentials stay exact, since the largest is known before they
        are added.
        """
        parts = [torch.empty_like(values) for _ in self.sizes]
        dist.all_gather(parts, values.detach().contiguous(), group=self.group)
        # our own part keeps its graph; the others are constants here
        parts[dist.get_rank(self.group)] = values
        return torch.stack(parts)


def spread_of(embeddings: Tensor, class_weights: Tensor, group: Group) -> Spread:
    """Find out which rank has which rows and classes; every rank must call this.

    Args:
        embeddings: rows of this rank, ``[n, D]``.
        class_weights: classes of this rank, ``[c, D]``, which follow those of the rank before.
        group: the ranks.

    Raises:
        OptionError: ``group`` is not a group of this process.
        ShapeError: ranks differ in D or in the dtype; raised on all ranks, so none keeps waiting.
    """
    check_group(group)
    # everything that must agree is sent in one exchange, so that all ranks raise the same error
    counts = _counts(embeddings, group, len(class_weights), embeddings.shape[1],
                     class_weights.shape[1], _kind(embeddings))  # fmt: skip
    rows, classes, widths, weight_widths, kinds = zip(*counts, strict=True)
    if len({*widths, *weight_widths}) > 1 or len(set(kinds)) > 1:
        raise ShapeError(
            "expected embeddings and class_weights of one width and dtype on all ranks, got "
            f"embeddings of width {list(widths)}, class_weights of width {list(weight_widths)}, "
            f"dtypes {[str(_KINDS[kind]) for kind in kinds]}"
        )
    rank = dist.get_rank(group)
    return Spread(
        group=group,
        sizes=rows,
        rows=slice(sum(rows[:rank]), sum(rows[: rank + 1])),
        classes=slice(sum(classes[:rank]), sum(classes[: rank + 1])),
        num_classes=sum(classes),
    )


def classes_of(own: int, group: Group) -> tuple[slice, int]:
    """Return the slice of a rank with ``own`` classes among all classes, and the total number.

    Every rank has to call this.
    """
    check_group(group)
    counts = [numbers[1] for numbers in _counts(torch.empty(0), group, own)]
    begin = sum(counts[: dist.get_rank(group)])
    return slice(begin, begin + own), sum(counts)


def as_distributed(own: Tensor, count: int, group: Group) -> Tensor:
    """Wrap this rank's part in a ``DTensor``, which ``torch.distributed.checkpoint`` stores whole.

    Args:
        own: rows of this rank, ``[c, ...]``, as many as :func:`shard_of` gives it.
        count: number of rows of all ranks.
        group: the ranks.

    Raises:
        OptionError: it has other rows.
    """
    part = shard_of(count, group)
    if len(own) != part.stop - part.start:
        raise OptionError(
            f"expected {part.stop - part.start} of {count} classes on this rank, as torch.chunk "
            f"splits them, to store them whole, got {len(own)}; gather them with "
            "hardsight.losses.gather_rows, or split them so"
        )
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = DeviceMesh.from_group(group, own.device.type)
    shape = torch.Size([count, *own.shape[1:]])
    # strides of the whole tensor, without allocating it
    stride = torch.empty(shape, device="meta").stride()
    # run_check would cost a broadcast, and the shards are correct by construction
    return DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def own_part(rows: Tensor, own: slice, count: int) -> Tensor:
    """This rank's rows of a stored tensor: its part already, or those of all ranks."""
    # a DTensor from a checkpoint that was loaded distributed
    if hasattr(rows, "to_local"):
        local: Tensor = rows.to_local()
        return local
    return rows[own] if len(rows) == count else rows


_KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _kind(rows: Tensor) -> int:
    if rows.dtype not in _KINDS:
        raise ShapeError(f"expected embeddings to be floating point, got {rows.dtype}")
    return _KINDS.index(rows.dtype)


def _counts(rows: Tensor, group: Group, *others: int) -> list[list[int]]:
    """Return the number of rows, and further numbers, of every rank."""
    counts = torch.tensor([len(rows), *others], device=rows.device)
    # a single small exchange, which waits for the device only once
    everywhere = [torch.empty_like(counts) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everywhere, counts, group=group)
    return [numbers.tolist() for numbers in everywhere]


def _gathered(rows: Tensor, sizes: list[int], group: Group) -> Tensor:
    everyone: Tensor = _GatherRows.apply(rows, sizes, group)  # type: ignore[no-untyped-call]
    return everyone


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int], group: Group) -> Tensor:
        rank = dist.get_rank(group)
        ctx.begin, ctx.length, ctx.group = sum(sizes[:rank]), sizes[rank], group
        # all_gather needs equal shapes: pad to the longest, then cut
        padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise GradientError(
                "what is gathered over ranks is differentiable once, got create_graph=True"
            )
        grad = grads[0].contiguous().clone()
        # every rank used every row, so the gradient of a row is the sum over ranks
        dist.all_reduce(grad, group=ctx.group)
        return grad[ctx.begin : ctx.begin + ctx.length], None, None


class _OwnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, spread: Spread) -> Tensor:
        ctx.spread = spread
        # a copy, since a user might change a view in place
        return values[spread.rows].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        with torch.no_grad():
            return ctx.spread.gathered(grads[0]), None
