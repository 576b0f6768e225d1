"""Which rows of a batch are hard for each other: partners of every row, chosen by distance."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

MINED = ("hard", "semi_hard")


class Partners(NamedTuple):
    """One similar and one dissimilar row for every row; a row without one is its own partner.

    Attributes:
        similar: row numbers, ``[N]``.
        has_similar: whether there is one, ``[N]``.
        dissimilar: row numbers, ``[N]``.
        has_dissimilar: whether there is one, ``[N]``.
    """

    similar: Tensor
    has_similar: Tensor
    dissimilar: Tensor
    has_dissimilar: Tensor


def partners(distances: Tensor, groups: Tensor, takes_part: Tensor, how: str) -> Partners:
    """The farthest similar row of every row, and a near dissimilar one.

    The dissimilar row is the nearest one (``"hard"``), or the nearest of those that are farther
    away than the similar row (``"semi_hard"``); if there are none, the farthest of all, so that a
    model that has not learnt yet, whose similar rows are far away, is still pushed.

    Args:
        distances: between all rows, ``[N, N]``; a row of NaN is nobody's partner but its own, as
            which its value is NaN: a broken row is neither chosen nor hidden.
        groups: what must agree for two rows to be similar, ``[N]``.
        takes_part: which rows may be in a pair at all, ``[N]``.
        how: ``"hard"`` or ``"semi_hard"``.
    """
    own = torch.arange(len(distances), device=distances.device)
    if not len(distances):  # an argmax over no column has no answer
        nobody = own.bool()
        return Partners(own, nobody, own, nobody)
    # a row that is not finite has no distance to itself; it must reach the loss, and be seen there
    is_broken = distances.diagonal().isnan() & takes_part
    may_pair = takes_part[:, None] & takes_part & ~distances.isnan()
    agrees = groups[:, None] == groups
    # a row is never its own similar partner
    similar = may_pair & agrees & (own[:, None] != own)
    dissimilar = may_pair & ~agrees
    farthest = _masked(distances, similar, -math.inf).argmax(dim=1)
    has_similar = similar.any(dim=1)
    # rows without a similar partner take the nearest dissimilar row of all
    reach = torch.where(has_similar, distances.gather(1, farthest[:, None])[:, 0], -math.inf)
    nearest = _masked(distances, dissimilar, math.inf).argmin(dim=1)
    # semi-hard: the nearest of those beyond the similar partner; if there is none, the farthest
    if how == "semi_hard":
        beyond = dissimilar & (distances > reach[:, None])
        nearest = torch.where(
            beyond.any(dim=1),
            _masked(distances, beyond, math.inf).argmin(dim=1),
            _masked(distances, dissimilar, -math.inf).argmax(dim=1),
        )
    has_dissimilar = dissimilar.any(dim=1)
    return Partners(
        # its own partner: the distance 0 is masked later, and indexes stay in range
        torch.where(has_similar, farthest, own),
        has_similar | is_broken,
        torch.where(has_dissimilar, nearest, own),
        has_dissimilar | is_broken,
    )


def _masked(distances: Tensor, mask: Tensor, fill: float) -> Tensor:
    return distances.masked_fill(~mask, fill)
