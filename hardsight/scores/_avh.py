"""The scores of Angular Visual Hardness, from the angles and the length of an embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hardsight._checks import check_labels, check_matrix, check_rows, check_width
from hardsight.errors import ShapeError
from hardsight.geometry import pairwise_angles, row_norms, target_angles, widen
from hardsight.ranks import Group, spread_of
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
    meaning="How much further, in radians, the nearest other class is than the labelled class. "
    "Below 0, another class is closer in angle.",
    reads="angles",
    formula=_margin,
    unit="rad",
    judge=4,
)
def angular_margin(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, *, impl: str = "auto"
) -> Tensor:
    r"""Angle to the nearest other class minus the angle to the labelled class.

    .. math:: \min_{c \neq y} \angle(x, w_c) - \angle(x, w_y)

    Args:
        embeddings: penultimate features, ``[N, D]``, any scale.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: rows of the classifier head, ``[C, D]``; the bias is ignored.
        impl: ``"torch"``, ``"triton"`` (fused kernels, on a GPU, no gradient), or ``"auto"``.

    Returns:
        ``[N]`` in ``[-pi, pi]``, radians; smaller is harder, negative is nearer another class.

    Raises:
        ShapeError: the tensors do not fit each other, or there is only one class.

    Example:
        >>> import torch
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> angular_margin(axes[:1].expand(2, 2), torch.tensor([0, 1]), axes)
        tensor([ 1.5708, -1.5708])

    Reference:
        The margin of the Encouraging Loss paper, with angles instead of logits.
    """
    return _margin(angle_summary(embeddings, labels, class_weights, impl=impl))


def _hardness(angles: AngleSummary) -> Tensor:
    total = angles.total
    # if all angles are 0, the example shows no class, and each class gets the same share
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
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    *,
    impl: str = "auto",
    process_group: Group = None,
) -> Tensor:
    r"""Share of the total angle that separates an example from its own class.

    .. math:: \mathrm{AVH}(x, y) = \frac{\angle(x, w_y)}{\sum_c \angle(x, w_c)}

    Args:
        embeddings: penultimate features, ``[N, D]``, any scale.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: rows of the classifier head, ``[C, D]``; the bias is ignored.
        impl: ``"torch"``, ``"triton"`` (fused kernels, on a GPU, no gradient), or ``"auto"``.
        process_group: ranks that the classes are split over, each with its own rows and its own
            part of ``class_weights``; labels count the classes of all ranks. No gradient then.

    Returns:
        ``[N]`` in ``[0, 1]``; larger is harder. The gradient is finite, even at angle 0.

    Raises:
        ShapeError: ``embeddings`` and ``labels`` differ in length.

    Example:
        >>> import torch
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> angular_visual_hardness(axes[:1], torch.tensor([1]), axes)
        tensor([0.3333])

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Definition 3, Eq. (1).
        Deviation: angles by ``atan2`` instead of ``arccos``, which are equal up to rounding. An
        example aligned with every class at once gets 1/C.
    """
    if process_group is not None:
        return _sharded_hardness(embeddings, labels, class_weights, impl, process_group)
    return _hardness(angle_summary(embeddings, labels, class_weights, impl=impl))


@torch.no_grad()
def _sharded_hardness(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, impl: str, group: Group
) -> Tensor:
    """Compare the rows of all ranks with the classes of this rank, and sum over ranks."""
    check_rows(embeddings=embeddings, labels=labels)
    spread = spread_of(embeddings, class_weights, group)
    everyone, own = spread.gathered(embeddings), spread.gathered(labels.long())
    # every rank checks the labels of all ranks, so that all raise together
    check_labels(own, spread.num_classes)
    here, place = spread.places(own)
    # a rank without classes adds 0 to both sums
    sums = widen(everyone).new_zeros(2, len(everyone))
    if len(class_weights):
        angles = angle_summary(everyone, place, class_weights, impl=impl)
        sums = torch.stack([angles.target.masked_fill(~here, 0.0), angles.total])
    # sums over all ranks, of which only the rows of this rank are needed
    target, total = spread.stacked(sums).sum(dim=0)[:, spread.rows]
    return _hardness(AngleSummary(target, total - target, total, spread.num_classes))


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
        ``[N, C]`` whose rows sum to 1; a larger value means more confidence in that class.

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


def _norm(norms: Tensor) -> Tensor:
    return norms


@score(
    "feature_norm",
    inputs=("embeddings",),
    range=(0.0, math.inf),
    higher_is_harder=False,
    meaning="Length of the embedding. Training lengthens what the model is sure of, so short "
    "often means hard, but the length also follows class frequency.",
    reads="norms",
    formula=_norm,
    short_title="Norm",
    on_card=6,
)
def feature_norm(embeddings: Tensor) -> Tensor:
    r"""Euclidean length of the embedding.

    .. math:: \lVert x \rVert_2

    Args:
        embeddings: penultimate features, ``[N, D]``.

    Returns:
        ``[N]`` in ``[0, inf)``; smaller is harder.

    Raises:
        ShapeError: ``embeddings`` is not a floating-point matrix.

    Example:
        >>> import torch
        >>> feature_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([5., 0.])

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Section 3.
    """
    check_matrix(embeddings=embeddings)
    return _norm(row_norms(embeddings))


class ClassRanges:
    """Shortest and longest embedding of every class, collected block by block."""

    def __init__(self) -> None:
        self._classes: Tensor | None = None  # ascending
        self._low = self._high = torch.empty(0)

    def add(self, norms: Tensor, labels: Tensor) -> None:
        """Add some rows to the ranges."""
        classes, group = torch.unique(labels, return_inverse=True)
        low, high = _ranges(norms, group, len(classes))
        if self._classes is None:
            self._classes, self._low, self._high = classes, low, high
            return
        # a new class needs more room, and a copy of all ranges
        if not torch.isin(classes, self._classes).all():  # rare after the first blocks
            self._make_room(classes)
        at = torch.searchsorted(self._classes, classes)
        self._low[at] = torch.minimum(self._low[at], low)
        self._high[at] = torch.maximum(self._high[at], high)

    def _make_room(self, classes: Tensor) -> None:
        assert self._classes is not None
        known = self._classes
        self._classes = torch.unique(torch.cat([known, classes]))
        at = torch.searchsorted(self._classes, known)
        low, high = self._low, self._high
        self._low = low.new_full((len(self._classes),), math.inf)
        self._high = high.new_full((len(self._classes),), -math.inf)
        self._low[at], self._high[at] = low, high

    def values(self, norms: Tensor, labels: Tensor) -> Tensor:
        """Norms of some rows, scaled to the range of their class."""
        assert self._classes is not None
        at = torch.searchsorted(self._classes, labels)
        return _scaled(norms, self._low[at], self._high[at])


def _class_normalized(norms: Tensor, labels: Tensor) -> Tensor:
    # not `unique`: the size of its result depends on data, which torch.compile before 2.7 cannot
    # trace
    ascending, order = labels.sort()
    number = (ascending.diff(prepend=ascending[:1]) != 0).cumsum(0)  # of the class, from 0
    group = torch.empty_like(number).scatter(0, order, number)
    low, high = _ranges(norms, group, len(labels))
    return _scaled(norms, low[group], high[group])


def _ranges(norms: Tensor, group: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest finite norm of ``count`` groups; inf and -inf for groups without."""
    finite = torch.isfinite(norms)
    low, high = norms.new_full((count,), math.inf), norms.new_full((count,), -math.inf)
    low = low.scatter_reduce(0, group, torch.where(finite, norms, math.inf), "amin")
    high = high.scatter_reduce(0, group, torch.where(finite, norms, -math.inf), "amax")
    return low, high


def _scaled(norms: Tensor, low: Tensor, high: Tensor) -> Tensor:
    width = high - low
    flat = width <= 0  # all embeddings of the class have the same length
    scaled = (norms - low) / torch.where(flat, 1.0, width)
    # a class with a single length has no range; 0.5 is neither short nor long
    return torch.where(torch.isfinite(norms), torch.where(flat, 0.5, scaled), math.nan)


@score(
    "class_normalized_feature_norm",
    inputs=("embeddings", "labels"),
    range=(0.0, 1.0),
    higher_is_harder=False,
    meaning="Length of the embedding, rescaled so that each class runs from 0 (its shortest) to "
    "1 (its longest). Comparable over classes of different size.",
    reads="norms",
    formula=_class_normalized,
    over_dataset=ClassRanges,
    title="Class-normalised feature norm",
    needs_label=False,  # only its rescaling reads the label
)
def class_normalized_feature_norm(embeddings: Tensor, labels: Tensor) -> Tensor:
    r"""Length of the embedding, rescaled to [0, 1] within each class.

    .. math:: \frac{\lVert x \rVert - \min_{j: y_j = y} \lVert x_j \rVert}
        {\max_{j: y_j = y} \lVert x_j \rVert - \min_{j: y_j = y} \lVert x_j \rVert}

    Args:
        embeddings: penultimate features of a whole dataset, ``[N, D]``.
        labels: class indices, ``[N]``.

    Returns:
        ``[N]`` in ``[0, 1]``; smaller is harder. 0.5 for a class whose lengths are all equal.

    Raises:
        ShapeError: ``embeddings`` and ``labels`` differ in length.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0], [3.0], [2.0], [7.0]])
        >>> class_normalized_feature_norm(x, torch.tensor([0, 0, 0, 1]))
        tensor([0.0000, 1.0000, 0.5000, 0.5000])

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Hypothesis 4.
    """
    check_matrix(embeddings=embeddings)
    check_rows(embeddings=embeddings, labels=labels)
    check_labels(labels, torch.iinfo(torch.int64).max)
    return _class_normalized(row_norms(embeddings), labels)
