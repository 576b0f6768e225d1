"""What a table must hold, in float64 numpy: every equation is written a second time here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.fuzz.draw import Array

# how far a model that computes in a floating-point type may be from float64
TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-2, "bfloat16": 8e-2}


@dataclass(frozen=True)
class Outputs:
    """What a model makes of the examples.

    Attributes:
        logits: ``[N, C]``.
        features: ``[N, D]``; ``None`` if no linear layer makes the logits from any features.
        weights: ``[C, D]`` of that layer.
        magnitude: ``[N]``, the size of the numbers the features were added up from: where they
            cancel, a short float loses the direction.
        tolerance: of the type the model computes in.
    """

    logits: Array
    features: Array | None
    weights: Array
    magnitude: Array
    tolerance: float = TOLERANCE["float32"]


@dataclass
class Expected:
    """The rows of a table.

    Attributes:
        index: positions in the source.
        ids: one per row.
        labels: class indices.
        classes: names, position = label; of the data, so that the model may have more.
        outputs: of the model.
        errors: ids of the examples that cannot be read.
    """

    index: list[int]
    ids: list[str]
    labels: Array
    classes: list[str]
    outputs: Outputs
    errors: list[str] = field(default_factory=list)


def angles(features: Array, weights: Array) -> Array:
    """``[N, C]`` in radians, exact also for parallel vectors."""
    u = features / np.linalg.norm(features, axis=1, keepdims=True)
    v = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    apart = np.linalg.norm(u[:, None] - v[None], axis=2)
    together = np.linalg.norm(u[:, None] + v[None], axis=2)
    return 2 * np.arctan2(apart, together)


def log_sum_exp(logits: Array) -> Array:
    """``[N]``."""
    largest = logits.max(axis=1, keepdims=True)
    return np.log(np.exp(logits - largest).sum(axis=1)) + largest[:, 0]


def softmax(logits: Array) -> Array:
    """``[N, C]``."""
    return np.exp(logits - log_sum_exp(logits)[:, None])


def finite_rows(logits: Array) -> Array:
    """Rows whose logits say something: a class may be ruled out by -inf."""
    return ~np.isnan(logits).any(axis=1) & np.isfinite(logits.max(axis=1))


def _own(values: Array, labels: Array) -> Array:
    return values[np.arange(len(labels)), labels]


def _others(values: Array, labels: Array, away: float) -> Array:
    found = values.copy()
    found[np.arange(len(labels)), labels] = away
    return found


def _class_normalised(norms: Array, labels: Array) -> tuple[Array, Array]:
    """The score, and the width of each row's class."""
    low, high = np.full(len(norms), np.inf), np.full(len(norms), -np.inf)
    for label in np.unique(labels):
        rows = labels == label
        lengths = norms[rows & np.isfinite(norms)]
        if len(lengths):
            low[rows], high[rows] = lengths.min(), lengths.max()
    width = high - low
    return np.where(width > 0, (norms - low) / np.where(width > 0, width, 1), 0.5), width


def expected_scores(outputs: Outputs, labels: Array) -> dict[str, tuple[Array, Array | float]]:
    """Every score this oracle knows, with the error that is allowed to each row."""
    z, tolerance = outputs.logits, outputs.tolerance
    with np.errstate(all="ignore"):  # rows that are not finite are left out by the caller
        probs = softmax(z)
        size = 1 + np.where(np.isfinite(z), np.abs(z), 0).max(axis=1)
        loose = tolerance * size
        found: dict[str, tuple[Array, Array | float]] = {
            "model_confidence": (_own(probs, labels), loose),
            "logit_margin": (_own(z, labels) - _others(z, labels, -np.inf).max(axis=1), 2 * loose),
            "el2n": (np.linalg.norm(probs - np.eye(z.shape[1])[labels], axis=1), 2 * loose),
            "entropy": (
                -(np.where(probs > 0, probs * np.log(np.where(probs > 0, probs, 1)), 0)).sum(1),
                loose * np.log(z.shape[1] + 1) * 2,
            ),
            "conditional_energy": (-_own(z, labels), loose),
            "min_energy": (-z.max(axis=1), loose),
            "free_energy": (-log_sum_exp(z), loose),
        }
        if outputs.features is None:
            return found
        norms = np.linalg.norm(outputs.features, axis=1)
        turned = tolerance * np.maximum(1, outputs.magnitude / norms)  # of a direction
        theta = angles(outputs.features, outputs.weights)
        normalised, width = _class_normalised(norms, labels)
        found |= {
            "avh": (_own(theta, labels) / theta.sum(axis=1), turned),
            "target_angle": (_own(theta, labels), 4 * turned),
            "angular_margin": (
                _others(theta, labels, np.inf).min(axis=1) - _own(theta, labels), 8 * turned,
            ),
            "feature_norm": (norms, tolerance * np.maximum(outputs.magnitude, norms)),
            "class_normalized_feature_norm": (
                normalised,
                4 * tolerance * np.nanmax(np.append(outputs.magnitude, norms)) / width,
            ),
        }  # fmt: skip
    return found


def decided(logits: Array, tolerance: float) -> Array:
    """Rows whose largest logit leads by more than rounding could take back."""
    first, second = np.sort(logits, axis=1)[:, -1], np.sort(logits, axis=1)[:, -2]
    size = 1 + np.where(np.isfinite(logits), np.abs(logits), 0).max(axis=1)
    return first - second > 4 * tolerance * size


Loss = Callable[[Array, Array], Array]


def cross_entropy(logits: Array, labels: Array) -> Array:
    """``[N]``."""
    return log_sum_exp(logits) - _own(logits, labels)


def encouraging(logits: Array, labels: Array, log_end: float) -> Array:
    """``[N]``: cross-entropy and log(1 - p), of which the part beyond ``log_end`` is a line."""
    p = _own(softmax(logits), labels)
    with np.errstate(divide="ignore"):
        bonus = np.log(np.maximum(1 - p, 1e-300))
        if log_end < 1:
            line = np.log(1 - log_end) - (p - log_end) / (1 - log_end)
            bonus = np.where(p > log_end, line, bonus)
    return cross_entropy(logits, labels) + bonus


def focal(logits: Array, labels: Array, gamma: float) -> Array:
    """``[N]``."""
    p = _own(softmax(logits), labels)
    return (1 - p) ** gamma * cross_entropy(logits, labels)


def angular_cross_entropy(features: Array, weights: Array, labels: Array, scale: float) -> Array:
    """``[N]``: the AVH loss."""
    return cross_entropy(-scale * angles(features, weights), labels)
