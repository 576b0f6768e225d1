"""Everything the scores need of a wide head, in one pass over its class weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight._checks import check_labels
from hardsight.kernels._support import check_inputs


class HeadStatistics(NamedTuple):
    """One value per example, ``[N]`` float32 each. "Other" means every class but the example's own.

    The logit fields are None unless asked for. With a single class there is no other one: sums
    are 0, ``nearest_other`` is ``inf`` and ``largest_other_logit`` is ``-inf``.
    """

    target_angle: Tensor  # angle to the own class, exact also when aligned
    other_angle_total: Tensor  # sum of the angles to the others
    nearest_other: Tensor  # smallest angle to another
    logsumexp: Tensor | None = None
    target_logit: Tensor | None = None
    largest_logit: Tensor | None = None
    prediction: Tensor | None = None  # int64, index of the largest logit
    largest_other_logit: Tensor | None = None
    expected_logit: Tensor | None = None  # sum of probability times logit
    entropy: Tensor | None = None  # of the softmax; sums of positive terms only
    other_probability: Tensor | None = None  # 1 - p of the own class, without cancellation
    other_probability_squares: Tensor | None = None


def head_statistics(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None = None,
    *,
    logits: bool = True,
) -> HeadStatistics:
    r"""Angles to a head's classes, and moments of its softmax, without an ``[N, C]`` matrix.

    .. math:: \sum_{c \ne y} \angle(x, w_c), \quad \min_{c \ne y} \angle(x, w_c), \quad
              \log \sum_c e^{z_c}, \quad \sum_{c \ne y} p_c, \ \dots, \qquad z = W x + b

    Args:
        embeddings: ``[N, D]`` in float32, bfloat16 or float16; norms and products with a class
            weight must fit float32.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: ``[C, D]``, of the dtype of ``embeddings``.
        bias: ``[C]`` or None; enters the logits, never the angles.
        logits: whether to compute the fields after ``nearest_other`` too.

    Returns:
        :class:`HeadStatistics`. Products are summed in float32; angles to other classes have the
        resolution of a float32 cosine, the angle to the own class is exact. No gradient.

    Raises:
        ShapeError: the tensors do not fit each other.
        OptionError: the dtypes or the device are not the kernels'.
        MissingExtraError: Triton is not installed.
    """
    check_inputs(embeddings, labels, class_weights, bias)
    check_labels(labels, class_weights.shape[0])
    fields = torch.ops.hardsight.head_statistics(
        embeddings.detach(),
        labels.to(torch.int64).contiguous(),
        class_weights.detach(),
        None if bias is None else bias.detach().contiguous(),
        logits,
    )
    return HeadStatistics(*fields)


@torch.library.custom_op("hardsight::head_statistics", mutates_args=())
def _head_statistics(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, bias: Tensor | None, logits: bool
) -> list[Tensor]:
    from hardsight.kernels import _launch

    inverse, angle, logit = _launch.target_pairs(
        embeddings, labels, class_weights, bias, logits=logits
    )
    partial, index = _launch.over_classes(
        embeddings,
        labels,
        class_weights,
        bias if logits else None,
        mode="head" if logits else "angles",
        x_inverse=inverse,
        w_inverse=_launch.inverse_norms(class_weights),
    )
    angles = [angle, *_launch.merge_angles(partial, class_weights.shape[0])]
    if not logits:
        return angles
    return angles + _logit_fields(partial, index, logit, labels)


@_head_statistics.register_fake
def _(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, bias: Tensor | None, logits: bool
) -> list[Tensor]:
    floats = [
        embeddings.new_empty(embeddings.shape[0], dtype=torch.float32)
        for _ in range(12 if logits else 3)
    ]
    if logits:
        floats[6] = embeddings.new_empty(embeddings.shape[0], dtype=torch.int64)
    return floats


def _logit_fields(partial: Tensor, index: Tensor, target: Tensor, labels: Tensor) -> list[Tensor]:
    """Moments of the softmax from partial ones relative to each share's largest logit."""
    largest_of, total_of, squares_of, moment_of = partial[2:6]
    largest, share = largest_of.max(dim=0)  # the first share on a tie, so the first index
    which = index.gather(0, share[None]).squeeze(0).to(torch.int64)
    reference = torch.where(largest.isinf(), 0.0, largest)
    drop = torch.where(total_of > 0, largest_of - reference, 0.0)
    fade = drop.exp()
    total = (fade * total_of).sum(dim=0)
    squares = (fade.square() * squares_of).sum(dim=0)
    moment = (fade * (moment_of + drop * total_of)).sum(dim=0)
    other_sum = reference + total.log()
    everything = torch.logaddexp(other_sum, target)
    own = (target - everything).exp()
    other = (other_sum - everything).exp()
    weight = (reference - everything).exp()
    surprise = F.softplus(other_sum - target)  # -log p of the own class, also where p rounds to 1
    # terms p (logsumexp - z), all positive
    entropy = own * surprise + other * (everything - reference) - weight * moment
    expected = own * target + other * reference + weight * moment
    own_wins = (target > largest) | ((target == largest) & (labels < which))
    return [
        everything,
        target,
        torch.maximum(largest, target),
        torch.where(own_wins, labels.to(torch.int64), which),
        largest,
        expected,
        entropy,
        other,
        weight.square() * squares,
    ]
