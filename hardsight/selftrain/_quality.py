"""Measure the quality of a selection, if the true labels are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hardsight.errors import LabelError, ShapeError
from hardsight.scores import angular_visual_confidence, angular_visual_hardness, feature_norm
from hardsight.selftrain._rows import (
    Matrix,
    as_labels,
    as_matrix,
    as_tensor,
    check_numbers,
    to_numpy,
)
from hardsight.stats import Estimate, wilson_interval

_ENTRIES_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class SelectionQuality:
    """The numbers of the AVH paper's Table 4, and counts per class.

    Attributes:
        examples: number of examples there were to select from.
        selected: number of selected examples.
        true_positive_rate: share of selected examples whose pseudo-label is right, with its
            Wilson interval; ``None`` without true labels or without a selected example.
        mean_confidence: mean probability of the pseudo-label; ``None`` without probabilities.
        mean_avh: mean angular visual hardness with respect to the pseudo-label.
        mean_avc: mean angular visual confidence of the pseudo-label.
        mean_norm: mean norm of the embeddings.
        counts: selected examples per pseudo-label, ``[C]``.
        right: those whose pseudo-label is right, ``[C]``; ``None`` without true labels.
    """

    examples: int
    selected: int
    true_positive_rate: Estimate | None
    mean_confidence: float | None
    mean_avh: float | None
    mean_avc: float | None
    mean_norm: float | None
    counts: Tensor
    right: Tensor | None


def selection_quality(
    labels: Matrix,
    *,
    num_classes: int,
    true_labels: Matrix | None = None,
    probs: Matrix | None = None,
    embeddings: Matrix | None = None,
    class_weights: Matrix | None = None,
) -> SelectionQuality:
    """Quality of pseudo-labels; only this part of self-training reads true labels.

    Args:
        labels: pseudo-labels, ``[N]``, -1 where an example is not selected.
        num_classes: C.
        true_labels: ``[N]``, for evaluation only.
        probs: softmax probabilities, ``[N, C]``.
        embeddings: penultimate features, ``[N, D]``.
        class_weights: rows of the classifier head, ``[C, D]``.

    Returns:
        Means over the selected examples, ``None`` if their input is missing or nothing is
        selected. Only selected rows are read.

    Raises:
        ShapeError: a matrix or vector differs from ``labels`` in its number of rows, or is not one.
        LabelError: a pseudo-label is outside ``[-1, C)``, or labels are not integers.

    Example:
        >>> result = selection_quality(
        ...     torch.tensor([0, -1, 1, 1]), num_classes=2, true_labels=torch.tensor([0, 0, 1, 0]))
        >>> result.selected, round(result.true_positive_rate.value, 4), result.counts
        (3, 0.6667, tensor([1, 2]))

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Table 4. Its column "AVH (avg)" shows
        0.118 for 12 classes. The hardness of an example with respect to its nearest class is at
        most 1/12 = 0.083, its angular visual confidence at least that, so the column is likely
        ``mean_avc``; both are given.
    """
    given_labels = as_labels("labels", labels)
    truth = None if true_labels is None else as_labels("true_labels", true_labels)
    probs = None if probs is None else as_matrix(probs)
    embeddings = None if embeddings is None else as_matrix(embeddings)
    _check_fit(given_labels, truth, probs=probs, embeddings=embeddings)
    if len(labels) and (int(given_labels.min()) < -1 or int(given_labels.max()) >= num_classes):
        raise LabelError(
            f"expected pseudo-labels in [-1, {num_classes}), got values from "
            f"{int(given_labels.min())} to {int(given_labels.max())}"
        )
    weights = None if class_weights is None else as_tensor("class_weights", class_weights)
    rows = (given_labels >= 0).nonzero().squeeze(1)
    kept = given_labels[rows]
    right = None if truth is None else truth[rows] == kept
    angular = None if embeddings is None else _angular_means(embeddings, weights, rows, kept)
    return SelectionQuality(
        examples=len(labels),
        selected=len(rows),
        true_positive_rate=_rate(right),
        mean_confidence=None if probs is None else _mean_confidence(probs, rows, kept),
        mean_avh=angular and angular[0],
        mean_avc=angular and angular[1],
        mean_norm=angular and angular[2],
        counts=torch.bincount(kept, minlength=num_classes),
        right=None if right is None else torch.bincount(kept[right], minlength=num_classes),
    )


def _check_fit(labels: Tensor, truth: Tensor | None, **matrices: Matrix | None) -> None:
    for name, array in {"true_labels": truth, **matrices}.items():
        if array is None:
            continue
        check_numbers(name, array)
        if name in matrices and len(array.shape) != 2:
            raise ShapeError(f"expected {name} to be a matrix, got {list(array.shape)}")
        if array.shape[0] != len(labels):
            raise ShapeError(
                f"expected one row per example, got labels {list(labels.shape)}, {name} "
                f"{list(array.shape)}"
            )


def _rate(right: Tensor | None) -> Estimate | None:
    if right is None or not len(right):
        return None
    count, n = int(right.sum()), len(right)
    return Estimate(count / n, *wilson_interval(count, n), n, 0.95, "wilson")


def _mean_confidence(probs: Matrix, rows: Tensor, kept: Tensor) -> float | None:
    if not len(rows):
        return None
    total = 0.0
    for part in _parts(rows, probs.shape[1]):
        tile = to_numpy(_gathered(probs, rows[part]))
        total += float(tile[np.arange(len(tile)), kept[part].numpy()].sum(dtype=np.float64))
    return total / len(rows)


def _angular_means(
    embeddings: Matrix, class_weights: Tensor | None, rows: Tensor, kept: Tensor
) -> tuple[float | None, float | None, float | None]:
    """Means of AVH, AVC and norm; the first two need the class weights."""
    if not len(rows):
        return None, None, None
    totals = np.zeros(3)
    width = max(embeddings.shape[1], 0 if class_weights is None else class_weights.shape[0])
    for part in _parts(rows, width):
        features = _gathered(embeddings, rows[part])
        totals[2] += float(feature_norm(features).double().sum())
        if class_weights is not None:
            own = kept[part].to(features.device)
            weights = class_weights.detach().to(features.device)
            totals[0] += float(angular_visual_hardness(features, own, weights).double().sum())
            confidence = angular_visual_confidence(features, weights).gather(1, own[:, None])
            totals[1] += float(confidence.double().sum())
    avh, avc, norm = (totals / len(rows)).tolist()
    return (None, None, norm) if class_weights is None else (avh, avc, norm)


def _parts(rows: Tensor, width: int) -> Iterator[slice]:
    size = max(1, _ENTRIES_AT_ONCE // width)
    return (slice(at, at + size) for at in range(0, len(rows), size))


def _gathered(matrix: Matrix, rows: Tensor) -> Tensor:
    if isinstance(matrix, Tensor):
        return matrix.detach()[rows.to(matrix.device)]
    return as_tensor("matrix", matrix[rows.numpy()])
