"""Examples that one rule selects and another does not (AVH, Fig. 21)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from hardsight.data import thumbnail
from hardsight.errors import BadExampleError
from hardsight.run.adapt._data import Target
from hardsight.run.adapt._predict import Seen
from hardsight.scores import angular_visual_confidence
from hardsight.selftrain import Selection

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


def compared(
    selection: Selection, other: Selection, seen: Seen, target: Target, *, most: int
) -> tuple[dict[str, Any], pa.Table]:
    """Two selections from the same predictions: counts, and what only one of them holds.

    Args:
        selection: of the rule at work.
        other: of the rule it is held against.
        seen: what both were made from.
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


def _strongest(selection: Selection, places: Tensor, seen: Seen) -> Tensor:
    """Selected examples by how far they are above the threshold of their label."""
    labels = selection.labels[places]
    confidence = selection.confidence[places]
    # that is of the prediction, from which dividing by thresholds may have moved the label
    moved = (labels != selection.predictions[places]).nonzero().squeeze(1)
    if len(moved):
        confidence[moved] = _confidence(selection.rule, places[moved], seen).gather(
            1, labels[moved, None]
        )[:, 0]
    ratio = confidence / selection.thresholds[labels]
    return places[torch.argsort(ratio, descending=True, stable=True)]


def _confidence(rule: str, places: Tensor, seen: Seen) -> Tensor:
    """What the thresholds of a rule rank, for some examples and every class."""
    if rule in ("cbst+avh", "avc"):
        return angular_visual_confidence(seen.embeddings[places], seen.class_weights)
    return seen.probs[places]


def _row(
    place: int, selection: Selection, other: Selection, seen: Seen, target: Target
) -> dict[str, Any]:
    label = int(selection.labels[place])
    angular = angular_visual_confidence(seen.embeddings[place : place + 1], seen.class_weights)
    try:
        picture = thumbnail(target.source[place].content)
    except BadExampleError:  # it was readable a moment ago; the numbers still say something
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
