"""Gluon kernels for Hopper GPUs (compute capability 9.0), bfloat16 and float16.

A block of rows is multiplied with tiles of classes. One warp copies tiles into a ring of shared
memory with the bulk tensor engine; groups of four warps multiply and then do the arithmetic on
their products. There are two ways to share the work:

``ALTERNATE`` is for rows short enough to stay in shared memory. A program has 128 rows, and two
groups take the tiles in turn. A group starts to multiply when the other one has started its last
product, so one multiplies while the other works on its angles, and the tensor cores hardly ever
wait. Taking turns also makes the ring safe: a barrier only distinguishes odd from even fillings of
a place, so a group must not wait for a filling before the other group has seen the previous one.

Otherwise, rows and classes both stream through the ring, each group has its own 64 rows, and while
a program finishes a block of rows, the copies for the next one already arrive.
"""

from typing import Any, NamedTuple

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

# the function was renamed between Triton 3.6 and 3.9
_copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared

# the modes of the portable kernels
ANGLES = gl.constexpr(0)  # angles
HEAD = gl.constexpr(1)  # angles and logits
ANGULAR = gl.constexpr(2)  # powers of angles
LINEAR = gl.constexpr(3)  # logits
NONE = gl.constexpr(float("-inf"))
# The logit of a masked class: so low that its power is 0, but finite, so that 0 times it is 0.
FLOOR = gl.constexpr(-1e30)
LAST = gl.constexpr(2147483647)  # larger than the number of any class


# Triton passes named tuples between functions like plain ones, and to warp groups too.
class Barriers(NamedTuple):
    """Barriers between the warp that fills shared memory and the groups that read it."""

    rows_full: Any  # ALTERNATE: all rows of the block have arrived, once
    full: Any  # one for each place in the ring: its copy has arrived
    empty: Any  # one for each place: its readers are done
    turns: Any  # ALTERNATE: one for each group, whose turn it is to multiply


class Work(NamedTuple):
    """How blocks of rows and shares of the tiles of classes are distributed over programs."""

    row_blocks: Any
    shares: Any
    tiles_per_share: Any
    first_tile: Any
    last_tile: Any


class CollectArguments(NamedTuple):
    """Arguments of :func:`over_classes` that only the multiplying groups read."""

    x_inverse: Any
    w_inverse: Any
    bias: Any
    labels: Any
    flags: Any
    partial: Any
    index: Any
    rows: Any
    classes: Any
    scale: Any


class SlopeArguments(NamedTuple):
    """Arguments of :func:`slopes` that only the multiplying groups read."""

    x_inverse: Any
    w_inverse: Any
    bias: Any
    labels: Any
    flags: Any
    factors: Any
    reference: Any
    out: Any
    out_row: Any  # elements from one row of ``out`` to the next
    rows: Any
    classes: Any
    scale: Any


@gluon.jit
def _open(
    x_desc, w_desc,
    STEPS: gl.constexpr, STAGES: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Allocate shared memory for (rows, classes), and the barriers that guard it."""
    x_count: gl.constexpr = STEPS if ALTERNATE else 2 * STAGES
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
    # count is the number of arrivals that complete a phase of the barrier
    mbarrier.init(x_full, count=1)
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        # one group reads a tile if they alternate; otherwise both do
        mbarrier.init(empty.index(stage), count=1 if ALTERNATE else 2)
    # makes the barriers visible to the copy engine before it signals them
    fence_async_shared()
    return (x_ring, w_ring), Barriers(x_full, full, empty, turns)


@gluon.jit
def _item(item, work, ALTERNATE: gl.constexpr):
    """Return block of rows, share of the classes, and first and last tile of a piece of work."""
    # Neighbouring programs run at the same time, so what both of them read is in the L2 cache.
    if ALTERNATE:  # neighbours read the same classes
        block = item % work.row_blocks
        share = item // work.row_blocks
    else:  # neighbours read the same rows
        block = item // work.shares
        share = item % work.shares
    begin = work.first_tile + share * work.tiles_per_share
    return block * 128, share, begin, gl.minimum(begin + work.tiles_per_share, work.last_tile)


@gluon.jit
def _produce(
    x_desc, w_desc, rings, bars, work,
    STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Keep the ring filled, for every piece of work, every tile and every step of the depth."""
    x_ring, w_ring = rings
    STAGES: gl.constexpr = w_ring.shape[0]
    BLOCK_C: gl.constexpr = w_desc.block_type.shape[0]
    BLOCK_D: gl.constexpr = w_desc.block_type.shape[1]
    if ALTERNATE:  # the rows stay in memory, so they are copied once, before any class
        row_start = _item(gl.program_id(0), work, ALTERNATE)[0]
        mbarrier.expect(bars.rows_full, x_desc.block_type.nbytes * STEPS)
        for place in gl.static_range(STEPS):
            _copy_in(x_desc, [row_start, place * BLOCK_D], bars.rows_full, x_ring.index(place))
    count = 0
    for item in range(gl.program_id(0), work.row_blocks * work.shares, gl.num_programs(0)):
        row_start, _, first_tile, last_tile = _item(item, work, ALTERNATE)
        for tile in range(first_tile, last_tile):
            for step in range(STEPS):
                stage = count % STAGES
                # the opposite parity, because every place is empty in the first round
                mbarrier.wait(bars.empty.index(stage), ((count // STAGES) & 1) ^ 1)
                bar = bars.full.index(stage)
                if ALTERNATE:
                    mbarrier.expect(bar, w_desc.block_type.nbytes)
                else:
                    mbarrier.expect(bar, w_desc.block_type.nbytes + 2 * x_desc.block_type.nbytes)
                    for group in gl.static_range(2):
                        _copy_in(
                            x_desc, [row_start + 64 * group, step * BLOCK_D], bar,
                            x_ring.index(2 * stage + group),
                        )  # fmt: skip
                _copy_in(w_desc, [tile * BLOCK_C, step * BLOCK_D], bar, w_ring.index(stage))
                count += 1


@gluon.jit
def _products(
    rings, bars, tile, group: gl.constexpr, layout: gl.constexpr,
    STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Return the products of this group's rows with the ``tile``-th tile of the stream."""
    x_ring, w_ring = rings
    STAGES: gl.constexpr = w_ring.shape[0]
    BLOCK_N: gl.constexpr = x_ring.shape[1]
    BLOCK_C: gl.constexpr = w_ring.shape[1]
    acc = gl.zeros([BLOCK_N, BLOCK_C], gl.float32, layout)
    count = tile * STEPS
    if ALTERNATE:
        # group 0 goes first, so its first wait for a turn has to pass at once
        mbarrier.wait(bars.turns.index(group), ((tile // 2) & 1) ^ (1 - group))
    for step in range(STEPS):
        stage = count % STAGES
        mbarrier.wait(bars.full.index(stage), (count // STAGES) & 1)
        if ALTERNATE:
            x = x_ring.index(step)
        else:
            x = x_ring.index(2 * stage + group)
        acc = warpgroup_mma(
            x, w_ring.index(stage).permute((1, 0)), acc, use_acc=step > 0, is_async=True
        )
        # the previous product is done, so its place in the ring is free
        acc = warpgroup_mma_wait(num_outstanding=1, deps=[acc])
        mbarrier.arrive(bars.empty.index((count + STAGES - 1) % STAGES), pred=step > 0)
        count += 1
    if ALTERNATE:
        # All products are started, if not done. Those of the other group queue up behind them.
        mbarrier.arrive(bars.turns.index(1 - group))
    # the accumulator itself is read from here on
    acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc])
    mbarrier.arrive(bars.empty.index((count + STAGES - 1) % STAGES))
    return acc


@gluon.jit
def _quarters(acc):
    """Split a tile into four runs of classes, in the same registers, so fewer are live at once."""
    left, right = _halves(acc)
    first, second = _halves(left)
    third, fourth = _halves(right)
    return first, second, third, fourth


@gluon.jit
def _halves(acc):
    ROWS: gl.constexpr = acc.shape[0]
    COLUMNS: gl.constexpr = acc.shape[1] // 2
    layout: gl.constexpr = _product_layout(COLUMNS)
    left, right = acc.reshape([ROWS, 2, COLUMNS]).permute((0, 2, 1)).split()
    return gl.convert_layout(left, layout), gl.convert_layout(right, layout)


@gluon.constexpr_function
def _product_layout(columns):
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16]
    )


@gluon.jit
def _by_lane(values):
    """Return ``[N, C]`` as ``[N, C / 8, 4, 2]``; axis 2 separates the lanes that share a row."""
    return values.reshape([values.shape[0], values.shape[1] // 8, 4, 2])


@gluon.jit
def _lane_sum(values):
    """Sum each lane's values, ``[N, 4]``; lanes exchange nothing until a piece of work is done."""
    return gl.sum(gl.sum(values, axis=3), axis=1)


@gluon.jit
def _lane_max(values):
    return gl.max(gl.max(values, axis=3), axis=1)


@gluon.jit
def _lane_first(values, top, places):
    """Return the first of ``places`` at which each lane's values reach their ``top``.

    A lane sees the places ``8 a + 2 lane + b`` with ``b`` 0 or 1. The bits of the lane (``& 6``)
    are added at the end, because without them (``& -7``) the places are compile-time constants.
    """
    first = gl.where(values == _over(top), places & -7, LAST)
    first = gl.min(gl.min(first, axis=3), axis=1)
    return first + gl.min(gl.min(places & 6, axis=3), axis=1)


@gluon.jit
def _over(lanes):
    """Return ``[N, 4]`` as ``[N, 1, 4, 1]``."""
    return lanes.expand_dims(1).expand_dims(3)


@gluon.jit
def _add_logits(logits, begin, places, sums, HEAD_TOO: gl.constexpr):
    """Update the largest logit, its class, and the sums relative to it with a run of logits."""
    largest, which, total, squares, moment = sums
    here = _lane_max(logits)
    new = gl.maximum(largest, here)
    # relative to FLOOR itself, a masked class would have a power of 1
    reference = gl.where(new > 0.5 * FLOOR, new, 0.0)
    drop = largest - reference
    fade = gl.exp2(drop * LOG2E)
    gaps = logits - _over(reference)
    powers = gl.exp2(gaps * LOG2E)
    if HEAD_TOO:
        which = gl.where(here > largest, begin + _lane_first(logits, here, places), which)
        moment = fade * (moment + drop * total) + _lane_sum(powers * gaps)
        squares = fade * fade * squares + _lane_sum(powers * powers)
    total = fade * total + _lane_sum(powers)
    return new, which, total, squares, moment


@gluon.jit
def _add_nearest(cosines, begin, places, nearest, NEAREST: gl.constexpr):
    """Update the largest cosine, and with ``NEAREST`` its class, with a run of cosines."""
    largest, which = nearest
    cosines = _by_lane(cosines)
    here = _lane_max(cosines)
    if NEAREST:
        which = gl.where(here > largest, begin + _lane_first(cosines, here, places), which)
    return gl.maximum(largest, here), which


@gluon.jit
def _add_part(
    state, products, begin, args, x_scale, label, special,
    MODE: gl.constexpr, HAS_BIAS: gl.constexpr, NEAREST: gl.constexpr,
):  # fmt: skip
    """Update the state of a piece of work with a run of products; lanes work independently.

    ``special`` tiles, which hold a row's own class or reach past the last class, are masked.
    """
    WITH_LOGITS: gl.constexpr = MODE == HEAD or MODE == LINEAR
    angles, nearest, sums = state
    ROWS: gl.constexpr = products.shape[0]
    PART: gl.constexpr = products.shape[1]
    layout: gl.constexpr = products.type.layout
    local = gl.arange(0, PART, gl.SliceLayout(0, layout))
    column = begin + local
    places = _by_lane(gl.zeros([ROWS, PART], gl.int32, layout) + local[None, :])
    logits = products
    if MODE != LINEAR:
        w_scale = gl.load(args.w_inverse + column)  # has zeros to the end of the last tile
        cosines = products * x_scale[:, None] * w_scale[None, :]
    if WITH_LOGITS and HAS_BIAS:
        offset = gl.load(args.bias + column, mask=column < args.classes, other=0.0)
        logits += offset.to(gl.float32)[None, :]
    if special:
        other = (column[None, :] != label[:, None]) & (column < args.classes)[None, :]
        if MODE == ANGULAR:
            cosines = gl.where(other, cosines, MASKED)
        elif MODE != LINEAR:
            nearest = _add_nearest(gl.where(other, cosines, NONE), begin, places, nearest, NEAREST)
            cosines = gl.where(other, cosines, 0.0)  # the elevation of 0 is 0 and adds nothing
        if WITH_LOGITS:
            logits = gl.where(other, logits, FLOOR)
    elif MODE == ANGLES or MODE == HEAD:
        nearest = _add_nearest(cosines, begin, places, nearest, NEAREST)
    if MODE == ANGULAR:
        angles += _lane_sum(_by_lane(gl.exp2(elevation(cosines) * args.scale)))
    elif MODE != LINEAR:
        angles += _lane_sum(_by_lane(elevation(cosines)))
    if WITH_LOGITS:
        sums = _add_logits(_by_lane(logits), begin, places, sums, MODE == HEAD)
    return angles, nearest, sums


@gluon.jit
def _over_lanes(values, classes):
    """Return the largest of a row's four values ``[N, 4]`` and its class; ties: the first class."""
    top = gl.max(values, axis=1)
    return top, gl.min(gl.where(values == top.expand_dims(1), classes, LAST), axis=1)


@gluon.jit
def _collect_item(
    rings, bars, work, args, item, done,
    group: gl.constexpr, MODE: gl.constexpr, HAS_BIAS: gl.constexpr, NEAREST: gl.constexpr,
    PARTS: gl.constexpr, STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Sum over one piece of work for this group's rows, after ``done`` tiles of earlier ones."""
    x_ring, w_ring = rings
    rows = args.rows
    BLOCK_N: gl.constexpr = x_ring.shape[1]
    BLOCK_C: gl.constexpr = w_ring.shape[1]
    PART: gl.constexpr = BLOCK_C // PARTS
    layout: gl.constexpr = _product_layout(BLOCK_C)
    part_layout: gl.constexpr = _product_layout(PART)
    of_rows: gl.constexpr = gl.SliceLayout(1, part_layout)
    row_start, share, first_tile, last_tile = _item(item, work, ALTERNATE)
    begin = row_start if ALTERNATE else row_start + 64 * group
    row = begin + gl.arange(0, BLOCK_N, of_rows)
    label = gl.load(args.labels + row, mask=row < rows, other=-1).to(gl.int32)
    flags = args.flags + (row_start // 128).to(gl.int64) * gl.cdiv(args.classes, BLOCK_C)
    x_scale = gl.load(args.x_inverse + row, mask=(row < rows) & (MODE != LINEAR), other=0.0)
    # zeros that come out of a sum have the layout of sums
    zeros = _lane_sum(_by_lane(gl.zeros([BLOCK_N, PART], gl.float32, part_layout)))
    which = zeros.to(gl.int32)
    # angles; (largest cosine, its class); (largest logit, its class, powers, squares, moment)
    state = (zeros, (zeros + NONE, which - 1), (zeros + FLOOR, which, zeros, zeros, zeros))
    skip: gl.constexpr = group if ALTERNATE else 0  # groups that alternate take every other tile
    stride: gl.constexpr = 2 if ALTERNATE else 1
    for tile in range(first_tile + skip, last_tile, stride):
        special = gl.load(flags + tile) != 0  # few tiles are special; the others skip the masks
        acc = _products(rings, bars, done + tile - first_tile, group, layout, STEPS, ALTERNATE)
        begin_at = tile * BLOCK_C
        if PARTS == 1:
            state = _add_part(
                state, acc, begin_at, args, x_scale, label, special, MODE, HAS_BIAS, NEAREST
            )
        else:
            first, second, third, fourth = _quarters(acc)
            # A loop, even though it moves registers: four copies of its body would not fit into
            # the instruction cache. The factor num_programs(1), which is always 1 because the grid
            # has one dimension, keeps the compiler from unrolling the loop.
            for _ in range(gl.num_programs(1) * PARTS):
                state = _add_part(
                    state, first, begin_at, args, x_scale, label, special, MODE, HAS_BIAS, NEAREST
                )
                first, second, third = second, third, fourth
                begin_at += PART
    # groups that alternate hold sums of the same rows, so each writes its own result
    slot = 2 * share + group if ALTERNATE else share
    slots = 2 * work.shares if ALTERNATE else work.shares
    at = args.partial + slot * rows + row
    step = slots * rows
    inside = row < rows
    index = args.index + (slot * rows + row)
    angles, nearest, sums = state
    if MODE == ANGULAR:  # powers are relative to 0, so there is no running maximum
        gl.store(at, gl.zeros([BLOCK_N], gl.float32, of_rows), mask=inside)
        gl.store(at + step, gl.convert_layout(gl.sum(angles, axis=1), of_rows), mask=inside)
    elif MODE != LINEAR:
        gl.store(at, gl.convert_layout(gl.sum(angles, axis=1), of_rows), mask=inside)
        top, which = _over_lanes(nearest[0], nearest[1])
        gl.store(at + step, gl.convert_layout(top, of_rows), mask=inside)
        if NEAREST:
            gl.store(index, gl.convert_layout(which, of_rows), mask=inside)
            index += step
        at += 2 * step
    if MODE == HEAD or MODE == LINEAR:
        largest, which, total, squares, moment = sums
        top, which = _over_lanes(largest, which)
        reference = gl.where(top > 0.5 * FLOOR, top, 0.0)
        drop = largest - reference.expand_dims(1)
        fade = gl.exp2(drop * LOG2E)
        top_or_none = gl.where(top > 0.5 * FLOOR, top, NONE)
        gl.store(at, gl.convert_layout(top_or_none, of_rows), mask=inside)
        powers = gl.sum(fade * total, axis=1)
        gl.store(at + step, gl.convert_layout(powers, of_rows), mask=inside)
        if MODE == HEAD:
            squares = gl.sum(fade * fade * squares, axis=1)
            moment = gl.sum(fade * (moment + drop * total), axis=1)
            gl.store(at + 2 * step, gl.convert_layout(squares, of_rows), mask=inside)
            gl.store(at + 3 * step, gl.convert_layout(moment, of_rows), mask=inside)
            gl.store(index, gl.convert_layout(which, of_rows), mask=inside)
    return done + gl.maximum(last_tile - first_tile, 0)


@gluon.jit
def _collect(
    rings, bars, work, args,
    group: gl.constexpr, MODE: gl.constexpr, HAS_BIAS: gl.constexpr, NEAREST: gl.constexpr,
    PARTS: gl.constexpr, STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Process all pieces of work of this program, for one group."""
    if ALTERNATE:  # rows that stay in memory make up a single piece of work
        mbarrier.wait(bars.rows_full, 0)
        _collect_item(
            rings, bars, work, args, gl.program_id(0), 0,
            group, MODE, HAS_BIAS, NEAREST, PARTS, STEPS, ALTERNATE,
        )  # fmt: skip
    else:
        done = 0
        for item in range(gl.program_id(0), work.row_blocks * work.shares, gl.num_programs(0)):
            done = _collect_item(
                rings, bars, work, args, item, done,
                group, MODE, HAS_BIAS, NEAREST, PARTS, STEPS, ALTERNATE,
            )  # fmt: skip


@gluon.jit
def over_classes(
    x_desc, w_desc, x_inverse, w_inverse, bias, labels, flags, partial, index,
    rows, classes, row_blocks, shares, tiles_per_share, scale,
    MODE: gl.constexpr, HAS_BIAS: gl.constexpr, NEAREST: gl.constexpr, PARTS: gl.constexpr,
    STEPS: gl.constexpr, STAGES: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Pass blocks of rows over shares of the classes once; see the portable twin.

    ``scale`` is already multiplied by log2(e). ``flags[row blocks, tiles]`` marks the tiles that
    hold a label of these rows or reach past the last class; only those are masked. With
    ``NEAREST``, the class of the largest cosine is kept too.
    """
    rings, bars = _open(x_desc, w_desc, STEPS, STAGES, ALTERNATE)
    last_tile = gl.cdiv(classes, w_desc.block_type.shape[0])
    work = Work(row_blocks, shares, tiles_per_share, 0, last_tile)
    args = CollectArguments(
        x_inverse, w_inverse, bias, labels, flags, partial, index, rows, classes, scale
    )
    gl.warp_specialize(
        [
            (_collect, (
                rings, bars, work, args, 0, MODE, HAS_BIAS, NEAREST, PARTS, STEPS, ALTERNATE
            )),
            (_collect, (
                rings, bars, work, args, 1, MODE, HAS_BIAS, NEAREST, PARTS, STEPS, ALTERNATE
            )),
            (_produce, (x_desc, w_desc, rings, bars, work, STEPS, ALTERNATE)),
        ],
        [4, 1],  # warps of the second group, and of the one that copies
        [240, 24],  # registers per thread; copying needs few
    )  # fmt: skip


@gluon.constexpr_function
def _stored_layout(rows, columns):
    """Return a layout with a product's rows per warp, but 8 neighbours (16 bytes) per thread."""
    wide = [[0, column] for column in (32, 64, 128) if column < columns]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [8, 0], *wide] + [[64, 0]] * (rows == 128),
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[rows, columns],
    )


@gluon.jit
def _emit_part(
    products, begin, args, of_rows, out_rows, inside, special,
    MODE: gl.constexpr, HAS_BIAS: gl.constexpr,
):  # fmt: skip
    """Write the slopes of a run of classes; ``out_rows`` is the place of its first column."""
    label, factor, level, x_scale = of_rows
    ROWS: gl.constexpr = products.shape[0]
    PART: gl.constexpr = products.shape[1]
    local = gl.arange(0, PART, gl.SliceLayout(0, products.type.layout))
    if MODE == ANGULAR:
        w_scale = gl.load(args.w_inverse + begin + local)  # has zeros to the end of the last tile
        cosines = products * x_scale[:, None] * w_scale[None, :]
        if special:  # an elevation so low that the slope of the own class is 0
            cosines = gl.where(local[None, :] == (label - begin)[:, None], -MASKED, cosines)
        rise, slope = arc_slope(cosines, True)
        power = gl.exp2(rise * args.scale - level[:, None])
        result = power * slope * w_scale[None, :] * factor[:, None]
    else:
        if HAS_BIAS:
            inside_head = begin + local < args.classes
            offset = gl.load(args.bias + begin + local, mask=inside_head, other=0.0)
            products += offset.to(gl.float32)[None, :]
        result = gl.exp2(products * LOG2E - level[:, None]) * factor[:, None]
        if special:
            own = local[None, :] == (label - begin)[:, None]
            result = gl.where(own, -factor[:, None], result)
    stored: gl.constexpr = _stored_layout(ROWS, PART)
    result = gl.convert_layout(result.to(args.out.dtype.element_ty), stored)
    column = gl.arange(0, PART, gl.SliceLayout(0, stored))
    gl.store(out_rows[:, None] + column[None, :], result, mask=inside[:, None])


@gluon.jit
def _emit_item(
    rings, bars, work, args, item, done,
    group: gl.constexpr, MODE: gl.constexpr, HAS_BIAS: gl.constexpr,
    STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Write the slopes of one piece of work for this group's rows."""
    x_ring, w_ring = rings
    rows = args.rows
    BLOCK_N: gl.constexpr = x_ring.shape[1]
    BLOCK_C: gl.constexpr = w_ring.shape[1]
    PART: gl.constexpr = BLOCK_C // 4
    layout: gl.constexpr = _product_layout(BLOCK_C)
    part_layout: gl.constexpr = _product_layout(PART)
    stored: gl.constexpr = _stored_layout(BLOCK_N, PART)
    row_start, _, first_tile, last_tile = _item(item, work, ALTERNATE)
    first_row = row_start if ALTERNATE else row_start + 64 * group
    row = first_row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, part_layout))
    label = gl.load(args.labels + row, mask=row < rows, other=-1).to(gl.int32)
    # The negative sign of every slope and the log2(e) of every exponent are applied once per row.
    factor = -gl.load(args.factors + row, mask=row < rows, other=0.0)
    level = gl.load(args.reference + row, mask=row < rows, other=0.0) * LOG2E
    x_scale = factor  # unread unless ANGULAR, but the tuple needs a value
    if MODE == ANGULAR:
        x_scale = gl.load(args.x_inverse + row, mask=row < rows, other=0.0)
        factor *= x_scale * (args.scale / LOG2E)
    of_rows = (label, factor, level, x_scale)
    flags = args.flags + (row_start // 128).to(gl.int64) * gl.cdiv(args.classes, BLOCK_C)
    # the same rows again, in the layout that results are stored in
    row = first_row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, stored))
    out_rows = args.out + row.to(gl.int64) * args.out_row
    skip: gl.constexpr = group if ALTERNATE else 0
    stride: gl.constexpr = 2 if ALTERNATE else 1
    for tile in range(first_tile + skip, last_tile, stride):
        special = gl.load(flags + tile) != 0
        acc = _products(rings, bars, done + tile - first_tile, group, layout, STEPS, ALTERNATE)
        first, second, third, fourth = _quarters(acc)
        begin = tile * BLOCK_C
        at = out_rows + (tile - work.first_tile) * BLOCK_C
        for _ in range(gl.num_programs(1) * 4):  # a loop for the same reason as above
            _emit_part(first, begin, args, of_rows, at, row < rows, special, MODE, HAS_BIAS)
            first, second, third = second, third, fourth
            begin += PART
            at += PART
    return done + gl.maximum(last_tile - first_tile, 0)


@gluon.jit
def _emit(
    rings, bars, work, args,
    group: gl.constexpr, MODE: gl.constexpr, HAS_BIAS: gl.constexpr,
    STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Process all pieces of work of this program, for one group."""
    if ALTERNATE:
        mbarrier.wait(bars.rows_full, 0)
        _emit_item(
            rings, bars, work, args, gl.program_id(0), 0,
            group, MODE, HAS_BIAS, STEPS, ALTERNATE,
        )  # fmt: skip
    else:
        done = 0
        for item in range(gl.program_id(0), work.row_blocks * work.shares, gl.num_programs(0)):
            done = _emit_item(
                rings, bars, work, args, item, done,
                group, MODE, HAS_BIAS, STEPS, ALTERNATE,
            )  # fmt: skip


@gluon.jit
def slopes(
    x_desc, w_desc, x_inverse, w_inverse, bias, labels, flags, factors, reference, out, out_row,
    rows, classes, row_blocks, shares, tiles_per_share, first_tile, last_tile, scale,
    MODE: gl.constexpr, HAS_BIAS: gl.constexpr,
    STEPS: gl.constexpr, STAGES: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Write slopes of the weighted log-odds for a chunk of tiles of classes; see the portable twin.

    ``out`` has room for whole tiles of classes, and all of it is written.
    """
    rings, bars = _open(x_desc, w_desc, STEPS, STAGES, ALTERNATE)
    work = Work(row_blocks, shares, tiles_per_share, first_tile, last_tile)
    args = SlopeArguments(
        x_inverse, w_inverse, bias, labels, flags, factors, reference, out, out_row,
        rows, classes, scale,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_emit, (rings, bars, work, args, 0, MODE, HAS_BIAS, STEPS, ALTERNATE)),
            (_emit, (rings, bars, work, args, 1, MODE, HAS_BIAS, STEPS, ALTERNATE)),
            (_produce, (x_desc, w_desc, rings, bars, work, STEPS, ALTERNATE)),
        ],
        [4, 1],  # warps of the second group, and of the one that copies
        [240, 24],  # registers per thread; copying needs few
    )
