"""Fused losses: curves over the log-odds of :mod:`hardsight.kernels._log_odds`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight.errors import OptionError
from hardsight.kernels._log_odds import angular_log_odds, linear_log_odds


def avh_loss(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    *,
    scale: float,
    margin_rad: float = 0.0,
) -> Tensor:
    r"""Softmax loss over angles, from embeddings and class weights.

    .. math:: -\log \frac{e^{s(\pi - \theta_y - m)}}
              {e^{s(\pi - \theta_y - m)} + \sum_{c \ne y} e^{s(\pi - \theta_c)}}

    Args:
        embeddings: ``[N, D]`` in float32, bfloat16 or float16.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: ``[C, D]``, of the dtype of ``embeddings``.
        scale: :math:`s > 0`, per radian.
        margin_rad: :math:`m`, added to the angle of the own class as in ArcFace; costs nothing.

    Returns:
        ``[N]`` float32, at least 0.

    Raises:
        ShapeError: the tensors do not fit each other.
        OptionError: ``scale`` is not positive, or the dtypes or the device are not the kernels'.
        MissingExtraError: Triton is not installed.

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Eq. (5), with the logarithm it omits.
    """
    log_odds = angular_log_odds(embeddings, labels, class_weights, scale=scale)
    return F.softplus(scale * margin_rad - log_odds)


def linear_encouraging_loss(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None = None,
    *,
    log_end: float = 0.75,
    bonus_start: float | None = None,
    ignore_index: int = -100,
) -> Tensor:
    r"""Encouraging loss of a linear head, from embeddings and class weights.

    .. math:: -\log p_y + \mathrm{bonus}(p_y), \qquad p = \mathrm{softmax}(W x + b)

    Args:
        embeddings: ``[N, D]`` in float32, bfloat16 or float16.
        labels: class indices in ``[0, C)`` or ``ignore_index``, ``[N]``.
        class_weights: ``[C, D]``, of the dtype of ``embeddings``.
        bias: ``[C]`` or None.
        log_end: where the log curve :math:`\log(1 - p)` turns into its tangent, in ``[0, 1]``; 1 is
            the full log.
        bonus_start: the aggressive bonus: 0 up to this probability, the full log minus its value
            there after it; ``log_end`` is not used with it.
        ignore_index: label of examples that take no part: loss 0, gradient 0.

    Returns:
        ``[N]`` float32.

    Raises:
        ShapeError: the tensors do not fit each other.
        OptionError: an option is out of range, or the dtypes or the device are not the kernels'.
        MissingExtraError: Triton is not installed.

    Reference:
        Zhao et al., Well-classified Examples are Underestimated in Classification with Deep
        Neural Networks, AAAI 2022, Section 3.1.
    """
    if not 0 <= log_end <= 1:
        raise OptionError(f"expected log_end in [0, 1], got {log_end}")
    if bonus_start is not None and not 0 <= bonus_start < 1:
        raise OptionError(f"expected bonus_start in [0, 1) or None, got {bonus_start}")
    log_odds = linear_log_odds(embeddings, labels, class_weights, bias, ignore_index=ignore_index)
    loss = _encouraging_curve(log_odds, log_end, bonus_start)
    return torch.where(labels == ignore_index, 0.0, loss)


def _encouraging_curve(log_odds: Tensor, log_end: float, bonus_start: float | None) -> Tensor:
    if bonus_start is None and log_end == 1:
        return -log_odds  # log(1 - p) - log p, where the two logs would cancel
    cross_entropy = F.softplus(-log_odds)
    log_rest = F.logsigmoid(-log_odds)  # log(1 - p)
    if bonus_start is not None:
        active = torch.sigmoid(log_odds) > bonus_start
        return cross_entropy + torch.where(active, log_rest - math.log1p(-bonus_start), 0.0)
    rest, rest_end = torch.sigmoid(-log_odds), 1 - log_end
    tangent = math.log(rest_end) - 1 + rest / rest_end
    return cross_entropy + torch.where(rest >= rest_end, log_rest, tangent)
