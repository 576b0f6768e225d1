"""Log-odds of an example's own class, fused forward and backward.

Every loss of ``softmax(logits)[label]`` is a curve over the log-odds
``z_y - log sum_{c != y} e^z_c``: cross-entropy is ``softplus(-log_odds)``, the encouraging loss
with a full bonus ``-log_odds``. So a single fused function with its gradient serves all of them,
and ``1 - p`` never cancels.

The backward pass recomputes the products for a chunk of classes at a time and writes their slopes
once, in the dtype of the inputs. Both gradients are then plain matrix products of that chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardsight._checks import check_indices, check_labels
from hardsight.errors import OptionError
from hardsight.kernels._operator import Operator
from hardsight.kernels._support import (
    CHUNK_BYTES,
    check_inputs,
    check_reverse_mode,
    marked_shape,
    whole_tiles,
)

_STEEPEST = 2896.4  # bound of 1 / sine in the kernels, reached if 1 - |cosine| is float32's eps
_ROOM = 32_768.0  # half of the largest float16
_MOST_CLASSES = 64 * 65_535 // 512 * 512  # in a launch: CUDA allows 65,535 blocks in dimension 2


def linear_log_odds(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
) -> Tensor:
    r"""Return the log-odds of the labelled class under the softmax of a linear head.

    .. math:: z_y - \log \sum_{c \ne y} e^{z_c}, \qquad z = W x + b

    Args:
        embeddings: ``[N, D]`` in float32, bfloat16 or float16.
        labels: class indices in ``[0, C)`` or ``ignore_index``, ``[N]``.
        class_weights: ``[C, D]``, of the dtype of ``embeddings``.
        bias: ``[C]`` or None.
        ignore_index: label of examples to ignore, which get value 0 and gradient 0.

    Returns:
        ``[N]`` float32; larger is easier, ``inf`` with a single class. Gradients for
        ``embeddings``, ``class_weights`` and ``bias``, each only if it is required. On a GPU,
        where labels are not checked, a label that is not a class gives NaN.

    Raises:
        ShapeError: the tensors do not fit each other.
        OptionError: the kernels do not support the dtypes or the device.
        GradientError: under forward-mode differentiation, or ``torch.func.grad``.
        MissingExtraError: Triton is not installed.
    """
    check_inputs(embeddings, labels, class_weights, bias)
    check_reverse_mode(embeddings, class_weights, bias)
    check_indices(labels)
    labels = labels.to(torch.int64).contiguous()  # as uint8, -100 would be class 156
    ignored = labels == ignore_index
    check_labels(torch.where(ignored, 0, labels), class_weights.shape[0])
    log_odds = linear_operator(embeddings, labels, class_weights, dense(bias), [])[0]
    return torch.where(ignored, 0.0, log_odds)


def angular_log_odds(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, *, scale: float
) -> Tensor:
    r"""Return the log-odds of the labelled class under a softmax of angles.

    .. math:: -s\,\theta_y - \log \sum_{c \ne y} e^{-s\,\theta_c}, \qquad \theta_c = \angle(x, w_c)

    Args:
        embeddings: ``[N, D]`` in float32, bfloat16 or float16; norms and products with a class
            weight must fit float32.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: ``[C, D]``, of the dtype of ``embeddings``.
        scale: :math:`s > 0`, per radian.

    Returns:
        ``[N]`` float32; larger is easier. Gradients for ``embeddings`` and ``class_weights``; 0 at
        zero vectors and exactly aligned pairs, bounded everywhere.

    Raises:
        ShapeError: the tensors do not fit each other.
        OptionError: ``scale`` is not positive, or the kernels do not support the dtypes or the
            device.
        GradientError: under forward-mode differentiation, or ``torch.func.grad``.
        MissingExtraError: Triton is not installed.
    """
    if not scale > 0:
        raise OptionError(f"expected scale to be positive, got {scale}")
    check_inputs(embeddings, labels, class_weights)
    check_reverse_mode(embeddings, class_weights)
    check_labels(labels, class_weights.shape[0])
    labels = labels.to(torch.int64).contiguous()
    log_odds: Tensor = angular_operator(embeddings, labels, class_weights, float(scale), [])[0]
    return log_odds


class Reduction(NamedTuple):
    """How the log-odds of a batch are reduced to a loss."""

    ignore_index: int  # label of examples to ignore
    shift: float  # added to all log-odds
    log_end: float  # where the encouraging loss's bonus turns into its tangent, or NO_BONUS
    mean: bool  # whether to divide the sum by the number of examples that are not ignored


NO_BONUS = -1.0


def pack(reduction: Reduction) -> list[float]:
    """Convert to a list of floats, because ``torch.library`` accepts only plain types."""
    return [float(value) for value in reduction]


def _unpack(values: list[float]) -> Reduction | None:
    """Invert :func:`pack`; an empty list, for log-odds that are not reduced, becomes None."""
    if not values:
        return None
    ignore_index, shift, log_end, mean = values
    return Reduction(int(ignore_index), shift, log_end, bool(mean))


def _linear(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    reduction: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from hardsight.kernels import _launch

    ready = _launch.prepare(embeddings, labels, class_weights, bias, mode="linear")
    partial, _ = _launch.over_classes(embeddings, labels, class_weights, bias, ready, mode="linear")
    log_odds, others = _launch.merge_log_odds(partial, ready.target_value, angular_scale=None)
    return *_reduced(log_odds, labels, reduction), others, ready.flags


def _linear_fake(
    embeddings: Tensor, _labels: Tensor, class_weights: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    # fakes tell torch.compile the shapes, and read no values; the reduction comes last
    result, log_odds, divisor = _reduced_fake(embeddings, reduction=rest[-1])
    flags = _flags_fake(embeddings, class_weights)
    return result, log_odds, divisor, _row_fake(embeddings), flags


def _linear_backward(
    grad: Tensor,
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    log_odds: Tensor,
    divisor: Tensor,
    others: Tensor,
    flags: Tensor,
    reduction: list[float],
    needs: list[bool],
) -> list[Tensor]:
    from hardsight.kernels import _launch

    grad = _factors(grad, labels, log_odds, divisor, reduction)
    # slopes are written in the inputs' dtype, and float16 loses precision below 6e-5
    unit = _unit_of(grad) if embeddings.dtype == torch.float16 else None
    fill = _launch.slopes(
        embeddings, labels, class_weights, bias, flags,
        factors=grad if unit is None else grad / unit, reference=others, scale=None,
        x_inverse=None, w_inverse=None,
    )  # fmt: skip
    # an operator must return tensors, so an empty one stands for no gradient
    needs_x, needs_w, needs_b = needs
    d_b = None
    if needs_b:
        d_b = torch.empty(class_weights.shape[0], dtype=torch.float32, device=grad.device)
    d_x, d_w = _products(
        fill, embeddings, class_weights, d_b, needs_x=needs_x, needs_w=needs_w, unit=unit
    )
    return [
        _scaled(d_x, unit).to(embeddings.dtype) if d_x is not None else grad.new_empty(0),
        grad.new_empty(0) if d_w is None else d_w,
        _scaled(d_b, unit).to(bias.dtype)
        if d_b is not None and bias is not None
        else grad.new_empty(0),
    ]


def _linear_backward_fake(
    grad: Tensor,
    embeddings: Tensor,
    _labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    *rest: Any,
) -> list[Tensor]:
    inputs = (embeddings, class_weights, bias)
    return [
        tensor.new_empty(tensor.shape) if tensor is not None and need else grad.new_empty(0)
        for tensor, need in zip(inputs, rest[-1], strict=True)
    ]


_linear_backward_operator = Operator(
    "linear_log_odds_backward", _linear_backward, fake=_linear_backward_fake
)


def _linear_setup(ctx, inputs, output) -> None:
    *tensors, ctx.reduction = inputs
    # the first output is the user's; the others are for the backward pass, in the order of the
    # arguments of its operator
    ctx.save_for_backward(*tensors, *output[1:])


def _linear_gradients(ctx, grad, *_unused):
    needs_x, _, needs_w, needs_b, _ = ctx.needs_input_grad
    d_x, d_w, d_b = _linear_backward_operator(
        grad, *ctx.saved_tensors, ctx.reduction, [needs_x, needs_w, needs_b]
    )
    return (
        d_x if needs_x else None,
        None,
        d_w if needs_w else None,
        d_b if needs_b else None,
        None,
    )


linear_operator = Operator(
    "linear_log_odds", _linear, fake=_linear_fake, setup=_linear_setup, gradients=_linear_gradients
)


def _angular(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    scale: float,
    reduction: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from hardsight.kernels import _launch

    ready = _launch.prepare(embeddings, labels, class_weights, None, mode="angular")
    partial, _ = _launch.over_classes(
        embeddings, labels, class_weights, None, ready, mode="angular", scale=scale
    )
    log_odds, others = _launch.merge_log_odds(partial, ready.target_angle, angular_scale=scale)
    return (
        *_reduced(log_odds, labels, reduction),
        others,
        ready.target_value,
        ready.x_inverse,
        ready.w_inverse,
        ready.flags,
    )


def _angular_fake(
    embeddings: Tensor, _labels: Tensor, class_weights: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    result, log_odds, divisor = _reduced_fake(embeddings, reduction=rest[-1])
    # padded to whole tiles, because the kernels write without a mask
    column = class_weights.new_empty(whole_tiles(class_weights.shape[0]), dtype=torch.float32)
    flags = _flags_fake(embeddings, class_weights)
    others, sines, x_inverse = _row_fake(embeddings), _row_fake(embeddings), _row_fake(embeddings)
    return result, log_odds, divisor, others, sines, x_inverse, column, flags


def _angular_backward(
    grad: Tensor,
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    log_odds: Tensor,
    divisor: Tensor,
    others: Tensor,
    sines: Tensor,
    x_inverse: Tensor,
    w_inverse: Tensor,
    flags: Tensor,
    scale: float,
    reduction: list[float],
    needs: list[bool],
) -> list[Tensor]:
    from hardsight.kernels import _launch

    needs_x, needs_w = needs
    grad = _factors(grad, labels, log_odds, divisor, reduction)
    unit = None
    # float16 has 5 bits of exponent: slopes of a mean over many examples would vanish in it
    if embeddings.dtype == torch.float16:
        unit = _unit_of(scale * grad * x_inverse, w_inverse)
    fill = _launch.slopes(
        embeddings, labels, class_weights, None, flags,
        factors=grad if unit is None else grad / unit, reference=others, scale=scale,
        x_inverse=x_inverse, w_inverse=w_inverse,
    )  # fmt: skip

    def tangent(gathered: Tensor, first: int, last: int) -> None:
        _launch.make_tangent(gathered, class_weights[first:last], w_inverse[first:last])

    d_x, d_w = _products(
        fill, embeddings, class_weights, None,
        needs_x=needs_x, needs_w=needs_w, unit=unit, tangent=tangent,
    )  # fmt: skip
    gathered = None if d_x is None else _scaled(d_x, unit)
    d_x = _launch.finish(
        d_w, gathered, embeddings, labels, class_weights,
        x_inverse=x_inverse, w_inverse=w_inverse, sines=sines, factors=grad, scale=scale,
    )  # fmt: skip
    return [grad.new_empty(0) if gradient is None else gradient for gradient in (d_x, d_w)]


def _angular_backward_fake(
    grad: Tensor, embeddings: Tensor, _labels: Tensor, class_weights: Tensor, *rest: Any
) -> list[Tensor]:
    return [
        tensor.new_empty(tensor.shape) if need else grad.new_empty(0)
        for tensor, need in zip((embeddings, class_weights), rest[-1], strict=True)
    ]


_angular_backward_operator = Operator(
    "angular_log_odds_backward", _angular_backward, fake=_angular_backward_fake
)


def _angular_setup(ctx, inputs, output) -> None:
    *tensors, ctx.scale, ctx.reduction = inputs
    ctx.save_for_backward(*tensors, *output[1:])


def _angular_gradients(ctx, grad, *_unused):
    needs_x, _, needs_w = ctx.needs_input_grad[:3]
    d_x, d_w = _angular_backward_operator(
        grad, *ctx.saved_tensors, ctx.scale, ctx.reduction, [needs_x, needs_w]
    )
    return d_x if needs_x else None, None, d_w if needs_w else None, None, None


angular_operator = Operator(
    "angular_log_odds",
    _angular,
    fake=_angular_fake,
    setup=_angular_setup,
    gradients=_angular_gradients,
)


def _reduced(
    log_odds: Tensor, labels: Tensor, reduction: list[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result, and log-odds and divisor for its gradient (empty without a loss)."""
    how = _unpack(reduction)
    if how is None:
        return log_odds, log_odds.new_empty(0), log_odds.new_empty(0)
    from hardsight.kernels import _launch

    loss, divisor = _launch.reduce_curve(
        log_odds, labels, how.ignore_index, how.shift, how.log_end, mean=how.mean
    )
    return loss, log_odds, divisor


def _reduced_fake(embeddings: Tensor, reduction: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    row = _row_fake(embeddings)
    if not reduction:
        return row, row.new_empty(0), row.new_empty(0)
    return row.new_empty(()), row, row.new_empty(())


def _factors(
    grad: Tensor, labels: Tensor, log_odds: Tensor, divisor: Tensor, reduction: list[float]
) -> Tensor:
    """Return the gradient of the log-odds, ``[N]``, from the gradient of the result."""
    how = _unpack(reduction)
    if how is None:
        return grad.float().contiguous()
    from hardsight.kernels import _launch

    return _launch.curve_slopes(
        grad, log_odds, labels, divisor, how.ignore_index, how.shift, how.log_end
    )


def _row_fake(embeddings: Tensor) -> Tensor:
    return embeddings.new_empty(embeddings.shape[0], dtype=torch.float32)


def _flags_fake(embeddings: Tensor, class_weights: Tensor) -> Tensor:
    rows, width = embeddings.shape
    shape = marked_shape(rows, class_weights.shape[0], width)
    return embeddings.new_empty(shape, dtype=torch.uint8)


def dense(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.contiguous()


def _unit_of(factors: Tensor, w_inverse: Tensor | None = None) -> Tensor:
    """Return the size of the largest factor; relative to it, slopes fit the range of float16.

    The slope of an angle is up to ``_STEEPEST`` times ``w_inverse``, 1 over the norm of a class
    weight. If that could leave the range, the unit grows by as much.
    """
    unit = factors.abs().amax()
    if w_inverse is not None:
        unit = unit * (w_inverse.amax() * (_STEEPEST / _ROOM)).clamp_min(1.0)
    return unit.clamp_min(torch.finfo(torch.float32).tiny)


def _scaled(tensor: Tensor, unit: Tensor | None) -> Tensor:
    return tensor if unit is None else tensor.mul_(unit)


def _products(
    fill: Callable[[Tensor, int, int], None],
    embeddings: Tensor,
    class_weights: Tensor,
    d_b: Tensor | None,
    *,
    needs_x: bool,
    needs_w: bool,
    unit: Tensor | None = None,
    tangent: Callable[[Tensor, int, int], None] | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Return slopes times class weights, float32 ``[N, D]``, and times embeddings, ``[C, D]``.

    Works on a chunk of classes at a time. ``d_b`` receives the sums over the examples. With a
    ``unit``, the second product is made ``tangent`` and multiplied by it before it is rounded: its
    component along a class weight can be beyond float16 although the gradient is not.
    """
    rows = embeddings.shape[0]
    classes = class_weights.shape[0]
    d_x: Tensor | None = None
    d_w: Tensor | None = None
    if needs_w:
        # contiguous even if the weights came transposed, since kernels write to it
        d_w = torch.empty_like(class_weights, memory_format=torch.contiguous_format)
    step = _chunk_classes(embeddings, classes, wide=unit is not None)
    # a single buffer for all chunks: slopes of all classes would be as large as the logits
    buffer = torch.empty(rows, step, dtype=embeddings.dtype, device=embeddings.device)
    with _without_autocast(embeddings):
        for first in range(0, classes, step):
            last = min(first + step, classes)
            chunk, w, d_w_part = buffer, class_weights, d_w
            if last - first < step:
                chunk = buffer[:, : last - first]
            # even a slice of the whole tensor costs a little
            if last - first < classes:
                w = class_weights[first:last]
                d_w_part = None if d_w is None else d_w[first:last]
            fill(chunk, first, last)
            if needs_x:
                d_x = _add_product(d_x, chunk, w)
            if d_w_part is not None and unit is None:
                torch.mm(chunk.T, embeddings, out=d_w_part)
            elif d_w_part is not None and unit is not None:
                product = _wide_product(chunk.T, embeddings)
                if tangent is not None:
                    tangent(product, first, last)
                d_w_part.copy_(product.mul_(unit))
            if d_b is not None:
                torch.sum(chunk, dim=0, dtype=torch.float32, out=d_b[first:last])
    return d_x, d_w


def _without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast, which would round products; does nothing if it is off.

    Checking that autocast is off is cheaper than turning it off.
    """
    device = tensor.device.type
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def _chunk_classes(embeddings: Tensor, classes: int, *, wide: bool) -> int:
    """Return how many classes' slopes, and if ``wide`` float32 products, fit ``CHUNK_BYTES``.

    A multiple of 512, so that four programs share the tiles of a block of rows evenly, or of 256.
    """
    rows, width = embeddings.shape
    most = CHUNK_BYTES // (rows * embeddings.element_size() + (width * 4 if wide else 0))
    # few and large chunks: each product of a chunk reads all embeddings again
    step = min(most // 512 * 512, _MOST_CLASSES) if most >= 512 else 256
    return min(step, -(-classes // 256) * 256)


def _wide_product(first: Tensor, second: Tensor) -> Tensor:
    """Return a float32 matrix product; bfloat16 is rounded once if torch has no such product."""
    if _keeps_float32(first):
        return torch.mm(first, second, out_dtype=torch.float32)
    if first.dtype == torch.float16:  # a sum over many rows may exceed its range
        return torch.mm(first.float(), second.float())
    # before torch 2.8 the product itself is bfloat16
    return torch.mm(first, second).float()


def _add_product(total: Tensor | None, first: Tensor, second: Tensor) -> Tensor:
    """Add ``first @ second`` to ``total`` in place, in float32."""
    if total is None:
        return _wide_product(first, second)
    if _keeps_float32(first):
        return torch.addmm(total, first, second, out_dtype=torch.float32, out=total)
    if first.dtype == torch.float32:
        return total.addmm_(first, second)
    # the sum over chunks is float32 even if each product is not
    return total.add_(torch.mm(first, second))


def _keeps_float32(matrix: Tensor) -> bool:
    """Whether products of half precision can return float32: on a GPU, since torch 2.8."""
    return matrix.is_cuda and matrix.dtype != torch.float32 and _release() >= (2, 8)


@functools.cache
def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])
