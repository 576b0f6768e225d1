"""Settings of AMC-Loss, as stated in the paper and as used in the published code."""

from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from hardsight.errors import UnknownNameError
from hardsight.losses._amc import AMCLoss
from hardsight.losses._schedules import GaussianRampLR, gaussian_ramp_up
from hardsight.registry import unknown_name


@dataclass(frozen=True)
class AMCPreset:
    """A complete set of settings for AMC training.

    Attributes:
        weight: largest weight of the loss next to cross-entropy, reached after the ramp-up.
        margin_rad: angular margin.
        similarity: what makes a pair similar, ``"labels"`` or ``"predictions"``.
        total_epochs: length of the training.
        ramp_up_epochs: epochs over which loss weight and learning rate rise.
        ramp_down_epochs: epochs over which learning rate and beta1 fall.
        sharpness: of the ramp-down.
        learning_rate: largest learning rate, of Adam.
        betas: of Adam, before the ramp-down.
        final_beta1: value of beta1 after the ramp-down.
        batch_size: examples per step.
        first_epoch_weight: the weight in epoch 0, if it differs from the ramp's.
    """

    weight: float
    total_epochs: int
    ramp_up_epochs: int
    ramp_down_epochs: int
    sharpness: float
    margin_rad: float = 0.5
    similarity: str = "predictions"
    learning_rate: float = 0.003
    betas: tuple[float, float] = (0.9, 0.999)
    final_beta1: float = 0.5
    batch_size: int = 128
    first_epoch_weight: float | None = None

    def weight_at(self, epoch: int) -> float:
        """Weight of the loss in ``epoch``, counted from 0."""
        if epoch == 0 and self.first_epoch_weight is not None:
            return self.first_epoch_weight
        return self.weight * gaussian_ramp_up(epoch, ramp_epochs=self.ramp_up_epochs)

    def loss(self, **options: Any) -> AMCLoss:
        """Return the module with this margin and similarity, plus ``options``."""
        settings: dict[str, Any] = {"margin_rad": self.margin_rad, "similarity": self.similarity}
        return AMCLoss(**(settings | options))

    def scheduler(self, optimizer: Optimizer) -> GaussianRampLR:
        """Return the scheduler of learning rate and beta1."""
        return GaussianRampLR(
            optimizer,
            total_epochs=self.total_epochs,
            ramp_up_epochs=self.ramp_up_epochs,
            ramp_down_epochs=self.ramp_down_epochs,
            final_beta1=self.final_beta1,
            sharpness=self.sharpness,
        )


AMC_PRESETS: dict[str, AMCPreset] = {
    # Section 3.2
    "paper": AMCPreset(
        weight=0.1, total_epochs=300, ramp_up_epochs=80, ramp_down_epochs=50, sharpness=12.5
    ),
    # differs from the paper: a coefficient of .1 times a ramp up to 100, fewer epochs, and a
    # ramp-down of exp(-(k / 2)^2 / 30)
    "published-code": AMCPreset(
        weight=10.0,
        total_epochs=200,
        ramp_up_epochs=50,
        ramp_down_epochs=30,
        sharpness=7.5,
        first_epoch_weight=0.0,
    ),
}


def amc_preset(name: str) -> AMCPreset:
    """Return the preset ``"paper"`` or ``"published-code"``.

    Raises:
        UnknownNameError: there is no such preset.

    Example:
        >>> amc_preset("paper").weight_at(80), amc_preset("published-code").weight_at(80)
        (0.1, 10.0)
    """
    if name not in AMC_PRESETS:
        raise UnknownNameError(unknown_name("AMC preset", name, AMC_PRESETS))
    return AMC_PRESETS[name]
