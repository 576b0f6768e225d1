"""Gluon kernels for Hopper GPUs (compute capability 9.0), bfloat16 and float16.

A block of rows meets tiles of classes. One warp copies tiles into a ring of shared memory with the
bulk tensor engine; groups of four warps multiply, and then do the arithmetic on their products.
There are two ways to share the work:

``ALTERNATE``, for rows short enough to stay in shared memory: 128 rows, and tiles go to two groups
in turn. A group starts to multiply when the other has no more products to start, so one multiplies
while the other works on its angles, and the tensor cores hardly ever wait. Taking turns is also
what makes the ring safe: a barrier tells odd fillings of a place from even ones only, so a group
must not wait for a filling before the other group has seen the one before it.

Otherwise rows and classes both stream through the ring, each group takes 64 rows of its own, and a
program goes on to its next block of rows while the copies for it already arrive.
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

# the modes of the portable kernels
ANGLES = gl.constexpr(0)
HEAD = gl.constexpr(1)
ANGULAR = gl.constexpr(2)
LINEAR = gl.constexpr(3)
NONE = gl.constexpr(float("-inf"))
# A logit of no class: so low that its power is 0, and finite, so that 0 times it is 0.
FLOOR = gl.constexpr(-1e30)
LAST = gl.constexpr(2147483647)


@gluon.jit
def _open(
    x_desc, w_desc,
    STEPS: gl.constexpr, STAGES: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Shared memory for rows and classes, and the barriers between who fills it and who reads it.

    Returns (rows, classes) and the barriers (rows full, place full, place empty, turns).
    """
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
    mbarrier.init(x_full, count=1)
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1 if ALTERNATE else 2)
    fence_async_shared()
    return (x_ring, w_ring), (x_full, full, empty, turns)


@gluon.jit
def _item(item, work, ALTERNATE: gl.constexpr):
    """Block of rows, share of the classes, and first and last tile of one piece of work."""
    row_blocks, shares, tiles_per_share, first_tile, last_tile = work
    if ALTERNATE:  # neighbours read the same classes
        block = item % row_blocks
        share = item // row_blocks
    else:  # neighbours read the same rows
        block = item // shares
        share = item % shares
    begin = first_tile + share * tiles_per_share
    return block * 128, share, begin, gl.minimum(begin + tiles_per_share, last_tile)


@gluon.jit
def _produce(
    x_desc, w_desc, rings, bars, work,
    STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Keep the ring filled: for every piece of work, every tile, every step of the depth."""
    x_ring, w_ring = rings
    x_full, full, empty, _ = bars
    STAGES: gl.constexpr = w_ring.shape[0]
    BLOCK_C: gl.constexpr = w_desc.block_type.shape[0]
    BLOCK_D: gl.constexpr = w_desc.block_type.shape[1]
    row_blocks, shares, _, _, _ = work
    if ALTERNATE:
        row_start, _, _, _ = _item(gl.program_id(0), work, ALTERNATE)
        mbarrier.expect(x_full, x_desc.block_type.nbytes * STEPS)
        for place in gl.static_range(STEPS):
            _copy_in(x_desc, [row_start, place * BLOCK_D], x_full, x_ring.index(place))
    count = 0
    for item in range(gl.program_id(0), row_blocks * shares, gl.num_programs(0)):
        row_start, _, first_tile, last_tile = _item(item, work, ALTERNATE)
        for tile in range(first_tile, last_tile):
            for step in range(STEPS):
                stage = count % STAGES
                mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
                bar = full.index(stage)
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
    """Products of this group's rows with a tile, the ``tile``-th of the stream."""
    x_ring, w_ring = rings
    _, full, empty, turns = bars
    STAGES: gl.constexpr = w_ring.shape[0]
    BLOCK_N: gl.constexpr = x_ring.shape[1]
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
            x = x_ring.index(2 * stage + group)
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
def _quarters(acc):
    """Four runs of classes of a tile, where they lie: less arithmetic to hold at once."""
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
    """``[N, C]`` as ``[N, C / 8, 4, 2]``; the third tells the lanes that share a row apart."""
    return values.reshape([values.shape[0], values.shape[1] // 8, 4, 2])


@gluon.jit
def _lane_sum(values):
    """``[N, 4]``; nothing crosses lanes before a piece of work is done."""
    return gl.sum(gl.sum(values, axis=3), axis=1)


@gluon.jit
def _lane_max(values):
    return gl.max(gl.max(values, axis=3), axis=1)


@gluon.jit
def _lane_first(values, top, places):
    """Where in a run of classes a lane's values first reach their ``top``; ``places`` count it.

    A lane sees places 8 a + 2 lane + b, b under 2. Without the lane they are constants.
    """
    found = gl.where(values == _over(top), places & -7, LAST)
    found = gl.min(gl.min(found, axis=3), axis=1)
    return found + gl.min(gl.min(places & 6, axis=3), axis=1)


@gluon.jit
def _over(lanes):
    """``[N, 4]`` as ``[N, 1, 4, 1]``."""
    return lanes.expand_dims(1).expand_dims(3)


@gluon.jit
def _add_logits(logits, begin, places, sums, HEAD_TOO: gl.constexpr):
    """Take a run of logits into the largest one, its class, and the sums relative to it."""
    largest, which, total, squares, moment = sums
    here = _lane_max(logits)
    new = gl.maximum(largest, here)
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
    """Take a run of cosines into the largest one, and into its class with ``NEAREST``."""
    largest, which = nearest
    cosines = _by_lane(cosines)
    here = _lane_max(cosines)
    if NEAREST:
        which = gl.where(here > largest, begin + _lane_first(cosines, here, places), which)
    return gl.maximum(largest, here), which


@gluon.jit
def _add_part(
    state, products, begin, given, x_scale, label, special,
    MODE: gl.constexpr, HAS_BIAS: gl.constexpr, NEAREST: gl.constexpr,
):  # fmt: skip
    """Take a run of products into the state of a piece of work, every lane for itself."""
    _, w_inverse, bias, _, _, _, _, _, classes, scale = given
    angles, nearest, sums = state
    ROWS: gl.constexpr = products.shape[0]
    PART: gl.constexpr = products.shape[1]
    layout: gl.constexpr = products.type.layout
    local = gl.arange(0, PART, gl.SliceLayout(0, layout))
    column = begin + local
    places = _by_lane(gl.zeros([ROWS, PART], gl.int32, layout) + local[None, :])
    logits = products
    if MODE != LINEAR:
        w_scale = gl.load(w_inverse + column)
        cosines = products * x_scale[:, None] * w_scale[None, :]
    if MODE % 2 == 1 and HAS_BIAS:
        offset = gl.load(bias + column, mask=column < classes, other=0.0)
        logits += offset.to(gl.float32)[None, :]
    if special:
        other = (column[None, :] != label[:, None]) & (column < classes)[None, :]
        if MODE == ANGULAR:
            cosines = gl.where(other, cosines, MASKED)
        elif MODE != LINEAR:
            nearest = _add_nearest(gl.where(other, cosines, NONE), begin, places, nearest, NEAREST)
            cosines = gl.where(other, cosines, 0.0)
        if MODE % 2 == 1:
            logits = gl.where(other, logits, FLOOR)
    elif MODE < 2:
        nearest = _add_nearest(cosines, begin, places, nearest, NEAREST)
    if MODE == ANGULAR:
        angles += _lane_sum(_by_lane(gl.exp2(elevation(cosines) * scale)))
    elif MODE != LINEAR:
        angles += _lane_sum(_by_lane(elevation(cosines)))
    if MODE % 2 == 1:  # HEAD or LINEAR
        sums = _add_logits(_by_lane(logits), begin, places, sums, MODE == HEAD)
    return angles, nearest, sums


@gluon.jit
def _over_lanes(values, classes):
    """The largest of a row's four values ``[N, 4]``, and its class; the first of equal ones."""
    top = gl.max(values, axis=1)
    return top, gl.min(gl.where(values == top.expand_dims(1), classes, LAST), axis=1)


@gluon.jit
def _collect_item(
    rings, bars, work, given, item, done,
    group: gl.constexpr, MODE: gl.constexpr, HAS_BIAS: gl.constexpr, NEAREST: gl.constexpr,
    PARTS: gl.constexpr, STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Sum over one piece of work for this group's rows; ``done`` tiles came before it."""
    x_ring, w_ring = rings
    x_inverse, _, _, labels, flags, partial, index, rows, classes, _ = given
    BLOCK_N: gl.constexpr = x_ring.shape[1]
    BLOCK_C: gl.constexpr = w_ring.shape[1]
    PART: gl.constexpr = BLOCK_C // PARTS
    layout: gl.constexpr = _product_layout(BLOCK_C)
    part_layout: gl.constexpr = _product_layout(PART)
    of_rows: gl.constexpr = gl.SliceLayout(1, part_layout)
    _, shares, _, _, _ = work
    row_start, share, first_tile, last_tile = _item(item, work, ALTERNATE)
    begin = row_start if ALTERNATE else row_start + 64 * group
    row = begin + gl.arange(0, BLOCK_N, of_rows)
    label = gl.load(labels + row, mask=row < rows, other=-1).to(gl.int32)
    flags += (row_start // 128).to(gl.int64) * gl.cdiv(classes, BLOCK_C)
    x_scale = gl.load(x_inverse + row, mask=(row < rows) & (MODE != LINEAR), other=0.0)
    # zeros by way of a sum: in the layout that sums have
    zeros = _lane_sum(_by_lane(gl.zeros([BLOCK_N, PART], gl.float32, part_layout)))
    which = zeros.to(gl.int32)
    state = (zeros, (zeros + NONE, which - 1), (zeros + FLOOR, which, zeros, zeros, zeros))
    skip: gl.constexpr = group if ALTERNATE else 0
    stride: gl.constexpr = 2 if ALTERNATE else 1
    for tile in range(first_tile + skip, last_tile, stride):
        special = gl.load(flags + tile) != 0
        acc = _products(rings, bars, done + tile - first_tile, group, layout, STEPS, ALTERNATE)
        begin_at = tile * BLOCK_C
        if PARTS == 1:
            state = _add_part(
                state, acc, begin_at, given, x_scale, label, special, MODE, HAS_BIAS, NEAREST
            )
        else:
            first, second, third, fourth = _quarters(acc)
            # a loop, though registers move: four copies of its body outgrow the instruction cache
            for _ in range(gl.num_programs(1) * PARTS):
                state = _add_part(
                    state, first, begin_at, given, x_scale, label, special, MODE, HAS_BIAS, NEAREST
                )
                first, second, third = second, third, fourth
                begin_at += PART
    slot = 2 * share + group if ALTERNATE else share
    slots = 2 * shares if ALTERNATE else shares
    at = partial + slot * rows + row
    step = slots * rows
    inside = row < rows
    index += slot * rows + row
    angles, nearest, sums = state
    if MODE == ANGULAR:
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
    if MODE % 2 == 1:
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
    rings, bars, work, given,
    group: gl.constexpr, MODE: gl.constexpr, HAS_BIAS: gl.constexpr, NEAREST: gl.constexpr,
    PARTS: gl.constexpr, STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Every piece of work of this program, for one group."""
    x_full, _, _, _ = bars
    row_blocks, shares, _, _, _ = work
    if ALTERNATE:
        mbarrier.wait(x_full, 0)
        _collect_item(
            rings, bars, work, given, gl.program_id(0), 0,
            group, MODE, HAS_BIAS, NEAREST, PARTS, STEPS, ALTERNATE,
        )  # fmt: skip
    else:
        done = 0
        for item in range(gl.program_id(0), row_blocks * shares, gl.num_programs(0)):
            done = _collect_item(
                rings, bars, work, given, item, done,
                group, MODE, HAS_BIAS, NEAREST, PARTS, STEPS, ALTERNATE,
            )  # fmt: skip


@gluon.jit
def over_classes(
    x_desc, w_desc, x_inverse, w_inverse, bias, labels, flags, partial, index,
    rows, classes, row_blocks, shares, tiles_per_share, scale,
    MODE: gl.constexpr, HAS_BIAS: gl.constexpr, NEAREST: gl.constexpr, PARTS: gl.constexpr,
    STEPS: gl.constexpr, STAGES: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """One pass of blocks of rows over shares of the classes; see the portable twin.

    ``scale`` comes times log2(e). ``flags[row blocks, tiles]`` marks tiles that hold a label of
    these rows or run over the last class: only those are masked. With ``NEAREST`` the class of
    the largest cosine is kept too.
    """
    rings, bars = _open(x_desc, w_desc, STEPS, STAGES, ALTERNATE)
    last_tile = gl.cdiv(classes, w_desc.block_type.shape[0])
    work = (row_blocks, shares, tiles_per_share, 0, last_tile)
    given = (x_inverse, w_inverse, bias, labels, flags, partial, index, rows, classes, scale)
    gl.warp_specialize(
        [
            (_collect, (
                rings, bars, work, given, 0, MODE, HAS_BIAS, NEAREST, PARTS, STEPS, ALTERNATE
            )),
            (_collect, (
                rings, bars, work, given, 1, MODE, HAS_BIAS, NEAREST, PARTS, STEPS, ALTERNATE
            )),
            (_produce, (x_desc, w_desc, rings, bars, work, STEPS, ALTERNATE)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@gluon.constexpr_function
def _stored_layout(rows, columns):
    """The same rows in the same warps as a product, but 8 neighbours, 16 bytes, in every thread."""
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
    products, begin, given, of_rows, out_rows, inside, special,
    MODE: gl.constexpr, HAS_BIAS: gl.constexpr,
):  # fmt: skip
    """Write the slopes of a run of classes; ``out_rows`` is where its first column goes."""
    _, w_inverse, bias, _, _, _, _, out = given[:8]
    _, _, classes, scale = given[8:]
    label, factor, level, x_scale = of_rows
    ROWS: gl.constexpr = products.shape[0]
    PART: gl.constexpr = products.shape[1]
    local = gl.arange(0, PART, gl.SliceLayout(0, products.type.layout))
    if MODE == ANGULAR:
        w_scale = gl.load(w_inverse + begin + local)
        cosines = products * x_scale[:, None] * w_scale[None, :]
        if special:
            cosines = gl.where(local[None, :] == (label - begin)[:, None], -MASKED, cosines)
        rise, slope = arc_slope(cosines, True)
        power = gl.exp2(rise * scale - level[:, None])
        result = power * slope * w_scale[None, :] * factor[:, None]
    else:
        if HAS_BIAS:
            offset = gl.load(bias + begin + local, mask=begin + local < classes, other=0.0)
            products += offset.to(gl.float32)[None, :]
        result = gl.exp2(products * LOG2E - level[:, None]) * factor[:, None]
        if special:
            own = local[None, :] == (label - begin)[:, None]
            result = gl.where(own, -factor[:, None], result)
    stored: gl.constexpr = _stored_layout(ROWS, PART)
    result = gl.convert_layout(result.to(out.dtype.element_ty), stored)
    column = gl.arange(0, PART, gl.SliceLayout(0, stored))
    gl.store(out_rows[:, None] + column[None, :], result, mask=inside[:, None])


@gluon.jit
def _emit_item(
    rings, bars, work, given, item, done,
    group: gl.constexpr, MODE: gl.constexpr, HAS_BIAS: gl.constexpr,
    STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Write the slopes of one piece of work for this group's rows."""
    x_ring, w_ring = rings
    x_inverse, _, _, labels, flags, factors, reference, out = given[:8]
    out_row, rows, classes, scale = given[8:]
    BLOCK_N: gl.constexpr = x_ring.shape[1]
    BLOCK_C: gl.constexpr = w_ring.shape[1]
    PART: gl.constexpr = BLOCK_C // 4
    layout: gl.constexpr = _product_layout(BLOCK_C)
    part_layout: gl.constexpr = _product_layout(PART)
    stored: gl.constexpr = _stored_layout(BLOCK_N, PART)
    _, _, _, chunk_start, _ = work
    row_start, _, first_tile, last_tile = _item(item, work, ALTERNATE)
    first_row = row_start if ALTERNATE else row_start + 64 * group
    row = first_row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, part_layout))
    label = gl.load(labels + row, mask=row < rows, other=-1).to(gl.int32)
    factor = -gl.load(factors + row, mask=row < rows, other=0.0)
    level = gl.load(reference + row, mask=row < rows, other=0.0) * LOG2E
    x_scale = factor
    if MODE == ANGULAR:
        x_scale = gl.load(x_inverse + row, mask=row < rows, other=0.0)
        factor *= x_scale * (scale / LOG2E)
    of_rows = (label, factor, level, x_scale)
    flags += (row_start // 128).to(gl.int64) * gl.cdiv(classes, BLOCK_C)
    row = first_row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, stored))
    out_rows = out + row.to(gl.int64) * out_row
    skip: gl.constexpr = group if ALTERNATE else 0
    stride: gl.constexpr = 2 if ALTERNATE else 1
    for tile in range(first_tile + skip, last_tile, stride):
        special = gl.load(flags + tile) != 0
        acc = _products(rings, bars, done + tile - first_tile, group, layout, STEPS, ALTERNATE)
        first, second, third, fourth = _quarters(acc)
        begin = tile * BLOCK_C
        at = out_rows + (tile - chunk_start) * BLOCK_C
        for _ in range(gl.num_programs(1) * 4):  # as above
            _emit_part(first, begin, given, of_rows, at, row < rows, special, MODE, HAS_BIAS)
            first, second, third = second, third, fourth
            begin += PART
            at += PART
    return done + gl.maximum(last_tile - first_tile, 0)


@gluon.jit
def _emit(
    rings, bars, work, given,
    group: gl.constexpr, MODE: gl.constexpr, HAS_BIAS: gl.constexpr,
    STEPS: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Every piece of work of this program, for one group."""
    x_full, _, _, _ = bars
    row_blocks, shares, _, _, _ = work
    if ALTERNATE:
        mbarrier.wait(x_full, 0)
        _emit_item(
            rings, bars, work, given, gl.program_id(0), 0,
            group, MODE, HAS_BIAS, STEPS, ALTERNATE,
        )  # fmt: skip
    else:
        done = 0
        for item in range(gl.program_id(0), row_blocks * shares, gl.num_programs(0)):
            done = _emit_item(
                rings, bars, work, given, item, done,
                group, MODE, HAS_BIAS, STEPS, ALTERNATE,
            )  # fmt: skip


@gluon.jit
def slopes(
    x_desc, w_desc, x_inverse, w_inverse, bias, labels, flags, factors, reference, out, out_row,
    rows, classes, row_blocks, shares, tiles_per_share, first_tile, last_tile, scale,
    MODE: gl.constexpr, HAS_BIAS: gl.constexpr,
    STEPS: gl.constexpr, STAGES: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Slopes of the weighted log-odds for a chunk of tiles of classes; see the portable twin.

    ``out`` has room for whole tiles of classes, and all of it is written.
    """
    rings, bars = _open(x_desc, w_desc, STEPS, STAGES, ALTERNATE)
    work = (row_blocks, shares, tiles_per_share, first_tile, last_tile)
    given = (
        x_inverse, w_inverse, bias, labels, flags, factors, reference, out, out_row,
        rows, classes, scale,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_emit, (rings, bars, work, given, 0, MODE, HAS_BIAS, STEPS, ALTERNATE)),
            (_emit, (rings, bars, work, given, 1, MODE, HAS_BIAS, STEPS, ALTERNATE)),
            (_produce, (x_desc, w_desc, rings, bars, work, STEPS, ALTERNATE)),
        ],
        [4, 1],
        [240, 24],
    )
