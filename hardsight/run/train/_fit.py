"""Load the model of a recipe, match it to the data, find its head, and train it with Lightning."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hardsight._checks import warn
from hardsight.errors import (
    CheckpointError,
    ConfigError,
    HardsightError,
    HeadError,
    HeadNotFoundError,
    ModelError,
    NonFiniteError,
    OptionError,
)
from hardsight.heads import Head, find_head, find_output, logits_of
from hardsight.models import LoadedModel
from hardsight.run.loop import (
    borrowed,
    chosen_precision,
    loaded_model,
    matched_classes,
    memory_errors,
    random_states_kept,
    seed_of,
    seeded,
    stated_classes,
)
from hardsight.run.train._batches import EvaluationBatches, Pixels, TrainBatches
from hardsight.run.train._config import ModelConfig, TrainConfig
from hardsight.run.train._data import Sources, is_first_process
from hardsight.run.train._objective import TotalLoss
from hardsight.run_folder import FirstOutputs, state_digest

if TYPE_CHECKING:
    from hardsight.run.train.engine import RunRecorder, TrainModule

_PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed", "float16": "16-mixed"}
_SMALLER = "set a smaller batch_size (--set batch_size=...), in another --out"
_GOES_ON = "--resume (resume=True) continues after the last whole epoch, with the same recipe"


def loaded_for(
    config: ModelConfig,
    model: str | nn.Module,
    sources: Sources,
    *,
    seed: int,
    device: torch.device,
    is_stated: bool,
) -> LoadedModel:
    """Load the model for this data, with random weights from a seed unless it brings weights.

    Args:
        config: the recipe's table.
        model: name of the model, or a user's module.
        sources: the data.
        seed: seed of its weights.
        device: where the model will be.
        is_stated: whether the recipe states mean and std, so that the model's are not needed.
    """
    _, image, _ = sources.train.row(0)
    shape = {"channels": image.shape[0], "image_size": image.shape[-1]} if image.ndim == 3 else {}
    drawn = seed_of(seed, "weights") % 2**31
    return loaded_model(
        model,
        config.weights,
        len(sources.classes),
        seed=drawn,
        device=device,
        is_stated=is_stated,
        trust_remote_code=config.trust_remote_code,
        options=config.options,
        if_taken={**shape, "seed": drawn},
    )


def numbered_for(
    loaded: LoadedModel, sources: Sources, config: ModelConfig, *, teaches: bool
) -> Sources:
    """Return the data with labels renumbered to the model's outputs, if the model names classes.

    Args:
        loaded: the model.
        sources: the data.
        config: the recipe's table of the model.
        teaches: whether the model is about to learn these classes, so it need not know them.

    Raises:
        ModelError: a class has no output, or the model cannot take the images.
        LabelError: the names do not match.
    """
    outputs = _outputs(loaded.model, sources)
    known = stated_classes(config.classes) or loaded.class_names
    if not teaches and not known.names and outputs != len(sources.classes):
        raise ModelError(
            f"expected a model of {len(sources.classes)} classes, those of the source, got "
            f"{outputs} outputs; train it on this source, or pass classes it knows"
        )
    order = matched_classes(
        sources.train.source, outputs, known, how=config.class_order, teaches=teaches
    )
    return sources.numbered_as(order)


def _two_inputs(model: nn.Module, sources: Sources) -> Tensor:
    """Return two training examples as the model takes them, on its device."""
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    pixels = Pixels(sources.train.how, channels_last=False, device=place)
    rows = [sources.train.row(at)[1] for at in range(min(2, len(sources.train)))]
    return pixels.normalised(torch.stack(rows))


def check_parameters(model: nn.Module) -> None:
    """Raise unless the model has weights to learn, in float32.

    Raises:
        ModelError: no weight requires a gradient, or weights have another dtype.
    """
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    if not any(weight.requires_grad for weight in weights):
        raise ModelError(
            f"no parameter of {type(model).__name__} requires a gradient, so nothing can learn; "
            "call model.requires_grad_()"
        )
    dtypes = {weight.dtype for weight in weights}
    if len(dtypes) == 1 and dtypes != {torch.float32}:
        raise ModelError(
            f"expected weights in float32, got {dtypes.pop()}; pass model.float(), and choose the "
            "precision of the forward pass with precision="
        )


def _returned(model: nn.Module, sources: Sources) -> Any:
    """Return the model's output for two training images.

    Raises:
        ModelError: the model cannot take the images.
    """
    inputs = _two_inputs(model, sources)
    try:
        with random_states_kept(), torch.no_grad(), borrowed(model, inputs.device):
            return model(inputs)
    except (HardsightError, torch.OutOfMemoryError):
        raise
    except Exception as err:  # layers raise RuntimeError for another shape, models anything
        raise ModelError(
            f"{type(model).__name__} cannot take images {list(inputs.shape[1:])} (channels, "
            f"height, width): {err}; set channels or size in the table of the data, or build the "
            "model for them"
        ) from err


def output_of(loaded: LoadedModel, sources: Sources, which: int | str | None) -> int | str | None:
    """Return which of the model's outputs holds the logits, or ``None`` if it returns only those.

    Raises:
        ModelError: several outputs could be the logits, or the model cannot take the images.
    """
    count = len(loaded.class_names.names) or len(sources.classes)
    _returned(loaded.model, sources)  # first, because its error about a wrong shape is clearer
    with random_states_kept(), torch.no_grad():
        inputs = _two_inputs(loaded.model, sources)
        return find_output(loaded.model, inputs, num_classes=count, output=which)


def _outputs(model: nn.Module, sources: Sources) -> int:
    """Return the number of the model's outputs.

    This is checked before the first step, because on a GPU a label without an output ends in a
    device-side assertion that names nothing.

    Raises:
        ModelError: a class has no output, or the model cannot take the images.
    """
    outputs = logits_of(_returned(model, sources)).shape[1]
    if outputs < len(sources.classes):
        raise ModelError(
            f"expected a model of {len(sources.classes)} outputs, one per class of "
            f"{sources.train.source.spec}, got {outputs}; build it with num_classes = "
            f"{len(sources.classes)}, or train on fewer classes"
        )
    return outputs


def first_outputs(model: nn.Module, sources: Sources) -> FirstOutputs | None:
    """Return the model's outputs for two training examples, by which a resumed run knows its code.

    Returns:
        ``None`` if outputs cannot be compared because the model, or perhaps the data, is random.
    """
    if sources.train.source.is_model_ready:
        return None

    def drawn_from(seed: int) -> Tensor:
        with seeded(seed):
            return logits_of(_returned(model, sources)).float().cpu()

    logits, again = drawn_from(0), drawn_from(1)
    if not torch.allclose(logits, again, rtol=1e-3, atol=1e-4, equal_nan=True):
        return None
    first = sources.train.source.id_of(sources.train.rows[0])
    return FirstOutputs(state_digest(model), first, logits.flatten().tolist())


def head_of(model: nn.Module, sources: Sources, name: str | None = None) -> Head:
    """Return the classifier head, verified on two training images.

    Raises:
        HeadNotFoundError: the head is a bare parameter, which no layer holds.
    """
    head = find_head(model, _two_inputs(model, sources), name=name)
    assert head.reading is not None
    if head.reading.module != head.name:
        raise HeadNotFoundError(
            f"training reads the head of a layer, and {head.name!r} is a bare parameter; hold it "
            "in an nn.Linear, or a module of your own with a parameter named weight"
        )
    return head


def reset_head(model: nn.Module, head: Head, *, seed: int) -> None:
    """Give the head new random weights that only depend on the seed.

    Raises:
        HeadError: the layer does not know how to draw its weights.
    """
    layer = model.get_submodule(head.name)
    draw = getattr(layer, "reset_parameters", None)
    if draw is None:
        raise HeadError(
            f"reset_head needs a head with reset_parameters(), got {type(layer).__name__} at "
            f"{head.name!r}; leave reset_head out, or use an nn.Linear head"
        )
    with seeded(seed_of(seed, "head") % 2**31):
        draw()


@contextmanager
def frozen_body(model: nn.Module, head: Head) -> Iterator[None]:
    """Freeze all parameters except the head's inside the block, and restore them afterwards."""
    own = {id(parameter) for parameter in model.get_submodule(head.name).parameters()}
    stopped = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    for parameter in stopped:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in stopped:
            parameter.requires_grad_(True)


def trainer_of(pl: Any, config: TrainConfig, device: torch.device, loss: TotalLoss) -> Any:
    """Return Lightning's trainer without its files, bars and summaries, since we write our own."""
    precision = chosen_precision(config.precision, device)
    if precision == "float16" and device.type == "cpu":
        raise OptionError("training in float16 needs a GPU; use precision = 'bfloat16'")
    if config.autotune and config.deterministic:
        raise OptionError(
            "autotune chooses algorithms by their speed, deterministic by their result; leave one "
            "out"
        )
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment

    from hardsight.run.train.engine import KeptCheckpoints

    chosen = config.devices if device.index is None else [device.index]
    is_single = config.devices * config.num_nodes == 1
    return pl.Trainer(
        # inside a Slurm job, Lightning would expect srun to start its processes, which a single
        # process does not need
        plugins=[KeptCheckpoints(), LightningEnvironment()] if is_single else None,
        accelerator="gpu" if device.type == "cuda" else device.type,
        devices=chosen,
        num_nodes=config.num_nodes,
        strategy=_strategy(config, loss),
        precision=_PRECISIONS[precision],
        max_epochs=config.epochs,
        gradient_clip_val=config.gradient_clip,
        deterministic=config.deterministic,
        benchmark=config.autotune,
        use_distributed_sampler=False,  # our batches are already the part of this process
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def records_steps(config: TrainConfig, device: torch.device) -> bool:
    """Return whether to record steps: as the recipe says, or by default whenever possible.

    Raises:
        ConfigError: the recipe wants it on another device than a single CUDA GPU, or in float16,
            whose scaler reads every gradient.
    """
    is_single = config.devices * config.num_nodes == 1 and config.strategy == "auto"
    is_scaled = chosen_precision(config.precision, device) == "float16"
    if config.capture is None:
        return device.type == "cuda" and is_single and not is_scaled
    if config.capture and (device.type != "cuda" or not is_single):
        raise ConfigError(
            f"capture = true records steps of a single CUDA device, got {device.type}"
            f"{'' if is_single else ', several, or a strategy'}; leave it out"
        )
    if config.capture and is_scaled:
        raise ConfigError(
            "capture = true cannot be used with float16, whose loss scale changes from step to "
            "step; use precision = 'bfloat16'"
        )
    return config.capture


def _strategy(config: TrainConfig, loss: TotalLoss) -> str:
    is_many = config.devices * config.num_nodes > 1
    if not is_many:
        return config.strategy
    # a loss that reads no logits leaves the head's bias without a gradient
    return "ddp" if loss.uses_logits else "ddp_find_unused_parameters_true"


def own_device(trainer: Any, device: torch.device) -> torch.device:
    """Return the device of this process; if several train together, each has its own GPU."""
    device_of_rank: torch.device = trainer.strategy.root_device
    return device_of_rank if device.type == "cuda" else device


@contextmanager
def quiet(pl: Any) -> Iterator[None]:
    """Silence Lightning's hints about itself, but not warnings about the user's code."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=pl.utilities.warnings.PossibleUserWarning)
            warnings.filterwarnings("ignore", module=r"lightning\..*", category=FutureWarning)
            # deprecations inside torch, which torch.compile runs into
            warnings.filterwarnings("ignore", module=r"torch\..*", category=DeprecationWarning)
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not")
            # DDP's hint about the layout of a convolution with one channel
            warnings.filterwarnings("ignore", message="Grad strides do not match bucket view")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def start_of(config: TrainConfig) -> Path | None:
    """Return the checkpoint from which a run continues, or ``None`` for a run from the beginning.

    If the last checkpoint is damaged, the previous epoch's is used, with a warning.

    Raises:
        CheckpointError: neither can be read, or the weights of the best epoch so far cannot.
    """
    from hardsight.run.train.engine import BEST, LAST, PREVIOUS

    last, previous = Path(config.out) / LAST, Path(config.out) / PREVIOUS
    if not config.resume or not (last.exists() or previous.exists()):
        return None
    best = Path(config.out) / BEST
    if best.exists():  # checked now, because after training the error would come hours later
        with weights_errors(best), safe_open(best, "pt"):
            pass  # opening compares the length of the file with its header
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
        warn(f"{said}; the run goes on from the checkpoint of the epoch before, {previous}")
    return previous


@contextmanager
def weights_errors(best: Path) -> Iterator[None]:
    """Turn errors in reading the best epoch's weights into an error that says what to do.

    Raises:
        CheckpointError: the weights cannot be read.
    """
    try:
        yield
    except (HardsightError, SafetensorError, OSError) as err:
        model = best.parents[1] / "model.safetensors"
        kept = f"copy {model} there, which holds the same weights, or " if model.exists() else ""
        raise CheckpointError(
            f"the weights of the best epoch cannot be read from {best} ({err}); {kept}begin the "
            "run again with another out, or replace it with --overwrite (overwrite=True)"
        ) from err


def _damage(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint, in words, or ``None`` if nothing is.

    Torch notices a truncated file, with many different errors, but not every changed byte. Its
    files are zip archives, which have a checksum for each part.
    """
    if not checkpoint.exists():
        return "missing"
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            for part in archive.infolist():
                if part.CRC:  # torch has an option to leave out checksums, which are then 0
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
    """Train to the last epoch, from a checkpoint if there is one.

    Args:
        trainer: Lightning's trainer.
        module: the module to train.
        train: batches to learn from.
        validation: batches by which the best epoch is selected.
        config: the recipe.
        start: the checkpoint to continue from; ``None`` to start from the beginning.
        show: force the progress bar on or off.
        title: title of the bar.
        callbacks: called before the recorder, which writes an epoch's checkpoint.

    Returns:
        the metrics of all epochs, including those before an interruption.

    Raises:
        NonFiniteError: a loss is NaN or infinite; says which checkpoint is kept.
        OutOfMemoryError: a batch does not fit into memory.
        KeyboardInterrupt: the user pressed Ctrl-C, or SIGTERM arrived. Lightning alone would end
            the process.
    """
    from hardsight.run.train.engine import LAST, ProgressBar, RunRecorder

    makes_processes = any(getattr(each, "forks", False) for each in (train, validation, *callbacks))
    # a thread writes files only if nothing forks, because a child could inherit the locks it holds
    is_beside = trainer.world_size == 1 and not makes_processes
    recorder = RunRecorder(Path(config.out), config, is_beside=is_beside)
    bar = ProgressBar(config, len(train), recorder, show, title)
    trainer.callbacks += [*callbacks, recorder, bar]
    answer = signal.getsignal(signal.SIGINT)
    try:
        with memory_errors("training ran out of memory", smaller=_SMALLER, goes_on=_GOES_ON):
            # weights_only, because a checkpoint must not be able to run code
            trainer.fit(module, train, validation, ckpt_path=start, weights_only=True)
    except NonFiniteError as err:
        raise NonFiniteError(f"{err}; {_advice(Path(config.out) / LAST, recorder.rows)}") from err
    except SystemExit as err:  # Lightning turns SIGTERM and Ctrl-C into SystemExit
        from lightning.pytorch.utilities.exceptions import SIGTERMException

        is_told = isinstance(err, SIGTERMException) or isinstance(
            err.__context__, KeyboardInterrupt
        )
        if not is_told:
            raise ModelError(
                f"{type(module.model).__name__}, or the data, called sys.exit in a step of "
                "training (SystemExit); remove the call"
            ) from err
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, answer)  # Lightning would leave Ctrl-C ignored for good
        raise KeyboardInterrupt from err
    finally:
        module.close()
        recorder.close()
        bar.close()
    return recorder


def _advice(last: Path, rows: list[dict[str, float]]) -> str:
    kept = (
        f"the checkpoint of epoch {int(rows[-1]['epoch'])} is kept in {last}"
        if rows
        else "no epoch was complete, so there is no checkpoint"
    )
    return f"{kept}. Lower the learning rate, clip the gradient, or look at these examples"
