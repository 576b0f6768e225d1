"""The tracker as a Lightning callback; imported when it is asked for."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hardsight.heads import live_class_weights, watch
from hardsight.tracking._gradients import GradientNorms
from hardsight.tracking._steps import StepRecorder


class TrackingCallback(StepRecorder, pl.Callback):
    """Records every training step, or every validation step, by a hook on the head.

    A module with a method ``kept_pass() -> (embeddings, logits)`` is asked for the pass of its last
    step instead: it has a hook already, and a step replayed from a CUDA graph calls none at all.
    """

    MADE_BY = "lightning_callback"
    _hook: RemovableHandle | None = None

    @property
    def state_key(self) -> str:
        """Where checkpoints keep the state; one place for each stage."""
        return f"hardsight.HardnessTracker[{self.tracker.stage}]"

    def state_dict(self) -> dict[str, Any]:
        """State of the tracker; all ranks come here when a checkpoint is saved."""
        return self._state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._go_on(state_dict)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hang the hook on the head."""
        # our own module keeps its last pass, which costs no hook; any other is watched at its head
        if not hasattr(pl_module, "kept_pass"):
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
            # an epoch that a checkpoint had recorded in full is written now that the next one
            # begins
            if self._epoch not in (None, trainer.current_epoch):
                self._end_epoch()
            self._await(batch, trainer.current_epoch)

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        """Record a pass that the module kept, before the class weights move on."""
        self._ask(pl_module)

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
        # further validation sets number their examples again from 0
        if self._records_validation(trainer) and dataloader_idx == 0:
            self._await(batch, trainer.current_epoch)

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        """Record a pass that the module kept, or check that one came."""
        self._ask(pl_module)
        self._check_seen()

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the epoch."""
        if self._records_validation(trainer):
            self._end_epoch()

    def _records_validation(self, trainer: pl.Trainer) -> bool:
        """Whether a validation pass counts: of a fit, never of ``trainer.validate()`` by itself."""
        return (
            self.tracker.stage == "evaluation"
            # of a fit, and not the few batches that are tried before it
            and trainer.state.fn == "fit"
            and not trainer.sanity_checking
        )

    def _ask(self, module: Any) -> None:
        """Record the last pass of a module that keeps it, if one is awaited."""
        if self._batch is not None and hasattr(module, "kept_pass"):
            embeddings, logits, *moved = module.kept_pass()
            # weights as they were in the forward pass, if the module kept them
            weights = moved[0] if moved else None
            if weights is None:
                layer = self.tracker.layer_in(module, self._head)
                weights = live_class_weights(layer, logits.shape[1])
            self._see(embeddings, logits, weights)

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._batch = None


class GradientCallback(pl.Callback):
    """Gives the gradients of every step to :class:`GradientNorms`."""

    def __init__(self, norms: GradientNorms) -> None:
        self._norms = norms

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        """Take the gradients, before they are clipped."""
        self._norms.record(pl_module)
