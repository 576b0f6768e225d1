"""Gluon kernels for Hopper GPUs (compute capability 9.0), bfloat16 and float16.

A block of 128 rows meets tiles of classes. One warp copies tiles into a ring of shared memory with
the bulk tensor engine; two groups of four warps multiply, and then do the arithmetic on their
products. There are two ways to share the work:

``ALTERNATE``, for rows short enough to stay in shared memory: tiles go to the two groups in turn,
and a group starts to multiply when the other has no more products to start. So one multiplies
while the other works on its angles, and the tensor cores hardly ever wait. Taking turns is also
what makes the ring safe: a barrier tells odd fillings of a place from even ones only, so a group
must not wait for a filling before the other group has seen the one before it.

Otherwise rows and classes both stream through the ring, and each group takes 64 of the rows.
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

from hardsight.kernels._math import LOG2E, MASKED, arc_slope, elevation

# renamed between Triton 3.6 and 3.9
_copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared

ANGLES = gl.constexpr(0)
ANGULAR = gl.constexpr(2)
NONE = gl.constexpr(float("-inf"))


@gluon.jit
def _produce(
    x_desc, w_desc, x_ring, w_ring, x_full, full, empty, row_start, first_tile, last_tile,
    STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Keep the ring filled: for every tile of classes, every step of the depth."""
    STAGES: gl.constexpr = w_ring.shape[0]
    BLOCK_C: gl.constexpr = w_desc.block_type.shape[0]
    BLOCK_D: gl.constexpr = w_desc.block_type.shape[1]
    if ALTERNATE:
        mbarrier.expect(x_full, x_desc.block_type.nbytes * STEPS)
        for place in gl.static_range(STEPS):
            _copy_in(x_desc, [row_start, place * BLOCK_D], x_full, x_ring.index(place))
    count = 0
    for tile in range(first_tile, last_tile):
        for step in range(STEPS):
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
            bar = full.index(stage)
            if ALTERNATE:
                mbarrier.expect(bar, w_desc.block_type.nbytes)
            else:
                mbarrier.expect(bar, w_desc.block_type.nbytes + x_desc.block_type.nbytes)
                _copy_in(x_desc, [row_start, step * BLOCK_D], bar, x_ring.index(stage))
            _copy_in(w_desc, [tile * BLOCK_C, step * BLOCK_D], bar, w_ring.index(stage))
            count += 1


@gluon.jit
def _products(
    x_ring, w_ring, full, empty, turns, tile, group: gl.constexpr, layout: gl.constexpr,
    STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Products of this group's rows with a tile, the ``tile``-th of the stream."""
    STAGES: gl.constexpr = w_ring.shape[0]
    BLOCK_N: gl.constexpr = 128 if ALTERNATE else 64
    BLOCK_C: gl.constexpr = w_ring.shape[1]
    acc = gl.zeros([BLOCK_N, BLOCK_C], gl.float32, layout)
    count = tile * STEPS
    if ALTERNATE:
        # group 0 goes first: its wait for a turn before the first one passes at once
        mbarrier.wait(turns.index(group), ((tile // 2) & 1) ^ (1 - group))
    for step in range(STEPS):
        stage = count % STAGES
        mbarrier.wait(full.index(stage), (count // STAGES) & 1)
        if ALTERNATE:
            x = x_ring.index(step)
        else:
            x = x_ring.index(stage).slice(64 * group, 64, 0)
        acc = warpgroup_mma(
            x, w_ring.index(stage).permute((1, 0)), acc, use_acc=step > 0, is_async=True
        )
        # the product before this one is done: its place in the ring is free
        acc = warpgroup_mma_wait(num_outstanding=1, deps=[acc])
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=step > 0)
        count += 1
    if ALTERNATE:
        mbarrier.arrive(turns.index(1 - group))
    acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc])
    mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES))
    return acc


@gluon.jit
def _collect(
    x_ring, w_ring, x_full, full, empty, turns, x_inverse, w_inverse, labels, flags, partial,
    row_start, rows, classes, first_tile, last_tile, share, shares, scale,
    group: gl.constexpr, MODE: gl.constexpr, STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Sum over this group's tiles for its rows."""
    BLOCK_C: gl.constexpr = w_ring.shape[1]
    BLOCK_N: gl.constexpr = 128 if ALTERNATE else 64
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_C, 16]
    )
    begin = 0 if ALTERNATE else 64 * group
    row = row_start + begin + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    x_scale = gl.load(x_inverse + row, mask=row < rows, other=0.0)
    label = gl.load(labels + row, mask=row < rows, other=-1).to(gl.int32)
    flags += (row_start // 128) * gl.cdiv(classes, BLOCK_C)
    total = gl.zeros([BLOCK_N], gl.float32, gl.SliceLayout(1, layout))
    nearest = gl.full([BLOCK_N], NONE, gl.float32, gl.SliceLayout(1, layout))
    if ALTERNATE:
        mbarrier.wait(x_full, 0)
    skip: gl.constexpr = group if ALTERNATE else 0
    stride: gl.constexpr = 2 if ALTERNATE else 1
    for tile in range(first_tile + skip, last_tile, stride):
        column = tile * BLOCK_C + gl.arange(0, BLOCK_C, gl.SliceLayout(0, layout))
        special = gl.load(flags + tile) != 0
        w_scale = gl.load(w_inverse + column, mask=column < classes, other=0.0)
        acc = _products(
            x_ring, w_ring, full, empty, turns, tile - first_tile, group, layout, STEPS, ALTERNATE
        )
        cosines = acc * x_scale[:, None] * w_scale[None, :]
        if special:
            other = (column[None, :] != label[:, None]) & (column < classes)[None, :]
            if MODE == ANGLES:
                nearest = gl.maximum(nearest, gl.max(gl.where(other, cosines, NONE), axis=1))
                cosines = gl.where(other, cosines, 0.0)
            else:
                cosines = gl.where(other, cosines, MASKED)
        elif MODE == ANGLES:
            nearest = gl.maximum(nearest, gl.max(cosines, axis=1))
        if MODE == ANGLES:
            total += gl.sum(elevation(cosines), axis=1)
        else:
            total += gl.sum(gl.exp2(elevation(cosines) * scale), axis=1)
    inside = row < rows
    if ALTERNATE:
        at = partial + (2 * share + group) * rows + row
        step = 2 * shares * rows
    else:
        at = partial + share * rows + row
        step = shares * rows
    if MODE == ANGLES:
        gl.store(at, total, mask=inside)
        gl.store(at + step, nearest, mask=inside)
    else:
        gl.store(at, gl.zeros_like(total), mask=inside)
        gl.store(at + step, total, mask=inside)


@gluon.jit
def over_classes(
    x_desc, w_desc, x_inverse, w_inverse, labels, flags, partial,
    rows, classes, row_blocks, shares, tiles_per_share, scale,
    MODE: gl.constexpr, STEPS: gl.constexpr, STAGES: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """One pass of a block of rows over a share of the classes.

    ``scale`` comes times log2(e). ``flags[rows / 128, tiles]`` marks tiles that hold a label of
    these rows or run over the last class: only those are masked.
    """
    BLOCK_C: gl.constexpr = w_desc.block_type.shape[0]
    share = gl.program_id(0) // row_blocks
    row_start = gl.program_id(0) % row_blocks * 128
    first_tile = share * tiles_per_share
    last_tile = gl.minimum(first_tile + tiles_per_share, gl.cdiv(classes, BLOCK_C))
    x_count: gl.constexpr = STEPS if ALTERNATE else STAGES
    x_ring = gl.allocate_shared_memory(
        x_desc.dtype, [x_count] + x_desc.block_type.shape, x_desc.layout
    )
    w_ring = gl.allocate_shared_memory(
        w_desc.dtype, [STAGES] + w_desc.block_type.shape, w_desc.layout
    )
    x_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(x_full, count=1)
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1 if ALTERNATE else 2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_collect, (x_ring, w_ring, x_full, full, empty, turns, x_inverse, w_inverse, labels,
                        flags, partial, row_start, rows, classes, first_tile, last_tile, share,
                        shares, scale, 0, MODE, STEPS, ALTERNATE)),
            (_collect, (x_ring, w_ring, x_full, full, empty, turns, x_inverse, w_inverse, labels,
                        flags, partial, row_start, rows, classes, first_tile, last_tile, share,
                        shares, scale, 1, MODE, STEPS, ALTERNATE)),
            (_produce, (x_desc, w_desc, x_ring, w_ring, x_full, full, empty, row_start,
                        first_tile, last_tile, STEPS, ALTERNATE)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@gluon.constexpr_function
def _stored_layout(rows, columns):
    """The same rows in the same warps as a product, but 8 neighbours, 16 bytes, in every thread."""
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [8, 0], [0, 32], [0, 64]] + [[64, 0]] * (rows == 128),
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[rows, columns],
    )


@gluon.jit
def _emit(
    x_ring, w_ring, x_full, full, empty, turns, x_inverse, w_inverse, labels, flags,
    factors, reference, out, out_row, row_start, rows, first_class, classes, first_tile, last_tile,
    flag_start, flag_step, scale,
    group: gl.constexpr, STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Write the slopes of this group's tiles for its rows."""
    BLOCK_C: gl.constexpr = w_ring.shape[1]
    BLOCK_N: gl.constexpr = 128 if ALTERNATE else 64
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_C, 16]
    )
    stored: gl.constexpr = _stored_layout(BLOCK_N, BLOCK_C)
    begin = row_start if ALTERNATE else row_start + 64 * group
    row = begin + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    inside = row < rows
    x_scale = gl.load(x_inverse + row, mask=inside, other=0.0)
    label = gl.load(labels + row, mask=inside, other=-1).to(gl.int32) - first_class
    factor = -gl.load(factors + row, mask=inside, other=0.0)
    level = gl.load(reference + row, mask=inside, other=0.0) * LOG2E
    flags += (row_start // 128) * flag_step + flag_start
    out_rows = begin + gl.arange(0, BLOCK_N, gl.SliceLayout(1, stored))
    out_at = out + out_rows.to(gl.int64)[:, None] * out_row
    if ALTERNATE:
        mbarrier.wait(x_full, 0)
    skip: gl.constexpr = group if ALTERNATE else 0
    stride: gl.constexpr = 2 if ALTERNATE else 1
    for tile in range(first_tile + skip, last_tile, stride):
        column = tile * BLOCK_C + gl.arange(0, BLOCK_C, gl.SliceLayout(0, layout))
        special = gl.load(flags + tile) != 0
        w_scale = gl.load(w_inverse + column, mask=column < classes, other=0.0)
        acc = _products(
            x_ring, w_ring, full, empty, turns, tile - first_tile, group, layout, STEPS, ALTERNATE
        )
        cosines = acc * x_scale[:, None] * w_scale[None, :]
        if special:
            cosines = gl.where(column[None, :] == label[:, None], MASKED, cosines)
        rise, slope = arc_slope(cosines, True)
        power = gl.exp2(rise * scale - level[:, None])
        result = power * slope * w_scale[None, :] * factor[:, None]
        result = gl.convert_layout(result.to(out.dtype.element_ty), stored)
        out_column = tile * BLOCK_C + gl.arange(0, BLOCK_C, gl.SliceLayout(0, stored))
        gl.store(out_at + out_column[None, :], result, mask=(out_rows < rows)[:, None])


@gluon.jit
def slopes(
    x_desc, w_desc, x_inverse, w_inverse, labels, flags, factors, reference, out, out_row,
    rows, first_class, classes, row_blocks, tiles_per_share, flag_start, flag_step, scale,
    STEPS: gl.constexpr, STAGES: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Slopes of the weighted angular log-odds for a chunk of classes; see the portable twin.

    ``out`` has room for whole tiles of classes, and all of it is written.
    """
    BLOCK_C: gl.constexpr = w_desc.block_type.shape[0]
    row_start = gl.program_id(0) % row_blocks * 128
    first_tile = gl.program_id(0) // row_blocks * tiles_per_share
    last_tile = gl.minimum(first_tile + tiles_per_share, gl.cdiv(classes, BLOCK_C))
    x_count: gl.constexpr = STEPS if ALTERNATE else STAGES
    x_ring = gl.allocate_shared_memory(
        x_desc.dtype, [x_count] + x_desc.block_type.shape, x_desc.layout
    )
    w_ring = gl.allocate_shared_memory(
        w_desc.dtype, [STAGES] + w_desc.block_type.shape, w_desc.layout
    )
    x_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(x_full, count=1)
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1 if ALTERNATE else 2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_emit, (x_ring, w_ring, x_full, full, empty, turns, x_inverse, w_inverse, labels,
                     flags, factors, reference, out, out_row, row_start, rows, first_class, classes,
                     first_tile, last_tile, flag_start, flag_step, scale, 0, STEPS, ALTERNATE)),
            (_emit, (x_ring, w_ring, x_full, full, empty, turns, x_inverse, w_inverse, labels,
                     flags, factors, reference, out, out_row, row_start, rows, first_class, classes,
                     first_tile, last_tile, flag_start, flag_step, scale, 1, STEPS, ALTERNATE)),
            (_produce, (x_desc, w_desc, x_ring, w_ring, x_full, full, empty, row_start,
                        first_tile, last_tile, STEPS, ALTERNATE)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
