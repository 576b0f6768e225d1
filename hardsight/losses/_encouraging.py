"""Encouraging loss: cross-entropy plus a bonus for well-classified examples."""

from torch import Tensor

from hardsight.losses._bonus import bonus_curve
from hardsight.losses._logits import Curve, cross_entropy_curve, logit_loss
from hardsight.losses._module import LossModule
from hardsight.registry import loss


def encouraging_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    log_end: float = 0.75,
    bonus_start: float | None = None,
    bonus: str = "log",
    power: float = 2.0,
    clamp: float = 0.0,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    check_finite: bool = False,
) -> Tensor:
    r"""Cross-entropy plus a bonus that keeps well-classified examples in training.

    .. math:: L(p_y) = -\log p_y + \mathrm{bonus}(p_y)

    With ``log_end=1`` the bonus is :math:`\log(1 - p)` and the loss is
    :math:`\log\sum_{j \ne y} e^{z_j} - z_y`, whose gradient at the labelled logit is -1 for every
    example. With ``log_end<1`` the log turns into its tangent at that probability.

    Args:
        logits: ``[N, C]``, ``[N, C, ...]`` or ``[C]``, any floating dtype.
        labels: class indices ``[N]``, ``[N, ...]`` or ``[]``, or probabilities of the shape of
            ``logits``.
        log_end: where the log curve of the bonus ends, in ``[0, 1]``. The paper uses 1 for MNIST
            and iNaturalist, .75 for CIFAR and ImageNet, and .5 for translation and graphs.
        bonus_start: for the aggressive bonus: 0 up to this probability, and after it the normal
            bonus minus its value there. ``log_end`` is then not used.
        bonus: ``"log"``, ``"power"`` or ``"cosine"``; see
            :func:`~hardsight.losses.encouraging_bonus`.
        power: the exponent of ``bonus="power"``.
        clamp: lower bound of 1 - p inside the log; 0 for the equation itself. The paper's 1e-5
            ends the bonus of an example at log-odds of 11.5. Without it the normal and the
            aggressive bonus are unbounded, and easy examples outweigh the others.
        label_smoothing: the encouraging losses of all classes are averaged under the smoothed
            target distribution :math:`q`, :math:`\sum_c q_c L(p_c)`. (Published code combines the
            two in four different ways.)
        weight: one factor per class, ``[C]``; ``"mean"`` divides by the sum of the labels' weights.
        ignore_index: label of examples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. Without any example the mean is NaN and the
            sum 0, as in ``torch.nn.functional.cross_entropy``, whose conventions all options
            follow.
        check_finite: raise on a non-finite value, naming the examples.

    Returns:
        A scalar, or ``[N]`` (``[N, ...]``) for ``"none"``; unbounded below for ``log_end=1``.
        The loss and its gradient are finite for any finite logits. Float32 or wider.

    Raises:
        ShapeError: the shapes do not fit, or there are fewer than 2 classes.
        LabelError: a label is outside ``[0, C)`` and is not ``ignore_index``.
        OptionError: an option is out of its range.
        NonFiniteError: ``check_finite`` found a NaN or an infinity.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 0.0, 0.0], [1e4, 0.0, 0.0]])
        >>> encouraging_loss(logits, torch.tensor([0, 0]), log_end=1.0, reduction="none")
        tensor([-1.3069e+00, -9.9993e+03])

    Reference:
        Zhao et al., Well-classified Examples are Underestimated in Classification with Deep
        Neural Networks, AAAI 2022, Eq. (6) and Section 3.1.
        Deviation: log-odds, and no clamp of ``1 - p`` by default, which keeps the equation's
        gradient for the best-classified examples; ``log_end=1, clamp=1e-5`` is the paper's loss.
    """
    curve = encouraging_curve(
        log_end=log_end, bonus_start=bonus_start, bonus=bonus, power=power, clamp=clamp
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


@loss("encouraging", function=encouraging_loss, inputs=("logits", "labels"))
class EncouragingLoss(LossModule):
    """Module twin of :func:`encouraging_loss`."""

    def __init__(
        self,
        *,
        log_end: float = 0.75,
        bonus_start: float | None = None,
        bonus: str = "log",
        power: float = 2.0,
        clamp: float = 0.0,
        label_smoothing: float = 0.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        check_finite: bool = False,
    ) -> None:
        super().__init__(
            log_end=log_end,
            bonus_start=bonus_start,
            bonus=bonus,
            power=power,
            clamp=clamp,
            label_smoothing=label_smoothing,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check_finite=check_finite,
        )

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :func:`encouraging_loss`."""
        return encouraging_loss(logits, labels, **self.options)


def encouraging_curve(
    *,
    log_end: float,
    bonus_start: float | None = None,
    bonus: str = "log",
    power: float = 2.0,
    clamp: float = 0.0,
) -> Curve:
    """The loss as a curve over log-odds."""
    reward = bonus_curve(
        bonus=bonus, log_end=log_end, bonus_start=bonus_start, power=power, clamp=clamp
    )
    if bonus == "log" and log_end == 1 and bonus_start is None and not clamp:
        return _minus  # log(1 - p) - log p is exactly -log_odds; as two logs, digits would cancel

    def curve(log_odds: Tensor) -> Tensor:
        return cross_entropy_curve(log_odds) + reward(log_odds)

    return curve


def _minus(log_odds: Tensor) -> Tensor:
    return -log_odds
