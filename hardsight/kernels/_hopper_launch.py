"""When and how the Hopper kernels run; imported only on a device that has them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.experimental.gluon.language as gl
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from hardsight.kernels import _hopper, _portable
from hardsight.kernels._run import run
from hardsight.kernels._support import cdiv, processors

ROWS = 128  # per program
DEPTH = 64  # 128 bytes, one swizzled row of shared memory


@dataclass(frozen=True)
class Ring:
    """Tile of classes, places in the ring, and how two warp groups share the work."""

    classes: int
    stages: int
    alternate: bool


def over_classes_ring(width: int) -> Ring:
    """As deep as shared memory allows; groups alternate where a row block fits beside the ring."""
    return Ring(128, 6, alternate=True) if width <= 512 else Ring(256, 4, alternate=False)


def slopes_ring(width: int) -> Ring:
    """As above, less what the exchange of registers before storing needs."""
    return Ring(128, 5, alternate=True) if width <= 512 else Ring(128, 6, alternate=False)


def fits(*matrices: Tensor) -> bool:
    """Whether the bulk copy engine can read these matrices, and the tensor cores multiply them."""
    return all(
        matrix.dtype in (torch.bfloat16, torch.float16)
        and matrix.stride(1) == 1
        and matrix.stride(0) % 8 == 0
        and matrix.data_ptr() % 16 == 0
        and matrix.shape[0] < 2**31 - 512
        for matrix in matrices
    )


def over_classes(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    *,
    mode: str,
    scale: float,
    x_inverse: Tensor,
    w_inverse: Tensor,
    ring: Ring | None = None,
) -> Tensor:
    """Partial results ``[2, shares, N]``; modes ``"angles"`` and ``"angular"``."""
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    ring = ring or over_classes_ring(width)
    blocks, tiles = cdiv(rows, ROWS), cdiv(classes, ring.classes)
    per_share = _tiles_per_share(blocks, tiles, processors(embeddings.device))
    shares = cdiv(tiles, per_share)
    sums = 2 * shares if ring.alternate else shares
    partial = torch.empty(2, sums, rows, dtype=torch.float32, device=embeddings.device)
    run(
        _hopper.over_classes, (blocks * shares,),
        _descriptor(embeddings, (ROWS, DEPTH)),
        _descriptor(class_weights, (ring.classes, DEPTH)),
        x_inverse, w_inverse, labels, tile_flags(labels, classes, ring.classes), partial,
        rows, classes, blocks, shares, per_share, scale * math.log2(math.e),
        MODE=0 if mode == "angles" else 2, STEPS=cdiv(width, DEPTH), STAGES=ring.stages,
        ALTERNATE=ring.alternate, num_warps=4,
    )  # fmt: skip
    return partial


def slopes(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    out: Tensor,
    *,
    flags: Tensor,
    first_class: int,
    factors: Tensor,
    reference: Tensor,
    scale: float,
    x_inverse: Tensor,
    w_inverse: Tensor,
    ring: Ring | None = None,
) -> None:
    """Fill ``out [N, chunk]``; ``flags`` are those of all classes, see :func:`slope_flags`."""
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    ring = ring or slopes_ring(width)
    blocks, tiles = cdiv(rows, ROWS), cdiv(classes, ring.classes)
    per_share = _tiles_per_share(blocks, tiles, processors(embeddings.device))
    run(
        _hopper.slopes, (blocks * cdiv(tiles, per_share),),
        _descriptor(embeddings, (ROWS, DEPTH)),
        _descriptor(class_weights, (ring.classes, DEPTH)),
        x_inverse, w_inverse, labels, flags, factors, reference, out, out.stride(0),
        rows, first_class, classes, blocks, per_share, first_class // ring.classes, flags.shape[1],
        scale * math.log2(math.e),
        STEPS=cdiv(width, DEPTH), STAGES=ring.stages, ALTERNATE=ring.alternate,
        num_warps=4,
    )  # fmt: skip


def slope_flags(labels: Tensor, classes: int, width: int) -> Tensor:
    """Flags for all chunks of :func:`slopes`; chunks start at multiples of its tile."""
    return tile_flags(labels, classes, slopes_ring(width).classes)


def tile_flags(labels: Tensor, classes: int, tile: int) -> Tensor:
    """``[N / 128, tiles]``: which tiles hold a label of which rows, or run over the last class."""
    rows = labels.shape[0]
    tiles = cdiv(classes, tile)
    flags = torch.zeros(cdiv(rows, ROWS), tiles, dtype=torch.uint8, device=labels.device)
    run(
        _portable.mark_tiles, (cdiv(rows, 256),),
        labels, flags, rows, tiles, classes, BLOCK_R=256, GROUP=ROWS, BLOCK_C=tile,
    )  # fmt: skip
    return flags


@functools.cache
def _tiles_per_share(blocks: int, tiles: int, processors: int) -> int:
    """Split of the classes that keeps every multiprocessor busy to the end.

    A program costs its tiles plus about one for starting; programs run in waves.
    """
    splits = {cdiv(tiles, shares) for shares in range(1, min(tiles, 64) + 1)}

    def cost(per_share: int) -> float:
        waves = cdiv(blocks * cdiv(tiles, per_share), processors)
        return waves * (per_share + 1.0)

    return min(splits, key=cost)


def _descriptor(matrix: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    layout = _layout(block, matrix.dtype)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), list(block), layout)


@functools.cache
def _layout(block: tuple[int, int], dtype: torch.dtype) -> Any:
    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for(list(block), kind)
