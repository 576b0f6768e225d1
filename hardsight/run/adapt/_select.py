"""Run the model over the target domain, and select examples by a rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

from hardsight.data import thumbnail
from hardsight.errors import BadExampleError, NonFiniteError
from hardsight.heads import find_head
from hardsight.run.adapt._config import SOURCE_ONLY, THRESHOLD, UNSELECTIVE, AdaptConfig
from hardsight.run.adapt._data import Target
from hardsight.run.loop import ModelPass, Outputs, gathered
from hardsight.scores import angular_visual_confidence
from hardsight.selftrain import (
    RULES,
    SOFT_RULES,
    Selection,
    select,
    selection_quality,
    soft_pseudo_labels,
)

_SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("id", pa.string()),
        ("selected_by", pa.string()),
        ("not_by", pa.string()),
        ("label", pa.int64()),
        ("true_label", pa.int64()),
        ("probability", pa.float64()),
        ("avc", pa.float64()),
        ("thumbnail", pa.binary()),
    ]
)


@torch.no_grad()
def seen_by(
    model: nn.Module,
    batches: Iterable[Tensor],
    *,
    sample: Tensor,
    device: torch.device,
    precision: str,
    head: str | None = None,
    num_classes: int | None = None,
    id_of: Callable[[int], str] = str,
    advance: Callable[[int], object] = lambda done: None,
) -> Outputs:
    """Run a model over inputs, in their order.

    Args:
        model: moved to ``device`` and left there in eval mode.
        batches: inputs, on ``device``.
        sample: a few of them, on which the classifier head is found.
        device: to compute on.
        precision: of the forward pass.
        head: name of the classifier layer, if it is not found automatically.
        num_classes: of the data; of several outputs the one with as many columns is taken.
        id_of: name of an example, for error messages.
        advance: called with the number of examples that were just done.

    Raises:
        NonFiniteError: the model gives NaN or infinity for an example.
        HeadError: the model has no classifier head that can be read.
    """
    model = model.to(device).eval()
    known = find_head(model, sample, name=head, num_classes=num_classes)
    with ModelPass(model, known, device=device, precision=precision) as running:
        seen = gathered(running, known, batches, id_of=id_of, advance=advance)
    _check_finite(seen.probs, id_of)
    return seen


def _check_finite(probs: Tensor, id_of: Callable[[int], str]) -> None:
    bad = ~probs.isfinite().all(dim=1)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise NonFiniteError(
            f"the model gives NaN or infinity for {int(bad.sum()):,} of {len(probs):,} target "
            f"examples, first {id_of(first)} (position {first}); lower the learning rate, or use "
            "precision = 'float32'"
        )


def selected_by(rule: str, seen: Outputs, *, portion: float, config: AdaptConfig) -> Selection:
    """Select examples by a rule or baseline; some baselines select none."""
    if rule in (SOURCE_ONLY, *UNSELECTIVE):
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


def _above(seen: Outputs, threshold: float | None, rule: str) -> Selection:
    """Select by one threshold for all classes, whatever the portion; ``None`` selects nothing."""
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


def soft_labels(selection: Selection, seen: Outputs, config: AdaptConfig) -> Tensor | None:
    """Soft labels of the selected examples, in their order, if the rule uses soft labels."""
    if selection.rule not in SOFT_RULES:
        return None
    return soft_pseudo_labels(
        seen.probs[selection.selected], selection.label_thresholds, alpha=config.alpha
    )


def quality_of(selection: Selection, seen: Outputs, true_labels: Tensor | None) -> dict[str, Any]:
    """The numbers of the paper's Table 4, and counts per class, as plain values."""
    quality = selection_quality(
        selection.labels,
        num_classes=seen.probs.shape[1],
        true_labels=true_labels,
        probs=seen.probs,
        embeddings=seen.embeddings,
        class_weights=seen.class_weights,
    )
    right = None if quality.right is None else quality.right.tolist()
    return {**dataclasses.asdict(quality), "counts": quality.counts.tolist(), "right": right}


def accuracy_of(seen: Outputs, true_labels: Tensor | None) -> dict[str, Any] | None:
    """Accuracy over all examples and per class; ``None`` if the truth is not known.

    The mean over classes leaves out classes without an example; it is Table 3's last column.
    """
    if true_labels is None:
        return None
    classes = seen.probs.shape[1]
    right = seen.probs.argmax(dim=1) == true_labels
    totals = torch.bincount(true_labels, minlength=classes)
    hits = torch.bincount(true_labels[right], minlength=classes)
    # an absent class has no accuracy; 0 would count as a failure in the mean over classes
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
    """Classes that no example gets as a label: never predicted, or too rarely for the portion."""
    predicted = torch.bincount(selection.predictions, minlength=len(classes))
    never = [name for name, n in zip(classes, predicted.tolist(), strict=True) if not n]
    rare = [
        name
        for name, n, rank in zip(classes, predicted.tolist(), selection.ranks.tolist(), strict=True)
        if n and not rank
    ]
    has_ranks = selection.rule in RULES
    return {"never_predicted": never, "too_rarely_predicted": rare if has_ranks else []}


def compared(
    selection: Selection, other: Selection, seen: Outputs, target: Target, *, most: int
) -> tuple[dict[str, Any], pa.Table]:
    """Compare two selections from the same predictions, in counts and in their differences.

    Args:
        selection: of the current rule.
        other: of the rule to compare with.
        seen: the outputs that both were made from.
        target: the target domain.
        most: examples to show per side, those farthest above their threshold first.

    Returns:
        numbers as JSON takes them, and a row with a thumbnail per shown example.
    """
    mine, theirs = selection.labels >= 0, other.labels >= 0
    only = {"rule": mine & ~theirs, "other": theirs & ~mine}
    about: dict[str, Any] = {"with": other.rule, "both": int((mine & theirs).sum())}
    rows: list[dict[str, Any]] = []
    for side, chosen, against in (("rule", selection, other), ("other", other, selection)):
        places = only[side].nonzero().squeeze(1)
        about[f"only_{side}"] = len(places)
        if target.labels is not None:
            about[f"only_{side}_right"] = int(
                (chosen.labels[places] == target.labels[places]).sum()
            )
        for place in _strongest(chosen, places, seen)[:most].tolist():
            rows.append(_row(place, chosen, against, seen, target))
    return about, pa.Table.from_pylist(rows, schema=_SCHEMA)


def _strongest(selection: Selection, places: Tensor, seen: Outputs) -> Tensor:
    """Selected examples, sorted by how far they are above the threshold of their label."""
    labels = selection.labels[places]
    confidence = selection.confidence[places]
    # it is the confidence of the prediction; dividing by thresholds may have chosen another label
    moved = (labels != selection.predictions[places]).nonzero().squeeze(1)
    if len(moved):
        confidence[moved] = _confidence(selection.rule, places[moved], seen).gather(
            1, labels[moved, None]
        )[:, 0]
    ratio = confidence / selection.thresholds[labels]
    return places[torch.argsort(ratio, descending=True, stable=True)]


def _confidence(rule: str, places: Tensor, seen: Outputs) -> Tensor:
    """The values that the thresholds of a rule rank, for some examples and every class."""
    if rule in ("cbst+avh", "avc"):
        return angular_visual_confidence(seen.embeddings[places], seen.class_weights)
    return seen.probs[places]


def _row(
    place: int, selection: Selection, other: Selection, seen: Outputs, target: Target
) -> dict[str, Any]:
    label = int(selection.labels[place])
    angular = angular_visual_confidence(seen.embeddings[place : place + 1], seen.class_weights)
    try:
        picture = thumbnail(target.source[place].content)
    except BadExampleError:  # the file has become unreadable; keep the row without a picture
        picture = None
    return {
        "index": int(target.source.numbered(place)),
        "id": target.source.id_of(place),
        "selected_by": selection.rule,
        "not_by": other.rule,
        "label": label,
        "true_label": None if target.labels is None else int(target.labels[place]),
        "probability": float(seen.probs[place, label]),
        "avc": float(angular[0, label]),
        "thumbnail": picture,
    }
