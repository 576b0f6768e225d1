"""Squared error with its mirrored bonus."""

import torch
from torch import Tensor

from hardsight.geometry import widen
from hardsight.losses._logits import check_logits, classes_last, kept_labels
from hardsight.losses._module import LossModule
from hardsight.losses._reduce import check_choice, reduce_loss
from hardsight.registry import loss


def mirror_mse_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    activation: str = "softmax",
    bonus_weight: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    check_finite: bool = False,
) -> Tensor:
    r"""Mean squared error plus the bonus that mirrors it.

    .. math:: L = \frac{1}{C}\sum_c (y_c - p_c)^2 - (y_c p_c)^2 - ((1 - y_c)(1 - p_c))^2

    For hard labels a term is :math:`1 - 2p` at the labelled class and :math:`2p - 1` elsewhere, so
    the gradient at a probability does not fade as it approaches its target.

    Args:
        logits: ``[N, C]``, ``[N, C, ...]`` or ``[C]``.
        labels: class indices, or targets in ``[0, 1]`` of the shape of ``logits``.
        activation: ``"softmax"`` or ``"sigmoid"``, from logits to :math:`p`.
        bonus_weight: factor of the bonus (the last two terms); 0 gives the mean squared error.
        ignore_index: label of examples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, as in ``cross_entropy``.
        check_finite: raise on a non-finite value, naming the examples.

    Returns:
        A scalar, or ``[N]`` (``[N, ...]``) for ``"none"``, in ``[-bonus_weight, 1]``; float32 or
        wider.

    Raises:
        OptionError: ``activation`` is not one of the two.
        ShapeError: the shapes do not fit, or there are fewer than 2 classes.

    Example:
        >>> mirror_mse_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor(0.)
        >>> mirror_mse_loss(torch.tensor([[-9.0, 9.0]]), torch.tensor([1]), activation="sigmoid")
        tensor(-0.9998)

    Reference:
        Zhao et al., Well-classified Examples are Underestimated in Classification with Deep
        Neural Networks, AAAI 2022, Section 4.5. The paper does not say how to average over
        classes; this takes the mean, as the published code does.
    """
    check_choice("activation", activation, ("softmax", "sigmoid"))
    check_logits(logits, labels)
    z = classes_last(widen(logits))
    if labels.is_floating_point():
        kept, y = None, classes_last(labels.to(z.dtype))
    else:
        kept, own = kept_labels(labels, z.shape[-1], ignore_index)
        # one-hot targets, for the squared error and for its mirror
        y = torch.zeros_like(z).scatter(-1, own.unsqueeze(-1), 1.0)
    p = z.softmax(dim=-1) if activation == "softmax" else torch.sigmoid(z)
    mirrored = (y * p).square() + ((1 - y) * (1 - p)).square()
    # the mean over classes, as in torch's mse_loss
    values = ((y - p).square() - bonus_weight * mirrored).mean(dim=-1)
    if kept is None:
        return reduce_loss(values, reduction, check_finite=check_finite)
    values = values.masked_fill(~kept, 0.0)
    return reduce_loss(values, reduction, divisor=kept.sum(), check_finite=check_finite)


@loss("mirror_mse", function=mirror_mse_loss, inputs=("logits", "labels"))
class MirrorMSELoss(LossModule):
    """Module twin of :func:`mirror_mse_loss`."""

    def __init__(
        self,
        *,
        activation: str = "softmax",
        bonus_weight: float = 1.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        check_finite: bool = False,
    ) -> None:
        super().__init__(
            activation=activation,
            bonus_weight=bonus_weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check_finite=check_finite,
        )

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :func:`mirror_mse_loss`."""
        return mirror_mse_loss(logits, labels, **self.options)
