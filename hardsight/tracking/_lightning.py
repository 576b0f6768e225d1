"""The tracker as a Lightning callback; imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hardsight.errors import HeadMismatchError
from hardsight.heads import live_class_weights, watch
from hardsight.tracking._batch import index_and_labels

if TYPE_CHECKING:
    from hardsight.tracking._tracker import HardnessTracker


class TrackingCallback(pl.Callback):
    """Records every training step, or every validation step, by a hook on the head.

    A module with a method ``kept_pass() -> (embeddings, logits)`` is asked for its training steps
    instead: it has a hook already, and a step replayed from a CUDA graph calls none at all.

    Of several forward passes in one step (two views, checkpointed activations) the first counts.

    Args:
        tracker: where rows go; its ``stage`` says which steps are recorded.
        head: name of the classifier layer, where it is not found by itself.
    """

    def __init__(self, tracker: HardnessTracker, *, head: str | None = None) -> None:
        self.tracker, self._head = tracker, head
        self._hook: RemovableHandle | None = None
        self._batch: tuple[Tensor, Tensor] | None = None  # of the step whose forward is awaited
        self._epoch: int | None = None  # the trainer's, of the rows recorded last

    @property
    def state_key(self) -> str:
        """Where checkpoints keep the state; one place for each stage."""
        return f"hardsight.HardnessTracker[{self.tracker.stage}]"

    def state_dict(self) -> dict[str, Any]:
        """State of the tracker; all ranks come here when a checkpoint is saved."""
        return {"tracker": self.tracker.state_dict(gather=True), "epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.tracker.load_state_dict(state_dict["tracker"])
        self._epoch = state_dict["epoch"]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hang the hook on the head."""
        if not self._is_told_by(pl_module):
            self._hook = watch(self.tracker.layer_in(pl_module, self._head), self._see)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take the hook away."""
        self._release()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Take the hook away."""
        self._release()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Await the forward pass of a training step."""
        if self.tracker.stage == "train":
            # a checkpoint of the last step of an epoch goes on in the next one, and no hook tells
            if self._epoch not in (None, trainer.current_epoch):
                self._end_epoch()
            self._await(batch, trainer)

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        """Record a pass that the module kept, before the class weights move on."""
        if self._is_told_by(pl_module):
            module: Any = pl_module
            embeddings, logits = module.kept_pass()
            layer = self.tracker.layer_in(pl_module, self._head)
            self._see(embeddings, logits, live_class_weights(layer, logits.shape[1]))

    def on_train_batch_end(self, *args: Any) -> None:
        """Check that the forward pass came."""
        self._check_seen()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the epoch."""
        if self.tracker.stage == "train":
            self._end_epoch()

    def on_validation_batch_start(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Await the forward pass of a validation step over the first validation set."""
        if self._records_validation(trainer) and dataloader_idx == 0:
            self._await(batch, trainer)

    def on_validation_batch_end(self, *args: Any) -> None:
        """Check that the forward pass came."""
        self._check_seen()

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the epoch."""
        if self._records_validation(trainer):
            self._end_epoch()

    def _records_validation(self, trainer: pl.Trainer) -> bool:
        """Whether a validation pass counts: of a fit, never of ``trainer.validate()`` by itself."""
        return (
            self.tracker.stage == "evaluation"
            and trainer.state.fn == "fit"
            and (not trainer.sanity_checking)
        )

    def _await(self, batch: Any, trainer: pl.Trainer) -> None:
        self._batch, self._epoch = index_and_labels(batch), trainer.current_epoch

    def _is_told_by(self, module: pl.LightningModule) -> bool:
        return self.tracker.stage == "train" and hasattr(module, "kept_pass")

    def _see(self, embeddings: Tensor, logits: Tensor, class_weights: Tensor) -> None:
        if self._batch is not None:
            index, labels = self._batch
            self._batch = None
            self.tracker.update(index, embeddings, logits, labels, class_weights=class_weights)

    def _check_seen(self) -> None:
        if self._batch is not None:
            self._batch = None
            raise HeadMismatchError(
                "the head was not called in this step; pass lightning_callback(head=NAME) with "
                "the layer that makes the logits"
            )

    def _end_epoch(self) -> None:
        self._epoch = None
        self.tracker.end_epoch()

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._batch = None
