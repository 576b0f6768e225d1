"""Online mining of hard examples, which counts only the largest losses of a batch."""

import torch
from torch import Tensor

from hardsight._checks import check_tensors, is_traced
from hardsight.errors import OptionError, ShapeError
from hardsight.geometry import widen
from hardsight.losses._module import LossModule
from hardsight.losses._reduce import reduce_loss

_ROUNDING = 1e-9  # 0.07 * 100 is a little above 7 and must not become 8


def hardest(
    loss_per_example: Tensor,
    *,
    keep: float,
    weight: Tensor | None = None,
    reduction: str = "mean",
    check_finite: bool = False,
) -> Tensor:
    r"""Mean of the largest losses of a batch; the other examples have no gradient.

    .. math:: L = \frac{\sum_{i \in H} w_i \ell_i}{\sum_{i \in H} w_i}, \qquad
              |H| = \lceil \mathrm{keep} \cdot N \rceil

    It works with any loss that has one value per example: ``hardest(cross_entropy(logits, labels,
    reduction="none"), keep=0.7)``. Mislabelled examples are hard as well, so with noisy labels
    train on all examples first, or drop suspects.

    Args:
        loss_per_example: any shape; every value is an example, such as a pixel.
        keep: share of the examples that count, in ``(0, 1]``, rounded up to a whole number; 1 is
            the mean. For k examples pass ``k / N``.
        weight: one factor per example, at least 0, of the shape of ``loss_per_example``. It is
            applied after the hardest examples are chosen. An example of weight 0 is ignored and
            not counted among the N.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for the values, 0 for those left out.
        check_finite: raise on a non-finite value, naming the examples.

    Returns:
        A scalar, or the shape of ``loss_per_example`` for ``"none"``; float32 or wider. Among
        equal losses, those that come first in the batch are kept. NaN counts as the largest loss,
        so the choice never hides it. Without any example the mean is NaN.

    Raises:
        OptionError: ``keep`` is outside ``(0, 1]``, or a weight is negative.
        ShapeError: ``weight`` differs in shape.

    Example:
        >>> hardest(torch.tensor([0.1, 3.0, 0.2, 1.0]), keep=0.5)
        tensor(2.)

    Reference:
        Shrivastava et al., Training Region-based Object Detectors with Online Hard Example
        Mining, CVPR 2016; as the average top-k loss by Fan et al., NeurIPS 2017, Eq. (2).
    """
    _check(loss_per_example, keep, weight)
    losses = widen(loss_per_example).flatten()
    weights = torch.ones_like(losses) if weight is None else weight.to(losses.dtype).flatten()
    # a weight of 0 means "not there", so such a row does not count in the share either
    takes_part = weights > 0
    factors = weights * _is_among_largest(losses.detach(), takes_part, keep)
    # not losses * factors alone: 0 times an infinite loss would be NaN
    values = torch.where(factors > 0, losses, 0.0) * factors
    return reduce_loss(
        values.reshape(loss_per_example.shape) if reduction == "none" else values,
        reduction,
        divisor=factors.sum(),
        check_finite=check_finite,
    )


class Hardest(LossModule):
    """Module twin of :func:`hardest`."""

    def __init__(
        self,
        *,
        keep: float,
        weight: Tensor | None = None,
        reduction: str = "mean",
        check_finite: bool = False,
    ) -> None:
        super().__init__(keep=keep, weight=weight, reduction=reduction, check_finite=check_finite)

    def forward(self, loss_per_example: Tensor) -> Tensor:
        """See :func:`hardest`."""
        return hardest(loss_per_example, **self.options)


def _is_among_largest(losses: Tensor, takes_part: Tensor, keep: float) -> Tensor:
    """Whether each of ``[N]`` is kept; by rank, so that ties do not exceed the number."""
    # NaN sorts above every number; those that take no part sort below every loss
    by_loss = losses.masked_fill(~takes_part, -torch.inf).argsort(descending=True, stable=True)
    # a stable sort by "takes part" keeps the order of losses among those that do
    order = by_loss.gather(0, (~takes_part[by_loss]).long().argsort(stable=True))
    # in float64 and with room for its rounding, or 0.07 of 100 would be 8
    count = (keep * takes_part.sum().double() - _ROUNDING).ceil()
    places = torch.arange(len(losses), device=losses.device)
    return torch.zeros_like(takes_part).scatter(0, order, (places < count) & takes_part[order])


def _check(losses: Tensor, keep: float, weight: Tensor | None) -> None:
    check_tensors(loss_per_example=losses)
    if not losses.is_floating_point():
        raise ShapeError(
            f"expected loss_per_example to be floating point, got {losses.dtype}; pass the values "
            'of a loss with reduction="none"'
        )
    is_number = isinstance(keep, (int, float))  # torch 2.6 compiles no int | float
    if isinstance(keep, bool) or not is_number or not 0 < keep <= 1:
        raise OptionError(
            f"expected keep to be a share in (0, 1], got {keep!r}; for k of N examples pass k / N"
        )
    if losses.ndim == 0:
        raise ShapeError(
            "expected one loss per example, got a single number; pass the values of a loss with "
            'reduction="none"'
        )
    if weight is None:
        return
    check_tensors(weight=weight)
    if weight.shape != losses.shape:
        raise ShapeError(
            "expected one weight per example, got loss_per_example "
            f"{list(losses.shape)}, weight {list(weight.shape)}"
        )
    if weight.device.type == "cpu" and not is_traced(weight) and not bool((weight >= 0).all()):
        raise OptionError("expected every weight to be at least 0, got a negative one or NaN")
