"""What is recorded of each example when a training step has run it.

Steps are kept as they are for a while and measured many at once, because a step of a small network
on a GPU takes as long as a few dozen kernel launches. Nothing here reads a value back from the
device: a step never waits for the tracker.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hardsight.registry import SCORES
from hardsight.scores import TiledHead, logit_summaries

if TYPE_CHECKING:
    from hardsight.scores._tiles import AngleSummary

# Recorded under the first name, by the formula of the score of the second.
_FORMULAS = {
    "target_angle": "target_angle",
    "avh": "avh",
    "confidence": "model_confidence",
    "norm": "feature_norm",
    "logit_margin": "logit_margin",
    "el2n": "el2n",
}
MEASURES = ("target_angle", "avh", "avc", "confidence", "norm", "logit_margin", "loss", "el2n")
_BYTES_AT_ONCE = 32 << 20  # of the steps kept before they are measured
_STEPS_AT_ONCE = 256  # and their number, however small they are


@dataclass(frozen=True)
class Rows:
    """Measured examples, in the order in which they were seen; on the device until the epoch ends.

    Attributes:
        index: positions of the examples, ``[n]``.
        labels: class indices, ``[n]``.
        prediction: class indices, ``[n]``.
        values: the measures, ``[n, len(MEASURES)]``, float32.
        order: when a row was seen among those of all ranks, ``[n]``.
    """

    index: Tensor
    labels: Tensor
    prediction: Tensor
    values: Tensor
    order: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def no_rows() -> Rows:
    """Rows of nothing, on the CPU."""
    nobody = torch.empty(0, dtype=torch.int64)
    return Rows(nobody, nobody, nobody, torch.empty(0, len(MEASURES)), nobody)


def joined(parts: list[Rows]) -> Rows:
    """Rows one after another, on the CPU; the one place that waits for the device."""
    fields = [field.name for field in dataclasses.fields(Rows)]
    return Rows(
        *(_joined([getattr(part, name) for part in parts or [no_rows()]]) for name in fields)
    )


def _joined(parts: list[Tensor]) -> Tensor:
    if len({part.device for part in parts}) == 1:
        return torch.cat(parts).cpu()
    return torch.cat([part.cpu() for part in parts])


@dataclass(frozen=True)
class Step:
    """The tensors of one training step, detached; or those of several, side by side.

    Attributes:
        index: positions of the examples, ``[B]``, int64.
        embeddings: what entered the head, ``[B, D]``.
        logits: what left it, ``[B, C]``.
        labels: class indices, ``[B]``, int64, on the device of the logits.
        class_weights: as they were then, ``[C, D]``.
    """

    index: Tensor
    embeddings: Tensor
    logits: Tensor
    labels: Tensor
    class_weights: Tensor

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors, in order."""
        return self.index, self.embeddings, self.logits, self.labels, self.class_weights

    @property
    def nbytes(self) -> int:
        """Memory that keeping the step takes."""
        return sum(t.nbytes for t in (self.embeddings, self.logits, self.class_weights))

    @property
    def kind(self) -> list[tuple[object, ...]]:
        """Steps of one kind fit side by side, and pass the same checks of shape and dtype."""
        return [(part.shape, part.dtype, part.device) for part in self.parts]


class Stash:
    """Steps that wait to be measured, and the rows of those that were.

    Steps of one kind are copied side by side into memory taken once: the next step overwrites the
    weights, and maybe the rest, and a copy into place is the least a step can cost.

    Args:
        judge: tells which rows of steps side by side do not belong to their class weights.
    """

    def __init__(self, judge: Callable[[Step], Tensor] | None = None) -> None:
        self.rows: list[Rows] = []
        self.differing: list[tuple[Tensor, Tensor]] = []  # index [n] and whether it differs [n]
        self._judge = judge
        self._kind: list[tuple[object, ...]] | None = None
        self._room: Step | None = None  # [steps, ...] each; None where a step is too large to keep
        self._places: list[tuple[Tensor, ...]] = []  # one step's part of the room each
        self._waiting = 0

    def fits(self, step: Step) -> bool:
        """Whether a step is of the kind that there is room for."""
        return step.kind == self._kind

    def make_room(self, step: Step) -> None:
        """Prepare for steps of another kind than before."""
        self.measure()
        self._kind, self._room, self._places = None, None, []  # given back before more is taken
        if step.nbytes <= _BYTES_AT_ONCE:
            steps = min(_BYTES_AT_ONCE // step.nbytes + 1, _STEPS_AT_ONCE)
            with torch.inference_mode(False):  # else it could not be written to outside that mode
                rooms = [part.new_empty((steps, *part.shape)) for part in step.parts]
                self._places = list(zip(*(room.unbind() for room in rooms), strict=True))
            self._room = Step(*rooms)
        self._kind = step.kind

    def add(self, step: Step) -> None:
        """Take one step of the kind there is room for; a large one is measured, not copied."""
        if self._room is None:
            for block in _row_blocks(step):
                self._measure(block)
            return
        for place, part in zip(self._places[self._waiting], step.parts, strict=True):
            place.copy_(part)
        self._waiting += 1
        if self._waiting == len(self._places):
            self.measure()

    def measure(self) -> None:
        """Measure the steps that wait."""
        if self._room is not None and self._waiting:
            filled = (room[: self._waiting] for room in self._room.parts)
            self._measure(Step(*filled))
        self._waiting = 0

    def _measure(self, steps: Step) -> None:
        self.rows.append(measured(steps))
        if self._judge is not None:
            self.differing.append((steps.index.flatten().clone(), self._judge(steps).flatten()))


def _row_blocks(step: Step) -> list[Step]:
    """A large step in blocks of rows whose logits take a bounded part of the memory."""
    per_row = step.logits.shape[1] * 4
    rows = max(1, _BYTES_AT_ONCE // per_row)
    *by_row, class_weights = step.parts
    blocks = zip(*(part.split(rows) for part in by_row), strict=True)
    return [Step(*(part[None] for part in (*block, class_weights))) for block in blocks]


@torch.no_grad()
def measured(steps: Step) -> Rows:
    """Rows of steps side by side, ``[steps, ...]`` each; they share no memory with them."""
    # vmap gives each step its own class weights, and the scores the forms that never look at a
    # value on the host
    with torch.autocast(steps.embeddings.device.type, enabled=False):
        prediction, values = torch.vmap(_step_measures)(*steps.parts[1:])
    return Rows(
        index=steps.index.flatten().clone(),
        labels=steps.labels.flatten().clone(),
        prediction=prediction.flatten(),
        values=values.flatten(0, 1),
        order=torch.arange(prediction.numel()),
    )


def _step_measures(
    embeddings: Tensor, logits: Tensor, labels: Tensor, class_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Predictions ``[B]`` and measures ``[B, len(MEASURES)]`` of one step."""
    inside = labels.clamp(0, logits.shape[1] - 1)  # a label outside is found when the epoch ends
    head = TiledHead(class_weights, parts=("norms", "angles")).summaries(embeddings, inside)
    angles = head.angles
    assert angles is not None
    outputs, targets = logit_summaries(logits, inside)
    summaries = {"norms": head.norms, "angles": angles, "targets": targets}
    found = {
        name: SCORES[score].formula(summaries[SCORES[score].reads])
        for name, score in _FORMULAS.items()
    }
    found |= {"avc": _own_confidence(angles), "loss": -targets.log_prob}
    return outputs.prediction, torch.stack([found[name].float() for name in MEASURES], dim=1)


def _own_confidence(angles: AngleSummary) -> Tensor:
    """Angular visual confidence of the labelled class, AVH Eq. 3, from the sum of the angles."""
    total = angles.num_classes * math.pi - angles.total
    silent = total <= 0  # opposite to every class at once
    share = (math.pi - angles.target) / total.masked_fill_(silent, 1.0)
    return share.masked_fill_(silent, 1 / angles.num_classes)
