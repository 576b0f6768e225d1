"""Train a classifier by a recipe, with Lightning, and keep a checkpoint that can be scored."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn

from hardsight._checks import require, warn
from hardsight.config import config_from
from hardsight.data import ExampleSource
from hardsight.errors import ConfigError, OptionError
from hardsight.heads import Head, logits_of
from hardsight.models import LoadedModel, StoredModel, is_as_made, load_stored, load_weights
from hardsight.notebook import shown
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop import (
    chosen_device,
    chosen_layout,
    chosen_precision,
    chosen_workers,
    random_states_kept,
    returning,
)
from hardsight.run.train._batches import EpochRows, EvaluationBatches, Pixels, batches_of
from hardsight.run.train._config import (
    SamplingConfig,
    TrainConfig,
    epochs_in_words,
    span_in_words,
)
from hardsight.run.train._data import (
    PartOfData,
    Sources,
    check_parts,
    class_counts,
    is_first_process,
    normalised_for,
    opened_sources,
    warn_of_shared,
)
from hardsight.run.train._fit import (
    check_parameters,
    first_outputs,
    fit,
    frozen_body,
    head_of,
    loaded_for,
    numbered_for,
    output_of,
    own_device,
    quiet,
    records_steps,
    reset_head,
    start_of,
    trainer_of,
    weights_errors,
)
from hardsight.run.train._folder import (
    RESULT,
    Trackers,
    claimed_run,
    keep_nearest,
    kept_dynamics,
    next_step,
    prepare,
    recipe_of,
    trackers_of,
)
from hardsight.run.train._images import Decoded
from hardsight.run.train._kinds import KindReader
from hardsight.run.train._objective import Adversary, TotalLoss, adversary_of
from hardsight.run.train._ranks import Shard, on_ranks
from hardsight.run.train._sampling import SelfPaced, epoch_rows
from hardsight.run_folder import AGAIN, RunFolder, state_digest, write_json, writing
from hardsight.table import DYNAMICS, HELD_OUT, TRACKED, ScoreTable, read_table

if TYPE_CHECKING:
    from hardsight.run.train._folds import FoldsResult

_DATA_KEYS = (
    "split", "root", "validation", "validation_split", "test_split", "text_column", "label_column",
    "image_column", "tokenizer", "max_tokens", "classes", "patch", "size", "channels", "mean",
    "std", "crop", "squash", "white", "imbalance",
)  # fmt: skip


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run.

    Attributes:
        folder: holds ``model.safetensors``, ``model.json``, ``metrics.csv``, ``recipe.json``,
            ``result.json`` and ``checkpoints/``.
        model: the model with the selected weights, in eval mode, on the CPU.
        history: metrics by epoch.
        best_epoch: the epoch, counted from 1, whose weights were selected.
        test: accuracy and loss on the test split, if the recipe names one.
        next_step: the command that scores the model.
        preprocessing: how images were prepared in training, which scoring has to repeat.
        classes: names of the model's outputs; the position of a name is its label.
        dynamics: one row per training example with the summaries of its dynamics, if the recipe has
            ``track = true``; also stored in ``dynamics.parquet``. ``held_out`` marks examples that
            selected the model and were never trained on; their summaries come from the validation
            passes.
        is_first_process: whether this process writes and prints, if several train together.
        tracked: for each set of examples that was watched but never trained on, the folder with
            its epochs; see ``track_on`` of :func:`train`. With ``track = true``, the held-out share
            is among them, as ``held-out``.
    """

    folder: Path
    model: nn.Module
    history: list[dict[str, float]]
    best_epoch: int
    test: dict[str, float] | None
    next_step: str
    preprocessing: Preprocessing
    classes: tuple[str, ...] = ()
    dynamics: ScoreTable | None = None
    is_first_process: bool = True
    tracked: dict[str, Path] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the selected epoch, the test, and the last epochs."""
        facts = {"run": str(self.folder), "best epoch": f"{self.best_epoch}"}
        facts |= {f"test {name}": f"{value:.4g}" for name, value in (self.test or {}).items()}
        columns = tuple(dict.fromkeys(name for epoch in self.history for name in epoch))
        rows = [[f"{epoch[name]:.4g}" if name in epoch else None for name in columns]
                for epoch in self.history[-5:]]  # fmt: skip
        return shown("TrainResult", facts, columns=columns, rows=rows, note=self.next_step)


def run_train(
    config: TrainConfig, *, show_progress: bool | None = None
) -> TrainResult | FoldsResult:
    """Call :func:`train` with a recipe, as the command line does."""
    return _one_or_folds(config, config.model.name, config.data.name, show_progress)


@overload
def train(
    model: str | os.PathLike[str] | nn.Module | Mapping[str, Any],
    data: Any,
    *,
    out: str | os.PathLike[str],
    show_progress: bool | None = None,
    track_on: Mapping[str, Any] | None = None,
    folds: None = None,
    **settings: Any,
) -> TrainResult: ...


@overload
def train(
    model: str | os.PathLike[str] | nn.Module | Mapping[str, Any],
    data: Any,
    *,
    out: str | os.PathLike[str],
    show_progress: bool | None = None,
    track_on: Mapping[str, Any] | None = None,
    folds: int,
    **settings: Any,
) -> FoldsResult: ...


def train(
    model: str | os.PathLike[str] | nn.Module | Mapping[str, Any],
    data: Any,
    *,
    out: str | os.PathLike[str],
    show_progress: bool | None = None,
    track_on: Mapping[str, Any] | None = None,
    folds: int | None = None,
    **settings: Any,
) -> TrainResult | FoldsResult:
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
            :func:`hardsight.data.open_source` takes. After every epoch the measures of
            :class:`hardsight.tracking.HardnessTracker` are recorded for them, in eval mode. The
            key ``track_test`` does the same with the test split, under the name ``test``.
        folds: train this many models instead of one, each on all but one part of the training
            split, and return one table in which every example is scored by the model that did not
            see it, neither in training nor in selection. A module is copied for each of them and
            stays as it is.
        settings: any other key of :class:`TrainConfig`, such as ``epochs=30`` or
            ``loss=["cross_entropy", {"name": "amc", "weight": 0.1}]``; ``split``, ``root``,
            ``validation``, ``validation_split``, ``test_split``, ``text_column``,
            ``label_column``, ``image_column``, ``tokenizer``, ``max_tokens``, ``classes``,
            ``patch``, ``size``, ``channels``, ``mean``, ``std``, ``crop``, ``squash``, ``white``
            and ``imbalance`` go to its table ``data``. ``validation`` may also be a dataset of its
            own, anything that ``data`` can be: then all of ``data`` is trained on. ``rows`` goes to
            ``data`` as well: a file of ``hardsight select``, or an array, as
            :func:`hardsight.data.open_source` takes them.

    Returns:
        the selected model and its history; with ``folds`` the table, as :class:`FoldsResult`.

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
    held_out, rows = settings.pop("validation", None), settings.pop("rows", table.get("rows"))
    # only a file has a name that a recipe can state; an array is recorded by its fingerprint
    table["rows"] = os.fspath(rows) if isinstance(rows, str | os.PathLike) else None
    if isinstance(held_out, int | float):  # a share of the training split, as in a recipe
        table["validation"], held_out = held_out, None
    elif held_out is not None:
        if settings.get("validation_split", table.get("validation_split")) is not None:
            raise ConfigError(
                "validation and validation_split both name examples to validate on; leave one out"
            )
        table["validation"] = 0.0
    table |= {key: settings.pop(key) for key in _DATA_KEYS if key in settings}
    if isinstance(table.get("patch"), os.PathLike):
        table["patch"] = os.fspath(table["patch"])
    data = table["name"]
    if isinstance(data, os.PathLike):
        table["name"] = os.fspath(data)
    elif not isinstance(data, str):  # not data.spec: a user's dataset may use the name for its own
        table["name"] = data.spec if isinstance(data, ExampleSource) else type(data).__name__
    started = dict(model) if isinstance(model, Mapping) else {"name": model}
    net = started.get("name")
    if isinstance(net, nn.Module):
        started["name"] = type(net).__name__
    elif isinstance(net, os.PathLike):  # such as the folder of a trained model
        started["name"] = os.fspath(net)
    values = {"model": started, "data": table, "out": os.fspath(out), "folds": folds, **settings}
    config = config_from(TrainConfig, values, where="the settings of train")
    net_or_name = net if isinstance(net, nn.Module) else config.model.name
    return _one_or_folds(
        config, net_or_name, data, show_progress, track_on=track_on, validation=held_out, rows=rows
    )


def _one_or_folds(
    config: TrainConfig,
    model: str | nn.Module,
    data: Any,
    show: bool | None,
    *,
    track_on: Mapping[str, Any] | None = None,
    validation: Any = None,
    rows: Any = None,
) -> TrainResult | FoldsResult:
    """Train one model, or one per fold."""
    config = on_ranks(config)
    if config.folds is None:
        return run_recipe(
            config, model, data, show, track_on=track_on, validation=validation, rows=rows
        )
    from hardsight.run.train._folds import run_folds  # imports this file, to train each fold

    if track_on:
        raise ConfigError(
            f"track_on watches one model, but folds = {config.folds} trains {config.folds}; leave "
            "one of the two out"
        )
    return run_folds(config, model, data, show, validation=validation, rows=rows)


@dataclass(frozen=True)
class _Task:
    """A recipe and everything that it names, opened and checked.

    Attributes:
        config: the recipe.
        device: the device that the recipe names.
        loaded: the model.
        sources: the data, with labels as the model numbers them.
        loss: losses of the recipe.
        head: head of the model, if the run needs it.
        adversary: changes the training images before a step.
        watched: examples that are tracked but never trained on, by name.
        recipe: everything that decides the result.
        show: force progress bars on or off.
        title: title of the progress bar.
        rows: draws the examples of an epoch; ``None`` uses each of them once.
        has_one_shape: whether all full batches have one shape, so that a step can be recorded.
    """

    config: TrainConfig
    device: torch.device
    loaded: LoadedModel
    sources: Sources
    loss: TotalLoss
    head: Head | None
    adversary: Adversary | None
    watched: Mapping[str, Decoded]
    recipe: dict[str, Any]
    show: bool | None
    title: str
    rows: EpochRows | None = None
    has_one_shape: bool = True


def run_recipe(
    config: TrainConfig,
    model: str | nn.Module,
    data: Any,
    show: bool | None,
    *,
    track_on: Mapping[str, Any] | None = None,
    validation: Any = None,
    rows: Any = None,
    part: PartOfData | None = None,
) -> TrainResult:
    """Train one model by a recipe, with model and data passed as objects or by name.

    A recipe with ``folds`` goes to :func:`run_folds` instead.
    """
    pl = require("lightning.pytorch", extra="train", feature="training")
    reads = (data, validation, *(track_on or {}).values())
    with claimed_run(config, reads) as run, ExitStack() as stack:
        device = chosen_device(config.device)
        loaded, sources, reader = _model_and_data(
            stack, config, model, data, device=device, validation=validation, rows=rows, part=part
        )
        own_weights = state_digest(loaded.model) if isinstance(model, nn.Module) else None
        are_balanced = any(term.class_balance is not None for term in config.loss)
        loss = TotalLoss(config.loss, class_counts(sources) if are_balanced else ())
        rows_of_epoch = hardness = None
        if config.sampling != SamplingConfig():
            rows_of_epoch, hardness = epoch_rows(config, sources)
        watched = _watched(config, sources, track_on)
        _check_strategy(config)
        head = _head(config, loaded.model, sources, loss, watches=bool(watched))
        if is_first_process():
            warn_of_shared(sources)
            _tell_what_is_not_trained(config, loaded, loss, sources)
        recipe = recipe_of(
            config,
            sources,
            watched=watched,
            own_weights=own_weights,
            brings=validation is not None,
            part=part,
            hardness=hardness,
        )
        return _run(
            pl,
            run,
            _Task(
                config=config,
                device=device,
                loaded=loaded,
                sources=sources,
                loss=loss,
                head=head,
                adversary=adversary_of(config.adversarial, sources.train),
                watched=watched,
                recipe=recipe,
                show=show,
                title="training" if part is None else f"training on {part.what}",
                rows=rows_of_epoch,
                has_one_shape=reader is None or reader.kind is None or reader.kind.has_one_shape,
            ),
        )


def _model_and_data(
    stack: ExitStack,
    config: TrainConfig,
    model: str | nn.Module,
    data: Any,
    *,
    device: torch.device,
    validation: Any,
    rows: Any,
    part: PartOfData | None,
) -> tuple[LoadedModel, Sources, KindReader | None]:
    """Return the model, and the data prepared for it, with labels as the model numbers them.

    Texts and graphs come with a reader, which loads the model first, because its tokenizer decides
    how they are read. Changes to the model are undone when ``stack`` is closed.
    """
    reader: KindReader | None = None

    def read(source: ExampleSource) -> ExampleSource:
        nonlocal reader
        if source.kind is None and config.data.tokenizer is None:
            return source
        reader = reader or KindReader(config, model, device)
        return reader.read(source)

    sources = opened_sources(
        config.data, data, seed=config.seed, validation=validation, rows=rows, part=part, read=read
    )
    loaded = None
    if reader is not None:
        loaded = reader.loaded
        stack.enter_context(reader.at_work())
    # if both are stated, it does not matter whether we understand the model's own preprocessing
    is_stated = None not in (config.data.mean, config.data.std)
    loaded = loaded or loaded_for(
        config.model, model, sources, seed=config.seed, device=device, is_stated=is_stated
    )
    sources = normalised_for(loaded, sources, config.data)
    check_parts(config, sources.train, is_validated=sources.validation is not None)
    check_parameters(loaded.model)
    stack.enter_context(returning(loaded.model, output_of(loaded, sources, config.output)))
    return loaded, numbered_for(loaded, sources, config.model, teaches=True), reader


def _head(
    config: TrainConfig, model: nn.Module, sources: Sources, loss: TotalLoss, *, watches: bool
) -> Head | None:
    """Return the head if the run needs it, with new weights if the recipe says so.

    Raises:
        ConfigError: a loss cannot be computed for this model.
    """
    changes = config.freeze_body or config.reset_head
    is_needed = loss.needs_embeddings or config.track or changes or watches
    # a name is checked even if the head is not needed, because it may be mistyped
    is_sought = is_needed or config.head is not None
    head = head_of(model, sources, config.head) if is_sought else None
    assert sources.order is not None  # a name for each output of the model
    loss.check(
        num_classes=len(sources.order.names), width=8 if head is None else head.weight.shape[1]
    )
    if config.reset_head and head is not None:
        reset_head(model, head, seed=config.seed)
    return head if is_needed else None


def _tell_what_is_not_trained(
    config: TrainConfig, loaded: LoadedModel, loss: TotalLoss, sources: Sources
) -> None:
    """Warn about weights that stay untrained, which the recipe may not intend."""
    assert sources.order is not None  # a name for each output of the model
    origin = loaded.weights_origin
    # is_as_made also holds for a factory with pretrained=True, whose body was trained already
    if config.freeze_body and is_as_made(origin) and not loaded.options.get("pretrained"):
        warn(
            f"freeze_body keeps a body that was never trained: no model.weights are given, so the "
            f"head learns from the features of {config.model.name} {origin}; set model.weights, or "
            "leave freeze_body out"
        )
    names = ", ".join(term.config.name for term in loss.terms)
    num_classes = len(sources.order.names)
    idle = loss.epochs_without_head(epochs=config.epochs, num_classes=num_classes)
    if config.freeze_body and idle:
        raise ConfigError(
            "freeze_body trains only the head, but no loss depends on its weights in "
            f"{epochs_in_words(idle)} (counted from 0) of {config.epochs}: "
            f"{', '.join(map(span_in_words, config.loss))}; use a loss that reads the logits, such "
            "as cross_entropy, in every epoch, or leave freeze_body out"
        )
    if len(idle) < config.epochs:
        return
    warn(
        f"the head is not trained: no loss depends on its weights ({names}), so predictions and "
        "accuracy are those of the weights it starts with; add a loss that reads the logits, such "
        "as cross_entropy"
    )


def _watched(
    config: TrainConfig, sources: Sources, track_on: Mapping[str, Any] | None
) -> dict[str, Decoded]:
    """Return the sets of examples to watch, by name; empty in most runs."""
    if not (config.track_test or track_on):
        return {}
    from hardsight.run.train.engine import watched_sets  # needs Lightning

    return watched_sets(config, sources, track_on)


def _check_strategy(config: TrainConfig) -> None:
    if config.strategy != "auto" and config.device == "mps":
        raise OptionError("mps is a single device; leave strategy out")


def _run(pl: Any, run: RunFolder, task: _Task) -> TrainResult:
    """Train, unless the folder already has the result, and write the result."""
    config, sources, model = task.config, task.sources, task.loaded.model
    is_first = is_first_process()
    if is_first:
        precision = chosen_precision(config.precision, task.device)
        prepare(run, task.recipe, precision=precision, first=first_outputs(model, sources))
    if config.resume and run.finished:
        return _finished(run.folder, task)
    # training draws from the global generators, whose states belong to the user
    with quiet(pl), random_states_kept(task.device):
        recorder, pixels, trackers = _fitted(pl, task)
    _load_best(model, run.folder)
    test = None if sources.test is None else _tested(task, sources.test, pixels)
    dynamics = None
    if trackers is not None and is_first:
        dynamics = kept_dynamics(trackers, config, sources, task.show)
        assert task.head is not None
        layer = model.get_submodule(task.head.name)
        keep_nearest(dynamics, model, layer, sources=sources, pixels=pixels, config=config)
    model.cpu()
    result = _result(
        run.folder, task, history=recorder.rows, best_epoch=recorder.best, test=test,
        dynamics=dynamics,
    )  # fmt: skip
    if is_first:
        _keep(result, task)
        run.finish()
    return result


def _fitted(pl: Any, task: _Task) -> tuple[Any, Pixels, Trackers | None]:
    """Train to the last epoch; return the recorder, the normalisation and the trackers."""
    from hardsight.run.train.engine import TrainModule, evaluation_tracking

    config, sources, head, model = task.config, task.sources, task.head, task.loaded.model
    is_recorded = task.has_one_shape and records_steps(config, task.device)
    start = start_of(config)
    trainer = trainer_of(pl, config, task.device, task.loss)
    shard = Shard(trainer.global_rank, trainer.world_size)
    train, validation, pixels = batches_of(
        sources,
        config,
        device=own_device(trainer, task.device),
        shard=shard,
        workers=chosen_workers(config.workers, length=len(sources.train)),
        show=task.show,
        rows=task.rows,
    )
    model.train()
    if chosen_layout(config.channels_last, task.device):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    module = TrainModule(
        model, config, task.loss, head=head, batches=train, adversary=task.adversary,
        is_recorded=is_recorded,
    )  # fmt: skip
    # Trackers come before the recorder in the list, so that the rows of an epoch are on disk when
    # the recorder writes the checkpoint of that epoch.
    trackers, callbacks = None, list[Any]()
    if config.track:
        assert head is not None
        trackers = trackers_of(config, sources, model.get_submodule(head.name), start)
        callbacks += trackers.callbacks()
        if isinstance(task.rows, SelfPaced):
            task.rows.tracker = trackers.trained
    if task.watched:
        assert head is not None
        layer = model.get_submodule(head.name)
        callbacks.append(
            evaluation_tracking(
                config, task.watched, layer, pixels, shard=shard, classes=sources.classes,
                start=start, show=task.show,
            )
        )  # fmt: skip
    with frozen_body(model, head) if config.freeze_body and head else nullcontext():
        recorder = fit(
            trainer,
            module,
            train,
            validation,
            config=config,
            start=start,
            show=task.show,
            title=task.title,
            callbacks=callbacks,
        )
    return recorder, pixels, trackers


def _finished(folder: Path, task: _Task) -> TrainResult:
    """Return the result of a run that was completed earlier."""
    content = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    _load_best(task.loaded.model, folder)
    # the same weights again, from the folder, whose digest protects against damage
    load_stored(task.loaded.model, folder)
    return _result(
        folder, task, history=content["history"], best_epoch=content["best_epoch"],
        test=content["test"], dynamics=read_table(folder / DYNAMICS) if task.config.track else None,
    )  # fmt: skip


def _result(folder: Path, task: _Task, **facts: Any) -> TrainResult:
    held_out = [HELD_OUT] if task.config.track and task.sources.holds_out else []
    return TrainResult(
        folder=folder,
        model=task.loaded.model.eval(),
        next_step=next_step(folder, task.config, task.loaded),
        preprocessing=task.sources.train.how,
        classes=() if task.sources.order is None else task.sources.order.names,
        is_first_process=is_first_process(),
        tracked={name: folder / TRACKED / name for name in (*held_out, *task.watched)},
        **facts,
    )


def _load_best(model: nn.Module, folder: Path) -> None:
    from hardsight.run.train.engine import BEST

    with weights_errors(folder / BEST):
        load_weights(model, folder / BEST)


@torch.inference_mode()
def _tested(task: _Task, test: Decoded, pixels: Pixels) -> dict[str, float]:
    """Return accuracy and cross-entropy of the selected model on the test split."""
    from hardsight.run.train.engine import Tally

    config, model = task.config, task.loaded.model.to(pixels.device).eval()
    tally = Tally(pixels.device)
    workers = chosen_workers(config.workers, length=len(test))
    # without gradients, batches may be larger than in training
    for batch in EvaluationBatches(
        test, pixels, batch_size=max(256, config.batch_size), shard=Shard(), workers=workers
    ):
        logits = logits_of(model(batch.inputs)).float()
        tally.add(nn.functional.cross_entropy(logits, batch.labels), logits, batch.labels)
    loss, accuracy = tally.means()
    if not math.isfinite(loss):  # finite weights can be so large that outputs overflow
        warn(
            f"the test loss is {loss}: the trained model has outputs that are not finite or far "
            "too large, and its accuracy means nothing; lower optimizer.lr or the options of the "
            "loss, or set gradient_clip"
        )
    return {"accuracy": accuracy, "loss": loss, "examples": len(test)}


def _keep(result: TrainResult, task: _Task) -> None:
    """Write the model as a folder that ``hardsight score`` takes, and the result beside it."""
    from hardsight.run.train.engine import plain_state

    loaded, sources = task.loaded, task.sources
    stored = StoredModel(loaded.built_as, dict(loaded.options), sources.train.how, sources.classes)
    content = {
        "best_epoch": result.best_epoch,
        "test": result.test,
        "train_examples": len(sources.train),
        "validation_examples": 0 if sources.validation is None else len(sources.validation),
        "history": result.history,
        "class_order": None if sources.order is None else sources.order.facts(),
        "shared_with_training": {
            name: None if overlap is None else overlap.facts()
            for name, overlap in sources.shared.items()
        },
        **task.recipe,
    }
    with writing(result.folder, step=AGAIN):
        stored.write(result.folder, plain_state(result.model.state_dict()))
        write_json(result.folder / RESULT, content)
