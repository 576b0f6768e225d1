"""Batches of a round, from source and chosen target examples, and the loss of the round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hardsight.losses import mrkld
from hardsight.run.adapt._data import Pool
from hardsight.run.train import Draws, TrainBatches


class AdaptBatch(NamedTuple):
    """The batch of a step in a round.

    Attributes:
        index: positions in the pool, ``[B]``.
        inputs: normalised images.
        labels: true labels of source examples and pseudo-labels of target examples, ``[B]``; -1
            for a target example without a pseudo-label.
        is_target: ``[B]``.
        soft: soft labels ``[B, C]``, zero for source examples; ``None`` if the rule has none.
    """

    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    inputs: Tensor
    labels: Tensor
    is_target: Tensor
    soft: Tensor | None


@dataclass(frozen=True)
class RoundLabels:
    """The labels that a round trains on.

    Attributes:
        labels: pseudo-label of each target example, ``[N]``; -1 if it has none.
        soft: soft labels of the examples with a pseudo-label, in their order, ``[S, C]``.
        use_all: whether to train on target examples without a label too, for the entropy baseline
            and its control.
    """

    labels: Tensor
    soft: Tensor | None = None
    use_all: bool = False

    @property
    def rows(self) -> Tensor:
        """Positions of the target examples to train on, ascending."""
        chosen = torch.ones_like(self.labels) if self.use_all else self.labels >= 0
        return chosen.nonzero().squeeze(1)


class AdaptBatches(TrainBatches):
    """Source and chosen target examples, shuffled together.

    An incomplete last batch is left out. Its size would be different in every round: a new size
    makes a GPU search for its fastest convolutions again, and a single example has no batch
    statistics. Every epoch leaves out other examples.

    Args:
        pool: all images.
        round_labels: of the target.
        seed: of order and augmentation.
    """

    def __init__(self, pool: Pool, round_labels: RoundLabels, *, seed: int) -> None:
        rows = torch.cat([torch.arange(pool.num_source), pool.num_source + round_labels.rows])
        self._inner = pool.training(rows, seed=seed)
        inner = self._inner
        super().__init__(
            inner.pixels, inner.augment, length=len(rows), batch_size=inner.batch_size, seed=seed,
            shard=inner.shard,
        )  # fmt: skip
        self._first, self.forks = pool.num_source, inner.forks
        self._labels = torch.cat([pool.labels, round_labels.labels]).to(self.device)
        self._soft, self._place = None, None
        if round_labels.soft is not None:
            # index 0 is a row of zeros, for all examples without a soft label
            none = torch.zeros(1, round_labels.soft.shape[1])
            self._soft = torch.cat([none, round_labels.soft.float()]).to(self.device)
            place = torch.zeros(len(self._labels), dtype=torch.long)
            chosen = pool.num_source + (round_labels.labels >= 0).nonzero().squeeze(1)
            place[chosen] = 1 + torch.arange(len(chosen))
            self._place = place.to(self.device)

    def __len__(self) -> int:
        return max(1, self.length // self.batch_size)

    def drawn(self, draws: Draws) -> Iterator[Any]:
        """The batches, with the round's labels in place of the data's own."""
        for batch in islice(self._inner.drawn(draws), len(self)):
            index, inputs, _ = self._inner.made(batch)
            soft = None
            if self._soft is not None and self._place is not None:
                soft = self._soft[self._place[index]]
            yield AdaptBatch(index, inputs, self._labels[index], index >= self._first, soft)


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
