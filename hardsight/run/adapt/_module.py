"""The Lightning module of a round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardsight.run.adapt._labels import adaptation_loss
from hardsight.run.train.engine import TrainModule


class AdaptModule(TrainModule):
    """A classifier that is trained on both domains.

    Args:
        args: of :class:`TrainModule`.
        mrkld_weight: see :func:`adaptation_loss`.
        entropy_weight: of the entropy of target rows.
        options: of :class:`TrainModule`.
    """

    def __init__(
        self, *args: Any, mrkld_weight: float, entropy_weight: float, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._weights = {"mrkld_weight": mrkld_weight, "entropy_weight": entropy_weight}

    def loss_of(self, logits: Tensor, batch: Any) -> Tensor:
        """The loss of both domains, in float32 also under mixed precision."""
        with torch.autocast(logits.device.type, enabled=False):
            return adaptation_loss(
                logits.float(), batch.labels, batch.is_target, batch.soft, **self._weights
            )
