"""Optimizers and learning-rate schedules of a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from hardsight.losses import GaussianRampLR
from hardsight.run.train._config import OptimizerConfig, ScheduleConfig

_LR = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}
_WEIGHT_DECAY = {"sgd": 5e-4, "adam": 0.0, "adamw": 1e-2}


def optimizer_of(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer a recipe asks for."""
    given = [parameter for parameter in parameters if parameter.requires_grad]
    common: dict[str, Any] = {
        "lr": _LR[config.name] if config.lr is None else config.lr,
        "weight_decay": (
            _WEIGHT_DECAY[config.name] if config.weight_decay is None else config.weight_decay
        ),
    }
    if config.name == "sgd":
        return torch.optim.SGD(given, momentum=config.momentum, nesterov=config.nesterov, **common)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(given, betas=config.betas, **common)


def scheduler_of(
    config: ScheduleConfig, optimizer: torch.optim.Optimizer, *, epochs: int, steps_per_epoch: int
) -> dict[str, Any]:
    """The schedule a recipe asks for, as Lightning takes it.

    All are stepped by step: Lightning steps those by epoch only after an epoch's checkpoint is
    written, so a resumed run would be one step behind.
    """
    every = 1
    schedule: LRScheduler
    if config.name == "one_cycle":
        warmup = 0.3 * epochs if config.warmup_epochs is None else config.warmup_epochs
        steps = epochs * steps_per_epoch + 1  # one is taken after the last step
        share = min(1.0, warmup / epochs)
        if abs(share * steps - 1) < 1e-6:  # torch divides by the length of the rise less one step
            share = (1 + 1e-6) / steps
        schedule = OneCycleLR(
            optimizer,
            max_lr=[group["lr"] for group in optimizer.param_groups],
            total_steps=steps,
            pct_start=share,
        )
    elif config.name == "gaussian_ramps":
        every = steps_per_epoch
        schedule = GaussianRampLR(
            optimizer,
            total_epochs=epochs,
            ramp_up_epochs=80 if config.warmup_epochs is None else config.warmup_epochs,
            ramp_down_epochs=config.ramp_down_epochs,
            final_beta1=config.final_beta1,
        )
    else:
        schedule = LambdaLR(
            optimizer,
            lambda step: learning_rate_factor(
                config, step, epochs=epochs, steps_per_epoch=steps_per_epoch
            ),
        )
    return {"scheduler": schedule, "interval": "step", "frequency": every}


def learning_rate_factor(
    config: ScheduleConfig, step: int, *, epochs: int, steps_per_epoch: int
) -> float:
    r"""Share of the learning rate at ``step``, counted from 0.

    .. math:: \text{cosine:}\; f + (1 - f)\,\tfrac12 (1 + \cos\pi t), \qquad
              \text{step:}\; \gamma^{\lfloor e / E \rfloor}

    Example:
        >>> drops = ScheduleConfig("step", step_epochs=30)
        >>> [learning_rate_factor(drops, s, epochs=90, steps_per_epoch=10) for s in (0, 299, 300)]
        [1.0, 1.0, 0.1]
    """
    epoch, warmup = step / steps_per_epoch, config.warmup_epochs or 0.0
    if epoch < warmup:
        return min(1.0, (step + 1) / (warmup * steps_per_epoch))
    if config.name == "step" and config.drop_epochs is not None:
        # epochs count from 1 where people name them
        return float(config.gamma ** sum(epoch + 1 >= drop for drop in config.drop_epochs))
    if config.name == "step":
        return float(config.gamma ** int(epoch // config.step_epochs))
    if config.name == "cosine":
        done = min(1.0, (epoch - warmup) / max(epochs - warmup, 1e-9))
        return config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * done))
    return 1.0
