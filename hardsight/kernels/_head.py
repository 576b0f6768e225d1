"""All statistics of a wide head that the scores need, in one pass over its class weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardsight._checks import check_labels
from hardsight.kernels._operator import Operator
from hardsight.kernels._support import check_inputs

_MASKED = -1e30  # bias of a masked class: exp gives 0, and 0 times it is 0, not NaN as for -inf


class HeadStatistics(NamedTuple):
    """One value per example, ``[N]`` float32 each. "Other" means every class but the example's own.

    Fields with a default are None unless requested. With a single class there are no others: sums
    are 0, ``nearest_other`` is ``inf``, its class -1 and ``largest_other_logit`` is ``-inf``.
    """

    target_angle: Tensor  # angle to the own class, exact even if aligned with it
    other_angle_total: Tensor  # sum of the angles to the others
    nearest_other: Tensor  # smallest angle to another
    nearest_other_class: Tensor | None = None  # int64, the class at that angle; the first on a tie
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
    nearest_class: bool = False,
) -> HeadStatistics:
    r"""Return angles to a head's classes and moments of its softmax, without ``[N, C]`` matrix.

    .. math:: \sum_{c \ne y} \angle(x, w_c), \quad \min_{c \ne y} \angle(x, w_c), \quad
              \operatorname{arg\,min}_{c \ne y} \angle(x, w_c), \quad
              \log \sum_c e^{z_c}, \quad \sum_{c \ne y} p_c, \ \dots, \qquad z = W x + b

    Args:
        embeddings: ``[N, D]`` in float32, bfloat16 or float16; norms and products with a class
            weight must fit float32.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: ``[C, D]``, of the dtype of ``embeddings``.
        bias: ``[C]`` or None; enters the logits, never the angles. ``-inf`` masks a class.
        logits: whether to compute the fields after ``nearest_other_class`` as well.
        nearest_class: whether to compute ``nearest_other_class``.

    Returns:
        :class:`HeadStatistics`. Products are summed in float32; angles to other classes have the
        resolution of a float32 cosine, the angle to the own class is exact. No gradient.

    Raises:
        ShapeError: the tensors do not fit each other.
        OptionError: the kernels do not support the dtypes or the device.
        MissingExtraError: Triton is not installed.
    """
    check_inputs(embeddings, labels, class_weights, bias)
    check_labels(labels, class_weights.shape[0])
    fields = _operator(
        embeddings.detach(),
        labels.to(torch.int64).contiguous(),
        class_weights.detach(),
        None if bias is None else _finite(bias.detach()),
        logits,
        nearest_class,
    )
    statistics = HeadStatistics(*fields)
    if not nearest_class:  # an operator must return tensors, so an empty one stands for None
        statistics = statistics._replace(nearest_other_class=None)
    return statistics if bias is None else _with_masked(statistics)


def _finite(bias: Tensor) -> Tensor:
    """Make ``-inf`` in the bias finite: in the kernels' sums, 0 times it must be 0, not NaN."""
    return bias.float().clamp_min(_MASKED).contiguous()


def _with_masked(statistics: HeadStatistics) -> HeadStatistics:
    """Restore ``-inf`` as the logit of masked classes."""
    if statistics.target_logit is None:
        return statistics
    names = ("target_logit", "largest_logit", "largest_other_logit")
    logits = {name: getattr(statistics, name) for name in names}
    return statistics._replace(
        **{name: z.masked_fill(z < 0.5 * _MASKED, -torch.inf) for name, z in logits.items()}
    )


def _head_statistics(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    logits: bool,
    nearest: bool,
) -> list[Tensor]:
    from hardsight.kernels import _launch

    mode = "head" if logits else "angles"
    bias = bias if logits else None
    classes = class_weights.shape[0]
    ready = _launch.prepare(embeddings, labels, class_weights, bias, mode=mode)
    partial, index = _launch.over_classes(
        embeddings, labels, class_weights, bias, ready, mode=mode, nearest=nearest
    )
    if logits:
        merged = _launch.merge_head(
            partial, index, ready.target_value, labels, classes, nearest=nearest
        )
    else:
        merged = _launch.merge_angles(partial, index, classes, nearest=nearest)
    return [ready.target_angle, *merged]


def _fake(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    logits: bool,
    nearest: bool,
) -> list[Tensor]:
    rows = embeddings.shape[0]
    names: tuple[str, ...] = HeadStatistics._fields
    if not logits:
        names = names[: names.index("logsumexp")]  # the first field of the logits
    fields = {name: embeddings.new_empty(rows, dtype=torch.float32) for name in names}
    fields["nearest_other_class"] = embeddings.new_empty(rows if nearest else 0, dtype=torch.int64)
    if logits:
        fields["prediction"] = embeddings.new_empty(rows, dtype=torch.int64)
    return list(fields.values())


_operator = Operator("head_statistics", _head_statistics, fake=_fake)
