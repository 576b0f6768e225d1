"""Large-margin softmax, which makes the angle to the labelled class harder."""

import dataclasses
import math

import torch
from torch import Tensor

from hardsight._checks import check_rows, check_width
from hardsight.errors import LabelError, OptionError
from hardsight.geometry import row_norms, target_angles, widen_together
from hardsight.losses._encouraging import encouraging_curve
from hardsight.losses._linear_encouraging import linear_shard_logits
from hardsight.losses._logits import (
    cross_entropy_curve,
    kept_labels,
    logit_loss,
)
from hardsight.losses._module import HeadLossModule
from hardsight.losses._sharded import ShardLogits, refuse_smoothing, sharded_loss
from hardsight.ranks import Group
from hardsight.registry import loss


def large_margin_softmax_loss(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    *,
    margin: int = 4,
    blend: float = 0.0,
    log_end: float | None = None,
    clamp: float = 0.0,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    check_finite: bool = False,
    process_group: Group = None,
) -> Tensor:
    r"""Cross-entropy that treats the labelled class as farther away than it is.

    .. math:: L = -\log\frac{e^{\|w_y\|\|x\|\psi(\theta_y)}}
              {e^{\|w_y\|\|x\|\psi(\theta_y)} + \sum_{j \ne y} e^{w_j \cdot x}}, \qquad
              \psi(\theta) = (-1)^k\cos(m\theta) - 2k, \; \theta \in
              \left[\tfrac{k\pi}{m}, \tfrac{(k+1)\pi}{m}\right]

    ``log_end`` adds the bonus of the encouraging loss; for another bonus call
    ``encouraging_loss(large_margin_logits(...), labels, ...)``.

    Args:
        embeddings: penultimate features, ``[N, D]``.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: rows of the classifier head, ``[C, D]``; no bias.
        margin: :math:`m`, a whole number of at least 1; 1 is cross-entropy.
        blend: the paper's :math:`\lambda \ge 0` for the start of training; the labelled logit is
            :math:`\|w_y\|\|x\|(\lambda\cos\theta + \psi(\theta)) / (1 + \lambda)`.
        log_end: adds the bonus of :func:`~hardsight.losses.encouraging_loss` with this LE.
        clamp: of this bonus; the paper on Encouraging Loss uses 1e-5 with ``log_end=1``.
        label_smoothing: as in ``cross_entropy``.
        weight: one factor per class, ``[C]``.
        ignore_index: label of examples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, as in ``cross_entropy``.
        check_finite: raise on a non-finite value, naming the examples.
        process_group: ranks that the classes are split over. Each passes its own rows and its own
            part of ``class_weights``; see :class:`~hardsight.losses.AVHLoss`.

    Returns:
        A scalar, or ``[N]`` for ``"none"``, in ``[0, inf)`` without a bonus; float32 or wider.

    Raises:
        OptionError: ``margin`` is not a positive whole number, or ``blend`` is negative.
        ShapeError: the shapes do not fit, or there are fewer than 2 classes.

    Example:
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> large_margin_softmax_loss(axes[:1], torch.tensor([1]), axes, margin=2)
        tensor(2.1269)

    Reference:
        Liu et al., Large-Margin Softmax Loss for Convolutional Neural Networks, ICML 2016,
        Eq. (4)-(6).
    """
    curve = (
        cross_entropy_curve if log_end is None else encouraging_curve(log_end=log_end, clamp=clamp)
    )
    if process_group is not None:
        refuse_smoothing(label_smoothing)
        _check_margin(margin, blend)
        return sharded_loss(
            curve,
            _shard_logits(margin, blend),
            embeddings,
            labels,
            class_weights,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check_finite=check_finite,
            group=process_group,
        )
    logits = large_margin_logits(
        embeddings, labels, class_weights, margin=margin, blend=blend, ignore_index=ignore_index
    )
    return logit_loss(
        curve,
        logits,
        labels,
        weight=weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        check_finite=check_finite,
    )


@loss(
    "large_margin_softmax",
    function=large_margin_softmax_loss,
    inputs=("embeddings", "labels", "class_weights"),
)
class LargeMarginSoftmaxLoss(HeadLossModule):
    """Module twin of :func:`large_margin_softmax_loss`; owns the class weights."""

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        margin: int = 4,
        blend: float = 0.0,
        log_end: float | None = None,
        clamp: float = 0.0,
        label_smoothing: float = 0.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        check_finite: bool = False,
        process_group: Group = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_classes,
            embedding_dim,
            device=device,
            dtype=dtype,
            margin=margin,
            blend=blend,
            log_end=log_end,
            clamp=clamp,
            label_smoothing=label_smoothing,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check_finite=check_finite,
            process_group=process_group,
        )

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """See :func:`large_margin_softmax_loss`."""
        return large_margin_softmax_loss(embeddings, labels, self.class_weights, **self.options)


def large_margin_logits(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    *,
    margin: int = 4,
    blend: float = 0.0,
    ignore_index: int = -100,
) -> Tensor:
    """The logits of :func:`large_margin_softmax_loss`, for any loss of logits.

    Returns:
        ``[N, C]``, float32 or wider: inner products, lowered for the labelled class.

    Example:
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> large_margin_logits(axes, torch.tensor([0, 0]), axes, margin=2)
        tensor([[ 1.,  0.],
                [-1.,  1.]])
    """
    _check_margin(margin, blend)
    check_width(embeddings, class_weights)
    check_rows(embeddings=embeddings, labels=labels)
    if labels.ndim != 1 or labels.is_floating_point():
        raise LabelError(
            f"expected labels to be class indices [N], got {labels.dtype} {list(labels.shape)}; "
            "the margin needs exactly one class per example"
        )
    _, own = kept_labels(labels, class_weights.shape[0], ignore_index)
    x, w = widen_together(embeddings, class_weights)
    with torch.autocast(x.device.type, enabled=False):  # autocast would round the product
        logits = x @ w.T
    # only the labelled logit changes, so one product gives all the others
    return logits.scatter(1, own.unsqueeze(1), _own_logits(x, own, w, margin, blend)[:, None])


def _own_logits(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, margin: int, blend: float
) -> Tensor:
    angles = target_angles(embeddings, labels, class_weights)
    # the paper's annealing: mixing in the plain cosine makes the start of training easier
    cosine = (blend * torch.cos(angles) + _psi(angles, int(margin))) / (1 + blend)
    return row_norms(embeddings) * row_norms(class_weights[labels]) * cosine


def _shard_logits(margin: int, blend: float) -> ShardLogits:
    # for the other classes the logits are those of a plain linear head
    linear = linear_shard_logits(None, "auto")

    def own(embeddings: Tensor, place: Tensor, class_weights: Tensor) -> Tensor:
        x, w = widen_together(embeddings, class_weights)
        return _own_logits(x, place, w, margin, blend)

    return dataclasses.replace(linear, own=own)


def _check_margin(margin: int, blend: float) -> None:
    if not (margin >= 1 and float(margin).is_integer()):
        raise OptionError(f"expected margin to be a whole number of at least 1, got {margin}")
    if blend < 0:
        raise OptionError(f"expected blend of at least 0, got {blend}")


def _psi(angles: Tensor, margin: int) -> Tensor:
    """Monotone continuation of ``cos(margin * angle)`` over ``[0, pi]``."""
    # detached, since psi is continuous: the step of k must not enter the gradient
    k = torch.floor(angles.detach() * margin / math.pi)
    sign = 1 - 2 * (k % 2)  # (-1)^k, Eq. 6
    return sign * torch.cos(margin * angles) - 2 * k
