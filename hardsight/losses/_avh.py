"""AVH loss: cross-entropy over angles instead of inner products."""

import torch
from torch import Tensor

from hardsight._checks import check_rows, check_tensors, check_width
from hardsight.errors import OptionError, ShapeError
from hardsight.geometry import pairwise_angles, target_angles, widen_together
from hardsight.losses._logits import cross_entropy_curve, logit_loss
from hardsight.losses._module import HeadLossModule
from hardsight.registry import loss


def avh_loss(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    *,
    scale: float,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    check_finite: bool = False,
) -> Tensor:
    r"""Cross-entropy over the angles between an example and the class weights.

    .. math:: L = -\log\frac{\exp(s(\pi - \angle(x, w_y)))}{\sum_k \exp(s(\pi - \angle(x, w_k)))}

    Args:
        embeddings: penultimate features, ``[N, D]``, any scale.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: rows of the classifier head, ``[C, D]``, any scale; no bias.
        scale: :math:`s > 0`, left to cross-validation by the paper.
        label_smoothing: as in ``cross_entropy``.
        weight: one factor per class, ``[C]``.
        ignore_index: label of examples that take no part.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, as in ``cross_entropy``.
        check_finite: raise on a non-finite value, naming the examples.

    Returns:
        A scalar, or ``[N]`` for ``"none"``, in ``[0, inf)``; float32 or wider. The gradient is
        finite everywhere: 0 through an exactly aligned or opposite pair and at a zero vector.

    Raises:
        OptionError: ``scale`` is not positive.
        ShapeError: the shapes do not fit, or there are fewer than 2 classes.
        LabelError: a label is outside ``[0, C)`` and is not ``ignore_index``.

    Example:
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> avh_loss(axes[:1], torch.tensor([1]), axes, scale=2.0)
        tensor(3.1857)

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Eq. (5).
        Deviation: Eq. (5) as printed is the probability itself; the loss is its negative log.
    """
    logits = avh_logits(embeddings, class_weights, scale=scale, labels=labels)
    return logit_loss(
        cross_entropy_curve,
        logits,
        labels,
        weight=weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        check_finite=check_finite,
    )


@loss("avh", function=avh_loss, inputs=("embeddings", "labels", "class_weights"))
class AVHLoss(HeadLossModule):
    """Module twin of :func:`avh_loss`; owns the class weights.

    ``AVHLoss(num_classes, embedding_dim, scale=...)`` draws them as ``torch.nn.Linear`` does;
    ``AVHLoss.from_head(model.fc, scale=...)`` shares those of a layer. ``logits(embeddings)``
    gives the angular logits for prediction.

    Example:
        >>> criterion = AVHLoss(10, 128, scale=8.0)
        >>> criterion(torch.randn(4, 128), torch.tensor([0, 3, 9, 1])).shape
        torch.Size([])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        scale: float,
        label_smoothing: float = 0.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        check_finite: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_classes,
            embedding_dim,
            device=device,
            dtype=dtype,
            scale=scale,
            label_smoothing=label_smoothing,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check_finite=check_finite,
        )

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """See :func:`avh_loss`."""
        return avh_loss(embeddings, labels, self.class_weights, **self.options)

    def logits(self, embeddings: Tensor) -> Tensor:
        """Angular logits ``[N, C]``; see :func:`avh_logits`."""
        return avh_logits(embeddings, self.class_weights, scale=self.options["scale"])


def avh_logits(
    embeddings: Tensor, class_weights: Tensor, *, scale: float, labels: Tensor | None = None
) -> Tensor:
    r"""Angles as logits, for any loss of logits.

    .. math:: z_k = -s\,\angle(x, w_k)

    Args:
        embeddings: ``[N, D]``, any scale.
        class_weights: ``[C, D]``, any scale.
        scale: :math:`s > 0`.
        labels: if given, ``[N]``, the angle to the own class is exact even under
            ``torch.compile`` and ``torch.func``, where near-aligned pairs cannot be picked out.
            A label outside ``[0, C)`` picks none.

    Returns:
        ``[N, C]`` in ``[-scale * pi, 0]``, float32 or wider. Eq. (5) has :math:`s(\pi - \angle)`;
        the constant cancels in the softmax and would cost digits.

    Raises:
        OptionError: ``scale`` is not positive.
        ShapeError: the shapes do not fit.

    Example:
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> avh_logits(axes, axes, scale=1.0)
        tensor([[-0.0000, -1.5708],
                [-1.5708, -0.0000]])
    """
    if not scale > 0:
        raise OptionError(f"expected scale to be positive, got {scale}")
    check_width(embeddings, class_weights)
    embeddings, class_weights = widen_together(embeddings, class_weights)
    angles = pairwise_angles(embeddings, class_weights)
    if labels is None:
        return -scale * angles
    check_tensors(labels=labels)
    if labels.is_floating_point():
        return -scale * angles
    check_rows(embeddings=embeddings, labels=labels)
    if labels.ndim != 1:
        raise ShapeError(f"expected labels to have 1 dimension, got {list(labels.shape)}")
    labels = labels.long()  # a number of classes may not fit 8 bits
    inside = (labels >= 0) & (labels < class_weights.shape[0])
    index = labels.masked_fill(~inside, 0)
    exact = target_angles(embeddings, index, class_weights)
    return -scale * angles.scatter(1, index.unsqueeze(1), exact.unsqueeze(1))
