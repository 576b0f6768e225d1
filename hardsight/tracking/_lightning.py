"""The tracker as a Lightning callback; imported only when it is used."""

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

    If the module has a method ``kept_pass() -> (embeddings, logits)``, that is called instead: such
    a module has a hook already, and a step replayed from a CUDA graph calls no hooks at all.
    """

    MADE_BY = "lightning_callback"
    _hook: RemovableHandle | None = None

    @property
    def state_key(self) -> str:
        """Key of the state in checkpoints, one per stage."""
        return f"hardsight.HardnessTracker[{self.tracker.stage}]"

    def state_dict(self) -> dict[str, Any]:
        """State of the tracker; called on all ranks when a checkpoint is saved."""
        return self._state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._go_on(state_dict)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Install the hook on the head."""
        # our own module keeps its last pass and needs no hook
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
        """Note the batch whose forward pass comes next."""
        if self.tracker.stage == "train":
            # a checkpoint from the last step of an epoch resumes in the next epoch, and Lightning
            # calls no hook for the end of the recorded one: write it now
            if self._epoch not in (None, trainer.current_epoch):
                self._end_epoch()
            self._await(batch, trainer.current_epoch)

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        """Record a pass that the module kept, before the optimizer changes the class weights."""
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
        """Note the batch of a validation step, if it is of the first validation set."""
        # other validation sets number their examples from 0 again
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
        """Whether to record a validation pass: in ``fit``, but not in ``trainer.validate()``."""
        return (
            self.tracker.stage == "evaluation"
            # not the few batches of Lightning's sanity check before training
            and trainer.state.fn == "fit"
            and not trainer.sanity_checking
        )

    def _ask(self, module: Any) -> None:
        """Record the last pass of a module that keeps it, if a batch is waiting for it."""
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
        """Record the gradients before they are clipped."""
        self._norms.record(pl_module)
