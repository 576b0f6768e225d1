"""The folder of a training run: its lock, its recipe and manifest, and the files it keeps."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hardsight._checks import versions, warn
from hardsight.config import defaults_of
from hardsight.errors import HardsightError, RunMismatchError
from hardsight.heads import watch
from hardsight.models import MODELS, LoadedModel
from hardsight.run.loop import chosen_workers, memory_errors, model_errors, pictures
from hardsight.run.train._batches import EvaluationBatches, Pixels
from hardsight.run.train._config import DataConfig, TrainConfig
from hardsight.run.train._data import PartOfData, Sources, is_first_process
from hardsight.run.train._images import Decoded, TrainBatch
from hardsight.run.train._ranks import Shard
from hardsight.run_folder import (
    AGAIN,
    NEAREST,
    NEAREST_CLASSES,
    NEAREST_COUNT,
    TRAIN,
    FirstOutputs,
    Manifest,
    RunFolder,
    write_json,
    write_parquet,
    writing,
)
from hardsight.scores import TiledHead
from hardsight.table import (
    DYNAMICS,
    HELD_OUT,
    HISTORIES,
    SUSPICION,
    THUMBNAILS,
    TRACKED,
    ScoreTable,
    read_table,
    with_metadata,
)
from hardsight.tracking import HardnessTracker

RESULT = "result.json"
_RECIPE, _EXAMPLES = "recipe.json", "examples.parquet"
# Settings that a resumed run may change because they do not decide the result. Another device
# rounds differently, which is left to the user's judgement.
MAY_CHANGE = (
    "out", "resume", "overwrite", "workers", "resident", "device", "devices", "num_nodes",
    "strategy", "compile", "capture", "autotune", "versions",
)  # fmt: skip
_OWN_WEIGHTS = "weights to start from"
_PACKAGES = ("timm:", "torchvision:", "hf:")
_IN_DOUBT = 0.1  # suspicion; below it, the label had nine tenths of the duel with its rival
# Nearest classes take a forward pass over their examples: for a tenth of the data, about a
# thirtieth of an epoch of training. In a small run all examples in doubt get theirs.
_SHARE_NAMED, _ALWAYS_NAMED = 0.1, 2000


@contextmanager
def claimed_run(config: TrainConfig, reads: tuple[Any, ...]) -> Iterator[RunFolder]:
    """Yield the folder of a recipe, locked as long as the run is trained.

    If several processes train together, only the first one holds the lock, for all of them.

    Args:
        config: the recipe.
        reads: all data of the run, by name or as objects.
    """
    run = RunFolder(config.out)
    if not is_first_process():
        yield run
        return
    with run.claimed(TRAIN, reads=reads, resume=config.resume, overwrite=config.overwrite):
        yield run


def recipe_of(
    config: TrainConfig,
    sources: Sources,
    *,
    watched: Mapping[str, Decoded],
    own_weights: str | None,
    brings: bool,
    part: PartOfData | None = None,
    hardness: str | None = None,
) -> dict[str, Any]:
    """Return everything that decides the result, as ``recipe.json`` stores it.

    Args:
        config: the settings.
        sources: the data.
        watched: examples that are tracked but never trained on, by name.
        own_weights: digest of the weights with which a user's own module starts.
        brings: whether the user passed a dataset to validate on.
        part: the only examples that are used, unless all are.
        hardness: digest of the hardness by which examples are drawn.
    """
    recipe = {
        "config": dataclasses.asdict(config),
        "data_fingerprint": sources.fingerprint,
        "chosen_rows": sources.chosen,
        "hardness": hardness,
        "preprocessing": dataclasses.asdict(sources.train.how),
        "versions": versions("lightning"),
        "own_weights": own_weights,
    }
    if brings and sources.validation is not None:
        recipe["validation"] = sources.validation.source.fingerprint()
    if part is not None:
        recipe["part"] = {"what": part.what, "digest": part.digest()}
    recipe["tracked"] = {name: data.source.fingerprint() for name, data in watched.items()}
    return recipe


def prepare(
    run: RunFolder, recipe: dict[str, Any], *, precision: str, first: FirstOutputs | None
) -> None:
    """Begin the run, or check that the run in the folder has the same recipe.

    Args:
        run: the claimed run.
        recipe: the result of :func:`recipe_of`.
        precision: the actual precision, because ``auto`` depends on the device.
        first: the model's outputs for the first examples.

    Raises:
        RunMismatchError: the run there has another recipe, other data or a model of other code, or
            no checkpoint yet and a module with other weights.
    """
    resumes = recipe["config"]["resume"]
    if resumes and run.kind is TRAIN and run.manifest() is None:
        run.adopt(_manifest_of_older(run.folder, precision))
    old = run.manifest() if resumes else None
    # A module is trained in place, so on a resume its weights may not be the initial ones. The
    # recorded digest is used instead, and compared below.
    began_with = recipe["own_weights"] if old is None else old.fingerprints.get(_OWN_WEIGHTS)
    run.describe(
        {**recipe["config"], "precision": precision},
        fingerprints={
            "training data": recipe["data_fingerprint"],
            "chosen rows": recipe["chosen_rows"],
            "hardness of the examples": recipe["hardness"],
            "validation examples": recipe.get("validation"),
            "tracked examples": _tracked(recipe),
            "part of the training data": recipe.get("part", {}).get("digest"),
            _OWN_WEIGHTS: began_with,
        },
        versions=recipe["versions"],
        may_change=MAY_CHANGE,
        defaults=defaults_of(TrainConfig),
    )
    has_checkpoint = any((run.folder / "checkpoints").glob("*.ckpt"))
    if run.goes_on and began_with != recipe["own_weights"] and not has_checkpoint:
        raise RunMismatchError(
            f"the run in {run.folder} ended before its first checkpoint, and the module no longer "
            "has the weights it began with, since it is trained in place; pass it with its first "
            "weights, or choose another --out"
        )
    is_compared = run.check_outputs(first)
    if not is_compared and first is not None and began_with is None:
        warn(
            f"{recipe['config']['model']['name']} begins with other weights than the run in "
            f"{run.folder} did, so it is not known whether its code has changed; the run goes on "
            "from its checkpoint"
        )
    if run.is_done:
        return
    goes_on = run.goes_on
    run.begin()
    if not goes_on or not (run.folder / _RECIPE).exists():
        with writing(run.folder, step=AGAIN):
            write_json(run.folder / _RECIPE, recipe)


def _tracked(recipe: dict[str, Any]) -> str | None:
    tracked = recipe.get("tracked")
    return json.dumps(tracked, sort_keys=True) if tracked else None


def _manifest_of_older(folder: Path, precision: str) -> Manifest:
    """A manifest for a run by a version that wrote none, from its recipe."""
    recipe = json.loads((folder / _RECIPE).read_text(encoding="utf-8"))
    settings = dict(recipe["config"])
    if settings.get("precision") == "auto":  # the actual precision was not recorded then
        settings["precision"] = precision
    return Manifest(
        TRAIN.name,
        "finished" if (folder / RESULT).exists() else "unfinished",
        settings,
        {
            "training data": recipe["data_fingerprint"],
            "validation examples": recipe.get("validation"),
            "tracked examples": _tracked(recipe),
            _OWN_WEIGHTS: recipe.get("own_weights"),
        },
        recipe.get("versions", {}),
        TRAIN.files,
    )


def next_step(folder: Path, config: TrainConfig, loaded: LoadedModel) -> str:
    """Return the command that scores the model: on the test split, or on the training data."""
    data, split = config.data, config.data.test_split or config.data.split
    words = ["--data", data.name]
    words += ["--split", split] if split else []
    for key, value in (*stated_columns(data), ("tokenizer", data.tokenizer)):
        words += ["--" + key.replace("_", "-"), str(value)] if value is not None else []
    words += ["--data-root", data.root] if data.root else []
    # a patch applies to the labels of the training split, not to those of the test split
    if data.patch is not None and data.test_split is None:
        files = [data.patch] if isinstance(data.patch, str) else data.patch
        words += [word for file in files for word in ("--patch", file)]
    words += ["--sample", "out-of-sample" if data.test_split else "in-sample"]
    words += ["--out", f"{folder}-scores"]
    words += ["--trust-remote-code"] if config.model.trust_remote_code else []
    return f"hardsight score --model {typed_model(folder, loaded)} {shlex.join(words)}"


def stated_columns(data: DataConfig) -> list[tuple[str, Any]]:
    """Return the options for columns of a data file, as the recipe has them."""
    keys = ("text_column", "label_column", "image_column", "max_tokens")
    return [(key, getattr(data, key)) for key in keys]


def typed_model(folder: Path, loaded: LoadedModel) -> str:
    """Return how to name a stored model on the command line.

    A factory in a user's own code is spelled out, because a folder must not make us run code.
    """
    spec = loaded.built_as
    if spec not in MODELS and ":" in spec and not spec.startswith(_PACKAGES):
        return shlex.join([spec, "--weights", str(folder / "model.safetensors")])
    return shlex.quote(str(folder))


@dataclass(frozen=True)
class Trackers:
    """The trackers that record a training run.

    Attributes:
        trained: records examples that are trained on, as the training step sees them.
        held_out: records held-out examples of the same data during the validation pass, without
            augmentation, by the model after each epoch. It needs no pass of its own. ``None`` if no
            examples are held out, or if they come from another split.
    """

    trained: HardnessTracker
    held_out: HardnessTracker | None = None

    def callbacks(self) -> list[Any]:
        """Return the callback for training steps, and for validation steps if there is one."""
        both = [self.trained] if self.held_out is None else [self.trained, self.held_out]
        return [tracker.lightning_callback() for tracker in both]


def trackers_of(
    config: TrainConfig, sources: Sources, layer: nn.Module, start: Path | None
) -> Trackers:
    """Return trackers that number examples as the source does.

    A resumed tracker drops the rows of epochs that have no checkpoint.
    """
    run, examples = Path(config.out), sources.train.source.span
    folder, aside = run / HISTORIES, run / TRACKED / HELD_OUT
    # a run that starts over must not continue the epochs of an earlier run in its folder
    if start is None and is_first_process():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)
    # with replacement, an example may come several times in an epoch; the first time counts
    repeats = "error" if config.sampling.draws_each_once else "first"
    common: dict[str, Any] = {"head": layer, "resume": start is not None}
    trained = HardnessTracker(examples, folder=folder, repeats=repeats, **common)
    if not sources.holds_out:
        return Trackers(trained)
    if is_first_process():
        assert sources.validation is not None
        write_examples(aside, sources.validation, sources.classes)
    return Trackers(trained, HardnessTracker(examples, folder=aside, stage="evaluation", **common))


def write_examples(folder: Path, data: Decoded, classes: tuple[str, ...]) -> None:
    """Write index, id and label of the examples, so that a study can join human labels to them."""
    source = data.source
    every = range(len(source))
    rows = pa.table(
        {
            "index": pa.array(source.numbered(every), pa.int64()),
            "id": [source.id_of(index) for index in every],
            "label": pa.array(source.labels, pa.int64()),
        }
    )
    facts = {
        "classes": list(classes),
        "data": {"spec": source.spec, "fingerprint": source.fingerprint()},
        "sample": "out-of-sample",
    }
    rows = with_metadata(rows, facts)
    with writing(folder, step=AGAIN):
        folder.mkdir(parents=True, exist_ok=True)
        write_parquet(folder / _EXAMPLES, [rows], rows.schema, compression="snappy")


def kept_dynamics(
    trackers: Trackers, config: TrainConfig, sources: Sources, show: bool | None
) -> ScoreTable:
    """Write the summaries of all training examples, with pictures, and return them as a table."""
    run, source = RunFolder(config.out), sources.train.source
    table = _summaries(trackers)
    seen = table.where(table.column("epochs_seen") > 0)
    positions = [source.position_of(index) for index in seen.column("index").tolist()]
    names = pa.array([source.id_of(position) for position in positions], pa.string())
    rows = seen.to_arrow()
    rows = rows.set_column(rows.column_names.index("id"), "id", names)
    about = {
        "classes": list(sources.classes),
        "data": {
            "spec": config.data.name,
            "split": config.data.split,
            "fingerprint": sources.fingerprint,
            **{key: value for key, value in stated_columns(config.data) if value is not None},
            "patches": list(sources.train.source.patches),
        },
        "class_order": None if sources.order is None else sources.order.facts(),
        "model": {"spec": config.model.name},
        "seed": config.seed,
        "config": {"thumbnails": config.thumbnails},
    }
    named = ScoreTable(with_metadata(rows, {**seen.metadata, **about}))
    if config.thumbnails:
        small = pictures(source, named, most=config.thumbnails, show=show)
        run.write_side_file(THUMBNAILS, small)
    run.write_side_file(DYNAMICS, named.to_arrow())
    return read_table(run.folder / DYNAMICS)


@torch.inference_mode()
def keep_nearest(
    dynamics: ScoreTable,
    model: nn.Module,
    layer: nn.Module,
    *,
    sources: Sources,
    pixels: Pixels,
    config: TrainConfig,
) -> None:
    """Write the classes that are nearest by angle to the most suspect examples.

    Training records only the angle to the label, because the angles to all classes in every epoch
    would be large. The angles here are those of the selected model, without augmentation.

    Args:
        dynamics: the summaries of all training examples.
        model: the selected model.
        layer: its head.
        sources: the data of the run.
        pixels: how inputs are prepared, and the device.
        config: the recipe.
    """
    index = _in_doubt(dynamics)
    if sources.order is None or len(sources.order.names) > NEAREST_CLASSES or not len(index):
        return
    train = sources.train
    places = [train.source.position_of(number) for number in index.tolist()]
    data = Decoded(train.source, train.how, places, kept=train.kept)
    batches = EvaluationBatches(
        data, pixels, batch_size=config.batch_size, shard=Shard(),
        workers=chosen_workers(config.workers, length=len(data)),
    )  # fmt: skip
    model.to(pixels.device).eval()
    name = type(model).__name__
    try:
        with (
            memory_errors(f"{name} ran out of memory in evaluation"),
            model_errors(name, "the training examples, in evaluation"),
        ):
            found = list(_nearest_of(batches, model, layer))
    except HardsightError as err:  # the run is complete without them
        warn(
            f"the classes nearest to the suspects are not stored, so review shows no angles: {err}"
        )
        return
    if found:
        numbers, classes, angles = (torch.cat(parts) for parts in zip(*found, strict=True))
        RunFolder(config.out).write_side_file(NEAREST, _as_rows(numbers, classes, angles))


def _nearest_of(
    batches: Iterable[TrainBatch], model: nn.Module, layer: nn.Module
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The index, the nearest classes and their angles of each batch, on the CPU."""
    seen: list[tuple[Tensor, Tensor]] = []
    hook = watch(layer, lambda embeddings, _, weights: seen.append((embeddings, weights)))
    try:
        for batch in batches:
            seen.clear()
            model(batch.inputs)
            # a model may call its head not at all in evaluation, or for several views of an input
            if len(seen) == 1 and len(seen[0][0]) == len(batch.labels):
                classes, angles = _nearest_with_label(*seen[0], batch.labels)
                yield batch.index.cpu(), classes.cpu(), angles.cpu()
    finally:
        hook.remove()


def _in_doubt(dynamics: ScoreTable) -> NDArray[np.int64]:
    """The index of the most suspect examples, in the order of the table."""
    suspicion = dynamics.column(SUSPICION)
    differs = dynamics.column("prediction") != dynamics.column("label")
    in_doubt = np.flatnonzero((suspicion >= _IN_DOUBT) | differs)
    most = max(_ALWAYS_NAMED, int(_SHARE_NAMED * len(dynamics)))
    chosen = in_doubt[np.argsort(-suspicion[in_doubt], kind="stable")[:most]]
    index: NDArray[np.int64] = dynamics.column("index")[np.sort(chosen)]
    return index


def _nearest_with_label(
    embeddings: Tensor, class_weights: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The nearest classes and their angles, with the label as the last if it is farther away."""
    head = TiledHead(class_weights, parts=("angles",))
    classes, angles = head.nearest(embeddings, NEAREST_COUNT)
    own = head.summaries(embeddings, labels).angles
    assert own is not None
    is_missing = (classes[:, 0] >= 0) & (classes != labels[:, None]).all(dim=1)
    classes[:, -1] = torch.where(is_missing, labels, classes[:, -1])
    angles[:, -1] = torch.where(is_missing, own.target.to(angles.dtype), angles[:, -1])
    return classes, angles


def _as_rows(index: Tensor, classes: Tensor, angles: Tensor) -> pa.Table:
    """The rows of the file; examples whose embedding has no direction are left out."""
    known = classes[:, 0] >= 0
    lists = (
        pa.FixedSizeListArray.from_arrays(
            pa.array(values[known].flatten().numpy()), values.shape[1]
        )
        for values in (classes.int(), angles.float())
    )
    names = ["index", "classes", "angles"]
    return pa.table([pa.array(index[known].numpy()), *lists], names=names)


def _summaries(trackers: Trackers) -> ScoreTable:
    """Return one row per training example, with a column ``held_out``."""
    trained, held_out = trackers.trained, trackers.held_out
    if held_out is not None and held_out.epochs == trained.epochs:
        return trained.summaries(held_out=held_out)
    if held_out is not None:
        warn(
            "held-out examples have no row: the first epochs of this run were recorded by a "
            "version that did not measure them"
        )
    table = trained.summaries()
    rows = table.to_arrow()
    none = pa.array(np.zeros(len(table), np.bool_))
    at = rows.column_names.index("epochs_seen") + 1
    return ScoreTable(with_metadata(rows.add_column(at, "held_out", none), table.metadata))
