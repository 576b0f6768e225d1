"""Launches: from tensors to grids. Loads Triton, so it is imported inside the operators."""

from __future__ import annotations

import functools
import importlib
import math
from types import ModuleType

import torch
import triton
from torch import Tensor

from hardsight.kernels import _portable
from hardsight.kernels._run import run
from hardsight.kernels._support import cdiv, precision_of, row_blocks, shares_for, tiles_for

_MODES = {
    "angles": (0, 2),
    "head": (1, 6),
    "angular": (2, 2),
    "linear": (3, 2),
}
# Beyond this scale exp(scale * elevation) could leave float32 without a running maximum.
_WIDEST_FIXED_SCALE = 45.0


def inverse_norms(vectors: Tensor) -> Tensor:
    """``[R]`` float32: 1 / norm of every row, 0 for a zero row."""
    rows, width = vectors.shape
    out = _row_values(vectors)
    blocks = row_blocks(width)
    run(
        _portable.inverse_norms, (cdiv(rows, blocks["BLOCK_R"]),),
        vectors, out, rows, width, *vectors.stride(), **blocks,
    )  # fmt: skip
    return out


def target_pairs(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    *,
    logits: bool,
    ignore: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """1 / norm, exact angle and logit of every example with its own class, ``[N]`` each.

    NaN where a label is no class; with ``ignore`` one under 0 is none on purpose.
    """
    rows, width = embeddings.shape
    # three tensors, not rows of one: an operator's outputs may not share memory
    inverse, angle, logit = (_row_values(embeddings) for _ in range(3))
    blocks = row_blocks(width)
    run(
        _portable.target_pairs, (cdiv(rows, blocks["BLOCK_R"]),),
        embeddings, class_weights, bias, labels, inverse, angle, logit,
        rows, class_weights.shape[0], width, *embeddings.stride(), *class_weights.stride(),
        HAS_BIAS=bias is not None, LOGITS=logits, IGNORE=ignore, **blocks,
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
    run(
        _portable.over_classes, (cdiv(rows, tiles.rows), shares),
        embeddings, class_weights, bias, labels, x_inverse, w_inverse, partial, index,
        rows, classes, width, *embeddings.stride(), *class_weights.stride(), scale, per_share,
        MODE=number, HAS_BIAS=bias is not None, ONLINE=mode != "angular" or is_online(scale),
        PRECISION=precision_of(embeddings), **tiles.options,
    )  # fmt: skip
    return partial, index if index is not None else partial


def merge_angles(partial: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sum of the angles to, and smallest angle of, the other classes, ``[N]`` each."""
    _, shares, rows = partial.shape
    total, nearest = (partial.new_empty(rows) for _ in range(2))
    run(
        _portable.merge_angles, (cdiv(rows, 128),),
        partial, total, nearest, rows, classes, shares, BLOCK_R=128,
    )  # fmt: skip
    return total, nearest


def merge_log_odds(
    partial: Tensor, target: Tensor, *, angular_scale: float | None
) -> tuple[Tensor, Tensor]:
    """Log-odds of the own class, and log-sum-exp of the others.

    The latter is of logits, or of ``scale * elevation``: relative to the angle pi / 2.
    """
    _, shares, rows = partial.shape
    log_odds, others = (partial.new_empty(rows) for _ in range(2))
    slope = 1.0 if angular_scale is None else -angular_scale
    start = 0.0 if angular_scale is None else angular_scale * (math.pi / 2)
    run(
        _portable.merge_log_odds, (cdiv(rows, 128),),
        partial, target, log_odds, others, rows, shares, slope, start, BLOCK_R=128,
    )  # fmt: skip
    return log_odds, others


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
        hopper = _hopper_module(embeddings.device)
        assert hopper is not None
        hopper.slopes(
            embeddings, labels, class_weights, out,
            flags=flags, first_class=first_class, factors=factors, reference=reference,
            scale=scale, x_inverse=x_inverse, w_inverse=w_inverse,
        )  # fmt: skip
        return
    rows, width = embeddings.shape
    classes = class_weights.shape[0]
    tiles = tiles_for(embeddings)
    run(
        _portable.slopes, (cdiv(rows, tiles.rows), cdiv(classes, tiles.classes)),
        embeddings, class_weights, bias, labels, x_inverse, w_inverse, factors, reference, out,
        rows, first_class, classes, width, *embeddings.stride(), *class_weights.stride(),
        out.stride(0), scale or 0.0,
        ANGLE=scale is not None, HAS_BIAS=bias is not None,
        COARSE=embeddings.dtype != torch.float32, PRECISION=precision_of(embeddings),
        **tiles.options,
    )  # fmt: skip


def slope_flags(embeddings: Tensor, labels: Tensor, class_weights: Tensor) -> Tensor | None:
    """What the Hopper kernel of angular slopes needs to know about labels; None without it."""
    hopper = hopper_kernels(embeddings, class_weights)
    if hopper is None:
        return None
    flags: Tensor = hopper.slope_flags(labels, class_weights.shape[0], embeddings.shape[1])
    return flags


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
    # Gluon still changes between releases: outside those tried, the portable kernels run
    release = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if not (3, 6) <= release <= (3, 9):
        return None
    return importlib.import_module("hardsight.kernels._hopper_launch")


def is_online(scale: float) -> bool:
    """Whether a sum of ``exp(scale * elevation)`` needs a running maximum in float32."""
    return scale > _WIDEST_FIXED_SCALE


def finish_embeddings(
    gathered: Tensor, embeddings: Tensor, labels: Tensor, class_weights: Tensor, factors: Tensor
) -> Tensor:
    """Gradient of the embeddings of an angular loss, in their dtype."""
    rows, width = embeddings.shape
    out = torch.empty(rows, width, dtype=embeddings.dtype, device=embeddings.device)
    blocks = row_blocks(width)
    run(
        _portable.finish_embeddings, (cdiv(rows, blocks["BLOCK_R"]),),
        gathered, embeddings, class_weights, labels, factors, out,
        rows, class_weights.shape[0], width, *embeddings.stride(), *class_weights.stride(),
        **blocks,
    )  # fmt: skip
    return out


def finish_weights(gathered: Tensor, class_weights: Tensor, w_inverse: Tensor, out: Tensor) -> None:
    """Make the gradient of a chunk of class weights tangent, into ``out``."""
    rows, width = class_weights.shape
    blocks = row_blocks(width)
    run(
        _portable.finish_weights, (cdiv(rows, blocks["BLOCK_R"]),),
        gathered, class_weights, w_inverse, out, rows, width, *class_weights.stride(), **blocks,
    )  # fmt: skip


def add_targets(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, factors: Tensor, out: Tensor
) -> None:
    """Add the examples of each class to the gradient of its weight, without atomics."""
    rows, width = embeddings.shape
    ordered, order = torch.sort(labels, stable=True)
    blocks = row_blocks(width)
    blocks.pop("BLOCK_R")
    run(
        _portable.add_targets, (rows,),
        embeddings, class_weights, ordered, order, factors, out,
        rows, class_weights.shape[0], width, *embeddings.stride(), *class_weights.stride(),
        **blocks,
    )  # fmt: skip


def _row_values(matrix: Tensor) -> Tensor:
    return torch.empty(matrix.shape[0], dtype=torch.float32, device=matrix.device)
