"""Record training steps: check them against the head, keep them, and measure many at once.

Steps are collected before they are measured, because measuring takes dozens of kernel launches, as
long as a whole step of a small network on a GPU. Nothing here reads a value back from the device,
so a step never waits for the tracker.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hardsight.errors import DataError, HeadMismatchError
from hardsight.heads import LinearForm, differing_rows, linear_form
from hardsight.registry import SCORES
from hardsight.scores import TiledHead, logit_summaries
from hardsight.tracking._dataset import KEY

if TYPE_CHECKING:
    from hardsight.scores import AngleSummary
    from hardsight.tracking._tracker import HardnessTracker

MEASURES = ("target_angle", "avh", "avc", "confidence", "norm", "logit_margin", "loss", "el2n")
SCORE_OF = {
    "target_angle": "target_angle",
    "avh": "avh",
    "confidence": "model_confidence",
    "norm": "feature_norm",
    "logit_margin": "logit_margin",
    "el2n": "el2n",
}
"""The score whose formula gives a recorded measure, and whose statement describes it."""
_BYTES_AT_ONCE = 32 << 20  # of the steps that are kept before they are measured
_STEPS_AT_ONCE = 256  # the most steps that are kept, however small they are
_FIRST_ROWS, _CHECKED_CLASSES = 64, 64  # checked rows of the first step; classes in every step
_NOT_ITS_HEAD = (
    "embeddings times class weights, plus a bias, are not the logits, so that angles would be "
    "measured against the wrong weights; pass the head's input, its output, and its weights as "
    "they are in this step: head=model.fc to the tracker rather than a copy of the weights"
)
LABEL_KEYS = ("labels", "label", "target", "targets", "y")


class StepRecorder:
    """Records the steps of a trainer; only the first pass through the head in a step counts.

    Args:
        tracker: where rows go; its ``stage`` says which steps are recorded.
        head: name of the classifier layer, if it is not found automatically.
    """

    MADE_BY: str  # the method of the tracker that made this callback

    def __init__(self, tracker: HardnessTracker, *, head: str | None = None) -> None:
        self.tracker, self._head = tracker, head
        self._batch: tuple[Tensor, Tensor] | None = None  # index and labels, until the head is run
        self._epoch: int | None = None  # the trainer's epoch of the last recorded rows

    def _state(self) -> dict[str, Any]:
        """State for a checkpoint; all ranks must call it."""
        return {"tracker": self.tracker.state_dict(gather=True), "epoch": self._epoch}

    def _go_on(self, state: dict[str, Any]) -> None:
        self.tracker.load_state_dict(state["tracker"])
        self._epoch = state["epoch"]

    def _await(self, batch: Any, epoch: int) -> None:
        self._batch, self._epoch = index_and_labels(batch), epoch

    def _see(self, embeddings: Tensor, logits: Tensor, class_weights: Tensor) -> None:
        if self._batch is not None:
            index, labels = self._batch
            # so that a second pass in the same step, as with gradient checkpointing, is ignored
            self._batch = None
            self.tracker.update(index, embeddings, logits, labels, class_weights=class_weights)

    def _check_seen(self) -> None:
        if self._batch is not None:
            self._batch = None
            raise HeadMismatchError(
                f"the head was not called in this step; pass {self.MADE_BY}(head=NAME) with the "
                "layer that makes the logits"
            )

    def _end_epoch(self) -> None:
        self._epoch = None
        self.tracker.end_epoch()


def index_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    """Index ``[B]`` and labels ``[B]`` of a batch.

    Args:
        batch: ``(index, inputs, labels, ...)``, or a mapping with ``index`` and ``labels``.

    Raises:
        DataError: one of the two is not there.

    Example:
        >>> import torch
        >>> index_and_labels((torch.tensor([7]), torch.rand(1, 4), torch.tensor([2])))
        (tensor([7]), tensor([2]))
    """
    index = labels = None
    if isinstance(batch, Mapping):
        index = batch.get(KEY)
        labels = next((batch[key] for key in LABEL_KEYS if key in batch), None)
        got = f"a mapping with the keys {', '.join(map(str, batch))}"
    elif isinstance(batch, tuple | list) and len(batch) >= 3:
        index, labels = batch[0], batch[2]
        got = f"{type(batch).__name__} of {', '.join(map(_described, batch))}"
    else:
        got = f"{_described(batch)}"
    if not (_are_whole(index) and _are_whole(labels)):
        raise DataError(
            "expected batches (index, inputs, labels) or a mapping with 'index' and 'labels', got "
            f"{got}; wrap the dataset in hardsight.tracking.with_index"
        )
    assert isinstance(index, Tensor)
    assert isinstance(labels, Tensor)
    return index, labels


def _are_whole(values: Any) -> bool:
    return isinstance(values, Tensor) and values.ndim == 1 and not values.is_floating_point()


def _described(part: Any) -> str:
    if isinstance(part, Tensor):
        return f"{part.dtype} {list(part.shape)}"
    return type(part).__name__


@dataclass(frozen=True)
class Step:
    """The detached tensors of one training step, or of several steps stacked.

    Attributes:
        index: positions of the examples, ``[B]``, int64.
        embeddings: the head's input, ``[B, D]``.
        logits: the head's output, ``[B, C]``.
        labels: class indices, ``[B]``, int64, on the device of the logits.
        class_weights: as they were in this step, ``[C, D]``.
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
        # index and labels are negligible
        return sum(t.nbytes for t in (self.embeddings, self.logits, self.class_weights))

    @property
    def kind(self) -> list[tuple[object, ...]]:
        """Shapes, dtypes and devices; steps of the same kind can be stacked and checked once."""
        return [(part.shape, part.dtype, part.device) for part in self.parts]


def as_index(values: object, name: str) -> Tensor:
    """Whole numbers as an integer tensor ``[B]``, on any device."""
    tensor = torch.as_tensor(values)
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise DataError(
            f"expected {name} to be whole numbers [B], got {tensor.dtype} {list(tensor.shape)}"
        )
    return tensor.long()


class HeadFit:
    r"""Checks for every step that :math:`x W^\top + b = z`, without waiting for the device.

    The first step shows which form the equation has (plain, cosine, scaled). The bias need not be
    known: angles do not depend on it, and any vector that is the same for all rows is accepted.
    """

    def __init__(self) -> None:
        self._form: LinearForm | None = None
        self._computed_in: torch.dtype | None = None
        self._turn = 0

    def begin(self, step: Step, bias: Tensor | None) -> None:
        """Find the form of the equation from the first step, the only one to wait for the device.

        Raises:
            HeadMismatchError: the logits are not made from these embeddings and weights.
        """
        if self._form is not None:
            return
        embeddings, logits = step.embeddings[:_FIRST_ROWS], step.logits[:_FIRST_ROWS]
        # a single row fits any bias, so it can only be used if the bias is known
        is_one = len(logits) == 1 and bias is not None
        least = 1 if is_one else 2
        finite = embeddings.isfinite().all(dim=1) & logits.isfinite().all(dim=1)
        if len(logits) < least or int(finite.sum()) < least:
            return  # too few rows to tell; rows that are not finite are reported at the epoch's end
        # the dtype decides how much rounding is tolerated
        self._computed_in = _precision_of(logits)
        form = linear_form(
            embeddings[finite], logits[finite], step.class_weights, bias if is_one else None,
            self._computed_in, any_bias=not is_one,
        )  # fmt: skip
        if form is None:
            raise HeadMismatchError(_NOT_ITS_HEAD)
        self._form = form

    def differing(self, steps: Step) -> Tensor:
        """Which rows of stacked steps break the equation, ``[steps, B]``."""
        embeddings, logits, weights = steps.embeddings, steps.logits, steps.class_weights
        if self._form is None:
            return torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
        # only some classes are checked each time: choose others in every round
        self._turn += 1
        return torch.vmap(self._rows)(embeddings, logits, weights)

    def differs_alone(self, step: Step, bias: Tensor) -> Tensor:
        """Whether a step of one row breaks the equation, given its bias, ``[1]``."""
        if self._form is None:
            return torch.zeros(1, dtype=torch.bool, device=step.logits.device)
        used = bias if self._form.use_bias else torch.zeros_like(bias)
        return self._rows(step.embeddings, step.logits, step.class_weights, used)

    def _rows(
        self, embeddings: Tensor, logits: Tensor, weights: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        form = self._form
        assert form is not None
        return differing_rows(
            normalize(embeddings.float()) if form.unit_features else embeddings,
            logits,
            normalize(weights.float()) if form.unit_weights else weights,
            bias,
            computed_in=self._computed_in,
            turn=self._turn,
            most_classes=_CHECKED_CLASSES,
            any_bias=bias is None,
            any_scale=form.scale != 1.0,
        )

    @staticmethod
    def refused(index: Tensor, rows: int) -> HeadMismatchError:
        """The error for rows that break the equation.

        Args:
            index: of the examples in these rows.
            rows: recorded altogether.
        """
        names = ", ".join(str(int(i)) for i in index[:5]) + (", ..." if len(index) > 5 else "")
        return HeadMismatchError(
            f"for {len(index)} of {rows} rows (examples {names}) {_NOT_ITS_HEAD}"
        )


def _precision_of(logits: Tensor) -> torch.dtype:
    """The precision logits were computed in: float32 ones may come from half-precision layers."""
    for dtype in (torch.bfloat16, torch.float16):
        # float32 values that survive rounding to bfloat16 were computed in bfloat16
        if torch.equal(logits.to(dtype).to(logits.dtype), logits):
            return dtype
    return logits.dtype


class Stash:
    """Steps that wait to be measured, and the rows of those that have been measured.

    Steps of one kind are copied into preallocated memory. A copy is needed, since the next step
    overwrites the weights and possibly the rest, and a copy into place is the cheapest.

    Args:
        judge: tells which rows of stacked steps do not fit their class weights.
    """

    def __init__(self, judge: Callable[[Step], Tensor] | None = None) -> None:
        self.rows: list[Rows] = []
        self.differing: list[tuple[Tensor, Tensor]] = []  # index [n] and whether it differs [n]
        self._judge = judge
        self._kind: list[tuple[object, ...]] | None = None
        self._room: Step | None = None  # [steps, ...] each; None if a step is too large to keep
        self._places: list[tuple[Tensor, ...]] = []  # one step's part of the room each
        self._waiting = 0

    def fits(self, step: Step) -> bool:
        """Whether the memory was allocated for steps of this kind."""
        return step.kind == self._kind

    def make_room(self, step: Step) -> None:
        """Measure waiting steps, and allocate memory for steps of another kind."""
        self.measure()
        self._kind, self._room, self._places = None, None, []  # free the old memory first
        if step.nbytes <= _BYTES_AT_ONCE:
            # + 1: a step that is as large as the limit still gets room
            steps = min(_BYTES_AT_ONCE // step.nbytes + 1, _STEPS_AT_ONCE)
            # tensors made in inference mode could not be written to outside it
            with torch.inference_mode(False):
                rooms = [part.new_empty((steps, *part.shape)) for part in step.parts]
                self._places = list(zip(*(room.unbind() for room in rooms), strict=True))
            self._room = Step(*rooms)
        self._kind = step.kind

    def add(self, step: Step) -> None:
        """Add a step of the current kind; a step that is too large is measured at once instead."""
        if self._room is None:
            # in blocks, since a float32 copy of a whole large step would double its memory
            for block in _row_blocks(step):
                self._measure(block)
            return
        for place, part in zip(self._places[self._waiting], step.parts, strict=True):
            place.copy_(part)
        self._waiting += 1
        if self._waiting == len(self._places):
            self.measure()

    def measure(self) -> None:
        """Measure all waiting steps."""
        if self._room is not None and self._waiting:
            filled = (room[: self._waiting] for room in self._room.parts)
            self._measure(Step(*filled))
        self._waiting = 0

    def _measure(self, steps: Step) -> None:
        self.rows.append(measured(steps))
        if self._judge is not None:
            # cloned, since the next steps overwrite the memory
            self.differing.append((steps.index.flatten().clone(), self._judge(steps).flatten()))


def _row_blocks(step: Step) -> list[Step]:
    """Split a large step into blocks of rows whose logits take a bounded amount of memory."""
    per_row = step.logits.shape[1] * 4
    rows = max(1, _BYTES_AT_ONCE // per_row)
    *by_row, class_weights = step.parts
    blocks = zip(*(part.split(rows) for part in by_row), strict=True)
    return [Step(*(part[None] for part in (*block, class_weights))) for block in blocks]


@torch.no_grad()
def measured(steps: Step) -> Rows:
    """Measure stacked steps, ``[steps, ...]`` each; the rows share no memory with them."""
    # under vmap each step has its own class weights, and nothing may read a value on the host,
    # which would wait for the device
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
    inside = labels.clamp(0, logits.shape[1] - 1)  # labels out of range are reported by end_epoch
    head = TiledHead(class_weights, parts=("norms", "angles")).summaries(embeddings, inside)
    angles = head.angles
    assert angles is not None
    outputs, targets = logit_summaries(logits, inside)
    summaries = {"norms": head.norms, "angles": angles, "targets": targets}
    measures = {
        name: SCORES[score].formula(summaries[SCORES[score].reads])
        for name, score in SCORE_OF.items()
    }
    measures |= {"avc": _own_confidence(angles), "loss": -targets.log_prob}
    return outputs.prediction, torch.stack([measures[name].float() for name in MEASURES], dim=1)


def _own_confidence(angles: AngleSummary) -> Tensor:
    """Angular visual confidence of the labelled class, AVH Eq. 3, from the sum of angles."""
    total = angles.num_classes * math.pi - angles.total
    silent = total <= 0  # the embedding is opposite to every class weight
    share = (math.pi - angles.target) / total.masked_fill_(silent, 1.0)
    return share.masked_fill_(silent, 1 / angles.num_classes)


@dataclass(frozen=True)
class Rows:
    """Measured examples, in the order in which they were seen; on the device until the epoch ends.

    Attributes:
        index: positions of the examples, ``[n]``.
        labels: class indices, ``[n]``.
        prediction: class indices, ``[n]``.
        values: the measures, ``[n, len(MEASURES)]``, float32.
        order: place of the row in time among the rows of all ranks, ``[n]``.
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
    empty = torch.empty(0, dtype=torch.int64)
    return Rows(empty, empty, empty, torch.empty(0, len(MEASURES)), empty)


def joined(parts: list[Rows]) -> Rows:
    """Concatenate rows on the CPU; the only place that waits for the device."""
    fields = [field.name for field in dataclasses.fields(Rows)]
    return Rows(
        *(_joined([getattr(part, name) for part in parts or [no_rows()]]) for name in fields)
    )


def _joined(parts: list[Tensor]) -> Tensor:
    if len({part.device for part in parts}) == 1:
        return torch.cat(parts).cpu()
    return torch.cat([part.cpu() for part in parts])
