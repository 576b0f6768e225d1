"""Gaussian ramps of AMC-Loss for the loss weight, the learning rate and Adam's beta1."""

import math
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hardsight.errors import OptionError


def gaussian_ramp_up(epoch: float, *, ramp_epochs: float = 80) -> float:
    r"""Factor that rises from :math:`e^{-5}` to 1 over the first epochs.

    .. math:: w(t) = \exp\left(-5\,(1 - t / T_{up})^2\right), \quad t < T_{up}

    Args:
        epoch: :math:`t`, epochs done so far; fractions are allowed.
        ramp_epochs: :math:`T_{up}`; 0 for no ramp.

    Returns:
        A factor in ``(0, 1]`` for the loss weight and the learning rate.

    Example:
        >>> [round(gaussian_ramp_up(t), 4) for t in (0, 40, 80)]
        [0.0067, 0.2865, 1.0]

    Reference:
        Choi et al., AMC-Loss, CVPR Workshops 2020, Section 3.2.
    """
    if epoch >= ramp_epochs:
        return 1.0
    # exp(-5 (1 - t)^2), the ramp of temporal ensembling
    return math.exp(-5.0 * (1.0 - max(epoch, 0.0) / ramp_epochs) ** 2)


def gaussian_ramp_down(
    epoch: float,
    *,
    total_epochs: float = 300,
    ramp_epochs: float = 50,
    sharpness: float = 12.5,
) -> float:
    r"""Factor that falls from 1 over the last epochs.

    .. math:: r(t) = \exp\left(-12.5\,(1 - (T - t) / T_{down})^2\right), \quad t > T - T_{down}

    Args:
        epoch: :math:`t`, epochs done so far.
        total_epochs: :math:`T`.
        ramp_epochs: :math:`T_{down}`; 0 for no ramp.
        sharpness: the factor 12.5. The published code uses ``ramp_epochs / 4``, which is the same
            for the paper's 50 epochs.

    Returns:
        A factor in ``(0, 1]`` for the learning rate; see :func:`ramped_beta1` for Adam.

    Example:
        >>> [round(gaussian_ramp_down(t), 4) for t in (250, 275, 300)]
        [1.0, 0.0439, 0.0]

    Reference:
        Choi et al., AMC-Loss, CVPR Workshops 2020, Section 3.2.
    """
    if ramp_epochs <= 0 or epoch <= total_epochs - ramp_epochs:
        return 1.0
    return math.exp(-sharpness * (1.0 - (total_epochs - epoch) / ramp_epochs) ** 2)


def ramped_beta1(ramp: float, *, start: float = 0.9, end: float = 0.5) -> float:
    """Adam's beta1 at a ramp-down factor, from ``start`` at 1 to ``end`` at 0.

    Example:
        >>> ramped_beta1(1.0), ramped_beta1(0.5), ramped_beta1(0.0)
        (0.9, 0.7, 0.5)
    """
    return ramp * start + (1.0 - ramp) * end


class GaussianRampLR(LRScheduler):
    """Sets the learning rate, and optionally Adam's beta1, along the Gaussian ramps of AMC-Loss.

    The learning rate is the optimizer's own times ramp-up times ramp-down. Call ``step()`` once
    per epoch; the first epoch is 0, as everywhere in ``torch.optim.lr_scheduler``.

    Args:
        optimizer: its learning rates are the largest that the schedule reaches.
        total_epochs: length of the training.
        ramp_up_epochs: see :func:`gaussian_ramp_up`.
        ramp_down_epochs: see :func:`gaussian_ramp_down`.
        final_beta1: value of beta1 after the ramp-down (.5 in the paper); None leaves it alone.
        sharpness: see :func:`gaussian_ramp_down`.
        last_epoch: as in every torch scheduler.

    Raises:
        OptionError: ``final_beta1`` with an optimizer that has no ``betas``.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.003)
        >>> schedule = GaussianRampLR(optimizer, total_epochs=300, final_beta1=0.5)
        >>> round(schedule.get_last_lr()[0], 7)
        2.02e-05
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        total_epochs: float = 300,
        ramp_up_epochs: float = 80,
        ramp_down_epochs: float = 50,
        final_beta1: float | None = None,
        sharpness: float = 12.5,
        last_epoch: int = -1,
    ) -> None:
        self.total_epochs = total_epochs
        self.ramp_up_epochs = ramp_up_epochs
        self.ramp_down_epochs = ramp_down_epochs
        self.final_beta1 = final_beta1
        self.sharpness = sharpness
        if final_beta1 is not None:
            for group in optimizer.param_groups:
                if "betas" not in group:
                    raise OptionError(
                        f"final_beta1 needs an optimizer with betas, got "
                        f"{type(optimizer).__name__}; pass an Adam variant or leave it out"
                    )
                # setdefault: a second scheduler on the same optimizer must start from the original
                # beta1, not from a ramped one
                group.setdefault("initial_beta1", group["betas"][0])
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the learning rates of this epoch, and set beta1."""
        epoch = self.last_epoch
        up = gaussian_ramp_up(epoch, ramp_epochs=self.ramp_up_epochs)
        down = gaussian_ramp_down(
            epoch,
            total_epochs=self.total_epochs,
            ramp_epochs=self.ramp_down_epochs,
            sharpness=self.sharpness,
        )
        if self.final_beta1 is not None:
            for group in self.optimizer.param_groups:
                beta1 = ramped_beta1(down, start=group["initial_beta1"], end=self.final_beta1)
                group["betas"] = (beta1, *group["betas"][1:])
        return [base * up * down for base in self.base_lrs]
