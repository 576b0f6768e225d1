"""A triplet loss over angles."""

import math

import torch
from torch import Tensor

from hardsight._checks import check_matrix
from hardsight.errors import OptionError
from hardsight.geometry import angle_between, pairwise_angles
from hardsight.losses._mining import MINED, partners
from hardsight.losses._module import LossModule
from hardsight.losses._pairs import gather_pairs, pair_groups
from hardsight.losses._reduce import check_choice, reduce_loss
from hardsight.registry import loss


def angular_triplet_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    margin_rad: float = 0.5,
    triplets: str = "hard",
    ignore_index: int = -100,
    gather: bool = False,
    reduction: str = "mean",
    check_finite: bool = False,
) -> Tensor:
    r"""Loss that keeps every row nearer to its own class than to another class, by a margin.

    .. math:: L_i = \max(0,\ \theta_{ip} - \theta_{in} + m_g)

    where :math:`p` is the farthest row of the same class in the batch and :math:`n` a near row of
    another class. Use it as an auxiliary loss, like :func:`~hardsight.losses.amc_loss`.

    Args:
        embeddings: penultimate features, ``[N, D]``, any scale.
        labels: class indices, ``[N]``.
        margin_rad: :math:`m_g` in ``(0, pi]``, radians.
        triplets: how :math:`n` is chosen: the nearest row of another class (``"hard"``), or the
            nearest of those that are farther away than :math:`p`, and the farthest if there are
            none (``"semi_hard"``).
        ignore_index: label of examples to ignore.
        gather: choose among the rows of all ranks, as in :func:`~hardsight.losses.amc_loss`.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is over rows that have both
            partners; the others cost 0. Without any such row the loss is 0, and without any
            example it is NaN.
        check_finite: raise on a non-finite value, naming the rows.

    Returns:
        A scalar, or ``[N]`` for ``"none"``, in ``[0, pi + margin_rad]``; float32 or wider. The
        gradient is finite everywhere; the choice of rows has no gradient.

    Raises:
        OptionError: ``margin_rad`` is outside ``(0, pi]``, or another option is unknown.
        ShapeError: the shapes do not fit.
        LabelError: a label is negative and is not ``ignore_index``.

    Example:
        >>> rows = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        >>> angular_triplet_loss(rows, torch.tensor([0, 0, 1]), reduction="none")
        tensor([0.0000, 0.5000, 0.0000])

    Reference:
        Schroff et al., FaceNet, CVPR 2015, Eq. (1); hardest rows of a batch by Hermans et al., In
        Defense of the Triplet Loss, 2017, Eq. (5). Deviation: angles instead of Euclidean
        distances, and one triplet per row for ``"semi_hard"`` as well.
    """
    check_choice("triplets", triplets, MINED)
    if not 0 < margin_rad <= math.pi:
        raise OptionError(f"expected margin_rad in (0, pi], radians, got {margin_rad}")
    check_matrix(embeddings=embeddings)
    groups, takes_part = pair_groups(embeddings, labels, None, "labels", ignore_index)
    if gather:
        embeddings, groups, takes_part = gather_pairs(embeddings, groups, takes_part)
    # partners are chosen without a gradient; the two angles of each triplet are then measured again
    # with a gradient
    angles = pairwise_angles(embeddings.detach(), embeddings.detach())
    chosen = partners(angles, groups, takes_part, triplets)
    to_similar = angle_between(embeddings, embeddings[chosen.similar])
    to_dissimilar = angle_between(embeddings, embeddings[chosen.dissimilar])
    kept = chosen.has_similar & chosen.has_dissimilar
    values = (to_similar - to_dissimilar + margin_rad).clamp_min(0.0).masked_fill(~kept, 0.0)
    return reduce_loss(
        values,
        reduction,
        # a batch without a triplet costs 0; an empty batch is NaN, as in cross_entropy
        divisor=torch.where(takes_part.any(), kept.sum().clamp_min(1), 0),
        check_finite=check_finite,
    )


@loss("angular_triplet", function=angular_triplet_loss, inputs=("embeddings", "labels"))
class AngularTripletLoss(LossModule):
    """Module twin of :func:`angular_triplet_loss`."""

    def __init__(
        self,
        *,
        margin_rad: float = 0.5,
        triplets: str = "hard",
        ignore_index: int = -100,
        gather: bool = False,
        reduction: str = "mean",
        check_finite: bool = False,
    ) -> None:
        super().__init__(
            margin_rad=margin_rad,
            triplets=triplets,
            ignore_index=ignore_index,
            gather=gather,
            reduction=reduction,
            check_finite=check_finite,
        )

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """See :func:`angular_triplet_loss`."""
        return angular_triplet_loss(embeddings, labels, **self.options)
