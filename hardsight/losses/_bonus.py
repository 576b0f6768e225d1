r"""The bonus of the encouraging loss, which can be added to any loss of logits."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight.errors import OptionError
from hardsight.losses._logits import Curve, logit_loss
from hardsight.losses._module import LossModule
from hardsight.losses._reduce import check_choice
from hardsight.registry import loss


def encouraging_bonus(
    logits: Tensor,
    labels: Tensor,
    *,
    bonus: str = "log",
    log_end: float = 0.75,
    bonus_start: float | None = None,
    power: float = 2.0,
    clamp: float = 0.0,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    check_finite: bool = False,
) -> Tensor:
    r"""Reward for well-classified examples, to be added to another loss.

    .. math:: \mathrm{bonus}(p) = \begin{cases} \log(1 - p) & p \le LE \\
              \log(1 - LE) - \frac{p - LE}{1 - LE} & p > LE \end{cases}

    Cross-entropy plus this bonus, with the same options, is the encouraging loss. Add the bonus to
    :func:`~hardsight.losses.focal_loss`, to label smoothing, to large-margin softmax (with
    :func:`~hardsight.losses.large_margin_logits`) and to angular losses (with
    :func:`~hardsight.losses.avh_logits`) in the same way.

    Args:
        logits: ``[N, C]``, ``[N, C, ...]`` or ``[C]``.
        labels: class indices ``[N]``, ``[N, ...]`` or ``[]``, or probabilities of the shape of
            ``logits``.
        bonus: ``"log"`` as above, ``"power"`` for :math:`-p^{power}`, ``"cosine"`` for
            :math:`\cos(\pi p) - 1`.
        log_end: :math:`LE` in ``[0, 1]``, where the log turns into its tangent; 1 is the normal
            bonus, smaller is more conservative. Only for ``"log"``.
        bonus_start: for the aggressive bonus: 0 up to this probability, and after it the bonus
            minus its value there. The log then continues to 1, and ``log_end`` is not used.
        power: the exponent of ``"power"``, at least 1.
        clamp: lower bound of 1 - p inside the log; 0 for the equation itself. The paper's 1e-5
            ends the bonus of an example at log-odds of 11.5. Without it the normal and the
            aggressive bonus are unbounded, and easy examples outweigh the others.
        label_smoothing: as in ``cross_entropy``; the bonuses of all classes are averaged under the
            smoothed target distribution.
        weight: one factor per class, ``[C]``.
        ignore_index: label of examples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, as in ``cross_entropy``.
        check_finite: raise on a non-finite value, naming the examples.

    Returns:
        A scalar, or ``[N]`` (``[N, ...]``) for ``"none"``; at most 0, float32 or wider.

    Raises:
        OptionError: an option is out of its range.
        ShapeError: the shapes do not fit, or there are fewer than 2 classes.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, 0.0]])
        >>> labels = torch.tensor([0])
        >>> F.cross_entropy(logits, labels) + encouraging_bonus(logits, labels, log_end=1.0)
        tensor(-1.3069)

    Reference:
        Zhao et al., Well-classified Examples are Underestimated in Classification with Deep
        Neural Networks, AAAI 2022, Section 3.1; power and cosine from the published code.
        Deviation: no clamp of ``1 - p`` by default; the paper's is 1e-5.
    """
    curve = bonus_curve(
        bonus=bonus, log_end=log_end, bonus_start=bonus_start, power=power, clamp=clamp
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


@loss("encouraging_bonus", function=encouraging_bonus, inputs=("logits", "labels"))
class EncouragingBonus(LossModule):
    """Module twin of :func:`encouraging_bonus`."""

    def __init__(
        self,
        *,
        bonus: str = "log",
        log_end: float = 0.75,
        bonus_start: float | None = None,
        power: float = 2.0,
        clamp: float = 0.0,
        label_smoothing: float = 0.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        check_finite: bool = False,
    ) -> None:
        super().__init__(
            bonus=bonus,
            log_end=log_end,
            bonus_start=bonus_start,
            power=power,
            clamp=clamp,
            label_smoothing=label_smoothing,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check_finite=check_finite,
        )

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See :func:`encouraging_bonus`."""
        return encouraging_bonus(logits, labels, **self.options)


def bonus_curve(
    *, bonus: str, log_end: float, bonus_start: float | None, power: float, clamp: float = 0.0
) -> Curve:
    """The bonus as a curve over log-odds; see :func:`encouraging_bonus` for the options."""
    check_choice("bonus", bonus, ("log", "power", "cosine"))
    if not 0 <= log_end <= 1:
        raise OptionError(f"expected log_end in [0, 1], got {log_end}")
    # at 1 nothing would ever earn the bonus
    if bonus_start is not None and not 0 <= bonus_start < 1:
        raise OptionError(f"expected bonus_start in [0, 1) or None, got {bonus_start}")
    if not 0 <= clamp < 1:
        raise OptionError(f"expected clamp in [0, 1), got {clamp}")
    if power < 1:
        raise OptionError(f"expected power of at least 1 (a concave bonus), got {power}")
    if bonus == "power":
        # subtracted below, so that the bonus starts at 0 instead of with a step
        curve, start_value = _power_curve(power), -((bonus_start or 0.0) ** power)
    elif bonus == "cosine":
        curve, start_value = _cosine, math.cos(math.pi * (bonus_start or 0.0)) - 1
    # the tangent needs 1 - log_end > 0
    elif bonus_start is None and log_end < 1:
        return _conservative_curve(log_end)
    else:
        curve, start_value = _normal_curve(clamp), math.log1p(-(bonus_start or 0.0))
    return curve if bonus_start is None else _started(curve, bonus_start, start_value)


def _normal_curve(clamp: float) -> Curve:
    def curve(log_odds: Tensor) -> Tensor:
        value = F.logsigmoid(-log_odds)  # log(1 - p)
        # log(max(1 - p, clamp)), without a gradient beyond the clamp, as in the paper
        return value.clamp_min(math.log(clamp)) if clamp else value

    return curve


def _conservative_curve(log_end: float) -> Curve:
    rest_end = 1 - log_end

    def curve(log_odds: Tensor) -> Tensor:
        # in terms of 1 - p, since its gradient does not round to 0 when p rounds to 1
        rest = torch.sigmoid(-log_odds)
        tangent = math.log(rest_end) - 1 + rest / rest_end
        return torch.where(rest >= rest_end, F.logsigmoid(-log_odds), tangent)

    return curve


def _power_curve(power: float) -> Curve:
    def curve(log_odds: Tensor) -> Tensor:
        # p^k through log p, which stays precise when p rounds to 0 or 1
        return -torch.exp(power * F.logsigmoid(log_odds))

    return curve


def _cosine(log_odds: Tensor) -> Tensor:
    return torch.cos(math.pi * torch.sigmoid(log_odds)) - 1


def _started(curve: Curve, start: float, start_value: float) -> Curve:
    def started(log_odds: Tensor) -> Tensor:
        # strictly greater: an example exactly at the start has no bonus yet
        active = torch.sigmoid(log_odds) > start
        return (curve(log_odds) - start_value).masked_fill(~active, 0.0)

    return started
