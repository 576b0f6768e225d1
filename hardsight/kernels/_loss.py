"""Losses of embeddings and class weights, including their sum or mean, in fused kernels.

The loss of an example is a curve over its log-odds, and summing N of them is little work. But as a
dozen torch operators, and as many in the backward pass, it takes longer than the products of a
small head. Here it is a single launch in each direction.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardsight._checks import check_indices, check_labels
from hardsight.errors import OptionError
from hardsight.kernels._log_odds import (
    NO_BONUS,
    Reduction,
    angular_operator,
    dense,
    linear_operator,
    pack,
)
from hardsight.kernels._support import check_inputs, check_reverse_mode


def angular_loss(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    *,
    scale: float,
    margin_rad: float = 0.0,
    ignore_index: int = -100,
    mean: bool = True,
) -> Tensor:
    """Return the AVH loss of a batch, summed or averaged over labels other than ``ignore_index``.

    Args:
        embeddings: ``[N, D]`` in float32, bfloat16 or float16.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: ``[C, D]``, of the dtype of ``embeddings``.
        scale: per radian, positive.
        margin_rad: added to the angle of the own class.
        ignore_index: label of examples to ignore.
        mean: divide the sum by the number of examples that are not ignored.

    Returns:
        A scalar, float32. Gradients for ``embeddings`` and ``class_weights``, once.

    Raises:
        ShapeError: the tensors do not fit each other.
        LabelError: a label is neither a class nor ``ignore_index``; on a GPU, where labels are not
            checked, the loss is NaN instead.
        OptionError: ``scale`` is not positive, or the kernels do not support the dtypes or the
            device.
        GradientError: under forward-mode differentiation, or ``torch.func.grad``.
        MissingExtraError: Triton is not installed.
    """
    if not scale > 0:
        raise OptionError(f"expected scale to be positive, got {scale}")
    labels = _checked_labels(embeddings, labels, class_weights, None, ignore_index)
    # a margin on the labelled angle lowers the log-odds of every example by the same amount
    reduction = Reduction(ignore_index, -scale * margin_rad, NO_BONUS, mean)
    loss: Tensor = angular_operator(
        embeddings, labels, class_weights, float(scale), pack(reduction)
    )[0]
    return loss


def linear_loss(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None = None,
    *,
    log_end: float | None = None,
    ignore_index: int = -100,
    mean: bool = True,
) -> Tensor:
    """Return a linear head's encouraging loss or cross-entropy; see :func:`angular_loss`.

    Args:
        embeddings: ``[N, D]`` in float32, bfloat16 or float16.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: ``[C, D]``, of the dtype of ``embeddings``.
        bias: ``[C]`` or None.
        log_end: probability at which the bonus turns into its tangent; None for no bonus.
        ignore_index: label of examples to ignore.
        mean: divide the sum by the number of examples that are not ignored.

    Returns:
        A scalar, float32. Gradients for ``embeddings``, ``class_weights`` and ``bias``, once.

    Raises:
        ShapeError: the tensors do not fit each other.
        LabelError: as above.
        OptionError: ``log_end`` is outside ``[0, 1]``, or the kernels do not support the dtypes or
            the device.
        GradientError: under forward-mode differentiation, or ``torch.func.grad``.
        MissingExtraError: Triton is not installed.
    """
    if log_end is not None and not 0 <= log_end <= 1:
        raise OptionError(f"expected log_end in [0, 1], got {log_end}")
    labels = _checked_labels(embeddings, labels, class_weights, bias, ignore_index)
    reduction = Reduction(ignore_index, 0.0, NO_BONUS if log_end is None else log_end, mean)
    loss: Tensor = linear_operator(embeddings, labels, class_weights, dense(bias), pack(reduction))[
        0
    ]
    return loss


def _checked_labels(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    ignore_index: int,
) -> Tensor:
    check_inputs(embeddings, labels, class_weights, bias)
    check_reverse_mode(embeddings, class_weights, bias)
    check_indices(labels)
    labels = labels.to(torch.int64).contiguous()
    # in Triton's interpreter; on a GPU the check would wait for the device
    if labels.device.type == "cpu":
        check_labels(torch.where(labels == ignore_index, 0, labels), class_weights.shape[0])
    return labels
