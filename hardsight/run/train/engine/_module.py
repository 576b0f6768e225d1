"""The training step, the validation step, and the guard against losses that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from hardsight.errors import ConfigError, NonFiniteError
from hardsight.heads import Forward, Head, capture, live_class_weights, logits_of
from hardsight.run.loop import model_errors, seed_generators, seed_of
from hardsight.run.train import (
    Adversary,
    RecordedStep,
    Share,
    StepNumbers,
    StepOutputs,
    Ticket,
    TotalLoss,
    TrainBatch,
    TrainBatches,
    TrainConfig,
    linear_layer,
    optimizer_of,
    recorded_options,
    scheduler_of,
)


@dataclass(frozen=True)
class StepRecord:
    """Facts about a step, kept until its loss is checked; the tensors stay on the device."""

    step: int
    loss: Tensor
    index: Tensor
    finite: Tensor  # per row, whether all logits are finite; the logits would fill the device


class StepGuard:
    """Finds the first step whose loss is not finite, without waiting for the device every time.

    Args:
        every: steps between two checks; a check waits for the device.
    """

    def __init__(self, every: int) -> None:
        self._every, self._records = every, list[StepRecord]()

    def add(self, record: StepRecord) -> None:
        """Add a step, and check all steps when enough of them are waiting.

        Raises:
            NonFiniteError: as :meth:`check`.
        """
        self._records.append(record)
        if len(self._records) >= self._every:
            self.check()

    def check(self) -> None:
        """Raise if a loss since the last check was not finite.

        Raises:
            NonFiniteError: names the step and its examples.
        """
        records, self._records = self._records, []
        if not records:
            return
        bad = ~torch.stack([record.loss for record in records]).isfinite()
        if bool(bad.any()):
            raise NonFiniteError(_said(records[int(bad.nonzero()[0])]))


def _said(record: StepRecord) -> str:
    rows = ~record.finite
    suspects = record.index[rows] if bool(rows.any()) else record.index
    names = ", ".join(str(int(i)) for i in suspects[:8]) + (", ..." if len(suspects) > 8 else "")
    where = "with logits that are not finite" if bool(rows.any()) else "in the batch"
    return (
        f"the loss is {float(record.loss)} at step {record.step}; examples {where}: {names} "
        f"({len(suspects)} of {len(record.index)})"
    )


class Tally:
    """Sums over an epoch, kept on the device: loss, correct predictions, examples."""

    def __init__(self, device: torch.device) -> None:
        place = torch.device("cpu") if device.type == "mps" else device  # mps has no float64
        self.sums = torch.zeros(3, dtype=torch.float64, device=place)

    def clear(self) -> None:
        """Set the sums to zero in place, since a recorded step adds to this memory."""
        self.sums.zero_()

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor, share: Share | None = None) -> None:
        """Add a batch; ``loss`` is its mean, or with ``share`` this process's part of the mean."""
        share = share or Share(len(labels), len(labels), 1)
        labels = labels[: share.own]
        right = (logits[: share.own].argmax(dim=1) == labels).sum()
        count = torch.full_like(right, len(labels))
        rows = share.total / share.ranks
        self.sums += torch.stack([loss.detach() * rows, right, count]).to(self.sums)

    def means(self, reduce: Callable[[Tensor], Tensor] | None = None) -> tuple[float, float]:
        """Return mean loss and accuracy; ``reduce`` sums over processes."""
        sums = self.sums if reduce is None else reduce(self.sums.clone())
        loss, right, count = sums.tolist()
        return loss / max(count, 1), right / max(count, 1)


def _nothing_learns(config: TrainConfig) -> str:
    losses = ", ".join(loss.name for loss in config.loss)
    return (
        f"no trainable weight takes part in the loss ({losses}); add cross_entropy, or make more "
        "of the model trainable: model.requires_grad_()"
    )


class TrainModule(pl.LightningModule):
    """A classifier that is trained by a recipe.

    Args:
        model: the model in train mode.
        config: the recipe.
        loss: the recipe's losses.
        head: the model's head, if a loss or a tracker reads embeddings.
        batches: batches to train on.
        adversary: changes the images of every batch before the step.
        is_recorded: whether steps over full batches are recorded and replayed, on one CUDA device.

    Attributes:
        embeddings: embeddings of the last batch, if there is a head.
        logits: logits of the last batch.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        loss: TotalLoss,
        *,
        head: Head | None,
        batches: TrainBatches,
        adversary: Adversary | None = None,
        is_recorded: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self._adversary = adversary
        self._config, self._loss, self._head = config, loss, head
        self._batches = batches
        # hidden in tuples, because nn.Module would register them and store them twice
        self._layer: tuple[nn.Linear | None] = (None,)
        if head is not None and loss.needs_class_weights:
            self._layer = (linear_layer(model, head.name),)
        self._runner = (torch.compile(model) if config.compile else model,)
        # rows of this process in a full step; a dataset smaller than a batch has smaller steps
        self._full_share = batches.shard.share_of(min(config.batch_size, batches.length)).own
        self._forward: Any = None
        self._captured: Forward | None = None
        # torch's one_cycle also changes the momentum, which the optimiser's kernel takes as a
        # constant, so a recording would freeze it
        self._updates_inside = is_recorded and config.schedule.name != "one_cycle"
        self._recorded: RecordedStep | None = None
        self._is_recorded, self._is_replayed = is_recorded, False
        # an adversary needs the images before the step, so they cannot be made in the recording
        batches.gives_tickets = is_recorded and adversary is None
        self._numbers: StepNumbers | None = None
        self._share: Share | None = None  # of this process, if several train together
        self._class_weights: Tensor | None = None  # of the last pass, if the step moved them
        self._open = ExitStack()
        self.embeddings: Tensor | None = None
        self.logits: Tensor | None = None

    def on_fit_start(self) -> None:
        """Install the hook on the head for the whole run."""
        runner: Any = self._runner[0]
        if self._head is None:
            self._forward = lambda inputs: (None, logits_of(runner(inputs)))
        else:
            captured = capture(runner, self._head, in_training=True)
            self._forward = self._captured = self._open.enter_context(captured)
        # on a CPU a check costs no wait, so the first bad step is reported at once
        self._guard = StepGuard(every=1 if self.device.type == "cpu" else 50)

    def close(self) -> None:
        """Remove the hook; after an error Lightning would not call any hook to do so."""
        self._open.close()

    def on_train_start(self) -> None:
        """Allocate the tensors that a recorded step reads and adds to."""
        self.train_tally = Tally(self.device)
        if not self._is_recorded:
            return
        count = len(self._loss.terms) + len(self._plain_optimizer.param_groups)
        self._numbers = StepNumbers(count, self.device)
        self._recorded = RecordedStep(
            self._passed,
            self.model,
            size=self._config.batch_size,
            adds_to=[self.train_tally.sums],
            update=self._update if self._updates_inside else None,
        )

    def on_train_epoch_start(self) -> None:
        """Reset sums and random states, so that an epoch's draws depend on its number alone."""
        self.train_tally.clear()
        if self._config.freeze_body:
            self.model.eval()  # a frozen body keeps its batch norm statistics and has no dropout
        self._batches.set_epoch(self.current_epoch)
        seed = seed_of(self._config.seed, "steps", self.current_epoch, self.global_rank)
        seed_generators(seed, gpus=self.device.type != "cpu")

    def training_step(self, batch: TrainBatch | Ticket, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        if self.trainer.world_size > 1:
            self._share = self._batches.share_of(batch_idx)
        if self._adversary is not None:
            batch = self._adversary.changed(self.model, self._batches.made(batch))
        passed = self._replayed(batch)
        self._is_replayed = passed is not None
        if passed is None:
            passed = self._passed_with_room(batch)
        self.embeddings, self.logits, loss, finite, self._class_weights = passed
        self._guard.add(StepRecord(self.global_step, loss.detach(), batch.index, finite))
        return loss

    def _replayed(self, batch: TrainBatch | Ticket) -> StepOutputs | None:
        """Do the step over a batch by replaying a recording; ``None`` if there is none."""
        if self._recorded is None:
            return None
        assert self._numbers is not None
        # free the last pass: its autograd nodes would break a recording
        self.embeddings = self.logits = self._class_weights = None
        groups = self._plain_optimizer.param_groups
        weights = self._loss.weights_at(self.current_epoch)
        self._numbers.set([*weights, *(group["lr"] for group in groups)])
        key = self._loss.shape_at(self.current_epoch, self.global_step)
        if self._updates_inside:  # the optimizer's kernel takes these as constants
            key = (*key, *((group.get("momentum"), group.get("betas")) for group in groups))
        return self._recorded.passed(batch, key)

    def _passed_with_room(self, batch: TrainBatch | Ticket) -> StepOutputs:
        """Do the passes over a batch; if they do not fit into memory, give up the recording."""
        try:
            return self._passed(batch)
        except torch.OutOfMemoryError:
            if self._recorded is None or not self._recorded.owns_gradients:
                raise
        self._recorded.give_up("a batch beside the recording does not fit into memory")
        return self._passed(batch)

    def _passed(self, batch: TrainBatch | Ticket) -> StepOutputs:
        made = self._batches.made(batch)
        # compiling for the smaller last batch of an epoch would take longer than it ever saves
        is_full = self._full_share == len(made.labels)
        with (
            model_errors(type(self.model).__name__, f"the batch of step {self.global_step}"),
            nullcontext() if is_full else self._uncompiled(),
        ):
            self.embeddings, logits = self._forward(made.inputs)
        loss = self.loss_of(logits, made)
        if not loss.requires_grad:
            raise ConfigError(_nothing_learns(self._config))
        # moved out, because an attribute would keep the pass alive while the next one is recorded
        embeddings, self.embeddings = self.embeddings, None
        with torch.no_grad():
            self.train_tally.add(loss, logits, made.labels, self._share)
            finite = logits.isfinite().all(dim=1)
            weights = self._class_weights_of(logits.shape[1])
        return StepOutputs(embeddings, logits, loss, finite, weights)

    def _class_weights_of(self, num_classes: int) -> Tensor | None:
        """Return a copy of the head's weights for a tracker, which runs after they changed."""
        if not (self._updates_inside and self._config.track):
            return None
        assert self._head is not None  # a tracked run has a head
        layer = self.model.get_submodule(self._head.name)
        return live_class_weights(layer, num_classes).detach().clone()

    def evaluated(self, inputs: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return embeddings, if there is a head, and logits of a batch that is not trained on.

        It goes through this module's capture, whose hook sees every forward pass and would keep the
        embeddings of a pass that bypassed it.
        """
        with self._uncompiled():  # eval mode and other batch sizes would be compiled again
            embeddings, logits = self._forward(inputs)
        return embeddings, logits

    def _uncompiled(self) -> AbstractContextManager[Any]:
        """Run the model uncompiled, for passes that are too rare to compile for."""
        return torch.compiler.set_stance("force_eager") if self._config.compile else nullcontext()

    def kept_pass(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return embeddings and logits of the last batch, and its class weights if they changed."""
        assert self.embeddings is not None  # a tracked run has a head
        assert self.logits is not None
        return self.embeddings, self.logits, self._class_weights

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients, unless a replayed step has done so already."""
        if not self._is_replayed:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Reset gradients, unless a replayed step has overwritten them already."""
        if not self._is_replayed:
            # gradients that a recording writes to must keep their memory
            optimizer.zero_grad(set_to_none=not self._are_gradients_owned)

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Take the optimizer's step, unless a replayed step has taken it already."""
        if not self._updates_inside:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
            return
        assert optimizer_closure is not None
        optimizer_closure()
        if not self._is_replayed:
            self._update()

    def _update(self) -> None:
        """Clip the gradient and step, with learning rates that are read on the device."""
        optimizer, numbers = self._plain_optimizer, self._numbers
        assert numbers is not None
        if self._config.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._config.gradient_clip)
        rates = numbers.values[len(self._loss.terms) :].unbind()
        stated = [group["lr"] for group in optimizer.param_groups]
        try:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            optimizer.step()
        finally:  # schedules and checkpoints need plain numbers instead of tensors on the device
            for group, rate in zip(optimizer.param_groups, stated, strict=True):
                group["lr"] = rate

    @property
    def _is_fused(self) -> bool:
        return self._updates_inside and self.device.type == "cuda"

    @property
    def _plain_optimizer(self) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = self.trainer.optimizers[0]
        return optimizer

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Set the optimiser's options of this run, which may differ from the checkpoint's."""
        how = {"fused": None, "capturable": False, "foreach": None}
        how |= recorded_options(self._config.optimizer, is_recorded=self._is_fused)
        for state in checkpoint["optimizer_states"]:
            for group in state["param_groups"]:
                group.update({key: value for key, value in how.items() if key in group})

    def on_validation_model_zero_grad(self) -> None:
        """Free the gradients during validation, unless a recording writes to them."""
        if not self._are_gradients_owned:
            super().on_validation_model_zero_grad()

    @property
    def _are_gradients_owned(self) -> bool:
        return self._recorded is not None and self._recorded.owns_gradients

    def loss_of(self, logits: Tensor, batch: TrainBatch) -> Tensor:
        """Return the sum of the recipe's losses for a batch."""
        return self._loss(
            logits,
            batch.labels,
            embeddings=self.embeddings,
            layer=self._layer[0],
            epoch=self.current_epoch,
            step=self.global_step,
            weights=None if self._numbers is None else self._numbers.values,
            share=self._share,
        )

    def check_steps(self) -> None:
        """Raise if a loss since the last check was not finite, or logits did not fit the head."""
        self._guard.check()
        if self._captured is not None:
            self._captured.check()

    def check_weights(self) -> None:
        """Raise if weights or statistics are not finite, since no loss follows the last step.

        Raises:
            NonFiniteError: names the first of them.
        """
        state = [*self.model.named_parameters(), *self.model.named_buffers()]
        if all(torch.stack([values.isfinite().all() for _, values in state]).tolist()):
            return  # this waits for the device once instead of once per tensor
        for name, values in state:
            if not bool(values.isfinite().all()):
                raise NonFiniteError(
                    f"{name} {list(values.shape)} is not finite after epoch "
                    f"{self.current_epoch + 1}: the last steps went too far; lower optimizer.lr, "
                    "or set gradient_clip"
                )

    def on_validation_epoch_start(self) -> None:
        """Set the sums to zero."""
        if self.trainer.state.fn == "fit":
            self.check_steps()  # the step that went wrong says more than a bad validation
        self.validation_tally = Tally(self.device)

    def validation_step(self, batch: TrainBatch, batch_idx: int) -> None:
        """Add cross-entropy and accuracy for any training loss, so that recipes can be compared."""
        self.embeddings, self.logits = self.evaluated(batch.inputs)
        self._class_weights = None  # no step has changed the weights since this pass
        logits = self.logits.float()
        loss = functional.cross_entropy(logits, batch.labels)
        self.validation_tally.add(loss, logits, batch.labels)

    def configure_optimizers(self) -> Any:
        """Return optimiser and schedule of the recipe."""
        optimizer = optimizer_of(
            self._config.optimizer, self.model.parameters(), is_recorded=self._is_fused
        )
        schedule = scheduler_of(
            self._config.schedule,
            optimizer,
            epochs=self._config.epochs,
            steps_per_epoch=len(self._batches),
        )
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Return the batch unchanged, since batches are made on the device."""
        return batch
