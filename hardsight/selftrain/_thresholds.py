"""Compute a threshold per class, so that easy classes do not crowd out hard ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hardsight.errors import LabelError, NonFiniteError, OptionError, ShapeError
from hardsight.selftrain._rows import Floats, Integers, Matrix, as_matrix, check_numbers, to_numpy

EMPTY_RULES = ("never", "one")


def class_thresholds(
    confidence: Matrix,
    predictions: Matrix,
    num_classes: int,
    *,
    portion: float,
    empty: str = "never",
) -> Tensor:
    r"""Confidence at a portion of each class, from the top: CBST's :math:`\lambda_c`.

    Of the :math:`n_c` examples predicted as class c, in descending order of confidence, the
    threshold is the confidence at rank :math:`\lfloor n_c \cdot \text{portion} \rfloor`, counted
    from 1. A product that is whole up to rounding is taken as whole: 0.29 of 100 is 29.

    Args:
        confidence: confidence of each prediction, ``[N]``.
        predictions: predicted classes in ``[0, C)``, ``[N]``.
        num_classes: C.
        portion: share of each class to keep, in (0, 1].
        empty: what to do if the rank is 0, because few examples or none are predicted as the
            class: ``"never"`` sets the threshold 1, as the published code does, and the class
            starves; ``"one"`` takes rank 1 if there is at least one example.

    Returns:
        ``[C]``, in the dtype of the confidence, float32 or wider; 1 for a class without a rank.
        Keeping everything at or above its threshold keeps the portion of each class, and more
        if confidences tie at the threshold.

    Raises:
        ShapeError: the vectors differ in length or are empty.
        LabelError: a prediction is outside ``[0, C)``.
        NonFiniteError: a confidence is NaN.
        OptionError: ``portion`` is outside (0, 1], or ``empty`` is unknown.

    Example:
        >>> confidence = torch.tensor([0.9, 0.6, 0.8, 0.7, 0.5])
        >>> class_thresholds(confidence, torch.tensor([0, 0, 0, 0, 1]), 2, portion=0.5)
        tensor([0.8000, 1.0000])
        >>> class_thresholds(
        ...     confidence, torch.tensor([0, 0, 0, 0, 1]), 2, portion=0.5, empty="one")
        tensor([0.8000, 0.5000])

    Reference:
        Zou et al., Domain adaptation for semantic segmentation via class-balanced self-training,
        ECCV 2018. Chen et al., Angular Visual Hardness, ICML 2020, section 5.1.
    """
    confidence, predictions = as_matrix(confidence), as_matrix(predictions)
    _check_vectors(confidence, predictions)
    values, classes = to_numpy(confidence), _integers(predictions, num_classes)
    if np.isnan(values).any():
        raise NonFiniteError(f"confidence holds NaN, first in row {np.isnan(values).argmax():,}")
    thresholds = thresholds_of(values, classes, ranks_of(classes, num_classes, portion, empty))
    device = confidence.device if isinstance(confidence, Tensor) else torch.device("cpu")
    return torch.from_numpy(thresholds).to(device)


def ranks_of(predictions: Integers, num_classes: int, portion: float, empty: str) -> Integers:
    """How many examples of each predicted class to keep, ``[C]``; 0 if the class has no rank.

    Raises:
        OptionError: ``portion`` is outside (0, 1], or ``empty`` is unknown.
    """
    check_portion(portion)
    if empty not in EMPTY_RULES:
        raise OptionError(f"unknown empty {empty!r}. Known: {', '.join(EMPTY_RULES)}")
    counts = np.bincount(predictions, minlength=num_classes)
    # portions such as 0.29, or 0.2 + 0.05 + 0.05, have rounding errors: 0.29 of 100 must be 29
    whole = np.floor(counts * (portion * (1 + 1e-12))).astype(np.int64)
    least = np.minimum(counts, 1 if empty == "one" else 0)
    ranks: Integers = np.clip(whole, least, counts)
    return ranks


def thresholds_of(confidence: Floats, predictions: Integers, ranks: Integers) -> Floats:
    """Confidence at the rank of each class, ``[C]``; 1 if the rank is 0."""
    num_classes = len(ranks)
    thresholds = np.ones(num_classes, dtype=confidence.dtype)
    # 16-bit keys are sorted in linear time
    keys = predictions.astype(np.int16) if num_classes <= 1 << 15 else predictions
    sorted_by_class = confidence[np.argsort(keys, kind="stable")]
    ends = np.cumsum(np.bincount(predictions, minlength=num_classes))
    for c in np.flatnonzero(ranks):
        own = sorted_by_class[ends[c - 1] if c else 0 : ends[c]]
        at = len(own) - ranks[c]
        thresholds[c] = np.partition(own, at)[at]
    return thresholds


def check_portion(portion: float) -> None:
    """Raise unless ``portion`` is in (0, 1]."""
    is_number = isinstance(portion, int | float | np.floating)
    if not (is_number and 0 < portion <= 1):  # in this form NaN fails as well
        raise OptionError(
            f"expected portion in (0, 1], the share of each class to keep, got {portion!r}"
        )


def _check_vectors(confidence: Matrix, predictions: Matrix) -> None:
    if len(confidence.shape) != 1 or confidence.shape != predictions.shape:
        raise ShapeError(
            "expected confidence [N] and predictions [N], got confidence "
            f"{list(confidence.shape)}, predictions {list(predictions.shape)}"
        )
    if not len(confidence):
        raise ShapeError("expected at least 1 example, got none")
    check_numbers("confidence", confidence)


def _integers(predictions: Matrix, num_classes: int) -> Integers:
    array = predictions.detach().cpu().numpy() if isinstance(predictions, Tensor) else predictions
    if not np.issubdtype(array.dtype, np.integer):
        raise LabelError(f"expected predictions to be integers, got {predictions.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= num_classes:
        raise LabelError(
            f"expected predictions in [0, {num_classes}), got values from {low} to {high}"
        )
    return array
