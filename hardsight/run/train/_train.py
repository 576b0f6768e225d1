"""Training by recipe: a checkpoint that can be scored, on Lightning."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardsight._checks import require
from hardsight.config import config_from
from hardsight.errors import ConfigError, HeadNotFoundError, ModelError, OptionError
from hardsight.evaluate import Normalisation
from hardsight.heads import Head, find_head, find_output, logits_of
from hardsight.models import MODELS, LoadedModel, StoredModel, load_weights
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop import (
    borrowed,
    chosen_device,
    chosen_layout,
    chosen_precision,
    chosen_workers,
    loaded_model,
    matched_classes,
    random_states_kept,
    returning,
    seed_of,
    state_digest,
    stated_classes,
)
from hardsight.run.train._adversary import Adversary
from hardsight.run.train._batches import EvaluationBatches
from hardsight.run.train._config import AdversarialConfig as AdversarialConfig
from hardsight.run.train._config import AugmentConfig as AugmentConfig
from hardsight.run.train._config import DataConfig as DataConfig
from hardsight.run.train._config import LossConfig as LossConfig
from hardsight.run.train._config import ModelConfig as ModelConfig
from hardsight.run.train._config import OptimizerConfig as OptimizerConfig
from hardsight.run.train._config import ScheduleConfig as ScheduleConfig
from hardsight.run.train._config import TrainConfig as TrainConfig
from hardsight.run.train._engine import own_device, quiet, trainer_of
from hardsight.run.train._fit import fit, start_of
from hardsight.run.train._folder import (
    RESULT,
    claimed_run,
    is_first_process,
    prepare,
    recipe_of,
)
from hardsight.run.train._head import frozen_body, reset_head
from hardsight.run.train._images import Decoded, Pixels, Shard
from hardsight.run.train._losses import TotalLoss
from hardsight.run.train._parts import check_parts
from hardsight.run.train._setup import (
    Sources,
    batches_of,
    class_counts,
    normalised_for,
    opened_sources,
)
from hardsight.run.train._tracking import Trackers, kept_dynamics, trackers_of
from hardsight.run_folder import AGAIN, RunFolder, write_json, writing
from hardsight.table import DYNAMICS, HELD_OUT, TRACKED, ScoreTable, read_table

_DATA_KEYS = (
    "split", "root", "validation", "validation_split", "test_split", "mean", "std", "imbalance",
)  # fmt: skip
_PACKAGES = ("timm:", "torchvision:", "hf:")


@dataclass(frozen=True)
class TrainResult:
    """What a training run gives back.

    Attributes:
        folder: holds ``model.safetensors``, ``model.json``, ``metrics.csv``, ``recipe.json``,
            ``result.json`` and ``checkpoints/``.
        model: with the selected weights, in eval mode, on the CPU.
        history: metrics by epoch.
        best_epoch: the epoch, counted from 1, whose weights were selected.
        test: accuracy and loss on the test split, where the recipe names one.
        next_step: the command that scores the model.
        preprocessing: what was done to images in training, and must be done to them again.
        dynamics: one row per training example with the summaries of its dynamics, where the
            recipe has ``track = true``; also in ``dynamics.parquet``. ``held_out`` says which
            examples selected the model and were never trained on: their summaries are of the
            validation passes.
        is_first_process: of several that train together, the one that writes and prints.
        tracked: folder of the epochs of each set of examples that was watched but never trained
            on; see ``track_on`` of :func:`train`. With ``track = true`` the held-out share is one
            of them, ``held-out``.
    """

    folder: Path
    model: nn.Module
    history: list[dict[str, float]]
    best_epoch: int
    test: dict[str, float] | None
    next_step: str
    preprocessing: Preprocessing
    dynamics: ScoreTable | None = None
    is_first_process: bool = True
    tracked: dict[str, Path] = field(default_factory=dict)


def run_train(config: TrainConfig, *, show_progress: bool | None = None) -> TrainResult:
    """:func:`train` by settings, as the command line does it."""
    return run_recipe(config, config.model.name, config.data.name, show_progress)


def train(
    model: str | os.PathLike[str] | nn.Module | Mapping[str, Any],
    data: Any,
    *,
    out: str | os.PathLike[str],
    show_progress: bool | None = None,
    track_on: Mapping[str, Any] | None = None,
    **settings: Any,
) -> TrainResult:
    """Train a classifier on labelled data, select it on a validation split, and keep it.

    Args:
        model: a name (see :func:`hardsight.models.load_model`), a module, whose weights are
            trained in place, or the recipe's table ``{"name": "resnet18", "weights": FILE}``.
            With ``resume=True`` its weights come from the last checkpoint.
        data: a name (see :func:`hardsight.data.open_source`), a dataset, or the recipe's table
            ``{"name": "cifar10", "test_split": "test"}``.
        out: folder of the run.
        show_progress: force the progress bar on or off; by default it is shown on a terminal.
        track_on: examples to watch but never to train on, by name, each anything that
            :func:`hardsight.data.open_source` takes: after every epoch the measures of
            :class:`hardsight.tracking.HardnessTracker` are recorded of them, in eval mode. The
            key ``track_test`` does the same with the test split, under the name ``test``.
        settings: any other key of :class:`TrainConfig`, such as ``epochs=30`` or
            ``loss=["cross_entropy", {"name": "amc", "weight": 0.1}]``; ``split``, ``root``,
            ``validation``, ``validation_split``, ``test_split``, ``mean``, ``std`` and
            ``imbalance`` go to its table ``data``. ``validation`` may also be examples of their
            own, anything that ``data`` can be: then all of ``data`` is trained on.

    Returns:
        the selected model and its history.

    Raises:
        HardsightError: a subclass that says what to do.

    Example:
        >>> import hardsight as hs, tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     done = hs.train(
        ...         "small_cnn", "builtin:digits", split="train", out=f"{out}/run", epochs=1,
        ...         device="cpu",
        ...     )
        >>> done.history[0]["epoch"], done.best_epoch
        (1, 1)
    """
    table = dict(data) if isinstance(data, dict) and "name" in data else {"name": data}
    held_out = settings.pop("validation", None)
    if held_out is None or isinstance(held_out, int | float):
        settings |= {} if held_out is None else {"validation": held_out}
        held_out = None
    elif settings.get("validation_split", table.get("validation_split")) is not None:
        raise ConfigError(
            "validation and validation_split both name examples to validate on; leave one out"
        )
    else:
        table["validation"] = 0.0
    for key in _DATA_KEYS:
        if key in settings:
            table[key] = settings.pop(key)
    data = table["name"]
    if not isinstance(data, str):
        is_path = isinstance(data, os.PathLike)
        table["name"] = os.fspath(data) if is_path else getattr(data, "spec", type(data).__name__)
    started = dict(model) if isinstance(model, Mapping) else {"name": model}
    net = started.get("name")
    if isinstance(net, nn.Module):
        started["name"] = type(net).__name__
    elif isinstance(net, os.PathLike):  # such as the folder of a trained model
        started["name"] = os.fspath(net)
    given = {"model": started, "data": table, "out": os.fspath(out), **settings}
    config = config_from(TrainConfig, given, where="the settings of train")
    net_or_name = net if isinstance(net, nn.Module) else config.model.name
    return run_recipe(
        config, net_or_name, data, show_progress, track_on=track_on, validation=held_out
    )


def run_recipe(
    config: TrainConfig,
    model: str | nn.Module,
    data: Any,
    show: bool | None,
    *,
    track_on: Mapping[str, Any] | None = None,
    validation: Any = None,
) -> TrainResult:
    """:func:`train` by a recipe, with the model and the data themselves in place of their names."""
    pl = require("lightning.pytorch", extra="train", feature="training")
    with claimed_run(config) as run, ExitStack() as stack:
        return _run(pl, run, stack, config, model, data, show, track_on, validation)


def _run(
    pl: Any,
    run: RunFolder,
    stack: ExitStack,
    config: TrainConfig,
    model: str | nn.Module,
    data: Any,
    show: bool | None,
    track_on: Mapping[str, Any] | None,
    validation: Any,
) -> TrainResult:
    folder, device = run.folder, chosen_device(config.device)
    sources = opened_sources(config.data, data, seed=config.seed, validation=validation)
    is_stated = None not in (config.data.mean, config.data.std)
    loaded = loaded_for(
        config.model, model, sources, seed=config.seed, device=device, is_stated=is_stated
    )
    sources = normalised_for(loaded.preprocessing, sources, config.data)
    check_parts(config, sources.train, is_validated=sources.validation is not None)
    _check_parameters(loaded.model)
    stack.enter_context(returning(loaded.model, output_of(loaded, sources, config.output)))
    sources = numbered_for(loaded, sources, config.model, teaches=True)
    own_weights = state_digest(loaded.model) if isinstance(model, nn.Module) else None
    are_balanced = any(term.class_balance is not None for term in config.loss)
    loss = TotalLoss(config.loss, class_counts(sources) if are_balanced else ())
    watched = _watched(config, sources, track_on)
    _check_strategy(config, loss, watched)
    changes_head = config.freeze_body or config.reset_head
    needs_head = loss.needs_embeddings or config.track or changes_head or bool(watched)
    # a name is verified although nobody needs the head: it may be mistyped
    is_sought = needs_head or config.head is not None
    head = _head(config, loaded.model, sources) if is_sought else None
    assert sources.order is not None  # a name for each output of the model
    loss.check(
        num_classes=len(sources.order.names), width=8 if head is None else head.weight.shape[1]
    )
    if config.reset_head and head is not None:
        reset_head(loaded.model, head, seed=config.seed)
    adversary = _adversary(config, sources)
    head = head if needs_head else None
    recipe = recipe_of(config, sources)
    recipe["own_weights"] = own_weights
    if validation is not None and sources.validation is not None:
        recipe["validation"] = sources.validation.source.fingerprint()
    recipe["tracked"] = {name: one.source.fingerprint() for name, one in watched.items()}
    is_first = is_first_process()
    if is_first:
        prepare(run, recipe, precision=chosen_precision(config.precision, device))
    if config.resume and run.finished:
        return _finished(folder, config, loaded, sources, watched)
    with quiet(pl), random_states_kept(device):
        recorder, pixels, trackers = _fitted(
            pl, config, sources, loaded, loss, head, adversary, device, show, watched
        )
    _load_best(loaded.model, folder)
    test = _tested(loaded.model, sources, pixels, config) if sources.test is not None else None
    result = TrainResult(
        folder,
        loaded.model.cpu().eval(),
        recorder.rows,
        recorder.best,
        test,
        _next_step(folder, config, loaded),
        sources.train.how,
        None if trackers is None else kept_dynamics(trackers, config, sources, is_first, show),
        is_first,
        _tracked(folder, config, sources, watched),
    )
    if is_first:
        _keep(result, loaded, sources, recipe)
        run.finish()
    return result


def loaded_for(
    config: ModelConfig,
    model: str | nn.Module,
    sources: Sources,
    *,
    seed: int,
    device: torch.device,
    is_stated: bool,
) -> LoadedModel:
    """The model with random weights of a seed, unless it brings its own, fitting the data.

    Args:
        config: the recipe's table.
        model: its name, or a user's module.
        sources: the data.
        seed: of its weights.
        device: where it will be.
        is_stated: the recipe states mean and std, so that the model's own are not needed.
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
    """The data with the labels that the model has for its classes, if it knows them by name.

    Args:
        loaded: the model.
        sources: the data.
        config: the recipe's table of the model.
        teaches: the model is trained on these classes, so that it need not know them.

    Raises:
        ModelError: a class has no output, or the model cannot take the images.
        LabelError: names that do not match.
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
    """Two training examples as the model takes them, where it is."""
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    pixels = Pixels(sources.train.how, channels_last=False, device=place)
    rows = [sources.train.row(at)[1] for at in range(min(2, len(sources.train)))]
    return pixels.normalised(torch.stack(rows))


def _check_parameters(model: nn.Module) -> None:
    """Raise unless the model has weights to learn, in float32.

    Raises:
        ModelError: it has not.
    """
    weights = [one for one in model.parameters() if one.is_floating_point()]
    if not any(one.requires_grad for one in weights):
        raise ModelError(
            f"no parameter of {type(model).__name__} requires a gradient, so nothing can learn; "
            "call model.requires_grad_()"
        )
    dtypes = {one.dtype for one in weights}
    if len(dtypes) == 1 and dtypes != {torch.float32}:
        raise ModelError(
            f"expected weights in float32, got {dtypes.pop()}; pass model.float(), and choose the "
            "precision of the forward pass by precision="
        )


def _output(model: nn.Module, inputs: Tensor) -> Any:
    try:
        return model(inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as err:  # what layers raise for inputs of another shape
        raise ModelError(
            f"{type(model).__name__} cannot take images {list(inputs.shape[1:])} (channels, "
            f"height, width): {err}; set channels or size in the table of the data, or build the "
            "model for them"
        ) from err


def output_of(loaded: LoadedModel, sources: Sources, which: int | str | None) -> int | str | None:
    """Which of the model's outputs holds the logits; ``None`` if it returns them alone.

    Raises:
        ModelError: several outputs could be the logits, or the model cannot take the images.
    """
    count = len(loaded.class_names.names) or len(sources.classes)
    with random_states_kept(), torch.no_grad():
        inputs = _two_inputs(loaded.model, sources)
        with borrowed(loaded.model, inputs.device):
            _output(loaded.model, inputs)  # says in its own words what images it cannot take
        return find_output(loaded.model, inputs, num_classes=count, output=which)


def _outputs(model: nn.Module, sources: Sources) -> int:
    """How many; found before the first step, in which a GPU would end in an assertion of its own.

    Raises:
        ModelError: a class has no output, or the model cannot take the images.
    """
    with random_states_kept(), torch.no_grad():
        inputs = _two_inputs(model, sources)
        with borrowed(model, inputs.device):
            outputs = logits_of(_output(model, inputs)).shape[1]
    if outputs < len(sources.classes):
        raise ModelError(
            f"expected a model of {len(sources.classes)} outputs, one per class of "
            f"{sources.train.source.spec}, got {outputs}; build it with num_classes = "
            f"{len(sources.classes)}, or train on fewer classes"
        )
    return outputs


def _head(config: TrainConfig, model: nn.Module, sources: Sources) -> Head:
    """The classifier head, verified on two training images.

    Raises:
        HeadNotFoundError: the head is a bare parameter, which no layer holds.
    """
    head = find_head(model, _two_inputs(model, sources), name=config.head)
    assert head.reading is not None
    if head.reading.module != head.name:
        raise HeadNotFoundError(
            f"training reads the head of a layer, and {head.name!r} is a bare parameter; hold it "
            "in an nn.Linear, or a module of your own with a parameter named weight"
        )
    return head


def _adversary(config: TrainConfig, sources: Sources) -> Adversary | None:
    """Who changes the training images, where the recipe wants it.

    Raises:
        ConfigError: pixels are not known, so no change of them can be measured.
    """
    if config.adversarial is None:
        return None
    data = sources.train
    if not data.are_ours or data.row(0)[1].ndim != 3:
        raise ConfigError(
            "adversarial training needs images whose pixels are known, got tensors or vectors from "
            f"{data.source.spec}; pass images, and leave their normalisation to the recipe"
        )
    return Adversary(config.adversarial, Normalisation(data.how.mean, data.how.std))


def _watched(
    config: TrainConfig, sources: Sources, given: Mapping[str, Any] | None
) -> dict[str, Decoded]:
    """The examples to watch, by name; none in most runs."""
    if not (config.track_test or given):
        return {}
    from hardsight.run.train.engine import watched_sets  # needs Lightning

    return watched_sets(config, sources, given)


def _check_strategy(config: TrainConfig, loss: TotalLoss, watched: Mapping[str, Decoded]) -> None:
    if config.strategy == "fsdp" and watched:
        raise ConfigError(
            "strategy 'fsdp' splits the weights, which a pass over tracked examples (track_test, "
            "track_on) needs whole; use strategy = 'ddp'"
        )
    if config.strategy == "fsdp" and loss.needs_class_weights:
        raise ConfigError(
            "strategy 'fsdp' splits the head's weights, which a loss of this recipe reads whole; "
            "use strategy = 'ddp'"
        )
    if config.strategy != "auto" and config.device == "mps":
        raise OptionError("mps is a single device; leave strategy out")


def _fitted(
    pl: Any,
    config: TrainConfig,
    sources: Sources,
    loaded: LoadedModel,
    loss: TotalLoss,
    head: Head | None,
    adversary: Adversary | None,
    device: torch.device,
    show: bool | None,
    watched: Mapping[str, Decoded],
) -> tuple[Any, Pixels, Trackers | None]:
    from hardsight.run.train.engine import TrainModule

    start = start_of(config)
    trainer = trainer_of(pl, config, device, loss)
    own = own_device(trainer, device)
    shard = Shard(trainer.global_rank, trainer.world_size)
    workers = chosen_workers(config.workers, length=len(sources.train))
    train, validation, pixels = batches_of(
        sources, config, device=own, shard=shard, workers=workers, show=show
    )
    trackers = None
    if config.track:
        assert head is not None
        layer = loaded.model.get_submodule(head.name)
        trackers = trackers_of(config, sources, layer, start)
    loaded.model.train()
    if chosen_layout(config.channels_last, device):
        loaded.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    module = TrainModule(loaded.model, config, loss, head=head, batches=train, adversary=adversary)
    # before the recorder: an epoch's rows are written when its checkpoint says so
    callbacks: list[Any] = [] if trackers is None else trackers.callbacks()
    if watched:
        from hardsight.run.train.engine import evaluation_tracking

        assert head is not None
        how: dict[str, Any] = {"shard": shard, "start": start, "show": show}
        callbacks.append(
            evaluation_tracking(
                config, watched, loaded.model, head, pixels, classes=sources.classes, **how
            )
        )
    still = frozen_body(loaded.model, head) if config.freeze_body and head else nullcontext()
    with still:
        recorder = fit(
            trainer,
            module,
            train,
            validation,
            config=config,
            start=start,
            show=show,
            callbacks=callbacks,
        )
    return recorder, pixels, trackers


def _finished(
    folder: Path,
    config: TrainConfig,
    loaded: LoadedModel,
    sources: Sources,
    watched: Mapping[str, Decoded],
) -> TrainResult:
    """The result of a run that was completed before."""
    content = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    _load_best(loaded.model, folder)
    return TrainResult(
        folder,
        loaded.model.eval(),
        content["history"],
        content["best_epoch"],
        content["test"],
        _next_step(folder, config, loaded),
        sources.train.how,
        read_table(folder / DYNAMICS) if config.track else None,
        is_first_process(),
        _tracked(folder, config, sources, watched),
    )


def _tracked(
    folder: Path, config: TrainConfig, sources: Sources, watched: Mapping[str, Decoded]
) -> dict[str, Path]:
    """Folders of the epochs of examples that were never trained on, by name."""
    held_out = [HELD_OUT] if config.track and sources.holds_out else []
    return {name: folder / TRACKED / name for name in (*held_out, *watched)}


def _next_step(folder: Path, config: TrainConfig, loaded: LoadedModel) -> str:
    """The command that scores the model: on the test split, or on the training data."""
    data, split = config.data, config.data.test_split or config.data.split
    words = ["--data", data.name]
    words += ["--split", split] if split else []
    words += ["--data-root", data.root] if data.root else []
    words += ["--sample", "out-of-sample" if data.test_split else "in-sample"]
    words += ["--out", f"{folder}-scores"]
    words += ["--trust-remote-code"] if config.model.trust_remote_code else []
    return f"hardsight score --model {typed_model(folder, loaded)} {shlex.join(words)}"


def typed_model(folder: Path, loaded: LoadedModel) -> str:
    """How to name a stored model on the command line; a user's own code is named openly."""
    spec = loaded.built_as
    if spec not in MODELS and ":" in spec and not spec.startswith(_PACKAGES):
        return shlex.join([spec, "--weights", str(folder / "model.safetensors")])
    return shlex.quote(str(folder))


def _load_best(model: nn.Module, folder: Path) -> None:
    from hardsight.run.train.engine import BEST

    load_weights(model, folder / BEST)


@torch.inference_mode()
def _tested(
    model: nn.Module, sources: Sources, pixels: Pixels, config: TrainConfig
) -> dict[str, float]:
    """Accuracy and cross-entropy on the test split, by the selected model."""
    from hardsight.run.train.engine import Tally

    assert sources.test is not None
    model = model.to(pixels.device).eval()
    tally = Tally(pixels.device)
    workers = chosen_workers(config.workers, length=len(sources.test))
    for batch in EvaluationBatches(
        sources.test, pixels, batch_size=max(256, config.batch_size), shard=Shard(), workers=workers
    ):
        logits = logits_of(model(batch.inputs)).float()
        tally.add(nn.functional.cross_entropy(logits, batch.labels), logits, batch.labels)
    loss, accuracy = tally.means()
    return {"accuracy": accuracy, "loss": loss, "examples": len(sources.test)}


def _keep(
    result: TrainResult, loaded: LoadedModel, sources: Sources, recipe: dict[str, Any]
) -> None:
    """Write the model as a folder that ``hardsight score`` takes, and the result beside it."""
    from hardsight.run.train.engine import plain_state

    stored = StoredModel(loaded.built_as, dict(loaded.options), sources.train.how, sources.classes)
    content = {
        "best_epoch": result.best_epoch,
        "test": result.test,
        "train_examples": len(sources.train),
        "validation_examples": 0 if sources.validation is None else len(sources.validation),
        "history": result.history,
        "class_order": None if sources.order is None else sources.order.facts(),
        **recipe,
    }
    with writing(result.folder, step=AGAIN):
        stored.write(result.folder, plain_state(result.model.state_dict()))
        write_json(result.folder / RESULT, content)
