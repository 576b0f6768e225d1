"""The tracker as a callback of transformers' Trainer; imported only when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback

from hardsight.errors import DataError, OptionError, OutputError, RunMismatchError
from hardsight.heads import watch
from hardsight.run_folder import mended_by, replacing
from hardsight.tracking._dataset import KEY
from hardsight.tracking._epochs import of_all
from hardsight.tracking._steps import StepRecorder
from hardsight.tracking._tracker import HardnessTracker

# The index of the batch in each model's forward pass: the first callback takes it out of the batch,
# and a second callback (for the other stage) reads it here.
_taken: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()


class TrackingCallback(StepRecorder, TrainerCallback):
    """Records every training step, or every evaluation step, by hooks on the model and its head.

    The hook on the model takes the index out of the batch, so that ``forward`` never sees it.
    """

    MADE_BY = "transformers_callback"

    def __init__(self, tracker: HardnessTracker, *, head: str | None = None) -> None:
        super().__init__(tracker, head=head)
        self._hooks: list[RemovableHandle] = []
        self._now = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Install the hooks on the model, and load the state of the checkpoint being resumed."""
        if args.remove_unused_columns:
            raise OptionError(
                "the Trainer drops the index before it reaches the model; set "
                "TrainingArguments(remove_unused_columns=False)"
            )
        if args.n_gpu > 1:
            raise OptionError(
                "DataParallel splits a batch over threads, which cannot be tracked; start one "
                "process per GPU with torchrun"
            )
        # a resumed training needs the state of the tracker at the same step
        if state.global_step > 0:
            self._load(args, state)
        self._release()
        model: nn.Module = kwargs["model"]
        self._hooks = [
            model.register_forward_pre_hook(self._take_index, with_kwargs=True),
            model.register_forward_hook(self._check_pass),
            watch(self.tracker.layer_in(model, self._head), self._see),
        ]

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove the hooks."""
        self._release()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End an epoch that was complete when its checkpoint was saved."""
        self._now = int(state.epoch or 0)
        # the Trainer saves a checkpoint at the end of an epoch before it calls on_epoch_end, so a
        # resumed run has yet to write that epoch
        if self.tracker.stage == "train" and self._epoch not in (None, self._now):
            self._end_epoch()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the epoch."""
        if self.tracker.stage == "train":
            self._end_epoch()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the evaluation pass."""
        if self.tracker.stage == "evaluation" and self._hooks:
            self._end_epoch()

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        """Drop the rows of a prediction, which runs over other data."""
        if self.tracker.stage == "evaluation" and self._hooks:
            self.tracker.discard_epoch()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the tracker's state beside the model's checkpoint; called on all ranks."""
        content = self._state()
        if state.is_world_process_zero:
            file = self._state_file(_checkpoint(args, state))
            try:
                with replacing(file) as partial:
                    torch.save(content, partial)
            except (OSError, RuntimeError) as err:  # torch reports a full disk as RuntimeError
                raise OutputError(
                    f"cannot write the tracker's state to {file}: {err}; {mended_by(err)}"
                ) from err

    def _load(self, args: Any, state: Any) -> None:
        places = [args.resume_from_checkpoint, _checkpoint(args, state)]
        # resume_from_checkpoint may be True instead of a path
        files = [self._state_file(Path(place)) for place in places if isinstance(place, str | Path)]
        file = next((file for file in files if file.exists()), None)
        on_rank = of_all(file is not None)
        if file is not None and all(on_rank):
            self._go_on(torch.load(file, weights_only=True))
        elif any(on_rank):  # ranks that load alone would wait for the others forever
            missing = ", ".join(str(rank) for rank, is_there in enumerate(on_rank) if not is_there)
            raise RunMismatchError(
                f"no tracker state is found on rank {missing}, looked for at {files[-1]}, though "
                "others have it; resume from a folder that all ranks share"
            )
        elif not self.tracker.goes_on:
            raise RunMismatchError(
                f"training goes on at step {state.global_step}, but there is no tracker state at "
                f"{files[-1]}; give the tracker one with load_state_dict(), or its folder with "
                "resume=True"
            )

    def _state_file(self, folder: Path) -> Path:
        return folder / f"hardness-{self.tracker.stage}.pt"

    def _take_index(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rest = {name: value for name, value in kwargs.items() if name != KEY}
        if KEY in kwargs:
            _taken[model] = kwargs[KEY]
        # a pass in train mode belongs to the stage "train", one in eval mode to the other
        if model.training == (self.tracker.stage == "train"):
            batch = {KEY: _taken[model], **rest} if model in _taken else rest
            if KEY in batch and not {"labels", "label"} & set(batch):
                raise DataError(
                    "the labels did not reach the model: the Trainer keeps them for label "
                    "smoothing or compute_loss_func; use the loss of the model itself"
                )
            self._await(batch, self._now)
        return args, rest

    def _check_pass(self, model: nn.Module, *args: Any) -> None:
        _taken.pop(model, None)
        self._check_seen()

    def _release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._batch = [], None


def _checkpoint(args: Any, state: Any) -> Path:
    """The folder of the checkpoint at the current step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
