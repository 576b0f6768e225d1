"""When and how the Hopper kernels run; imported only on a device that has them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
import triton.experimental.gluon.language as gl
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from hardsight.kernels import _hopper
from hardsight.kernels._run import run
from hardsight.kernels._support import GROUP as ROWS  # per program
from hardsight.kernels._support import RESIDENT, cdiv, processors, tile_classes

DEPTH = 64  # 128 bytes, one swizzled row of shared memory
_MOST_SEEN = 1024  # shapes of matrices remembered
_seen: dict[Hashable, dict[str, Any]] = {}  # a descriptor's fields without its matrix


class Ring(NamedTuple):
    """How a kernel uses shared memory, and its two warp groups."""

    classes: int  # in a tile
    stages: int  # places in the ring
    alternate: bool  # whether the groups take tiles in turn, or 64 rows each
    parts: int  # 1 or 4: pieces in which a tile's arithmetic is done


# (mode, whether rows are resident): measured to be faster with a tile's arithmetic in one piece
_WHOLE = {("angles", True), ("angular", True), ("linear", False)}


def over_classes_ring(mode: str, width: int, *, nearest: bool = False) -> Ring:
    """As deep as shared memory allows; groups alternate if a block of rows fits beside the ring."""
    resident = width <= RESIDENT
    parts = 1 if (mode, resident) in _WHOLE and not nearest else 4
    tile = tile_classes(width)
    return Ring(tile, 6, True, parts) if resident else Ring(tile, 4, False, parts)


def slopes_ring(width: int) -> Ring:
    """As above, less the shared memory through which registers are exchanged before storing."""
    tile = tile_classes(width)
    return Ring(tile, 5, True, 4) if width <= RESIDENT else Ring(tile, 4, False, 4)


def fits(*matrices: Tensor) -> bool:
    """Whether the bulk copy engine can read these matrices, and the tensor cores multiply them."""
    return all(
        matrix.dtype in (torch.bfloat16, torch.float16)
        and matrix.stride(1) == 1
        and matrix.stride(0) % 8 == 0
        and matrix.stride(0) >= matrix.shape[1]  # expanded and overlapping rows are not tried
        and matrix.data_ptr() % 16 == 0
        and matrix.shape[0] < 2**31 - 512
        for matrix in matrices
    )


def over_classes(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    flags: Tensor,
    *,
    mode: str,
    number: int,
    sums: int,
    nearest: bool,
    scale: float,
    x_inverse: Tensor,
    w_inverse: Tensor,
) -> tuple[Tensor, Tensor]:
    """Partial results ``[sums, shares, N]``, and classes ``[k, shares, N]``."""
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    ring = over_classes_ring(mode, width, nearest=nearest)
    plan = _plan(rows, cdiv(classes, ring.classes), ring, processors(embeddings.device))
    slots = 2 * plan.shares if ring.alternate else plan.shares
    device = embeddings.device
    partial = torch.empty(sums, slots, rows, dtype=torch.float32, device=device)
    places = nearest + (mode == "head")
    index = torch.empty(places, slots, rows, dtype=torch.int32, device=device)
    run(
        _hopper.over_classes, plan.grid,
        (x_inverse, w_inverse, x_inverse if bias is None else bias, labels, flags, partial, index),
        (rows, classes, plan.blocks, plan.shares, plan.per_share, scale * math.log2(math.e)),
        (_rows(embeddings, ring), _described(class_weights, (ring.classes, DEPTH))),
        MODE=number, HAS_BIAS=bias is not None, NEAREST=nearest, PARTS=ring.parts,
        STEPS=cdiv(width, DEPTH), STAGES=ring.stages, ALTERNATE=ring.alternate, num_warps=4,
    )  # fmt: skip
    return partial, index


def slopes(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    flags: Tensor,
    *,
    factors: Tensor,
    reference: Tensor,
    scale: float | None,
    x_inverse: Tensor | None,
    w_inverse: Tensor | None,
) -> Callable[[Tensor, int, int], None]:
    """A function that fills ``out [N, chunk]`` with the slopes of a range of classes."""
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    ring = slopes_ring(width)
    matrices = _rows(embeddings, ring), _described(class_weights, (ring.classes, DEPTH))
    # a kernel takes no None: any pointer will do for what its mode does not read
    x_inverse = factors if x_inverse is None else x_inverse
    w_inverse = factors if w_inverse is None else w_inverse
    count = processors(embeddings.device)

    def fill(out: Tensor, first: int, last: int) -> None:
        first_tile, last_tile = first // ring.classes, cdiv(last, ring.classes)
        plan = _plan(rows, last_tile - first_tile, ring, count)
        run(
            _hopper.slopes, plan.grid,
            (x_inverse, w_inverse, factors if bias is None else bias, labels, flags,
             factors, reference, out),
            (out.stride(0), rows, classes, plan.blocks, plan.shares, plan.per_share,
             first_tile, last_tile, (scale or 0.0) * math.log2(math.e)),
            matrices,
            MODE=_hopper.LINEAR.value if scale is None else _hopper.ANGULAR.value,
            HAS_BIAS=bias is not None,
            STEPS=cdiv(width, DEPTH), STAGES=ring.stages, ALTERNATE=ring.alternate, num_warps=4,
        )  # fmt: skip

    return fill


class Plan(NamedTuple):
    """How blocks of rows and shares of the classes are dealt to programs."""

    grid: tuple[int]
    blocks: int
    shares: int
    per_share: int  # tiles


@functools.cache
def _plan(rows: int, tiles: int, ring: Ring, processors: int) -> Plan:
    """Split of the classes that keeps every multiprocessor busy to the end.

    Programs run in waves. A program that keeps its rows costs about a tile to start. There are
    only as many of the others as multiprocessors, and they take one piece of work after another.
    """
    blocks = cdiv(rows, ROWS)
    start = 1.0 if ring.alternate else 0.1

    def cost(per_share: int) -> float:
        waves = cdiv(blocks * cdiv(tiles, per_share), processors)
        return waves * (per_share + start)

    per_share = min({cdiv(tiles, shares) for shares in range(1, min(tiles, 64) + 1)}, key=cost)
    shares = cdiv(tiles, per_share)
    programs = blocks * shares
    return Plan(
        (programs if ring.alternate else min(programs, processors),), blocks, shares, per_share
    )


def _rows(embeddings: Tensor, ring: Ring) -> TensorDescriptor:
    return _described(embeddings, (ROWS if ring.alternate else ROWS // 2, DEPTH))


def _described(matrix: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    """A descriptor, by which the bulk copy engine reads ``matrix`` in blocks.

    Building a descriptor checks its arguments, which takes longer than a launch. So the descriptor
    of a matrix with a shape seen before is a copy, which holds none of the earlier one's memory.
    """
    key = (matrix.shape, matrix.stride(), matrix.dtype, block)
    fields = _seen.get(key)
    if fields is None:
        layout = _layout(block, matrix.dtype)
        descriptor = TensorDescriptor(
            matrix, list(matrix.shape), list(matrix.stride()), list(block), layout
        )
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        _seen[key] = {**vars(descriptor), "base": None}
        return descriptor
    copy = object.__new__(TensorDescriptor)
    vars(copy).update(fields, base=matrix)
    return copy


@functools.cache
def _layout(block: tuple[int, int], dtype: torch.dtype) -> Any:
    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for(list(block), kind)
