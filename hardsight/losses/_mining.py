"""Mining of hard pairs: for every row of a batch, partners chosen by distance."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

MINED = ("hard", "semi_hard")


class Partners(NamedTuple):
    """One similar and one dissimilar partner for every row.

    A row without such a partner is its own partner.

    Attributes:
        similar: row numbers of the similar partners, ``[N]``.
        has_similar: whether a row has a similar partner, ``[N]``.
        dissimilar: row numbers of the dissimilar partners, ``[N]``.
        has_dissimilar: whether a row has a dissimilar partner, ``[N]``.
    """

    similar: Tensor
    has_similar: Tensor
    dissimilar: Tensor
    has_dissimilar: Tensor


def partners(distances: Tensor, groups: Tensor, takes_part: Tensor, how: str) -> Partners:
    """Choose the farthest similar row of every row, and a near dissimilar one.

    The dissimilar row is the nearest one (``"hard"``), or the nearest of those that are farther
    away than the similar row (``"semi_hard"``). If there are none, it is the farthest of all: early
    in training, when similar rows are still far apart, the loss then still has a gradient.

    Args:
        distances: between all rows, ``[N, N]``. A row of NaN is chosen only as its own partner,
            where its value is NaN, so a broken row is neither paired with others nor hidden.
        groups: two rows are similar if they agree in it, ``[N]``.
        takes_part: which rows may be in a pair, ``[N]``.
        how: ``"hard"`` or ``"semi_hard"``.
    """
    own = torch.arange(len(distances), device=distances.device)
    if not len(distances):  # argmax raises without columns
        nobody = own.bool()
        return Partners(own, nobody, own, nobody)
    # the distance of a non-finite row to itself is NaN, which must reach the loss to be seen there
    is_broken = distances.diagonal().isnan() & takes_part
    may_pair = takes_part[:, None] & takes_part & ~distances.isnan()
    agrees = groups[:, None] == groups
    # a row is never its own similar partner
    similar = may_pair & agrees & (own[:, None] != own)
    dissimilar = may_pair & ~agrees
    farthest = _masked(distances, similar, -math.inf).argmax(dim=1)
    has_similar = similar.any(dim=1)
    # rows without a similar partner take the nearest of all dissimilar rows
    reach = torch.where(has_similar, distances.gather(1, farthest[:, None])[:, 0], -math.inf)
    nearest = _masked(distances, dissimilar, math.inf).argmin(dim=1)
    # semi-hard: the nearest row beyond the similar partner, or the farthest if there is none
    if how == "semi_hard":
        beyond = dissimilar & (distances > reach[:, None])
        nearest = torch.where(
            beyond.any(dim=1),
            _masked(distances, beyond, math.inf).argmin(dim=1),
            _masked(distances, dissimilar, -math.inf).argmax(dim=1),
        )
    has_dissimilar = dissimilar.any(dim=1)
    return Partners(
        # a row without partner gets its own number, which is in range; its value is masked later
        torch.where(has_similar, farthest, own),
        has_similar | is_broken,
        torch.where(has_dissimilar, nearest, own),
        has_dissimilar | is_broken,
    )


def _masked(distances: Tensor, mask: Tensor, fill: float) -> Tensor:
    return distances.masked_fill(~mask, fill)
