"""What a round trains on: source and chosen target examples, the round's labels, and its loss."""

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
    """What a step of a round sees.

    Attributes:
        index: positions in the pool, ``[B]``.
        inputs: normalised images.
        labels: of source examples the true ones, of target examples the pseudo-labels; -1 where a
            target example has none. ``[B]``.
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
    """What a round trains on.

    Attributes:
        labels: one per target example, ``[N]``; -1 if it has none.
        soft: soft labels of those with a label, in their order, ``[S, C]``.
        use_all: target examples without a label take part as well, for entropy and its control.
    """

    labels: Tensor
    soft: Tensor | None = None
    use_all: bool = False

    @property
    def rows(self) -> Tensor:
        """Target examples that take part, ascending."""
        chosen = torch.ones_like(self.labels) if self.use_all else self.labels >= 0
        return chosen.nonzero().squeeze(1)


class AdaptBatches(TrainBatches):
    """Source and chosen target examples, shuffled together.

    An incomplete last batch is left out: how many examples a round has is chance, and a batch of
    another size costs a GPU a new search for its fastest convolutions, a batch of one its
    statistics. Who is left out changes with every epoch.

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
            # a row of zeros for everyone else
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
