"""Focal loss, to which the bonus of the encouraging loss can be added."""

import torch.nn.functional as F
from torch import Tensor

from hardsight.errors import OptionError
from hardsight.losses._logits import logit_loss
from hardsight.losses._module import LossModule
from hardsight.registry import loss


def focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 2.0,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    check_finite: bool = False,
) -> Tensor:
    r"""Cross-entropy that gives less weight to well-classified examples.

    .. math:: L(p_y) = -(1 - p_y)^\gamma \log p_y

    The opposite of the encouraging loss; ``focal_loss(...) + encouraging_bonus(...)`` combines
    the two.

    Args:
        logits: ``[N, C]``, ``[N, C, ...]`` or ``[C]``.
        labels: class indices, or probabilities of the shape of ``logits``.
        gamma: the focusing exponent, at least 0; 0 is cross-entropy.
        label_smoothing: as in ``cross_entropy``; the focal losses of all classes are averaged
            under the smoothed target distribution.
        weight: one factor per class, ``[C]`` (the paper's alpha).
        ignore_index: label of examples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, as in ``cross_entropy``.
        check_finite: raise on a non-finite value, naming the examples.

    Returns:
        A scalar, or ``[N]`` (``[N, ...]``) for ``"none"``, in ``[0, inf)``; float32 or wider.

    Raises:
        OptionError: ``gamma`` is negative, or another option is out of its range.
        ShapeError: the shapes do not fit, or there are fewer than 2 classes.

    Example:
        >>> import torch
        >>> focal_loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]))
        tensor(0.0109)

    Reference:
        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, Eq. (4), over softmax.
    """
    if gamma < 0:
        raise OptionError(f"expected gamma of at least 0, got {gamma}")

    def curve(log_odds: Tensor) -> Tensor:
        # through its log, which keeps a gradient when p rounds to 1
        focus = (gamma * F.logsigmoid(-log_odds)).exp()  # (1 - p)^gamma
        return -focus * F.logsigmoid(log_odds)

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


@loss("focal", function=focal_loss, inputs=("logits", "labels"))
class FocalLoss(LossModule):
    """Module twin of :func:`focal_loss`."""

    def __init__(
        self,
        *,
        gamma: float = 2.0,
        label_smoothing: float = 0.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        check_finite: bool = False,
    ) -> None:
        super().__init__(
            gamma=gamma,
            label_smoothing=label_smoothing,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check_finite=check_finite,
        )

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :func:`focal_loss`."""
        return focal_loss(logits, labels, **self.options)
