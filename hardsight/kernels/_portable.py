"""Triton kernels for any GPU that Triton supports, and for its interpreter.

They use plain tiles and pointer loads. Every program has a block of rows and walks over a share of
the classes, so the products of one tile live in registers only. A share writes one partial result
per row. Nothing uses atomics, which would add in another order every time.
"""

import triton
import triton.language as tl

from hardsight.kernels._math import LOG2E, PI, arc_slope, elevation

# What a pass over the classes collects for every row; a row's own class is always left out.
ANGLES = tl.constexpr(0)  # sum of elevations, largest cosine
HEAD = tl.constexpr(1)  # the same, and the moments of the logits' softmax
ANGULAR = tl.constexpr(2)  # log-sum-exp of -scale * angle
LINEAR = tl.constexpr(3)  # log-sum-exp of the logits

NONE = tl.constexpr(float("-inf"))
LAST = tl.constexpr(2147483647)  # larger than the number of any class
# The least sine that a direction is divided by, 2 float32 eps; smaller sines are rounding.
LEAST_SINE = tl.constexpr(2.4e-7)


@triton.jit
def prepare(
    embeddings, class_weights, bias, labels,
    inverse_out, angle_out, value_out, w_inverse_out, flags,
    rows, classes, width, x_row, x_col, w_row, w_col, row_programs, weight_programs, tiles,
    HAS_BIAS: tl.constexpr, MODE: tl.constexpr, FLAGS: tl.constexpr,
    GROUP: tl.constexpr, TILE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute what a pass over the classes needs, with three kinds of programs in one launch.

    They handle rows with their own classes, the norms of the class weights, and the tiles that hold
    a label.
    """
    # Each kind is too small to fill a GPU, and none reads what another one writes, so they share
    # the cost of one launch.
    program = tl.program_id(0)
    if program < row_programs:
        _target_pairs(
            program, embeddings, class_weights, bias, labels, inverse_out, angle_out, value_out,
            rows, classes, width, x_row, x_col, w_row, w_col,
            HAS_BIAS, MODE, BLOCK_R, BLOCK_D,
        )  # fmt: skip
    elif program < row_programs + weight_programs:
        _inverse_norms(
            program - row_programs, class_weights, w_inverse_out, classes, width, w_row, w_col,
            BLOCK_R, BLOCK_D,
        )  # fmt: skip
    elif FLAGS:
        block = program - row_programs - weight_programs
        _mark_tiles(block, labels, flags, rows, tiles, classes, GROUP, TILE)


@triton.jit
def _inverse_norms(
    program, vectors, out, rows, width, row_stride, col_stride,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write ``1 / norm`` of a block of rows, and 0 for a zero row or past the last row."""
    row = program * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_D)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    offsets = row.to(tl.int64)[:, None] * row_stride + column.to(tl.int64)[None, :] * col_stride
    values = tl.load(vectors + offsets, mask=inside, other=0.0).to(tl.float32)
    _, inverse = _unit(values)
    tl.store(out + row, inverse)  # no mask, since ``out`` has room for whole tiles


@triton.jit
def _unit(values):
    """Return rows scaled to norm 1, and the factors by which they were scaled."""
    # dividing by the largest entry first keeps the squares from overflowing or vanishing
    largest = tl.max(tl.abs(values), axis=1)
    rescale = tl.where(largest > 0, 1.0 / tl.where(largest > 0, largest, 1.0), 0.0)
    scaled = values * rescale[:, None]
    squares = tl.sum(scaled * scaled, axis=1)
    inverse = tl.where(squares > 0, 1.0 / tl.sqrt_rn(tl.where(squares > 0, squares, 1.0)), 0.0)
    return scaled * inverse[:, None], inverse * rescale


@triton.jit
def _target_pairs(
    program, embeddings, class_weights, bias, labels, inverse_out, angle_out, value_out,
    rows, classes, width, x_row, x_col, w_row, w_col,
    HAS_BIAS: tl.constexpr, MODE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compare every row with its own class: write 1 / norm, the exact angle, and one more value.

    The third value is the logit in HEAD and LINEAR, and the sine of the angle in ANGULAR. A label
    that is not a class gives NaN, because labels on a device are not checked elsewhere.
    """
    row = program * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_D)
    label = tl.load(labels + row, mask=row < rows, other=0)
    wrong = (label < 0) | (label >= classes)
    label = tl.where(wrong, -1, label)  # reading at -1 is masked; the label itself is out of bounds
    x, w = _pair_rows(
        embeddings, class_weights, row, label, column, rows, width, x_row, x_col, w_row, w_col
    )
    x_unit, inverse = _unit(x)
    w_unit, _ = _unit(w)
    angle, sine = _chord_angle(x_unit, w_unit)
    # the angle to a class that does not exist is a NaN, which nobody can overlook
    angle = tl.where(wrong, float("nan"), angle)
    tl.store(inverse_out + row, inverse, mask=row < rows)
    tl.store(angle_out + row, angle, mask=row < rows)
    if MODE == ANGULAR:
        tl.store(value_out + row, sine, mask=row < rows)
    if MODE == HEAD or MODE == LINEAR:
        # computed in float32, not from a tile in half precision, because it decides the loss
        logit = tl.sum(x * w, axis=1)
        if HAS_BIAS:
            logit += tl.load(bias + label, mask=label >= 0, other=0.0).to(tl.float32)
        tl.store(value_out + row, tl.where(wrong, float("nan"), logit), mask=row < rows)


@triton.jit
def _pair_rows(
    embeddings, class_weights, row, label, column, rows, width, x_row, x_col, w_row, w_col
):
    inside = (row < rows)[:, None] & (column < width)[None, :]
    column = column.to(tl.int64)  # a million classes times their width exceeds int32
    x_at = embeddings + row.to(tl.int64)[:, None] * x_row + column[None, :] * x_col
    x = tl.load(x_at, mask=inside, other=0.0).to(tl.float32)
    w_at = class_weights + label.to(tl.int64)[:, None] * w_row + column[None, :] * w_col
    w = tl.load(w_at, mask=inside & (label >= 0)[:, None], other=0.0).to(tl.float32)
    return x, w


@triton.jit
def _chord_angle(first, second):
    """Return the angle ``2 atan2(|u - v|, |u + v|)`` of unit rows, and its sine.

    Triton has no arc tangent. Half the shorter chord is the sine of an angle of at most pi / 4, up
    to which a short polynomial gives the arcsine.
    """
    apart = tl.sum((first - second) * (first - second), axis=1)  # 4 sin^2(angle / 2)
    together = tl.sum((first + second) * (first + second), axis=1)  # 4 cos^2(angle / 2)
    # 4 up to rounding, which the division removes; 0 for a pair of zero rows
    both = apart + together + tl.where(apart + together > 0, 0.0, 1.0)
    square = tl.minimum(apart, together) / both
    # minimax polynomial of (asin(s) / s - 1) / s^2 in s^2
    poly = 0.1120595633983612 * square - 0.09391636401414871
    poly = poly * square + 0.07785825431346893
    poly = poly * square + 0.016091343015432358
    poly = poly * square + 0.046552956104278564
    poly = poly * square + 0.07488086819648743
    poly = poly * square + 0.16666916012763977
    half = tl.sqrt_rn(square) * (1.0 + square * poly)
    angle = tl.where(apart <= together, 2.0 * half, PI - 2.0 * half)
    sine = 2.0 * tl.sqrt_rn(square * (tl.maximum(apart, together) / both))
    # this places a zero row at pi / 2 too
    return tl.where(apart == together, PI / 2, angle), sine


@triton.jit
def over_classes(
    embeddings, class_weights, bias, labels, x_inverse, w_inverse, partial, partial_index,
    rows, classes, width, x_row, x_col, w_row, w_col, scale, tiles_per_share,
    MODE: tl.constexpr, HAS_BIAS: tl.constexpr, NEAREST: tl.constexpr, ONLINE: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Pass a block of rows over a share of the classes once; see the modes above.

    ``partial`` is ``[k, shares, rows]`` with k = 2 in ANGLES (sum of elevations, largest cosine),
    2 in ANGULAR and LINEAR (largest, sum of powers) and 6 in HEAD (all four, squares, moment).
    ``partial_index`` has the same layout. With NEAREST it starts with the class of the largest
    cosine, or -1. In HEAD the class of the largest logit follows. Without ONLINE, powers are
    relative to 0.
    """
    share = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    label = tl.load(labels + row, mask=row < rows, other=-1)  # -1 equals no class
    angular: tl.constexpr = MODE != LINEAR
    if angular:
        x_scale = tl.load(x_inverse + row, mask=row < rows, other=0.0)
    angle_sum = tl.zeros([BLOCK_N], tl.float32)
    nearest = tl.full([BLOCK_N], NONE, tl.float32)
    nearest_class = tl.full([BLOCK_N], -1, tl.int32)
    largest = tl.full([BLOCK_N], NONE, tl.float32)  # largest logit, and its class
    which = tl.zeros([BLOCK_N], tl.int32)
    total = tl.zeros([BLOCK_N], tl.float32)  # sum of powers, exp(logit - largest)
    squares = tl.zeros([BLOCK_N], tl.float32)  # sum of squared powers
    moment = tl.zeros([BLOCK_N], tl.float32)  # sum of powers times (logit - largest)
    first_tile = share * tiles_per_share
    last_tile = tl.minimum(first_tile + tiles_per_share, tl.cdiv(classes, BLOCK_C))
    for tile in range(first_tile, last_tile):
        column = tile * BLOCK_C + tl.arange(0, BLOCK_C)
        products = _tile(
            embeddings, class_weights, row, column, rows, classes, width,
            x_row, x_col, w_row, w_col, PRECISION, BLOCK_N, BLOCK_C, BLOCK_D,
        )  # fmt: skip
        other = (column[None, :] != label[:, None]) & (column < classes)[None, :]
        if angular:
            w_scale = tl.load(w_inverse + column, mask=column < classes, other=0.0)
            cosines = products * x_scale[:, None] * w_scale[None, :]
            # pi / 2 minus the angle, because most angles of a wide layer are near pi / 2, and a
            # sum of thousands of them would round away the differences between them
            rise = tl.where(other, elevation(cosines), 0.0)
        if MODE == ANGLES or MODE == HEAD:
            angle_sum += tl.sum(rise, axis=1)
            seen = tl.where(other, cosines, NONE)
            if NEAREST:
                here, place = tl.max(seen, axis=1, return_indices=True)
                nearest_class = tl.where(here > nearest, place + tile * BLOCK_C, nearest_class)
            else:
                here = tl.max(seen, axis=1)
            nearest = tl.maximum(nearest, here)
        if MODE == ANGULAR:
            # -scale * angle is this minus scale * pi / 2, which merge_log_odds adds to the own
            # class instead
            logits = tl.where(other, rise * scale, NONE)
        if MODE == HEAD or MODE == LINEAR:
            if HAS_BIAS:
                offset = tl.load(bias + column, mask=column < classes, other=0.0).to(tl.float32)
                products += offset[None, :]
            logits = tl.where(other, products, NONE)
        if MODE == HEAD:
            tile_largest, tile_which = tl.max(logits, axis=1, return_indices=True)
            which = tl.where(tile_largest > largest, tile_which + tile * BLOCK_C, which)
        elif MODE != ANGLES and ONLINE:
            tile_largest = tl.max(logits, axis=1)
        if MODE != ANGLES:
            if ONLINE:
                # sums so far are relative to the old maximum, so they shrink when it rises
                new = tl.maximum(largest, tile_largest)
                reference = tl.where(new == NONE, 0.0, new)  # -inf less -inf would be NaN
                fade = tl.exp2(tl.where(largest == NONE, 0.0, largest - reference) * LOG2E)
                powers = tl.exp2((logits - reference[:, None]) * LOG2E)  # exp is exp2 on a GPU
                if MODE == HEAD:
                    # the powers weight gaps to a maximum that has just risen by ``drop``
                    drop = tl.where(largest == NONE, 0.0, largest - reference)
                    gaps = tl.where(other, logits - reference[:, None], 0.0)  # not 0 times -inf
                    moment = fade * (moment + drop * total) + tl.sum(powers * gaps, axis=1)
                    squares = fade * fade * squares + tl.sum(powers * powers, axis=1)
                total = fade * total + tl.sum(powers, axis=1)
                largest = new
            else:
                total += tl.sum(tl.exp2(logits * LOG2E), axis=1)
    at = share * rows + row
    step = tl.num_programs(1) * rows
    inside = row < rows
    if MODE == ANGLES or MODE == HEAD:
        tl.store(partial + at, angle_sum, mask=inside)
        tl.store(partial + step + at, nearest, mask=inside)
        if NEAREST:
            tl.store(partial_index + at, nearest_class, mask=inside)
            partial_index += step
    if MODE == HEAD:
        tl.store(partial + 2 * step + at, largest, mask=inside)
        tl.store(partial + 3 * step + at, total, mask=inside)
        tl.store(partial + 4 * step + at, squares, mask=inside)
        tl.store(partial + 5 * step + at, moment, mask=inside)
        tl.store(partial_index + at, which, mask=inside)
    elif MODE != ANGLES:
        if not ONLINE:  # merging takes every sum as relative to its ``largest``
            largest = tl.zeros([BLOCK_N], tl.float32)
        tl.store(partial + at, largest, mask=inside)
        tl.store(partial + step + at, total, mask=inside)


@triton.jit
def _tile(
    embeddings, class_weights, row, column, rows, classes, width, x_row, x_col, w_row, w_col,
    PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Return the products of a block of rows with a block of classes, in float32."""
    step = tl.arange(0, BLOCK_D)
    x_at = embeddings + row.to(tl.int64)[:, None] * x_row
    w_at = class_weights + column.to(tl.int64)[None, :] * w_row
    products = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    for start in range(0, width, BLOCK_D):
        depth = (start + step).to(tl.int64)
        inside = depth < width
        x = tl.load(
            x_at + depth[None, :] * x_col, mask=(row < rows)[:, None] & inside[None, :], other=0.0
        )
        w = tl.load(
            w_at + depth[:, None] * w_col,
            mask=inside[:, None] & (column < classes)[None, :],
            other=0.0,
        )
        if PRECISION == "exact":  # for the interpreter, which would round products of bfloat16
            products = tl.dot(x.to(tl.float32), w.to(tl.float32), products, input_precision="ieee")
        else:
            products = tl.dot(x, w, products, input_precision=PRECISION)
    return products


@triton.jit
def slopes(
    embeddings, class_weights, bias, labels, x_inverse, w_inverse, factors, reference, out,
    rows, first_class, classes, width, x_row, x_col, w_row, w_col, out_row, scale,
    ANGLE: tl.constexpr, HAS_BIAS: tl.constexpr, COARSE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write the slope of the weighted log-odds in every product ``x . w``, for a chunk of classes.

    Linear: ``-factor * exp(logit - reference)``, and ``+factor`` at the row's own class.
    Angular: ``-factor * scale * exp(-scale * angle - reference) / sin(angle) / |x| / |w|``, and 0
    at the row's own class.
    """
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)  # within the chunk
    inside = row < rows
    label = tl.load(labels + row, mask=inside, other=-1)
    factor = tl.load(factors + row, mask=inside, other=0.0)
    level = tl.load(reference + row, mask=inside, other=0.0)
    products = _tile(
        embeddings, class_weights, row, column, rows, classes, width, x_row, x_col, w_row, w_col,
        PRECISION, BLOCK_N, BLOCK_C, BLOCK_D,
    )  # fmt: skip
    own = (first_class + column)[None, :] == label[:, None]
    if ANGLE:
        x_scale = tl.load(x_inverse + row, mask=inside, other=0.0)
        w_scale = tl.load(w_inverse + column, mask=column < classes, other=0.0)
        rise, slope = arc_slope(products * x_scale[:, None] * w_scale[None, :], COARSE)
        power = tl.exp2((rise * scale - level[:, None]) * LOG2E)
        result = -power * slope * w_scale[None, :] * (factor * scale * x_scale)[:, None]
        # the own class needs its exact angle, so ``_finish_embeddings`` and ``add_targets`` add it
        result = tl.where(own, 0.0, result)
    else:
        if HAS_BIAS:
            offset = tl.load(bias + column, mask=column < classes, other=0.0).to(tl.float32)
            products += offset[None, :]
        power = tl.exp2((products - level[:, None]) * LOG2E)
        result = tl.where(own, factor[:, None], -power * factor[:, None])
    at = out + row.to(tl.int64)[:, None] * out_row + column[None, :]
    tl.store(
        at, result.to(out.dtype.element_ty), mask=inside[:, None] & (column < classes)[None, :]
    )


@triton.jit
def _mark_tiles(
    block, labels, flags, rows, tiles, classes, GROUP: tl.constexpr, TILE: tl.constexpr
):
    """Write 1 for every tile of classes that holds a label of this group of rows, else 0.

    The last tile is also marked if it reaches past the last class.
    """
    flags += block.to(tl.int64) * tiles
    place = tl.arange(0, 1024)
    for start in range(0, tiles, 1024):
        past = (start + place == tiles - 1) & (classes % TILE != 0)
        tl.store(flags + start + place, past.to(tl.uint8), mask=start + place < tiles)
    tl.debug_barrier()  # other threads have to zero a flag before this one may set it
    row = block * GROUP + tl.arange(0, GROUP)
    label = tl.load(labels + row, mask=row < rows, other=-1)
    mark = tl.full([GROUP], 1, tl.uint8)
    tl.store(flags + label // TILE, mark, mask=(label >= 0) & (label < classes))


@triton.jit
def finish(
    d_w, class_weights, w_inverse, gathered, embeddings, labels, factors, d_x, ordered, order,
    rows, classes, width, x_row, x_col, w_row, w_col, scale, rank_programs, weight_programs,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Finish an angular loss after its products, with three kinds of programs in one launch.

    They sort the labels for the launch that adds each class's own examples, make the class weights'
    sums over other classes' examples tangent, and finish the gradients of the embeddings.
    """
    program = tl.program_id(0)
    if program < rank_programs:
        _rank_labels(program, labels, ordered, order, rows, classes)
    elif program < rank_programs + weight_programs:
        _make_tangent(
            program - rank_programs, d_w, class_weights, w_inverse, classes, width, w_row, w_col,
            BLOCK_R, BLOCK_D,
        )  # fmt: skip
    else:
        _finish_embeddings(
            program - rank_programs - weight_programs, gathered, embeddings, class_weights, labels,
            factors, d_x, rows, classes, width, x_row, x_col, w_row, w_col, scale, BLOCK_R, BLOCK_D,
        )  # fmt: skip


@triton.jit
def make_tangent(
    sums, class_weights, w_inverse, rows, width, w_row, w_col,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Launch :func:`_make_tangent` by itself."""
    _make_tangent(
        tl.program_id(0), sums, class_weights, w_inverse, rows, width, w_row, w_col,
        BLOCK_R, BLOCK_D,
    )  # fmt: skip


@triton.jit
def _make_tangent(
    program, sums, class_weights, w_inverse, rows, width, w_row, w_col,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Remove from every row of ``sums`` its component along its class weight."""
    row = program * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_D)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    total = tl.load(sums + at, mask=inside, other=0.0).to(tl.float32)
    w_at = row.to(tl.int64)[:, None] * w_row + column.to(tl.int64)[None, :] * w_col
    w = tl.load(class_weights + w_at, mask=inside, other=0.0).to(tl.float32)
    w *= tl.load(w_inverse + row, mask=row < rows, other=0.0)[:, None]
    total -= tl.sum(total * w, axis=1)[:, None] * w
    tl.store(sums + at, total.to(sums.dtype.element_ty), mask=inside)


@triton.jit
def _finish_embeddings(
    program, gathered, embeddings, class_weights, labels, factors, out,
    rows, classes, width, x_row, x_col, w_row, w_col, scale,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the embeddings: the tangent sum over other classes plus the own class.

    ``gathered`` is ``[N, D]`` float32, contiguous.
    """
    row = program * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_D)
    label = tl.load(labels + row, mask=row < rows, other=-1)
    label = tl.where(label < classes, label, -1)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    x, w = _pair_rows(
        embeddings, class_weights, row, label, column, rows, width, x_row, x_col, w_row, w_col
    )
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    sums = tl.load(gathered + at, mask=inside, other=0.0)
    x_unit, x_inverse = _unit(x)
    w_unit, _ = _unit(w)
    factor = scale * tl.load(factors + row, mask=row < rows, other=0.0)
    sums -= tl.sum(sums * x_unit, axis=1)[:, None] * x_unit
    sums += (factor * x_inverse)[:, None] * _tangent(x_unit, w_unit)
    tl.store(out + at, sums.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _tangent(first, second):
    """Return the unit direction from ``first`` towards ``second``, or 0 if there is none."""
    apart = second - first
    apart -= tl.sum(apart * first, axis=1)[:, None] * first
    # again, because for a nearly aligned pair the first step leaves little but its own rounding
    apart -= tl.sum(apart * first, axis=1)[:, None] * first
    length = tl.sqrt_rn(tl.sum(apart * apart, axis=1))
    exists = (length > 0) & (tl.sum(second * second, axis=1) > 0)
    return apart * tl.where(exists, 1.0 / tl.where(exists, length, 1.0), 0.0)[:, None]


@triton.jit
def _rank_labels(program, labels, ordered, order, rows, classes):
    """Sort a few labels stably, four per program: a label's place is how many come before it.

    A label that is not a class comes first, as -1. The four are written out because a block of four
    was measured to be slower.
    """
    row = program * 4
    step = tl.arange(0, 512)
    first = _class_of(labels, row, rows, classes)
    second = _class_of(labels, row + 1, rows, classes)
    third = _class_of(labels, row + 2, rows, classes)
    fourth = _class_of(labels, row + 3, rows, classes)
    before_first = tl.zeros([512], tl.int32)
    before_second = tl.zeros([512], tl.int32)
    before_third = tl.zeros([512], tl.int32)
    before_fourth = tl.zeros([512], tl.int32)
    for start in range(0, rows, 512):
        other = start + step
        theirs = _class_of(labels, other, rows, classes)
        theirs = tl.where(other < rows, theirs, LAST)
        # Since the sort is stable, an equal label comes before mine if its row is earlier. Then it
        # is also less than mine plus 1.
        before_first += (theirs < first + (other < row)).to(tl.int32)
        before_second += (theirs < second + (other < row + 1)).to(tl.int32)
        before_third += (theirs < third + (other < row + 2)).to(tl.int32)
        before_fourth += (theirs < fourth + (other < row + 3)).to(tl.int32)
    _store_ranked(ordered, order, row, rows, first, before_first)
    _store_ranked(ordered, order, row + 1, rows, second, before_second)
    _store_ranked(ordered, order, row + 2, rows, third, before_third)
    _store_ranked(ordered, order, row + 3, rows, fourth, before_fourth)


@triton.jit
def _class_of(labels, row, rows, classes):
    label = tl.load(labels + row, mask=row < rows, other=-1)
    return tl.where((label >= 0) & (label < classes), label, -1).to(tl.int32)


@triton.jit
def _store_ranked(ordered, order, row, rows, label, before):
    place = tl.sum(before)
    tl.store(ordered + place, label.to(ordered.dtype.element_ty), mask=row < rows)
    tl.store(order + place, row.to(order.dtype.element_ty), mask=row < rows)


@triton.jit
def add_targets(
    embeddings, class_weights, x_inverse, w_inverse, sines, ordered, order, factors, out, partial,
    rows, classes, width, x_row, x_col, w_row, w_col, scale, run, runs,
    RUNS: tl.constexpr, EXAMPLES: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Add the part of every class weight's gradient from its own examples, in a fixed order.

    ``ordered`` are the sorted labels and ``order`` their examples. The program at the first example
    of a class sums that class, ``EXAMPLES`` at a time; the others end at once. With ``RUNS``, a
    program stops at the next multiple of ``run``, where another one continues. A sum that does not
    cover a whole class then goes to ``partial [2 * runs, D]``, float32: to the first half if it
    begins at a multiple of ``run``, else to the second half.
    """
    begin = tl.program_id(0)
    label = tl.load(ordered + begin)
    before = tl.load(ordered + begin - 1, mask=begin > 0, other=-1)
    is_first = before != label
    begins = is_first
    end = rows
    if RUNS:
        begins = is_first | (begin % run == 0)
        end = tl.minimum(rows, (begin // run + 1) * run)
    if begins & (label >= 0) & (label < classes):
        column = tl.arange(0, BLOCK_D)
        inside = column < width
        # loaded before the examples, though needed after them, so that it arrives in the meantime
        w_at = class_weights + label.to(tl.int64) * w_row + column.to(tl.int64) * w_col
        w = tl.load(w_at, mask=inside, other=0.0)
        inverse_norm = tl.load(w_inverse + label)
        sums = tl.zeros([BLOCK_D], tl.float32)
        pulled = 0.0
        place = begin
        counted = EXAMPLES
        while counted == EXAMPLES:
            at = place + tl.arange(0, EXAMPLES)
            mine = tl.load(ordered + at, mask=at < end, other=-1) == label  # the first of them
            example = tl.load(order + at, mask=at < end, other=0).to(tl.int64)
            x_at = embeddings + example[:, None] * x_row + column.to(tl.int64)[None, :] * x_col
            x = tl.load(x_at, mask=mine[:, None] & inside[None, :], other=0.0).to(tl.float32)
            inverse = tl.load(x_inverse + example, mask=mine, other=0.0)
            sine = tl.load(sines + example, mask=mine, other=0.0)
            factor = tl.load(factors + example, mask=mine, other=0.0)
            exists = (sine > 0) & (inverse > 0)
            # if the sine is little more than rounding, so is the direction, and it counts for less
            pull = tl.where(exists, factor / tl.maximum(sine, LEAST_SINE), 0.0)
            sums += tl.sum((pull * inverse)[:, None] * x, axis=0)
            pulled += tl.sum(pull)
            counted = tl.sum(mine.to(tl.int32))
            place += counted
        # the sum of the chords minus its component along the class weight
        w_unit = w.to(tl.float32) * inverse_norm
        sums -= pulled * w_unit
        # again, because an angle does not change along its own vector, so the gradient must have no
        # component there
        sums -= tl.sum(sums * w_unit) * w_unit
        sums *= scale * inverse_norm
        is_whole = is_first
        if RUNS:
            after = tl.load(ordered + place, mask=place < rows, other=-1)
            is_whole = is_first & (after != label)
        if is_whole:
            whole = out + label.to(tl.int64) * width + column
            sums += tl.load(whole, mask=inside, other=0.0).to(tl.float32)
            tl.store(whole, sums.to(out.dtype.element_ty), mask=inside)
        elif RUNS:
            slot = begin // run + tl.where(is_first, runs, 0)
            kept = partial + slot.to(tl.int64) * width + column
            tl.store(kept, sums, mask=inside)


@triton.jit
def join_runs(ordered, partial, out, classes, width, run, runs, BLOCK_D: tl.constexpr):
    """Add up the classes that :func:`add_targets` left in several runs, one program per class.

    This is the program at the second run of a class, since the first run may begin anywhere.
    """
    place = tl.program_id(0)
    label = tl.load(ordered + place * run)
    second = _continues(ordered, place, label, run, runs)
    second &= ~_continues(ordered, place - 1, label, run, runs)
    if second & (label >= 0) & (label < classes):
        column = tl.arange(0, BLOCK_D)
        inside = column < width
        at = out + label.to(tl.int64) * width + column
        sums = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        first = partial + (runs + place - 1).to(tl.int64) * width + column
        sums += tl.load(first, mask=inside, other=0.0)
        while _continues(ordered, place, label, run, runs):
            part = partial + place.to(tl.int64) * width + column
            sums += tl.load(part, mask=inside, other=0.0)
            place += 1
        tl.store(at, sums.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _continues(ordered, place, label, run, runs):
    """Return whether this run starts with the class that the previous run ended with."""
    within = (place > 0) & (place < runs)
    here = tl.load(ordered + place * run, mask=within, other=-1)
    before = tl.load(ordered + place * run - 1, mask=within, other=-1)
    return within & (here == label) & (before == label)


@triton.jit
def merge_angles(
    partial, index, total_out, nearest_out, nearest_class_out, rows, classes, shares,
    NEAREST: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Merge partial elevations and cosines into sum of angles, smallest angle and its class."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = row < rows
    total = tl.zeros([BLOCK_R], tl.float32)
    for share in range(shares):
        total += tl.load(partial + share * rows + row, mask=inside, other=0.0)
    nearest, which = _largest_of(
        partial + shares * rows, index, row, rows, shares, NEAREST, BLOCK_R
    )
    tl.store(total_out + row, (classes - 1) * (PI / 2) - total, mask=inside)
    tl.store(nearest_out + row, _nearest_angle(nearest), mask=inside)
    if NEAREST:
        tl.store(nearest_class_out + row, which.to(tl.int64), mask=inside)


@triton.jit
def _largest_of(values, classes, row, rows, shares, CLASS: tl.constexpr, BLOCK_R: tl.constexpr):
    """Return each row's largest value over the shares, and with ``CLASS`` the first class of it."""
    largest = tl.full([BLOCK_R], NONE, tl.float32)
    which = tl.full([BLOCK_R], LAST, tl.int32)
    for share in range(shares):
        at = share * rows + row
        part = tl.load(values + at, mask=row < rows, other=NONE)
        if CLASS:
            place = tl.load(classes + at, mask=row < rows, other=0)
            wins = (part > largest) | ((part == largest) & (place < which))
            which = tl.where(wins, place, which)
        largest = tl.maximum(largest, part)
    return largest, which


@triton.jit
def merge_log_odds(
    partial, target, log_odds_out, others_out, rows, shares, slope, start, BLOCK_R: tl.constexpr
):
    """Write the log-sum-exp of (largest, sum) pairs, and ``start + slope * target`` minus it."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = row < rows
    largest = tl.full([BLOCK_R], NONE, tl.float32)
    for share in range(shares):
        part = tl.load(partial + share * rows + row, mask=inside, other=0.0)
        largest = tl.maximum(largest, part)
    reference = tl.where(largest == NONE, 0.0, largest)
    total = tl.zeros([BLOCK_R], tl.float32)
    for share in range(shares):
        at = partial + share * rows + row
        part = tl.load(at, mask=inside, other=0.0)
        total += tl.exp(part - reference) * tl.load(at + shares * rows, mask=inside, other=0.0)
    others = reference + tl.log(total)
    own = start + slope * tl.load(target + row, mask=inside, other=0.0)
    tl.store(others_out + row, others, mask=inside)
    tl.store(log_odds_out + row, own - others, mask=inside)


@triton.jit
def reduce_curve(
    log_odds, labels, loss_out, divisor_out, rows, ignore_index, shift, rest_end, at_end,
    BONUS: tl.constexpr, MEAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum or average the loss over log-odds, by one program in a fixed order."""
    # one program, because several would need atomics, which add in another order every time
    total = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.int32)
    for first in range(0, rows, BLOCK):
        row = first + tl.arange(0, BLOCK)
        label = tl.load(labels + row, mask=row < rows, other=ignore_index)
        kept = label != ignore_index
        value, _ = _curve(
            tl.load(log_odds + row, mask=row < rows, other=0.0) + shift, rest_end, at_end, BONUS
        )
        total += tl.where(kept, value, 0.0)
        count += kept.to(tl.int32)
    divisor = 1.0
    if MEAN:
        divisor = tl.sum(count).to(tl.float32)
    tl.store(loss_out, tl.sum(total) / divisor)
    tl.store(divisor_out, divisor)


@triton.jit
def curve_slopes(
    grad, log_odds, labels, divisor, out, rows, ignore_index, shift, rest_end,
    BONUS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of :func:`reduce_curve` for every log-odds; 0 for ignored examples."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(labels + row, mask=row < rows, other=ignore_index)
    _, slope = _curve(
        tl.load(log_odds + row, mask=row < rows, other=0.0) + shift, rest_end, 0.0, BONUS
    )
    # the divisor of a mean was counted in the forward pass, on the device
    share = tl.load(grad).to(tl.float32) / tl.load(divisor)
    tl.store(out + row, tl.where(label != ignore_index, share * slope, 0.0), mask=row < rows)


@triton.jit
def _curve(log_odds, rest_end, at_end, BONUS: tl.constexpr):
    """Return the loss of an example and its slope: ``-log p``, or with ``BONUS`` encouraging loss.

    As long as ``1 - p`` is at least ``rest_end``, that is ``log(1 - p) - log p``, which is exactly
    ``-log_odds``. Beyond that the bonus is its own tangent, ``at_end + (1 - p) / rest_end``.
    """
    # this power is at most 1, so nothing overflows on either side
    power = tl.exp(-tl.abs(log_odds))
    rest = tl.where(log_odds > 0, power, 1.0) / (1.0 + power)  # 1 - p
    value = tl.maximum(-log_odds, 0.0) + _log_of_one_and(power)
    slope = -rest
    if BONUS:
        logs = rest >= rest_end  # False for NaN, which then stays in the value
        end = tl.where(logs, 1.0, rest_end)
        value = tl.where(logs, -log_odds, value + at_end + rest / end)
        slope = tl.where(logs, -1.0, -rest - rest * (1.0 - rest) / end)
    return value, slope


@triton.jit
def merge_head(
    partial, index, target, labels,
    total_angle_out, nearest_out, nearest_class_out, logsumexp_out, largest_out, prediction_out,
    largest_other_out, expected_out, entropy_out, other_out, squares_out,
    rows, classes, shares, NEAREST: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Merge a head's six partial results and own class into angles and moments of the softmax.

    Sums are relative to each share's largest logit. If logits tie, the first class is predicted.
    """
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = row < rows
    step = shares * rows
    nearest, nearest_class = _largest_of(partial + step, index, row, rows, shares, NEAREST, BLOCK_R)
    if NEAREST:
        index += step
    largest, which = _largest_of(partial + 2 * step, index, row, rows, shares, True, BLOCK_R)
    reference = tl.where(largest == NONE, 0.0, largest)
    total_angle = tl.zeros([BLOCK_R], tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    squares = tl.zeros([BLOCK_R], tl.float32)
    moment = tl.zeros([BLOCK_R], tl.float32)
    for share in range(shares):
        at = partial + share * rows + row
        total_angle += tl.load(at, mask=inside, other=0.0)
        part = tl.load(at + 3 * step, mask=inside, other=0.0)
        drop = tl.load(at + 2 * step, mask=inside, other=0.0) - reference
        # a share without classes has the largest logit -inf, and -inf times 0 is NaN
        drop = tl.where(part > 0, drop, 0.0)
        fade = tl.exp(drop)
        total += fade * part
        squares += fade * fade * tl.load(at + 4 * step, mask=inside, other=0.0)
        moment += fade * (tl.load(at + 5 * step, mask=inside, other=0.0) + drop * part)
    own_logit = tl.load(target + row, mask=inside, other=0.0)
    alone = total == 0  # a head of a single class
    others = reference + tl.log(tl.where(alone, 1.0, total))
    gap = tl.where(alone, NONE, others - own_logit)
    beyond = _log_of_one_and(tl.exp(-tl.abs(gap)))
    everything = tl.where(alone, own_logit, tl.maximum(own_logit, others) + beyond)
    surprise = tl.maximum(gap, 0.0) + beyond  # -log p of the own class, exact even if p rounds to 1
    own = tl.exp(-surprise)
    other = tl.where(alone, 0.0, tl.exp(tl.minimum(gap, 0.0) - beyond))
    weight = tl.where(alone, 0.0, tl.exp(reference - everything))
    # the terms p (logsumexp - z) are all positive, so nothing cancels
    entropy = own * surprise + other * (everything - reference) - weight * moment
    label = tl.load(labels + row, mask=inside, other=0)
    # of equal logits the smaller class wins, in whichever share it was found
    own_wins = (own_logit > largest) | ((own_logit == largest) & (label < which))
    tl.store(total_angle_out + row, (classes - 1) * (PI / 2) - total_angle, mask=inside)
    tl.store(nearest_out + row, _nearest_angle(nearest), mask=inside)
    if NEAREST:
        tl.store(nearest_class_out + row, nearest_class.to(tl.int64), mask=inside)
    tl.store(logsumexp_out + row, everything, mask=inside)
    # comparisons with NaN are false, so a NaN own logit would otherwise be hidden
    top = tl.where(own_logit > largest, own_logit, largest)
    tl.store(largest_out + row, tl.where(own_logit == own_logit, top, own_logit), mask=inside)
    tl.store(prediction_out + row, tl.where(own_wins, label, which.to(tl.int64)), mask=inside)
    tl.store(largest_other_out + row, largest, mask=inside)
    tl.store(expected_out + row, own * own_logit + other * reference + weight * moment, mask=inside)
    tl.store(entropy_out + row, tl.where(alone, 0.0, entropy), mask=inside)
    tl.store(other_out + row, other, mask=inside)
    tl.store(squares_out + row, weight * weight * squares, mask=inside)


@triton.jit
def _log_of_one_and(value):
    """Return ``log(1 + value)`` for values in [0, 1], accurate even if 1 + value rounds."""
    # log(above) is of the rounded sum; value / gained corrects for the part that rounding removed
    above = 1.0 + value
    gained = above - 1.0
    return tl.where(
        gained == 0, value, tl.log(above) * (value / tl.where(gained == 0, 1.0, gained))
    )


@triton.jit
def _nearest_angle(cosine):
    """Return the angle of the largest cosine, or infinity if there was none."""
    angle = PI / 2 - elevation(tl.minimum(tl.maximum(cosine, -1.0), 1.0))
    return tl.where(cosine == NONE, float("inf"), angle)
