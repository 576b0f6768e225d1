"""AMC-Loss: a contrastive loss over angles."""

import math

from torch import Tensor

from hardsight.errors import OptionError
from hardsight.geometry import angle_between, pairwise_angles
from hardsight.losses._module import LossModule
from hardsight.losses._pairs import Distance, contrastive_loss
from hardsight.registry import loss


def amc_loss(
    embeddings: Tensor,
    labels: Tensor,
    logits: Tensor | None = None,
    *,
    margin_rad: float = 0.5,
    pairs: str = "halves",
    similarity: str = "labels",
    average: str = "pairs",
    ignore_index: int = -100,
    gather: bool = False,
    reduction: str = "mean",
    check_finite: bool = False,
) -> Tensor:
    r"""Contrastive loss that pulls similar pairs together and others a margin of angle apart.

    .. math:: L_{ij} = \begin{cases} \theta_{ij}^2 & S_{ij} = 1 \\
              \max(0, m_g - \theta_{ij})^2 & S_{ij} = 0 \end{cases}

    Use it as an auxiliary loss: ``cross_entropy(logits, labels) + 0.1 * ramp * amc_loss(...)``;
    see :func:`~hardsight.losses.gaussian_ramp_up` and :data:`~hardsight.losses.AMC_PRESETS`.

    Args:
        embeddings: penultimate features, ``[N, D]``, any scale.
        labels: class indices, ``[N]``.
        logits: ``[N, C]``, only for ``similarity="predictions"``.
        margin_rad: :math:`m_g` in ``(0, pi]``, radians.
        pairs: ``"halves"``, as in the paper: row ``i`` of the first half against row ``i`` of the
            second, so shuffle the batch; the last row of an odd batch is left out. ``"all"``:
            every pair once, ``N (N - 1) / 2`` of them. ``"hard"``: every row with its farthest
            similar row, then every row with its nearest dissimilar row, ``2 N`` in all, chosen
            without a gradient. ``"semi_hard"``: the dissimilar row is the nearest of those that
            are farther away than that similar row, or the farthest of all if there are none; this
            chooses wrong labels less often. A row without such a partner costs 0 and does not
            count in the mean.
        similarity: a pair is similar if the ``"labels"`` agree or, as in the paper's Eq. (3), if
            the ``"predictions"`` do; labels are then not used.
        average: ``"pairs"``, as in the paper: the mean over all pairs. ``"signs"``: the mean over
            similar pairs plus the mean over dissimilar pairs, since only about 1 in C is similar.
        ignore_index: label of examples to leave out of all pairs.
        gather: form pairs over the rows of all ranks, in rank order, with gradients. Every rank
            returns the same loss; under ``DistributedDataParallel`` parameters receive the
            gradient of one process holding the whole batch. No effect with a single process.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. A batch without a pair costs 0; without
            any example the mean is NaN, as in ``cross_entropy``.
        check_finite: raise on a non-finite value, naming the pairs.

    Returns:
        A scalar, or one value per pair for ``"none"``, in ``[0, pi ** 2]``; float32 or wider. The
        gradient is finite everywhere and correct at angle 0.

    Raises:
        OptionError: ``margin_rad`` is outside ``(0, pi]``, or another option is unknown.
        ShapeError: the shapes do not fit.
        LabelError: a label is negative and is not ``ignore_index``.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> amc_loss(rows, torch.tensor([0, 0, 0, 1]), reduction="none")
        tensor([2.4674, 0.2500])

    Reference:
        Choi et al., AMC-Loss, CVPR Workshops 2020, Eq. (2) and (3).
        Deviation: similarity from labels by default; angles by ``atan2`` instead of ``arccos``.
        Mined pairs are not the paper's: Hermans et al., In Defense of the Triplet Loss, 2017, and
        Schroff et al., FaceNet, CVPR 2015, choose triplets in this way.
    """
    # no angle is larger than pi: with a larger margin every dissimilar pair would be pushed forever
    if not 0 < margin_rad <= math.pi:
        raise OptionError(f"expected margin_rad in (0, pi], radians, got {margin_rad}")
    return contrastive_loss(
        _ANGLE,
        margin_rad,
        embeddings,
        labels,
        logits,
        pairs=pairs,
        similarity=similarity,
        average=average,
        ignore_index=ignore_index,
        gather=gather,
        reduction=reduction,
        check_finite=check_finite,
    )


@loss("amc", function=amc_loss, inputs=("embeddings", "labels", "logits"))
class AMCLoss(LossModule):
    """Module twin of :func:`amc_loss`."""

    def __init__(
        self,
        *,
        margin_rad: float = 0.5,
        pairs: str = "halves",
        similarity: str = "labels",
        average: str = "pairs",
        ignore_index: int = -100,
        gather: bool = False,
        reduction: str = "mean",
        check_finite: bool = False,
    ) -> None:
        super().__init__(
            margin_rad=margin_rad,
            pairs=pairs,
            similarity=similarity,
            average=average,
            ignore_index=ignore_index,
            gather=gather,
            reduction=reduction,
            check_finite=check_finite,
        )

    def forward(self, embeddings: Tensor, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        """See :func:`amc_loss`."""
        return amc_loss(embeddings, labels, logits, **self.options)


def _angle_matrix(embeddings: Tensor) -> Tensor:
    return pairwise_angles(embeddings, embeddings)


_ANGLE = Distance(paired=angle_between, matrix=_angle_matrix)
