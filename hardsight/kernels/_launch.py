"""Launch kernels on tensors. This loads Triton, so operators import it when they run."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from hardsight.kernels import _portable
from hardsight.kernels._run import NATIVE, run
from hardsight.kernels._support import (
    GROUP,
    cdiv,
    marked_shape,
    precision_of,
    row_blocks,
    shares_for,
    tile_classes,
    tiles_for,
    whole_tiles,
)


class _Mode(NamedTuple):
    """A mode's number in the kernels, and how many sums a pass collects per row and share."""

    number: int
    sums: int


_MODES = {
    "angles": _Mode(_portable.ANGLES.value, sums=2),
    "head": _Mode(_portable.HEAD.value, sums=6),
    "angular": _Mode(_portable.ANGULAR.value, sums=2),
    "linear": _Mode(_portable.LINEAR.value, sums=2),
}
# Beyond this scale, sums of exp(scale * elevation) could leave float32 without a running maximum.
# Up to it a power is at most exp(45 * pi / 2), 5e30, so millions of classes can be summed.
_WIDEST_FIXED_SCALE = 45.0
_RUN = 64  # examples of one class that a program sums, if classes have many examples
_MOST_RANKED = 8_192  # labels that are sorted by comparing every pair; torch sorts larger batches
_ONE_PROGRAM = {"BLOCK": 2048, "num_warps": 8}  # one program reduces a whole batch


class Prepared(NamedTuple):
    """Values of rows ``[N]`` and class weights ``[C]``, float32, that a pass over classes reads."""

    x_inverse: Tensor  # 1 / norm, 0 for a zero row
    target_angle: Tensor  # exact
    target_value: Tensor  # the logit; in mode "angular", the sine of the angle
    w_inverse: Tensor  # 1 / norm, with zeros to the end of the last tile
    flags: Tensor  # which tiles hold a label; filled only if the device has Hopper kernels


def prepare(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    *,
    mode: str,
) -> Prepared:
    """Compute norms, and each example's angle and logit with its own class, in one launch.

    They are NaN for a label that is not a class.
    """
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    linear = mode == "linear"
    device = embeddings.device
    # three tensors and not rows of one, because the outputs of an operator may not share memory
    inverse, angle, value = (_row_values(embeddings) for _ in range(3))
    w_inverse = value  # a placeholder that is never read: logits need no norms
    if not linear:
        w_inverse = torch.empty(whole_tiles(classes), dtype=torch.float32, device=device)
    groups, tiles = marked_shape(rows, classes, width)
    flags = torch.empty(groups, tiles, dtype=torch.uint8, device=device)
    marks = _hopper_module(device) is not None
    blocks = row_blocks(width)
    row_programs = cdiv(rows, blocks["BLOCK_R"])
    weight_programs = 0 if linear else w_inverse.shape[0] // blocks["BLOCK_R"]
    run(
        _portable.prepare, (row_programs + weight_programs + groups * marks,),
        (embeddings, class_weights, bias, labels, inverse, angle, value, w_inverse, flags),
        (rows, classes, width, *embeddings.stride(), *class_weights.stride(),
         row_programs, weight_programs, tiles),
        HAS_BIAS=bias is not None, MODE=_MODES[mode].number,
        FLAGS=marks, GROUP=GROUP, TILE=tile_classes(width), **blocks,
    )  # fmt: skip
    return Prepared(inverse, angle, value, w_inverse, flags)


def over_classes(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    prepared: Prepared,
    *,
    mode: str,
    scale: float = 0.0,
    nearest: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return partial results ``[k, shares, N]`` of a pass over all classes but each row's own.

    The second tensor is int32. It holds the classes of the smallest angles if ``nearest``, and in
    mode ``"head"`` those of the largest logits.
    """
    number, sums = _MODES[mode]
    online = mode == "angular" and is_online(scale)
    hopper = None if online else _hopper_for(embeddings, class_weights)
    if hopper is not None:
        partial, index = hopper.over_classes(
            embeddings, labels, class_weights, bias, prepared.flags,
            mode=mode, number=number, sums=sums, nearest=nearest, scale=scale,
            x_inverse=prepared.x_inverse, w_inverse=prepared.w_inverse,
        )  # fmt: skip
        return partial, index
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    tiles = tiles_for(embeddings)
    per_share, shares = shares_for(rows, classes, tiles, embeddings)
    device = embeddings.device
    partial = torch.empty(sums, shares, rows, dtype=torch.float32, device=device)
    places = nearest + (mode == "head")
    index = torch.empty(places, shares, rows, dtype=torch.int32, device=device)
    run(
        _portable.over_classes, (cdiv(rows, tiles.rows), shares),
        (embeddings, class_weights, bias, labels, prepared.x_inverse, prepared.w_inverse,
         partial, index),
        (rows, classes, width, *embeddings.stride(), *class_weights.stride(), scale, per_share),
        MODE=number, HAS_BIAS=bias is not None, NEAREST=nearest,
        ONLINE=mode != "angular" or online, PRECISION=precision_of(embeddings),
        **tiles.options,
    )  # fmt: skip
    return partial, index


def merge_angles(partial: Tensor, index: Tensor, classes: int, *, nearest: bool) -> list[Tensor]:
    """Return sum of angles to the other classes, smallest angle and its class, ``[N]`` each.

    The class is empty unless ``nearest``.
    """
    _, shares, rows = partial.shape
    outputs = [partial.new_empty(rows), partial.new_empty(rows), _classes(partial, rows * nearest)]
    run(
        _portable.merge_angles, (cdiv(rows, 128),),
        (partial, index, *outputs), (rows, classes, shares), NEAREST=nearest, BLOCK_R=128,
    )  # fmt: skip
    return outputs


def merge_log_odds(
    partial: Tensor, target: Tensor, *, angular_scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return the log-odds of the own class, and the log-sum-exp of the others.

    The log-sum-exp is over logits, or over ``scale * elevation``, relative to the angle pi / 2.
    """
    _, shares, rows = partial.shape
    log_odds, others = (partial.new_empty(rows) for _ in range(2))
    # the target is a logit, or an angle, whose elevation is pi / 2 - angle
    slope = 1.0 if angular_scale is None else -angular_scale
    start = 0.0 if angular_scale is None else angular_scale * (math.pi / 2)
    run(
        _portable.merge_log_odds, (cdiv(rows, 128),),
        (partial, target, log_odds, others), (rows, shares, slope, start), BLOCK_R=128,
    )  # fmt: skip
    return log_odds, others


def merge_head(
    partial: Tensor, index: Tensor, target: Tensor, labels: Tensor, classes: int, *, nearest: bool
) -> list[Tensor]:
    """Return the fields of :class:`HeadStatistics` after the target angle, ``[N]`` each."""
    _, shares, rows = partial.shape
    angles, nearest_angle = partial.new_empty(rows), partial.new_empty(rows)
    nearest_class, prediction = _classes(partial, rows * nearest), _classes(partial, rows)
    logsumexp, largest = partial.new_empty(rows), partial.new_empty(rows)
    moments = [partial.new_empty(rows) for _ in range(5)]  # largest other logit to the last field
    run(
        _portable.merge_head, (cdiv(rows, 128),),
        (partial, index, target, labels, angles, nearest_angle, nearest_class,
         logsumexp, largest, prediction, *moments),
        (rows, classes, shares), NEAREST=nearest, BLOCK_R=128,
    )  # fmt: skip
    return [angles, nearest_angle, nearest_class, logsumexp, target, largest, prediction, *moments]


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
    """Return a function that fills ``out [N, last - first]`` with the slopes of these classes.

    Ranges begin at multiples of 256 classes, and ``out`` has room for whole multiples. ``factors``
    are the gradients of the log-odds.
    """
    hopper = _hopper_for(embeddings, class_weights)
    if hopper is not None:
        fill: Callable[[Tensor, int, int], None] = hopper.slopes(
            embeddings, labels, class_weights, bias, flags, factors=factors, reference=reference,
            scale=scale, x_inverse=x_inverse, w_inverse=w_inverse,
        )  # fmt: skip
        return fill
    rows, width = embeddings.shape
    tiles = tiles_for(embeddings)

    def fill_portable(out: Tensor, first: int, last: int) -> None:
        part = class_weights[first:last]
        run(
            _portable.slopes, (cdiv(rows, tiles.rows), cdiv(last - first, tiles.classes)),
            (embeddings, part, None if bias is None else bias[first:last], labels, x_inverse,
             None if w_inverse is None else w_inverse[first:last], factors, reference, out),
            (rows, first, last - first, width, *embeddings.stride(), *part.stride(),
             out.stride(0), scale or 0.0),
            ANGLE=scale is not None, HAS_BIAS=bias is not None,
            COARSE=embeddings.dtype != torch.float32, PRECISION=precision_of(embeddings),
            **tiles.options,
        )  # fmt: skip

    return fill_portable


def _hopper_for(embeddings: Tensor, class_weights: Tensor) -> ModuleType | None:
    """Return the Hopper kernels if the device supports them and they can read the tensors."""
    module = _hopper_module(embeddings.device)
    return module if module is not None and module.fits(embeddings, class_weights) else None


@functools.cache
def _hopper_module(device: torch.device) -> ModuleType | None:
    # Gluon still changes between releases, so untested releases use the portable kernels
    if device.type != "cuda" or not NATIVE:
        return None
    if torch.cuda.get_device_capability(device) != (9, 0):
        return None
    return importlib.import_module("hardsight.kernels._hopper_launch")


def is_online(scale: float) -> bool:
    """Return whether a sum of ``exp(scale * elevation)`` needs a running maximum in float32."""
    return scale > _WIDEST_FIXED_SCALE


def finish(
    d_w: Tensor | None,
    gathered: Tensor | None,
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    *,
    x_inverse: Tensor,
    w_inverse: Tensor,
    sines: Tensor,
    factors: Tensor,
    scale: float,
) -> Tensor | None:
    """Turn sums over other classes into the gradients of an angular loss.

    ``d_w [C, D]`` becomes the gradient of the class weights in place: the part from other classes'
    examples is made tangent, and the part from each class's own examples is added without atomics,
    so the result is the same every time. The gradient of the embeddings, from ``gathered [N, D]``
    in float32, is returned in their dtype.
    """
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    blocks = row_blocks(width)
    strides = (*embeddings.stride(), *class_weights.stride())
    d_x, ordered, order = None, labels, labels
    row_programs = weight_programs = rank_programs = 0
    if gathered is not None:
        d_x = torch.empty(rows, width, dtype=embeddings.dtype, device=embeddings.device)
        row_programs = cdiv(rows, blocks["BLOCK_R"])
    if d_w is not None:
        weight_programs = cdiv(classes, blocks["BLOCK_R"])
        if rows > _MOST_RANKED:
            ordered, order = torch.sort(labels, stable=True)
        else:
            rank_programs = cdiv(rows, 4)
            ordered = torch.empty_like(labels)
            order = torch.empty(rows, dtype=torch.int32, device=labels.device)
    unread = embeddings  # a kernel takes no None, so any pointer stands for what is not read
    run(
        _portable.finish, (weight_programs + row_programs + rank_programs,),
        (unread if d_w is None else d_w, class_weights, w_inverse,
         factors if gathered is None else gathered, embeddings, labels, factors,
         unread if d_x is None else d_x, ordered, order),
        (rows, classes, width, *strides, scale, rank_programs, weight_programs), **blocks,
    )  # fmt: skip
    if d_w is None:
        return d_x
    del blocks["BLOCK_R"]
    # if a few classes have many examples each, several programs share the sum of one class
    split = rows > _RUN and rows > 8 * classes
    runs = cdiv(rows, _RUN) if split else 0
    partial = torch.empty(2 * runs, width, dtype=torch.float32, device=d_w.device)
    run(
        _portable.add_targets, (rows,),
        (embeddings, class_weights, x_inverse, w_inverse, sines, ordered, order, factors, d_w,
         partial),
        (rows, classes, width, *strides, scale, _RUN, runs),
        RUNS=split, EXAMPLES=max(1, min(2048 // blocks["BLOCK_D"], 16)), **blocks,
    )  # fmt: skip
    if split:
        run(
            _portable.join_runs, (runs,),
            (ordered, partial, d_w), (classes, width, _RUN, runs), **blocks,
        )  # fmt: skip
    return d_x


def make_tangent(gathered: Tensor, class_weights: Tensor, w_inverse: Tensor) -> None:
    """Remove from every row of ``gathered [C, D]`` its component along its class weight."""
    classes, width = class_weights.shape
    blocks = row_blocks(width)
    run(
        _portable.make_tangent, (cdiv(classes, blocks["BLOCK_R"]),),
        (gathered, class_weights, w_inverse), (classes, width, *class_weights.stride()), **blocks,
    )  # fmt: skip


def reduce_curve(
    log_odds: Tensor,
    labels: Tensor,
    ignore_index: int,
    shift: float,
    log_end: float,
    *,
    mean: bool,
) -> tuple[Tensor, Tensor]:
    """Return the loss over log-odds, and the divisor of the sum, ``[]`` each."""
    loss, divisor = (log_odds.new_empty(()) for _ in range(2))
    run(
        _portable.reduce_curve, (1,),
        (log_odds, labels, loss, divisor),
        (log_odds.shape[0], ignore_index, *_curve(shift, log_end)),
        BONUS=log_end >= 0, MEAN=mean, **_ONE_PROGRAM,
    )  # fmt: skip
    return loss, divisor


def curve_slopes(
    grad: Tensor,
    log_odds: Tensor,
    labels: Tensor,
    divisor: Tensor,
    ignore_index: int,
    shift: float,
    log_end: float,
) -> Tensor:
    """Return the gradient of :func:`reduce_curve` with respect to the log-odds, ``[N]``."""
    out = torch.empty_like(log_odds)
    rows = log_odds.shape[0]
    run(
        _portable.curve_slopes, (cdiv(rows, 256),),
        (grad, log_odds, labels, divisor, out),
        (rows, ignore_index, *_curve(shift, log_end)[:2]), BONUS=log_end >= 0, BLOCK=256,
    )  # fmt: skip
    return out


def _curve(shift: float, log_end: float) -> tuple[float, float, float]:
    """Return the shift, the ``1 - p`` where the bonus becomes its tangent, and its constant."""
    rest = 1.0 - log_end
    return float(shift), rest, math.log(rest) - 1.0 if 0 < rest <= 1 else 0.0


def _classes(partial: Tensor, count: int) -> Tensor:
    return torch.empty(count, dtype=torch.int64, device=partial.device)


def _row_values(matrix: Tensor) -> Tensor:
    return torch.empty(matrix.shape[0], dtype=torch.float32, device=matrix.device)
