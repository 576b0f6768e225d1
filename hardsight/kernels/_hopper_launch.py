"""Decide when and how the Hopper kernels run; imported only on a device that has them."""

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
from hardsight.kernels._support import GROUP as ROWS  # rows per program
from hardsight.kernels._support import RESIDENT, cdiv, processors, tile_classes

DEPTH = 64  # elements, 128 bytes: one swizzled row of shared memory
_MOST_SEEN = 1024  # matrix shapes that are remembered
_seen: dict[Hashable, dict[str, Any]] = {}  # the fields of descriptors, without their matrices


class Ring(NamedTuple):
    """How a kernel uses shared memory and its two warp groups."""

    classes: int  # per tile
    stages: int  # places in the ring
    alternate: bool  # whether the groups take tiles in turn, or 64 rows each
    parts: int  # 1 or 4: number of pieces in which a tile's arithmetic is done


# Pairs of mode and whether rows are resident for which doing a tile's arithmetic in one piece was
# measured to be faster.
_WHOLE = {("angles", True), ("angular", True), ("linear", False)}


def over_classes_ring(mode: str, width: int, *, nearest: bool = False) -> Ring:
    """Return the deepest ring that fits; groups alternate if a block of rows fits beside it."""
    resident = width <= RESIDENT
    parts = 1 if (mode, resident) in _WHOLE and not nearest else 4
    tile = tile_classes(width)
    return Ring(tile, 6, True, parts) if resident else Ring(tile, 4, False, parts)


def slopes_ring(width: int) -> Ring:
    """Return a ring that leaves room for exchanging registers before results are stored."""
    tile = tile_classes(width)
    return Ring(tile, 5, True, 4) if width <= RESIDENT else Ring(tile, 4, False, 4)


def fits(*matrices: Tensor) -> bool:
    """Return whether the bulk copy engine can read and the tensor cores multiply these matrices."""
    return all(
        matrix.dtype in (torch.bfloat16, torch.float16)
        and matrix.stride(1) == 1
        and matrix.stride(0) % 8 == 0
        and matrix.stride(0) >= matrix.shape[1]  # expanded and overlapping rows are untested
        # the copy engine needs addresses and row strides that are multiples of 16 bytes
        and matrix.data_ptr() % 16 == 0
        # row numbers are int32, and the last tile may reach past the last row
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
    """Return partial results ``[sums, shares, N]``, and classes ``[k, shares, N]``."""
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    ring = over_classes_ring(mode, width, nearest=nearest)
    plan = _plan(rows, cdiv(classes, ring.classes), ring, processors(embeddings.device))
    # groups that alternate hold sums of the same rows, so each writes its own result
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
    """Return a function that fills ``out [N, chunk]`` with the slopes of a range of classes."""
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    ring = slopes_ring(width)
    matrices = _rows(embeddings, ring), _described(class_weights, (ring.classes, DEPTH))
    # a kernel takes no None, so any pointer stands for what its mode does not read
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
    """How blocks of rows and shares of the classes are distributed over programs."""

    grid: tuple[int]
    blocks: int
    shares: int
    per_share: int  # tiles


@functools.cache
def _plan(rows: int, tiles: int, ring: Ring, processors: int) -> Plan:
    """Return the split of the classes that keeps every multiprocessor busy to the end.

    Programs run in waves. A program that keeps its rows in shared memory takes about as long to
    start as one tile takes to process. Of the other programs there are only as many as
    multiprocessors, and each takes one piece of work after another.
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
    """Return a descriptor, with which the bulk copy engine reads ``matrix`` in blocks.

    Building a descriptor checks its arguments, which takes longer than a launch. Therefore, if a
    matrix has a shape that was seen before, the earlier descriptor is copied, without its matrix,
    so that no memory is kept alive.
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
