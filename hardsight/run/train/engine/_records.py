"""Write metrics and checkpoints of a training run, and show its progress."""

from __future__ import annotations

import csv
import importlib.util
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from safetensors.torch import save_file
from torch import Tensor

from hardsight._checks import warn
from hardsight.run.loop import progress
from hardsight.run.train import TrainConfig, is_first_process
from hardsight.run.train.engine._module import Tally, TrainModule
from hardsight.run_folder import AGAIN, put_in_place, replacing, writing

LAST, PREVIOUS = "checkpoints/last.ckpt", "checkpoints/previous.ckpt"
BEST, METRICS = "checkpoints/best.safetensors", "metrics.csv"
_KEPT_BEFORE = f"the checkpoint of the epoch before is kept: {AGAIN}"


class KeptCheckpoints(TorchCheckpointIO):
    """Copies a checkpoint in memory, so that it can be written while training goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: tuple[dict[str, Any], Path] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Copy the checkpoint before training changes its tensors."""
        own = apply_to_collection(checkpoint, Tensor, lambda v: v.detach().to("cpu", copy=True))
        self._kept = (own, Path(path))

    def written(self) -> None:
        """Write the copy to its file, if there is one."""
        if self._kept is not None:
            (checkpoint, path), self._kept = self._kept, None
            super().save_checkpoint(checkpoint, path)


class BesideTraining:
    """Runs one piece of work at a time in a thread, while training goes on.

    :meth:`put` waits for the previous piece, and raises its error. A process that is killed thus
    loses at most one piece.

    Args:
        is_on: ``False`` does everything at once, because a process that forks must have no threads.
    """

    def __init__(self, is_on: bool) -> None:
        self._pool = ThreadPoolExecutor(1, "hardsight-records") if is_on else None
        self._last: Future[None] | None = None

    def put(self, work: Callable[[], None]) -> None:
        """Start a piece of work, once the last piece is done.

        Raises:
            HardsightError: the error of the last piece of work.
        """
        self.wait()
        if self._pool is None:
            work()
        else:
            self._last = self._pool.submit(work)

    def wait(self) -> None:
        """Wait until all work is done.

        Raises:
            HardsightError: the error of the last piece of work.
        """
        if self._last is not None:
            last, self._last = self._last, None
            last.result()

    def close(self) -> None:
        """Wait without raising errors, and end the thread; called after an error."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)


class RunRecorder(pl.Callback):
    """Writes metrics and checkpoints after every epoch, and renames each complete file into place.

    Files are written from copies while the next epoch is trained, because an epoch of a small
    network on a GPU takes less time than writing its files.

    The Lightning checkpoint decides which epochs are on record. The weights of a new best epoch
    have a temporary name until that checkpoint is in place. If the process dies in between, the
    epoch is trained again, may come out differently, and does not touch the selected weights. The
    previous epoch's checkpoint is kept in case the last one is damaged, and so are the weights that
    were the best until then.

    Args:
        folder: folder of the run.
        config: recipe of the run.
        is_beside: whether files are written while the next epoch is trained.

    Attributes:
        rows: one row of metrics per epoch.
        best: the epoch, counted from 1, whose weights are kept.
    """

    def __init__(self, folder: Path, config: TrainConfig, *, is_beside: bool = False) -> None:
        self._folder, self._config = folder, config
        self.rows: list[dict[str, float]] = []
        self.best = 0
        self._best_before = 0  # by the checkpoint of the epoch before
        self._board: Any = None
        self._has_board = importlib.util.find_spec("tensorboard") is not None
        if self._has_board and not _is_utf8(folder):
            self._has_board = False
            warn(
                f"no tensorboard/ in {folder}: TensorBoard takes names as UTF-8, and this name is "
                "not UTF-8 here; if that is because of the locale, set PYTHONUTF8=1"
            )
        self._started = 0.0
        self._work = BesideTraining(is_beside)

    def state_dict(self) -> dict[str, Any]:
        """State for the Lightning checkpoint, from which a resumed run continues."""
        return {"rows": list(self.rows), "best": self.best, "best_before": self._best_before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; rows and weights of later epochs are dropped."""
        self.rows, self.best = list(state["rows"]), state["best"]
        self._best_before = state.get("best_before", self.best)
        if is_first_process():
            self._select_weights(self.best, self._best_before)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the epoch and keep its weights; validation is done by now."""
        assert isinstance(pl_module, TrainModule)
        pl_module.check_steps()  # before writing, so that an epoch that went wrong is not kept
        pl_module.check_weights()
        row = self._row(trainer, pl_module)
        self.rows.append(row)
        self._best_before = self.best
        weights = None
        if self._is_best():
            self.best = int(row["epoch"])
            weights = model_state(trainer)
        self._work.wait()  # the last epoch's checkpoint may still be being written to this name
        with writing(self._folder / LAST, step=_KEPT_BEFORE):
            trainer.save_checkpoint(self._part)  # every process takes part in this
        if trainer.is_global_zero:
            # copies, because the next epoch changes them while the thread writes
            rows, best, before = list(self.rows), self.best, self._best_before
            kept = trainer.strategy.checkpoint_io
            self._work.put(lambda: self._write(rows, best, before, weights, kept))
        # after the last epoch every process reads these weights, so wait until they are written
        trainer.strategy.barrier("weights")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Wait until the last epoch is on the disk."""
        self._work.wait()

    def close(self) -> None:
        """Wait for the epoch that is being written, also after an error."""
        self._work.close()

    def _write(
        self,
        rows: list[dict[str, float]],
        best: int,
        before: int,
        weights: dict[str, Tensor] | None,
        kept: Any,
    ) -> None:
        """Put an epoch on record.

        Args:
            rows: metrics of all epochs so far.
            best: the epoch whose weights are selected.
            before: the selected epoch in the checkpoint of the previous epoch.
            weights: weights of the best epoch, if it is this epoch.
            kept: holds a copy of the checkpoint, or has written it already.
        """
        if weights is not None:
            file = self._waiting(best)
            with writing(file, step=AGAIN):
                file.parent.mkdir(parents=True, exist_ok=True)
                save_file(weights, file)
        with writing(self._folder / METRICS, step=AGAIN):
            self._write_metrics(rows)
        file, previous = self._folder / LAST, self._folder / PREVIOUS
        with writing(file, step=_KEPT_BEFORE):
            if isinstance(kept, KeptCheckpoints):
                kept.written()
            # the old checkpoint is linked first, so that at any moment a complete one has a name
            if file.exists():
                _second_name(file, previous)
            put_in_place(self._part, file)
        self._select_weights(best, before)

    @property
    def _part(self) -> Path:
        return (self._folder / LAST).with_suffix(".part")

    def _row(self, trainer: pl.Trainer, module: TrainModule) -> dict[str, float]:
        loss, accuracy = _reduced(trainer, module.train_tally)
        row: dict[str, float] = {
            "epoch": trainer.current_epoch + 1,
            "step": trainer.global_step,
            "lr": float(trainer.optimizers[0].param_groups[0]["lr"]),
            "train_loss": loss,
            "train_accuracy": accuracy,
        }
        if trainer.val_dataloaders:
            row["val_loss"], row["val_accuracy"] = _reduced(trainer, module.validation_tally)
        row["seconds"] = round(time.perf_counter() - self._started, 3)
        return row

    def _is_best(self) -> bool:
        """Return whether the last epoch is the best so far; if two are equal, the earlier wins."""
        column = {"accuracy": "val_accuracy", "loss": "val_loss"}.get(self._config.select)
        if column is None or column not in self.rows[-1]:
            return True
        values = [row[column] for row in self.rows]
        # without NaN, with which every comparison is false, so no later epoch could be the best
        before = [value for value in values[:-1] if not math.isnan(value)]
        if not before:
            return True
        return values[-1] < min(before) if column == "val_loss" else values[-1] > max(before)

    def _select_weights(self, best: int, before: int) -> None:
        """Put the best epoch's weights in place, and drop those that no checkpoint names.

        A checkpoint names an epoch as the best only after its weights were written in full. They
        wait under a temporary name, or are in place already, or were set aside if the run continues
        from the checkpoint of the previous epoch.
        """
        file = self._folder / BEST
        with writing(file, step=AGAIN):
            if self._waiting(best).exists():
                if file.exists() and before:
                    put_in_place(file, self._aside(before))
                put_in_place(self._waiting(best), file)
            elif self._aside(best).exists():
                put_in_place(self._aside(best), file)
            for lost in file.parent.glob(f"{file.stem}-*"):
                if lost != self._aside(before):
                    lost.unlink()

    def _waiting(self, epoch: int) -> Path:
        return self._aside(epoch).with_suffix(".part")

    def _aside(self, epoch: int) -> Path:
        file = self._folder / BEST
        return file.with_name(f"{file.stem}-{epoch:05d}{file.suffix}")

    def _write_metrics(self, rows: list[dict[str, float]]) -> None:
        file, row = self._folder / METRICS, rows[-1]
        with replacing(file) as part, part.open("w", newline="") as sink:
            writer = csv.DictWriter(sink, list(row))
            writer.writeheader()
            writer.writerows(rows)
        if self._board is None and self._has_board:
            from lightning.pytorch.loggers import TensorBoardLogger

            self._board = TensorBoardLogger(self._folder, name="tensorboard", version="")
        if self._board is not None:
            epoch = int(row["epoch"])
            self._board.log_metrics({k: v for k, v in row.items() if k != "epoch"}, step=epoch)
            self._board.save()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Close the TensorBoard file."""
        if self._board is not None:
            self._board.finalize("done")
            self._board = None


class ProgressBar(pl.Callback):
    """A progress bar over all epochs, on a terminal only.

    Args:
        config: the recipe.
        steps_per_epoch: number of steps of this process.
        recorder: has the metrics of the epochs done.
        show: force the bar on or off.
        name: what is being done.
    """

    def __init__(
        self,
        config: TrainConfig,
        steps_per_epoch: int,
        recorder: RunRecorder,
        show: bool | None,
        name: str = "training",
    ) -> None:
        self._name = name
        self._config, self._steps, self._recorder, self._show = (
            config, steps_per_epoch, recorder, show,
        )  # fmt: skip
        self._open = ExitStack()
        self._advance: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the bar, starting after the epochs that an earlier run has done."""
        if trainer.is_global_zero:
            total, done = (n * self._steps for n in (self._config.epochs, trainer.current_epoch))
            bar = progress(self._title(), total=total, done=done, show=self._show)
            self._advance = self._open.enter_context(bar)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Move the bar by a step."""
        if self._advance is not None:
            self._advance(1)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the metrics of the epoch."""
        if self._advance is not None:
            self._advance(0, title=self._title())

    def close(self) -> None:
        """Close the bar; after an error, Lightning would not call any hook to do so."""
        self._open.close()

    def _title(self) -> str:
        if not self._recorder.rows:
            return f"{self._name}, epoch 1 of {self._config.epochs}"
        row = self._recorder.rows[-1]
        shown = f"loss {row['train_loss']:.3f}"
        if "val_accuracy" in row:
            shown += f", validation {row['val_accuracy']:.1%}"
        return f"{self._name}, epoch {row['epoch']} of {self._config.epochs}: {shown}"


def _is_utf8(name: Path) -> bool:
    """Return whether the bytes of a name on this system are UTF-8."""
    try:
        return os.fsencode(name) == str(name).encode()
    except UnicodeEncodeError:
        return False


def model_state(trainer: pl.Trainer) -> dict[str, Tensor]:
    """Return the model's weights, whole and on the CPU; empty if another process has them."""
    state = trainer.strategy.lightning_module_state_dict()
    return plain_state({name.removeprefix("model."): v for name, v in state.items()})


def plain_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as safetensors takes them: contiguous, and none sharing memory."""
    return {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def _second_name(file: Path, name: Path) -> None:
    """Link a file under a second name, or rename it on file systems without hard links."""
    part = name.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        os.link(file, part)
    except OSError:
        put_in_place(file, name)
    else:
        put_in_place(part, name)


def _reduced(trainer: pl.Trainer, tally: Tally) -> tuple[float, float]:
    """Return mean loss and accuracy over all processes."""
    return tally.means(lambda sums: trainer.strategy.reduce(sums, reduce_op="sum"))
