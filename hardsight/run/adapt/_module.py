"""The loss of a round, which tells the two domains apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hardsight.losses import mrkld
from hardsight.run.train.engine import TrainModule


def adaptation_loss(
    logits: Tensor,
    labels: Tensor,
    is_target: Tensor,
    soft: Tensor | None = None,
    *,
    mrkld_weight: float = 0.0,
    entropy_weight: float = 0.0,
) -> Tensor:
    r"""Loss of a batch of both domains, the mean over its rows.

    .. math:: -\log p_y \;\text{(source)}, \qquad
              -\sum_c \hat y_c \log p_c + w\,\mathrm{KL}(u\,\|\,p) + v\,H(p) \;\text{(target)}

    Args:
        logits: ``[B, C]``.
        labels: ``[B]``; -1 takes no part in the cross-entropy.
        is_target: ``[B]``; regularisers are for these rows alone.
        soft: soft labels ``[B, C]`` of the target rows; one-hot labels if ``None``.
        mrkld_weight: :math:`w`.
        entropy_weight: :math:`v`.

    Returns:
        a scalar, float32 or wider.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
        >>> adaptation_loss(logits, torch.tensor([0, -1]), torch.tensor([False, True]))
        tensor(0.3466)

    Reference:
        Zou et al., Confidence Regularized Self-Training, ICCV 2019, Eqs. (4) and (6).
    """
    values = functional.cross_entropy(logits, labels, ignore_index=-1, reduction="none")
    log_probs = logits.log_softmax(dim=1)
    if soft is not None:
        values = torch.where(is_target, -(soft * log_probs).sum(dim=1), values)
    extra = torch.zeros_like(values)
    if mrkld_weight:
        extra = extra + mrkld_weight * mrkld(logits, reduction="none")
    if entropy_weight:
        extra = extra - entropy_weight * (log_probs.exp() * log_probs).sum(dim=1)
    return (values + torch.where(is_target, extra, 0.0)).mean()


class AdaptModule(TrainModule):
    """A classifier in a round.

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
