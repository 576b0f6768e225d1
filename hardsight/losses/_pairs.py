"""The computation behind the contrastive losses: forming pairs, similarity, averaging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hardsight._checks import check_indices, check_matrix, check_rows, is_traced
from hardsight.errors import LabelError, OptionError
from hardsight.losses._mining import MINED, partners
from hardsight.losses._reduce import check_choice, reduce_loss
from hardsight.ranks import gather_rows

PAIRS = ("halves", "all", *MINED)


@dataclass(frozen=True)
class Distance:
    """A measure of distance, between paired rows and between all rows."""

    paired: Callable[[Tensor, Tensor], Tensor]  # [P, D], [P, D] -> [P]
    matrix: Callable[[Tensor], Tensor]  # [N, D] -> [N, N]


def contrastive_loss(
    distance: Distance,
    margin: float,
    embeddings: Tensor,
    labels: Tensor,
    logits: Tensor | None,
    *,
    pairs: str,
    similarity: str,
    average: str,
    ignore_index: int,
    gather: bool,
    reduction: str,
    check_finite: bool,
) -> Tensor:
    """Squared distance of similar pairs; for others, squared shortfall below ``margin``."""
    check_choice("pairs", pairs, PAIRS)
    check_choice("average", average, ("pairs", "signs"))
    check_matrix(embeddings=embeddings)
    groups, takes_part = pair_groups(embeddings, labels, logits, similarity, ignore_index)
    # gather before pairs are formed, since partners may be on other ranks
    if gather:
        embeddings, groups, takes_part = gather_pairs(embeddings, groups, takes_part)
    first, second, distances, kept, similar = _formed(
        distance, embeddings, groups, takes_part, pairs
    )
    values = torch.where(similar, distances, (margin - distances).clamp_min(0.0)).square()
    values = values.masked_fill(~kept, 0.0)
    if average == "signs" and reduction == "mean":
        # the values already sum to the result, so the divisor is 1
        values, divisor = _per_sign(values, similar, kept), torch.ones_like(kept.sum())
    else:
        # a batch with rows but without a pair costs 0, not 0 / 0
        divisor = kept.sum().clamp_min(1)
    # a batch of one has no pair and costs 0; an empty batch is NaN, as in cross_entropy
    return reduce_loss(
        values,
        reduction,
        divisor=torch.where(takes_part.any(), divisor, 0),
        check_finite=check_finite,
        positions=torch.stack((first, second), dim=1),
    )


class _Pairs(NamedTuple):
    """Both rows of every pair, their distance, and whether the pair counts, ``[P]`` each."""

    first: Tensor
    second: Tensor
    distances: Tensor
    kept: Tensor
    similar: Tensor


def _formed(
    distance: Distance, embeddings: Tensor, groups: Tensor, takes_part: Tensor, pairs: str
) -> _Pairs:
    """Form the pairs of a batch; mined pairs are chosen without a gradient."""
    if pairs in MINED:
        return _mined(distance, embeddings, groups, takes_part, pairs)
    first, second = _pair_rows(len(embeddings), pairs, embeddings.device)
    if pairs == "halves":
        # N / 2 distances; the whole matrix is needed only for all pairs
        distances = distance.paired(embeddings[first], embeddings[second])
    else:
        distances = distance.matrix(embeddings)[first, second]
    kept = takes_part[first] & takes_part[second]
    return _Pairs(first, second, distances, kept, groups[first] == groups[second])


def _mined(
    distance: Distance, embeddings: Tensor, groups: Tensor, takes_part: Tensor, how: str
) -> _Pairs:
    """Every row with its similar partner, then every row with its dissimilar one."""
    # detached: the choice has no gradient, and autograd would keep the whole matrix for nothing
    chosen = partners(distance.matrix(embeddings.detach()), groups, takes_part, how)
    rows = torch.arange(len(embeddings), device=embeddings.device)
    first, second = torch.cat([rows, rows]), torch.cat([chosen.similar, chosen.dissimilar])
    kept = torch.cat([chosen.has_similar, chosen.has_dissimilar])
    # measure the chosen pairs again, exactly and with a gradient
    distances = distance.paired(embeddings[first], embeddings[second])
    is_similar = torch.cat([torch.ones_like(takes_part), torch.zeros_like(takes_part)])
    return _Pairs(first, second, distances, kept, is_similar)


def gather_pairs(
    embeddings: Tensor, groups: Tensor, takes_part: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gather embeddings, groups and ``takes_part`` of all ranks."""
    # booleans as whole numbers, which every backend can gather
    return gather_rows(embeddings), gather_rows(groups), gather_rows(takes_part.long()).bool()


def pair_groups(
    embeddings: Tensor, labels: Tensor, logits: Tensor | None, similarity: str, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Return the values that agree for similar rows, and which examples take part."""
    check_choice("similarity", similarity, ("labels", "predictions"))
    if similarity == "predictions":
        if logits is None:
            raise OptionError('similarity="predictions" needs logits [N, C], got none')
        check_matrix(logits=logits)
        check_rows(embeddings=embeddings, logits=logits)
        predictions = logits.argmax(dim=1)
        # every example has a prediction, so all take part
        return predictions, torch.ones_like(predictions, dtype=torch.bool)
    check_rows(embeddings=embeddings, labels=labels)
    check_indices(labels)
    labels = labels.long()  # as uint8, an ignore_index of -100 would be class 156
    takes_part = labels != ignore_index
    if labels.device.type == "cpu" and not is_traced(labels):
        negative = takes_part & (labels < 0)
        if negative.any():
            raise LabelError(
                f"expected labels of at least 0, got {int(labels[negative][0])}; pass it as "
                "ignore_index if it marks examples without a label"
            )
    return labels, takes_part


def _pair_rows(count: int, pairs: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row numbers of both sides of every pair; halves leave out the last row of an odd batch."""
    if pairs == "halves":
        first = torch.arange(count // 2, device=device)
        # the first half against the second, as in the paper
        return first, first + count // 2
    first, second = torch.triu_indices(count, count, offset=1, device=device)
    return first, second


def _per_sign(values: Tensor, similar: Tensor, kept: Tensor) -> Tensor:
    """Values whose sum is the mean over similar pairs plus the mean over dissimilar pairs."""
    # clamped, because a batch may hold no similar, or no dissimilar, pair
    count_similar = (kept & similar).sum().clamp_min(1)
    count_dissimilar = (kept & ~similar).sum().clamp_min(1)
    return values / torch.where(similar, count_similar, count_dissimilar)
