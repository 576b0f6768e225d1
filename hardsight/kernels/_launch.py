"""Launches: from tensors to grids. Loads Triton, so it is imported inside the operators."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

import torch
import triton
from torch import Tensor

from hardsight.kernels import _portable
from hardsight.kernels._support import precision_of, row_blocks, shares_for, tiles_for

_MODES = {
    "angles": (_portable.ANGLES, 2),
    "head": (_portable.HEAD, 6),
    "angular": (_portable.ANGULAR, 2),
    "linear": (_portable.LINEAR, 2),
}
# Beyond this scale exp(scale * elevation) could leave float32 without a running maximum.
_WIDEST_FIXED_SCALE = 45.0


def inverse_norms(vectors: Tensor) -> Tensor:
    """``[R]`` float32: 1 / norm of every row, 0 for a zero row."""
    rows, width = vectors.shape
    out = torch.empty(rows, dtype=torch.float32, device=vectors.device)
    block_r, block_d = row_blocks(vectors)
    _portable.inverse_norms[(triton.cdiv(rows, block_r),)](
        vectors, out, rows, width, *vectors.stride(), BLOCK_R=block_r, BLOCK_D=block_d
    )
    return out


def target_pairs(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    *,
    logits: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """1 / norm, exact angle and logit of every example with its own class, ``[N]`` each."""
    rows, width = embeddings.shape
    # three tensors, not rows of one: an operator's outputs may not share memory
    inverse = torch.empty(rows, dtype=torch.float32, device=embeddings.device)
    angle, logit = torch.empty_like(inverse), torch.empty_like(inverse)
    block_r, block_d = row_blocks(embeddings)
    _portable.target_pairs[(triton.cdiv(rows, block_r),)](
        embeddings, class_weights, bias, labels, inverse, angle, logit,
        rows, width, *embeddings.stride(), *class_weights.stride(),
        HAS_BIAS=bias is not None, LOGITS=logits, BLOCK_R=block_r, BLOCK_D=block_d,
    )  # fmt: skip
    return inverse, angle, logit


def over_classes(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    *,
    mode: str,
    scale: float = 0.0,
    x_inverse: Tensor | None = None,
    w_inverse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Partial results ``[k, shares, N]`` of a pass over all classes but each row's own."""
    hopper = hopper_kernels(embeddings, class_weights)
    if hopper is not None and (mode == "angles" or (mode == "angular" and not is_online(scale))):
        partial = hopper.over_classes(
            embeddings, labels, class_weights,
            mode=mode, scale=scale, x_inverse=x_inverse, w_inverse=w_inverse,
        )  # fmt: skip
        return partial, partial
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    number, fields = _MODES[mode]
    tiles = tiles_for(embeddings)
    per_share, shares = shares_for(rows, classes, tiles, embeddings)
    device = embeddings.device
    partial = torch.empty(fields, shares, rows, dtype=torch.float32, device=device)
    index = torch.empty(shares, rows, dtype=torch.int32, device=device) if mode == "head" else None
    _portable.over_classes[(triton.cdiv(rows, tiles.rows), shares)](
        embeddings, class_weights, bias, labels, x_inverse, w_inverse, partial, index,
        rows, classes, width, *embeddings.stride(), *class_weights.stride(),
        scale, per_share,
        MODE=number, HAS_BIAS=bias is not None, ONLINE=mode != "angular" or is_online(scale),
        PRECISION=precision_of(embeddings), **tiles.options,
    )  # fmt: skip
    return partial, index if index is not None else partial


def slope_flags(embeddings: Tensor, labels: Tensor, class_weights: Tensor) -> Tensor | None:
    """What the Hopper kernel of angular slopes needs to know about labels; None without it."""
    hopper = hopper_kernels(embeddings, class_weights)
    if hopper is None:
        return None
    return hopper.slope_flags(labels, class_weights.shape[0], embeddings.shape[1])


def hopper_kernels(*matrices: Tensor) -> ModuleType | None:
    """The Hopper kernels, where the device has what they need and they can read the tensors."""
    module = _hopper_module(matrices[0].device)
    return module if module is not None and module.fits(*matrices) else None


@functools.cache
def _hopper_module(device: torch.device) -> ModuleType | None:
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    if torch.cuda.get_device_capability(device) != (9, 0):
        return None
    try:  # Gluon is young: a Triton without what we use gives up speed, not the result
        return importlib.import_module("hardsight.kernels._hopper_launch")
    except ImportError:
        return None


def is_online(scale: float) -> bool:
    """Whether a sum of ``exp(scale * elevation)`` needs a running maximum in float32."""
    return scale > _WIDEST_FIXED_SCALE


def slopes(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    first_class: int,
    flags: Tensor | None,
    factors: Tensor,
    reference: Tensor,
    scale: float | None,
    x_inverse: Tensor | None,
    w_inverse: Tensor | None,
) -> None:
    """Fill ``out [N, chunk]`` with slopes; ``flags`` come from :func:`slope_flags`."""
    if flags is not None:
        hopper_kernels(embeddings, class_weights).slopes(
            embeddings, labels, class_weights, out,
            flags=flags, first_class=first_class, factors=factors, reference=reference,
            scale=scale, x_inverse=x_inverse, w_inverse=w_inverse,
        )  # fmt: skip
        return
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    tiles = tiles_for(embeddings)
    grid = (triton.cdiv(rows, tiles.rows), triton.cdiv(classes, tiles.classes))
    _portable.slopes[grid](
        embeddings, class_weights, bias, labels, x_inverse, w_inverse, factors, reference, out,
        rows, first_class, classes, width, *embeddings.stride(), *class_weights.stride(), out.stride(0),
        scale or 0.0,
        ANGLE=scale is not None, HAS_BIAS=bias is not None,
        COARSE=embeddings.dtype != torch.float32, PRECISION=precision_of(embeddings),
        **tiles.options,
    )  # fmt: skip


def finish_embeddings(
    gathered: Tensor, embeddings: Tensor, labels: Tensor, class_weights: Tensor, factors: Tensor
) -> Tensor:
    """Gradient of the embeddings of an angular loss, in their dtype."""
    rows, width = embeddings.shape
    out = torch.empty(rows, width, dtype=embeddings.dtype, device=embeddings.device)
    block_r, block_d = row_blocks(embeddings)
    _portable.finish_embeddings[(triton.cdiv(rows, block_r),)](
        gathered, embeddings, class_weights, labels, factors, out,
        rows, width, *embeddings.stride(), *class_weights.stride(),
        BLOCK_R=block_r, BLOCK_D=block_d,
    )  # fmt: skip
    return out


def finish_weights(
    gathered: Tensor,
    embeddings: Tensor,
    class_weights: Tensor,
    order: Tensor,
    starts: Tensor,
    factors: Tensor,
    out: Tensor,
    first_class: int,
) -> None:
    """Write rows ``first_class ...`` of the gradient of the class weights of an angular loss."""
    classes, width = gathered.shape
    _, block_d = row_blocks(embeddings)
    _portable.finish_weights[(classes,)](
        gathered, embeddings, class_weights, order, starts, factors, out,
        first_class, classes, width, *embeddings.stride(), *class_weights.stride(),
        BLOCK_D=block_d,
    )  # fmt: skip
