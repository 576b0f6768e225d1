"""Gluon kernels for Hopper GPUs (compute capability 9.0), bfloat16 and float16.

A block of 128 rows meets tiles of ``BLOCK_C`` classes. One warp copies tiles into a ring of shared
memory with the bulk tensor engine; two warp groups of 64 rows each multiply and then work on their
products. The groups share the ring but nothing else, so they drift apart until one multiplies while
the other does the arithmetic on its angles: the tensor cores hardly ever wait.

Where a row block fits beside the ring it is loaded once and stays (``RESIDENT``); that halves the
traffic from L2.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from hardsight.kernels._math import LOG2E, arc_slope, elevation

ANGLES = gl.constexpr(0)
ANGULAR = gl.constexpr(2)


@gluon.jit
def _produce(
    x_desc, w_desc, x_ring, w_ring, x_full, full, empty, row_start, first_tile, last_tile,
    STEPS: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """Keep the ring filled: for every tile of classes, every step of the depth."""
    STAGES: gl.constexpr = w_ring.shape[0]
    BLOCK_C: gl.constexpr = w_desc.block_type.shape[0]
    BLOCK_D: gl.constexpr = w_desc.block_type.shape[1]
    x_bytes: gl.constexpr = 2 * x_desc.block_type.nbytes
    if RESIDENT:
        mbarrier.expect(x_full, x_bytes * STEPS)
        for place in gl.static_range(2 * STEPS):
            tma.async_copy_global_to_shared(
                x_desc,
                [row_start + 64 * (place % 2), place // 2 * BLOCK_D],
                x_full,
                x_ring.index(place),
            )
    count = 0
    for tile in range(first_tile, last_tile):
        for step in range(STEPS):
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
            bar = full.index(stage)
            if RESIDENT:
                mbarrier.expect(bar, w_desc.block_type.nbytes)
            else:
                mbarrier.expect(bar, w_desc.block_type.nbytes + x_bytes)
                for half in gl.static_range(2):
                    tma.async_copy_global_to_shared(
                        x_desc,
                        [row_start + 64 * half, step * BLOCK_D],
                        bar,
                        x_ring.index(2 * stage + half),
                    )
            tma.async_copy_global_to_shared(
                w_desc, [tile * BLOCK_C, step * BLOCK_D], bar, w_ring.index(stage)
            )
            count += 1


@gluon.jit
def _products(
    x_ring, w_ring, full, empty, count, half: gl.constexpr, layout: gl.constexpr,
    STEPS: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """Products of this group's 64 rows with the next tile of classes."""
    STAGES: gl.constexpr = w_ring.shape[0]
    BLOCK_C: gl.constexpr = w_ring.shape[1]
    acc = gl.zeros([64, BLOCK_C], gl.float32, layout)
    for step in range(STEPS):
        stage = count % STAGES
        mbarrier.wait(full.index(stage), (count // STAGES) & 1)
        if RESIDENT:
            x = x_ring.index(2 * step + half)
        else:
            x = x_ring.index(2 * stage + half)
        acc = warpgroup_mma(
            x, w_ring.index(stage).permute((1, 0)), acc, use_acc=step > 0, is_async=True
        )
        # the product before this one is done: its place in the ring is free
        acc = warpgroup_mma_wait(num_outstanding=1, deps=[acc])
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=step > 0)
        count += 1
    acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc])
    mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES))
    return acc, count


@gluon.jit
def _collect(
    x_ring, w_ring, x_full, full, empty, x_inverse, w_inverse, labels, flags, partial,
    row_start, rows, classes, first_tile, last_tile, share, shares, scale,
    half: gl.constexpr, MODE: gl.constexpr, STEPS: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """Sum over a share of the classes for this group's 64 rows."""
    BLOCK_C: gl.constexpr = w_ring.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_C, 16]
    )
    row = row_start + 64 * half + gl.arange(0, 64, gl.SliceLayout(1, layout))
    x_scale = gl.load(x_inverse + row, mask=row < rows, other=0.0)
    label = gl.load(labels + row, mask=row < rows, other=-1).to(gl.int32)
    tiles = gl.cdiv(classes, BLOCK_C)
    flags += (row_start // 64 + half) * tiles
    total = gl.zeros([64], gl.float32, gl.SliceLayout(1, layout))
    nearest = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, layout))
    if RESIDENT:
        mbarrier.wait(x_full, 0)
    count = 0
    for tile in range(first_tile, last_tile):
        column = tile * BLOCK_C + gl.arange(0, BLOCK_C, gl.SliceLayout(0, layout))
        special = gl.load(flags + tile) != 0
        w_scale = gl.load(w_inverse + column, mask=column < classes, other=0.0)
        acc, count = _products(x_ring, w_ring, full, empty, count, half, layout, STEPS, RESIDENT)
        cosines = acc * x_scale[:, None] * w_scale[None, :]
        if MODE == ANGLES:
            if special:
                other = (column[None, :] != label[:, None]) & (column < classes)[None, :]
                nearest = gl.maximum(nearest, gl.max(gl.where(other, cosines, -2.0), axis=1))
                cosines = gl.where(other, cosines, 0.0)
            else:
                nearest = gl.maximum(nearest, gl.max(cosines, axis=1))
            total += gl.sum(elevation(cosines), axis=1)
        else:
            powers = gl.exp2(elevation(cosines) * scale)
            if special:
                other = (column[None, :] != label[:, None]) & (column < classes)[None, :]
                powers = gl.where(other, powers, 0.0)
            total += gl.sum(powers, axis=1)
    at = share * rows + row
    gl.store(partial + at, total if MODE == ANGLES else gl.zeros_like(total), mask=row < rows)
    gl.store(partial + shares * rows + at, nearest if MODE == ANGLES else total, mask=row < rows)


@gluon.jit
def over_classes(
    x_desc, w_desc, x_inverse, w_inverse, labels, flags, partial,
    rows, classes, row_blocks, shares, tiles_per_share, scale,
    MODE: gl.constexpr, STEPS: gl.constexpr, STAGES: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """One pass of a block of rows over a share of the classes.

    ``scale`` comes times log2(e). ``flags[rows / 64, tiles]`` marks tiles that hold a label of
    these rows or run over the last class: only those are masked.
    """
    BLOCK_C: gl.constexpr = w_desc.block_type.shape[0]
    block = gl.program_id(0) % row_blocks
    share = gl.program_id(0) // row_blocks
    row_start = block * 128
    first_tile = share * tiles_per_share
    last_tile = gl.minimum(first_tile + tiles_per_share, gl.cdiv(classes, BLOCK_C))
    x_count: gl.constexpr = 2 * (STEPS if RESIDENT else STAGES)
    x_ring = gl.allocate_shared_memory(
        x_desc.dtype, [x_count] + x_desc.block_type.shape, x_desc.layout
    )
    w_ring = gl.allocate_shared_memory(
        w_desc.dtype, [STAGES] + w_desc.block_type.shape, w_desc.layout
    )
    x_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(x_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_collect, (x_ring, w_ring, x_full, full, empty, x_inverse, w_inverse, labels, flags,
                        partial, row_start, rows, classes, first_tile, last_tile, share, shares,
                        scale, 0, MODE, STEPS, RESIDENT)),
            (_collect, (x_ring, w_ring, x_full, full, empty, x_inverse, w_inverse, labels, flags,
                        partial, row_start, rows, classes, first_tile, last_tile, share, shares,
                        scale, 1, MODE, STEPS, RESIDENT)),
            (_produce, (x_desc, w_desc, x_ring, w_ring, x_full, full, empty, row_start,
                        first_tile, last_tile, STEPS, RESIDENT)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@gluon.jit
def _emit(
    x_ring, w_ring, out_ring, out_desc, x_full, full, empty, x_inverse, w_inverse, labels, flags,
    factors, reference, row_start, rows, first_class, classes, first_tile, last_tile,
    flag_start, flag_step, scale,
    half: gl.constexpr, STEPS: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """Slopes of this group's 64 rows in a share of a chunk's classes."""
    BLOCK_C: gl.constexpr = w_ring.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_C, 16]
    )
    row = row_start + 64 * half + gl.arange(0, 64, gl.SliceLayout(1, layout))
    inside = row < rows
    x_scale = gl.load(x_inverse + row, mask=inside, other=0.0)
    label = gl.load(labels + row, mask=inside, other=-1).to(gl.int32) - first_class
    factor = -gl.load(factors + row, mask=inside, other=0.0)
    level = gl.load(reference + row, mask=inside, other=0.0) * LOG2E
    flags += (row_start // 64 + half) * flag_step + flag_start
    out_smem = out_ring.index(half)
    if RESIDENT:
        mbarrier.wait(x_full, 0)
    count = 0
    for tile in range(first_tile, last_tile):
        column = tile * BLOCK_C + gl.arange(0, BLOCK_C, gl.SliceLayout(0, layout))
        special = gl.load(flags + tile) != 0
        w_scale = gl.load(w_inverse + column, mask=column < classes, other=0.0)
        acc, count = _products(x_ring, w_ring, full, empty, count, half, layout, STEPS, RESIDENT)
        rise, slope = arc_slope(acc * x_scale[:, None] * w_scale[None, :], True)
        power = gl.exp2(rise * scale - level[:, None])
        result = power * slope * w_scale[None, :] * factor[:, None]
        if special:
            result = gl.where(column[None, :] == label[:, None], 0.0, result)
        tma.store_wait(0)
        out_smem.store(result.to(out_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [row_start + 64 * half, tile * BLOCK_C], out_smem)
    tma.store_wait(0)


@gluon.jit
def slopes(
    x_desc, w_desc, out_desc, x_inverse, w_inverse, labels, flags, factors, reference,
    rows, first_class, classes, row_blocks, tiles_per_share, flag_start, flag_step, scale,
    STEPS: gl.constexpr, STAGES: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """Slopes of the weighted angular log-odds for a chunk of classes; see the portable twin."""
    BLOCK_C: gl.constexpr = w_desc.block_type.shape[0]
    row_start = gl.program_id(0) % row_blocks * 128
    first_tile = gl.program_id(0) // row_blocks * tiles_per_share
    last_tile = gl.minimum(first_tile + tiles_per_share, gl.cdiv(classes, BLOCK_C))
    x_count: gl.constexpr = 2 * (STEPS if RESIDENT else STAGES)
    x_ring = gl.allocate_shared_memory(
        x_desc.dtype, [x_count] + x_desc.block_type.shape, x_desc.layout
    )
    w_ring = gl.allocate_shared_memory(
        w_desc.dtype, [STAGES] + w_desc.block_type.shape, w_desc.layout
    )
    out_ring = gl.allocate_shared_memory(
        out_desc.dtype, [2] + out_desc.block_type.shape, out_desc.layout
    )
    x_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(x_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_emit, (x_ring, w_ring, out_ring, out_desc, x_full, full, empty, x_inverse, w_inverse,
                     labels, flags, factors, reference, row_start, rows, first_class, classes,
                     first_tile, last_tile, flag_start, flag_step, scale, 0, STEPS, RESIDENT)),
            (_emit, (x_ring, w_ring, out_ring, out_desc, x_full, full, empty, x_inverse, w_inverse,
                     labels, flags, factors, reference, row_start, rows, first_class, classes,
                     first_tile, last_tile, flag_start, flag_step, scale, 1, STEPS, RESIDENT)),
            (_produce, (x_desc, w_desc, x_ring, w_ring, x_full, full, empty, row_start,
                        first_tile, last_tile, STEPS, RESIDENT)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
