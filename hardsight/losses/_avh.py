"""AVH loss: cross-entropy over angles instead of inner products."""

import torch
from torch import Tensor

from hardsight.losses._angles import avh_logits
from hardsight.losses._linear_avh import linear_avh_loss
from hardsight.losses._logits import cross_entropy_curve, logit_loss
from hardsight.losses._module import HeadLossModule
from hardsight.losses._sharded import refuse_smoothing
from hardsight.ranks import Group
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
    process_group: Group = None,
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
        ignore_index: label of examples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, as in ``cross_entropy``.
        check_finite: raise on a non-finite value, naming the examples.
        process_group: ranks that the classes are split over. Each passes its own rows and its own
            part of ``class_weights``; see :class:`AVHLoss`.

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
    # the version in bounded memory already splits classes over ranks
    if process_group is not None:
        refuse_smoothing(label_smoothing)
        return linear_avh_loss(
            embeddings,
            labels,
            class_weights,
            scale=scale,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check_finite=check_finite,
            process_group=process_group,
        )
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
    returns the angular logits for prediction.

    With ``process_group`` the ``num_classes`` classes are split over its ranks, which allows more
    classes than fit on one device. Each rank calls the loss with its own rows and gets the loss
    over the rows of all ranks; labels count the classes of all ranks. No N x C matrix is formed.
    Wrap the network in ``DistributedDataParallel``, not the loss: it would average class weights
    that belong to different classes. Checkpoints do not depend on the number of ranks:
    ``torch.distributed.checkpoint`` stores ``class_weights`` whole and gives each rank its part,
    and it also loads the weights of an unsharded loss. ``logits`` returns only the logits of the
    rank's own classes.

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
        process_group: Group = None,
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
            process_group=process_group,
        )

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """See :func:`avh_loss`."""
        return avh_loss(embeddings, labels, self.class_weights, **self.options)

    def logits(self, embeddings: Tensor) -> Tensor:
        """Angular logits ``[N, C]``; see :func:`avh_logits`."""
        return avh_logits(embeddings, self.class_weights, scale=self.options["scale"])
