"""Angular scores: visual hardness, and the angles it is made of."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hardsight._checks import check_labels, check_width
from hardsight.errors import ShapeError
from hardsight.geometry import pairwise_angles, target_angles
from hardsight.registry import score
from hardsight.scores._summary import angle_summary
from hardsight.scores._tiles import AngleSummary


def _target(angles: AngleSummary) -> Tensor:
    return angles.target


@score(
    "target_angle",
    inputs=("embeddings", "labels", "class_weights"),
    range=(0.0, math.pi),
    higher_is_harder=True,
    meaning="Angle in radians between an example and the weight of its own class. "
    "0 is perfectly aligned, 1.57 (a right angle) is unrelated.",
    reads="angles",
    formula=_target,
    title="Angle to own class",
    short_title="Angle",
    unit="rad",
    judge=6,
    on_card=5,
)
def target_angle(embeddings: Tensor, labels: Tensor, class_weights: Tensor) -> Tensor:
    r"""Angle between an example and the weight of its own class.

    .. math:: \theta_y = \angle(x, w_y)

    Args:
        embeddings: penultimate features, ``[N, D]``, any scale.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: rows of the classifier head, ``[C, D]``; the bias is ignored.

    Returns:
        ``[N]`` in ``[0, pi]``, radians; larger is harder.

    Raises:
        ShapeError: the tensors do not fit each other.

    Example:
        >>> import torch
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> target_angle(axes[:1].expand(3, 2), torch.tensor([0, 1, 2]), axes)
        tensor([0.0000, 1.5708, 3.1416])

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, the numerator of Eq. (1).
    """
    check_width(embeddings, class_weights)
    check_labels(labels, class_weights.shape[0])
    return target_angles(embeddings, labels, class_weights)


def _margin(angles: AngleSummary) -> Tensor:
    if angles.num_classes < 2:
        raise ShapeError("a margin needs at least 2 classes, got class_weights with 1 row")
    return angles.nearest_other - angles.target


@score(
    "angular_margin",
    inputs=("embeddings", "labels", "class_weights"),
    range=(-math.pi, math.pi),
    higher_is_harder=False,
    meaning="How much further, in radians, the nearest other class is than the own class. "
    "Below 0, another class is closer in angle.",
    reads="angles",
    formula=_margin,
    unit="rad",
    judge=4,
)
def angular_margin(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, *, impl: str = "auto"
) -> Tensor:
    r"""Angle to the nearest other class minus the angle to the own class.

    .. math:: \min_{c \neq y} \angle(x, w_c) - \angle(x, w_y)

    Args:
        embeddings: penultimate features, ``[N, D]``, any scale.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: rows of the classifier head, ``[C, D]``; the bias is ignored.
        impl: ``"torch"``, ``"triton"`` (fused kernels, on a GPU, no gradient), or ``"auto"``.

    Returns:
        ``[N]`` in ``[-pi, pi]``, radians; smaller is harder, negative is nearer another class.

    Raises:
        ShapeError: the tensors do not fit each other, or there is one class only.

    Example:
        >>> import torch
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> angular_margin(axes[:1].expand(2, 2), torch.tensor([0, 1]), axes)
        tensor([ 1.5708, -1.5708])

    Reference:
        The margin of the Encouraging Loss paper, taken in angles.
    """
    return _margin(angle_summary(embeddings, labels, class_weights, impl=impl))


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
