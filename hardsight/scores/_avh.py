import torch
from torch import Tensor

from hardsight.geometry import pairwise_angles
from hardsight.registry import score
from hardsight.scores._summary import angle_summary
from hardsight.scores._tiles import AngleSummary


def _hardness(angles: AngleSummary) -> Tensor:
    total = angles.total
    # all angles 0: the example says nothing of its class, and each class gets the same share
    silent = total == 0
    return (angles.target / (total + silent)).masked_fill_(silent, 1 / angles.num_classes)


@score(
    "avh",
    inputs=("embeddings", "labels", "class_weights"),
    range=(0.0, 1.0),
    higher_is_harder=True,
    meaning="Share of the total angle to all classes that separates an example from its own "
    "class. With C classes, 1/C means the model cannot tell; well under it is easy, over it "
    "points at another class.",
    reads="angles",
    formula=_hardness,
    judge=5,
)
def angular_visual_hardness(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, *, impl: str = "auto"
) -> Tensor:
    r"""Share of the total angle that separates an example from its own class.

    .. math:: \mathrm{AVH}(x, y) = \frac{\angle(x, w_y)}{\sum_c \angle(x, w_c)}

    Args:
        embeddings: penultimate features, ``[N, D]``, any scale.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: rows of the classifier head, ``[C, D]``; the bias is ignored.
        impl: ``"torch"``, ``"triton"`` (fused kernels, on a GPU, no gradient), or ``"auto"``.

    Returns:
        ``[N]`` in ``[0, 1]``; larger is harder. Gradient finite, also at angle 0.

    Raises:
        ShapeError: ``embeddings`` and ``labels`` differ in length.

    Example:
        >>> import torch
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> angular_visual_hardness(axes[:1], torch.tensor([1]), axes)
        tensor([0.3333])

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Definition 3, Eq. (1).
        Deviation: angles by ``atan2`` instead of ``arccos``; equal up to rounding. An example
        aligned with every class at once gets 1/C.
    """
    return _hardness(angle_summary(embeddings, labels, class_weights, impl=impl))


def _confidence(angles: Tensor) -> Tensor:
    closeness = torch.pi - angles
    total = closeness.sum(dim=1, keepdim=True)
    silent = total == 0  # opposite to every class at once
    return (closeness / (total + silent)).masked_fill_(silent, 1 / angles.shape[1])


@score(
    "avc",
    inputs=("embeddings", "class_weights"),
    range=(0.0, 1.0),
    higher_is_harder=False,
    meaning="Share of the total closeness (pi minus the angle) that an example gives each class. "
    "A confidence from angles alone, blind to the feature norm.",
    reads="pairwise_angles",
    formula=_confidence,
    per_class=True,
)
def angular_visual_confidence(embeddings: Tensor, class_weights: Tensor) -> Tensor:
    r"""Share of the total closeness that an example gives each class.

    .. math:: \mathrm{AVC}(c \mid x) =
        \frac{\pi - \angle(x, w_c)}{\sum_k (\pi - \angle(x, w_k))}

    Args:
        embeddings: penultimate features, ``[N, D]``, any scale.
        class_weights: rows of the classifier head, ``[C, D]``; the bias is ignored.

    Returns:
        ``[N, C]``, rows sum to 1; a larger value means more confidence in that class.

    Raises:
        ShapeError: the two tensors differ in width.

    Example:
        >>> import torch
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> angular_visual_confidence(axes[:1], axes)
        tensor([[0.6667, 0.3333, 0.0000]])

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Eq. (3).
    """
    return _confidence(pairwise_angles(embeddings, class_weights))
