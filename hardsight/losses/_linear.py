r"""Log-odds of a linear head without its N x C matrix.

:math:`m = z_y - \log\sum_{j \ne y} e^{z_j}` needs every logit, but only one chunk at a time. The
forward pass keeps the running log-sum-exp ``[N]``; the backward pass recomputes each chunk.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hardsight._checks import check_tensors, is_transformed
from hardsight.errors import GradientError
from hardsight.geometry import widen_together
from hardsight.kernels import is_fusible, linear_inputs, tell_of_mixed_dtypes
from hardsight.losses._reduce import check_choice

# Logits of one chunk: rows [r, D], class weights [c, D], bias [c] or None -> [r, c].
ChunkLogits = Callable[[Tensor, Tensor, Tensor | None], Tensor]
# size of a chunk: 4 MiB of float32 logits, which stay in a CPU's cache and keep a GPU busy
ROWS_AT_ONCE = 1024
CLASSES_AT_ONCE = 1024


def pick_impl(impl: str, embeddings: Tensor, class_weights: Tensor) -> str:
    """Return the implementation to run, ``"torch"`` or ``"triton"``.

    Args:
        impl: ``"torch"`` for the plain version, ``"triton"`` for its fused twin, or ``"auto"`` for
            the faster of those that can take these tensors.
        embeddings: ``[N, D]``; on a GPU the fused twin is faster.
        class_weights: ``[C, D]``.

    Raises:
        OptionError: ``impl`` is not one of the three.
    """
    check_choice("impl", impl, ("auto", "torch", "triton"))
    if impl != "auto":
        return impl
    # torch.func cannot see into a fused operator; torch.compile can
    transformed = any(is_transformed(tensor) for tensor in (embeddings, class_weights))
    fused = embeddings.is_cuda and not transformed and is_fusible(embeddings, class_weights)
    return "triton" if fused else "torch"


def cast_for_linear(embeddings: Tensor, class_weights: Tensor, impl: str) -> tuple[Tensor, Tensor]:
    """Cast both tensors as a linear layer would, under autocast to its dtype.

    See ``linear_inputs``. Outside of autocast mixed dtypes are widened, never rounded. A warning
    says once if that is slow: on a GPU the float32 kernels take about ten times as long as those
    for bfloat16.
    """
    check_tensors(embeddings=embeddings, class_weights=class_weights)
    cast = linear_inputs(embeddings, class_weights)
    is_mixed = embeddings.is_cuda and cast[0].dtype != cast[1].dtype
    if is_mixed and impl != "torch" and not torch.compiler.is_compiling():
        tell_of_mixed_dtypes(cast[0].dtype, cast[1].dtype)
    return cast


def other_logsumexp(
    chunk_logits: ChunkLogits,
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
) -> Tensor:
    r""":math:`\log\sum_{j \ne y} e^{z_j}` of every example.

    Args:
        chunk_logits: logits of some rows against some classes; differentiable by autograd.
        embeddings: ``[N, D]``.
        labels: ``[N]`` in ``[0, C)``.
        class_weights: ``[C, D]``.
        bias: ``[C]`` or None.

    Returns:
        ``[N]``. Forward and backward hold ``ROWS_AT_ONCE x CLASSES_AT_ONCE`` logits at a time
        (with few classes, of more rows) and save only the inputs and the result. Differentiable
        once.
    """
    result: Tensor = _OtherLogSumExp.apply(  # type: ignore[no-untyped-call]
        chunk_logits, embeddings, labels, class_weights, bias
    )
    return result


class _OtherLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        chunk_logits: ChunkLogits,
        embeddings: Tensor,
        labels: Tensor,
        class_weights: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        parts: list[Tensor] = []
        # the wider of the two, at least float32
        wide = widen_together(embeddings[:0], class_weights[:0])[0].dtype
        for rows in _chunks(len(embeddings), _rows_at_once(class_weights)):
            total = torch.full_like(labels[rows], float("-inf"), dtype=wide)
            for classes in _chunks(len(class_weights), CLASSES_AT_ONCE):
                b = None if bias is None else bias[classes]
                logits = chunk_logits(embeddings[rows], class_weights[classes], b)
                part = _without_own(logits, labels[rows], classes).logsumexp(dim=1)
                # merged as logarithms, since sums of exponentials would overflow
                total = torch.logaddexp(total, part)
            parts.append(total)
        result = torch.cat(parts) if parts else embeddings.new_zeros(0, dtype=wide)
        ctx.chunk_logits = chunk_logits
        # keep one number per row for the backward pass, which recomputes the logits in chunks
        ctx.save_for_backward(embeddings, labels, class_weights, bias, result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True; once_differentiable lets some cases pass
            raise GradientError(
                "a linear loss is differentiable once, got create_graph=True; use avh_loss, or "
                "encouraging_loss over logits"
            )
        (grad,) = grads
        embeddings, labels, class_weights, bias, result = ctx.saved_tensors
        _, wants_rows, _, wants_weights, wants_bias = ctx.needs_input_grad
        wide = result.dtype
        # in the wide dtype, so sums over all chunks of classes are rounded only once, at the end
        row_grad = torch.zeros_like(embeddings, dtype=wide) if wants_rows else None
        weight_grad = torch.zeros_like(class_weights) if wants_weights else None
        bias_grad = torch.zeros_like(bias) if wants_bias else None
        # classes in the outer loop: their gradients are complete, and can be rounded, after each
        for classes in _chunks(len(class_weights), CLASSES_AT_ONCE):
            # a separate leaf, whose .grad collects only this chunk
            w = class_weights[classes].to(wide).detach().requires_grad_(wants_weights)
            b = None
            if bias is not None:
                b = bias[classes].to(wide).detach().requires_grad_(wants_bias)
            for rows in _chunks(len(embeddings), _rows_at_once(class_weights)):
                x = embeddings[rows].to(wide).detach().requires_grad_(wants_rows)
                with torch.autocast(x.device.type, enabled=False):  # autocast would round products
                    with torch.enable_grad():
                        logits = ctx.chunk_logits(x, w, b)
                    others = _without_own(logits.detach(), labels[rows], classes)
                    # the softmax over the other classes, the gradient of their log-sum-exp
                    share = (others - result[rows, None]).exp()
                    # sums into x.grad, w.grad and b.grad
                    torch.autograd.backward(logits, share * grad[rows, None])
                if row_grad is not None:
                    row_grad[rows] += x.grad
            if weight_grad is not None and w.grad is not None:  # None: there were no rows
                weight_grad[classes] = w.grad.to(weight_grad.dtype)
            if bias_grad is not None and b is not None and b.grad is not None:
                bias_grad[classes] = b.grad.to(bias_grad.dtype)
        row_grad = None if row_grad is None else row_grad.to(embeddings.dtype)
        return None, row_grad, None, weight_grad, bias_grad


def _rows_at_once(class_weights: Tensor) -> int:
    """Rows per chunk of logits; a few large steps are faster than many, above all on a GPU."""
    classes, width = class_weights.shape
    cells = ROWS_AT_ONCE * CLASSES_AT_ONCE
    # the second bound keeps the copies of rows, r x D, within eight times the logits
    return max(ROWS_AT_ONCE, min(cells // max(classes, 1), 8 * cells // max(width, 1)))


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]


def _without_own(logits: Tensor, labels: Tensor, classes: slice) -> Tensor:
    columns = torch.arange(classes.start, classes.stop, device=labels.device)
    return logits.masked_fill(labels[:, None] == columns, float("-inf"))
