import math

import torch
from torch import Tensor

from hardsight._checks import check_labels, check_matrix, check_rows
from hardsight.geometry import row_norms
from hardsight.registry import score


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
    """Shortest and longest embedding of every class, gathered block by block."""

    def __init__(self) -> None:
        self._classes: Tensor | None = None  # ascending
        self._low = self._high = torch.empty(0)

    def add(self, norms: Tensor, labels: Tensor) -> None:
        """Take account of some rows."""
        classes, group = torch.unique(labels, return_inverse=True)
        low, high = _ranges(norms, group, len(classes))
        if self._classes is None:
            self._classes, self._low, self._high = classes, low, high
            return
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
        """Some rows on the scale of their class."""
        assert self._classes is not None
        at = torch.searchsorted(self._classes, labels)
        return _scaled(norms, self._low[at], self._high[at])


def _class_normalized(norms: Tensor, labels: Tensor) -> Tensor:
    # `unique` would do, but how many it finds is data, which torch.compile below 2.7 cannot follow
    ascending, order = labels.sort()
    number = (ascending.diff(prepend=ascending[:1]) != 0).cumsum(0)  # of the class, from 0
    group = torch.empty_like(number).scatter(0, order, number)
    low, high = _ranges(norms, group, len(labels))
    return _scaled(norms, low[group], high[group])


def _ranges(norms: Tensor, group: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest finite norm of each of ``count`` groups; inf and -inf without one."""
    finite = torch.isfinite(norms)
    low, high = norms.new_full((count,), math.inf), norms.new_full((count,), -math.inf)
    low = low.scatter_reduce(0, group, torch.where(finite, norms, math.inf), "amin")
    high = high.scatter_reduce(0, group, torch.where(finite, norms, -math.inf), "amax")
    return low, high


def _scaled(norms: Tensor, low: Tensor, high: Tensor) -> Tensor:
    width = high - low
    flat = width <= 0  # one value per class: nothing to compare with
    scaled = (norms - low) / torch.where(flat, 1.0, width)
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
        ``[N]`` in ``[0, 1]``; smaller is harder. 0.5 throughout a class of one length.

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
