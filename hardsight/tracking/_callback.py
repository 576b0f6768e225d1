"""What the callbacks of all trainers share: a batch, and the forward pass that it awaits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hardsight.errors import DataError, HeadMismatchError
from hardsight.tracking._dataset import KEY

if TYPE_CHECKING:
    from hardsight.tracking._tracker import HardnessTracker

LABEL_KEYS = ("labels", "label", "target", "targets", "y")


class StepRecorder:
    """Records steps of a trainer: of several passes through the head in a step the first counts.

    Args:
        tracker: where rows go; its ``stage`` says which steps are recorded.
        head: name of the classifier layer, if it is not found by itself.
    """

    MADE_BY: str  # the method of the tracker that made this callback

    def __init__(self, tracker: HardnessTracker, *, head: str | None = None) -> None:
        self.tracker, self._head = tracker, head
        self._batch: tuple[Tensor, Tensor] | None = None  # of the step whose forward is awaited
        self._epoch: int | None = None  # the trainer's, of the rows recorded last

    def _state(self) -> dict[str, Any]:
        """For a checkpoint; all ranks must ask for it."""
        return {"tracker": self.tracker.state_dict(gather=True), "epoch": self._epoch}

    def _go_on(self, state: dict[str, Any]) -> None:
        self.tracker.load_state_dict(state["tracker"])
        self._epoch = state["epoch"]

    def _await(self, batch: Any, epoch: int) -> None:
        self._batch, self._epoch = index_and_labels(batch), epoch

    def _see(self, embeddings: Tensor, logits: Tensor, class_weights: Tensor) -> None:
        if self._batch is not None:
            index, labels = self._batch
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
        found = f"a mapping with the keys {', '.join(map(str, batch))}"
    elif isinstance(batch, tuple | list) and len(batch) >= 3:
        index, labels = batch[0], batch[2]
        found = f"{type(batch).__name__} of {', '.join(map(_described, batch))}"
    else:
        found = f"{_described(batch)}"
    if not (_are_whole(index) and _are_whole(labels)):
        raise DataError(
            "expected batches (index, inputs, labels) or a mapping with 'index' and 'labels', got "
            f"{found}; wrap the dataset in hardsight.tracking.with_index"
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
