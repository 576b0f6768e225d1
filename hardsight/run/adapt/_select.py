"""A round's pseudo-labels: by the rule, by a baseline, and against another rule."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from hardsight.run.adapt._config import ENTROPY, SOURCE_ONLY, THRESHOLD, AdaptConfig
from hardsight.run.adapt._predict import Seen
from hardsight.selftrain import (
    RULES,
    Selection,
    SelectionQuality,
    select,
    selection_quality,
    soft_pseudo_labels,
)


def selected_by(rule: str, seen: Seen, *, portion: float, config: AdaptConfig) -> Selection:
    """What a rule or baseline selects; nothing for those that select nothing."""
    if rule in (SOURCE_ONLY, ENTROPY):
        return _above(seen, None, rule)
    if rule == THRESHOLD:
        return _above(seen, config.threshold, rule)
    return select(
        seen.probs,
        portion=portion,
        rule=rule,
        embeddings=seen.embeddings,
        class_weights=seen.class_weights,
        empty=config.empty,
        comparison=config.comparison,
        alpha=config.alpha,
    )


def _above(seen: Seen, threshold: float | None, rule: str) -> Selection:
    """One threshold for all classes, however large their portion becomes; none selects nothing."""
    confidence, predictions = seen.probs.max(dim=1)
    kept = torch.zeros_like(predictions, dtype=torch.bool)
    if threshold is not None:
        kept = confidence >= threshold
    classes = seen.probs.shape[1]
    thresholds = torch.full((classes,), 1.0 if threshold is None else threshold)
    return Selection(
        labels=torch.where(kept, predictions, -1),
        predictions=predictions,
        confidence=confidence,
        thresholds=thresholds,
        label_thresholds=torch.ones(classes),
        ranks=torch.bincount(predictions[kept], minlength=classes),
        rule=rule,
        portion=1.0,
    )


def soft_labels(selection: Selection, seen: Seen, config: AdaptConfig) -> Tensor | None:
    """Soft labels of the selected examples, in their order, where the rule has them."""
    if selection.rule != "crst-lrent":
        return None
    return soft_pseudo_labels(
        seen.probs[selection.selected], selection.label_thresholds, alpha=config.alpha
    )


def quality_of(selection: Selection, seen: Seen, true_labels: Tensor | None) -> dict[str, Any]:
    """The numbers of the paper's Table 4, and counts per class, as plain values."""
    quality = selection_quality(
        selection.labels,
        num_classes=seen.probs.shape[1],
        true_labels=true_labels,
        probs=seen.probs,
        embeddings=seen.embeddings,
        class_weights=seen.class_weights,
    )
    return plain_quality(quality)


def plain_quality(quality: SelectionQuality) -> dict[str, Any]:
    """A quality as JSON takes it."""
    rate = quality.true_positive_rate
    return {
        "examples": quality.examples,
        "selected": quality.selected,
        "true_positive_rate": None if rate is None else dataclasses.asdict(rate),
        "mean_confidence": quality.mean_confidence,
        "mean_avh": quality.mean_avh,
        "mean_avc": quality.mean_avc,
        "mean_norm": quality.mean_norm,
        "counts": quality.counts.tolist(),
        "right": None if quality.right is None else quality.right.tolist(),
    }


def accuracy_of(seen: Seen, true_labels: Tensor | None) -> dict[str, Any] | None:
    """Accuracy over all examples and per class; ``None`` if the truth is not known.

    The mean over classes leaves out classes without an example; it is Table 3's last column.
    """
    if true_labels is None:
        return None
    classes = seen.probs.shape[1]
    right = seen.predictions == true_labels
    totals = torch.bincount(true_labels, minlength=classes)
    hits = torch.bincount(true_labels[right], minlength=classes)
    per_class = [h / n if n else None for h, n in zip(hits.tolist(), totals.tolist(), strict=True)]
    known = [value for value in per_class if value is not None]
    return {
        "accuracy": int(right.sum()) / len(right),
        "mean_class_accuracy": sum(known) / len(known),
        "class_accuracy": per_class,
        "class_examples": totals.tolist(),
        "examples": len(right),
    }


def starved(selection: Selection, classes: tuple[str, ...]) -> dict[str, list[str]]:
    """Classes that no example can be given: never predicted, or too rarely for the portion."""
    predicted = torch.bincount(selection.predictions, minlength=len(classes))
    never = [name for name, n in zip(classes, predicted.tolist(), strict=True) if not n]
    rare = [
        name
        for name, n, rank in zip(classes, predicted.tolist(), selection.ranks.tolist(), strict=True)
        if n and not rank
    ]
    has_ranks = selection.rule in RULES
    return {"never_predicted": never, "too_rarely_predicted": rare if has_ranks else []}
