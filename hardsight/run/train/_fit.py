"""One fit of a run: checkpoints to go on from, and an answer to whatever ends it early."""

from __future__ import annotations

import signal
import threading
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.errors import CheckpointError, HardsightWarning, NonFiniteError
from hardsight.run.loop import memory_errors
from hardsight.run.train._batches import EvaluationBatches, TrainBatches
from hardsight.run.train._config import TrainConfig
from hardsight.run.train._folder import is_first_process

if TYPE_CHECKING:
    from hardsight.run.train.engine import RunRecorder, TrainModule

_SMALLER = "set a smaller batch_size (--set batch_size=...), in another --out"
_GOES_ON = "--resume (resume=True) goes on after the last whole epoch, with the same recipe"


def start_of(config: TrainConfig) -> Path | None:
    """The checkpoint a run goes on from; ``None`` where it begins anew.

    Where the last one is damaged, the one of the epoch before takes its place, and that is said.

    Raises:
        CheckpointError: neither can be read.
    """
    from hardsight.run.train.engine import LAST, PREVIOUS

    last, previous = Path(config.out) / LAST, Path(config.out) / PREVIOUS
    if not config.resume or not (last.exists() or previous.exists()):
        return None
    problem = _damage(last)
    if problem is None:
        return last
    said = f"{last} is {problem}"
    before = _damage(previous)
    if before is not None:
        raise CheckpointError(
            f"{said}, and {previous} is {before}; begin the run again with another out, or remove "
            f"{config.out}"
        )
    if is_first_process():
        warnings.warn(
            f"{said}; the run goes on from the checkpoint of the epoch before, {previous}",
            HardsightWarning,
            stacklevel=2,
        )
    return previous


def _damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in words; ``None`` where nothing is.

    Torch notices a file that ends too early, with an error for each place where it may end, but
    not every byte that changed. Its files are zip archives, which have a sum for each part.
    """
    if not checkpoint.exists():
        return "missing"
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            for part in archive.infolist():
                if part.CRC:  # torch can be told to leave the sums out
                    with archive.open(part) as content:
                        while content.read(1 << 20):
                            pass
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as err:
        return f"damaged ({err or type(err).__name__})"
    return None


def fit(
    trainer: Any,
    module: TrainModule,
    train: TrainBatches,
    validation: EvaluationBatches | None,
    *,
    config: TrainConfig,
    start: Path | None,
    show: bool | None,
    title: str = "training",
    callbacks: Sequence[Any] = (),
) -> RunRecorder:
    """Train to the last epoch, from a checkpoint where a run is to be resumed.

    Args:
        trainer: of Lightning.
        module: what is trained.
        train: batches to learn from.
        validation: batches to select by.
        config: the recipe.
        start: the checkpoint to go on from; ``None`` to begin anew.
        show: force the progress bar on or off.
        title: of the bar.
        callbacks: called before the one that writes an epoch's checkpoint.

    Returns:
        the metrics of all epochs, those of an interrupted run included.

    Raises:
        NonFiniteError: a loss is NaN or infinite; says which checkpoint is kept.
        OutOfMemoryError: a batch does not fit into memory.
        KeyboardInterrupt: where Lightning would have ended the process.
    """
    from hardsight.run.train.engine import ProgressBar, RunRecorder

    recorder = RunRecorder(Path(config.out), config)
    bar = ProgressBar(config, len(train), recorder, show, title)
    trainer.callbacks += [*callbacks, recorder, bar]
    answer = signal.getsignal(signal.SIGINT)
    try:
        with memory_errors("training ran out of memory", smaller=_SMALLER, goes_on=_GOES_ON):
            trainer.fit(module, train, validation, ckpt_path=start, weights_only=True)
    except NonFiniteError as err:
        raise NonFiniteError(f"{err}; {_advice(_last(config), recorder.rows)}") from err
    except SystemExit as err:  # what Lightning makes of Ctrl-C, which it then ignores for good
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, answer)
        raise KeyboardInterrupt from err
    finally:
        module.close()
        bar.close()
    return recorder


def _last(config: TrainConfig) -> Path:
    from hardsight.run.train.engine import LAST

    return Path(config.out) / LAST


def _advice(last: Path, rows: list[dict[str, float]]) -> str:
    kept = (
        f"the checkpoint of epoch {int(rows[-1]['epoch'])} is kept in {last}"
        if rows
        else "no epoch was complete, so there is no checkpoint"
    )
    return f"{kept}. Lower the learning rate, clip the gradient, or look at these examples"
