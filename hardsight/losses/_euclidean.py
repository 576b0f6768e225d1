"""The Euclidean contrastive loss, the baseline that AMC-Loss is compared with."""

import torch
from torch import Tensor

from hardsight.errors import OptionError
from hardsight.geometry import row_norms, widen
from hardsight.losses._module import LossModule
from hardsight.losses._pairs import Distance, contrastive_loss
from hardsight.registry import loss


def euclidean_contrastive_loss(
    embeddings: Tensor,
    labels: Tensor,
    logits: Tensor | None = None,
    *,
    margin: float = 1.0,
    pairs: str = "halves",
    similarity: str = "labels",
    average: str = "pairs",
    ignore_index: int = -100,
    gather: bool = False,
    reduction: str = "mean",
    check_finite: bool = False,
) -> Tensor:
    r"""Contrastive loss that pulls similar pairs together and others a distance apart.

    .. math:: L_{ij} = \begin{cases} \|x_i - x_j\|^2 & S_{ij} = 1 \\
              \max(0, m_e - \|x_i - x_j\|)^2 & S_{ij} = 0 \end{cases}

    Args:
        embeddings: penultimate features, ``[N, D]``, not normalised.
        labels: class indices, ``[N]``.
        logits: ``[N, C]``, only for ``similarity="predictions"``.
        margin: :math:`m_e > 0`, in units of the embeddings.
        pairs: ``"halves"``, ``"all"``, ``"hard"`` or ``"semi_hard"``, as in
            :func:`~hardsight.losses.amc_loss`.
        similarity: ``"labels"`` or ``"predictions"``, as there.
        average: ``"pairs"`` or ``"signs"``, as there.
        ignore_index: label of examples to leave out of all pairs.
        gather: form pairs over the rows of all ranks, as there.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, as there.
        check_finite: raise on a non-finite value, naming the pairs.

    Returns:
        A scalar, or one value per pair for ``"none"``, in ``[0, inf)``; float32 or wider. The
        gradient of a dissimilar pair at distance 0 is 0.

    Raises:
        OptionError: ``margin`` is not positive, or another option is unknown.
        ShapeError: the shapes do not fit.
        LabelError: a label is negative and is not ``ignore_index``.

    Example:
        >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> euclidean_contrastive_loss(rows, torch.tensor([0, 0, 0, 1]), reduction="none")
        tensor([2.0000, 1.0000])

    Reference:
        Choi et al., AMC-Loss, CVPR Workshops 2020, Eq. (1).
    """
    if not margin > 0:
        raise OptionError(f"expected margin to be positive, got {margin}")
    return contrastive_loss(
        _EUCLIDEAN,
        margin,
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


@loss(
    "euclidean_contrastive",
    function=euclidean_contrastive_loss,
    inputs=("embeddings", "labels", "logits"),
)
class EuclideanContrastiveLoss(LossModule):
    """Module twin of :func:`euclidean_contrastive_loss`."""

    def __init__(
        self,
        *,
        margin: float = 1.0,
        pairs: str = "halves",
        similarity: str = "labels",
        average: str = "pairs",
        ignore_index: int = -100,
        gather: bool = False,
        reduction: str = "mean",
        check_finite: bool = False,
    ) -> None:
        super().__init__(
            margin=margin,
            pairs=pairs,
            similarity=similarity,
            average=average,
            ignore_index=ignore_index,
            gather=gather,
            reduction=reduction,
            check_finite=check_finite,
        )

    def forward(self, embeddings: Tensor, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        """See :func:`euclidean_contrastive_loss`."""
        return euclidean_contrastive_loss(embeddings, labels, logits, **self.options)


def _paired(first: Tensor, second: Tensor) -> Tensor:
    return row_norms(widen(first) - widen(second))


def _matrix(embeddings: Tensor) -> Tensor:
    rows = widen(embeddings)
    # through inner products, the distance of rows close to each other would lose its digits
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")


_EUCLIDEAN = Distance(paired=_paired, matrix=_matrix)
