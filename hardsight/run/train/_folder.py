"""The folder of a training run: what it is made of, and whether a run may go on in it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardsight.config import defaults_of
from hardsight.errors import RunMismatchError
from hardsight.run.loop import versions
from hardsight.run.train._config import TrainConfig
from hardsight.run.train._setup import Sources
from hardsight.run_folder import AGAIN, TRAIN, Manifest, RunFolder, write_json, writing

RESULT = "result.json"
_RECIPE = "recipe.json"
# what does not decide the result, and may be another when a run is continued; an epoch that is
# trained on another device may come out slightly otherwise, which is then the user's own choice
MAY_CHANGE = (
    "out", "resume", "overwrite", "workers", "resident", "device", "compile", "capture", "autotune",
    "versions",
)  # fmt: skip
_OWN_WEIGHTS = "weights to start from"


def is_first_process() -> bool:
    from lightning.pytorch.utilities import rank_zero_only

    return int(getattr(rank_zero_only, "rank", 0) or 0) == 0


@contextmanager
def claimed_run(config: TrainConfig, reads: tuple[Any, ...]) -> Iterator[RunFolder]:
    """The folder of a recipe, held for as long as it is trained.

    Of several processes that train together the first one holds it; it has started the others.

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


def recipe_of(config: TrainConfig, sources: Sources) -> dict[str, Any]:
    """Everything that decides the result."""
    return {
        "config": dataclasses.asdict(config),
        "data_fingerprint": sources.fingerprint,
        "preprocessing": dataclasses.asdict(sources.train.how),
        "versions": versions("lightning"),
    }


def prepare(run: RunFolder, recipe: dict[str, Any], *, precision: str) -> None:
    """Begin the run, or check that the one in the folder is this one.

    Args:
        run: claimed.
        recipe: of :func:`recipe_of`.
        precision: that is computed in; ``auto`` depends on the device.

    Raises:
        RunMismatchError: the run there has another recipe or other data, or no checkpoint yet and
            a module with other weights.
    """
    resumes = recipe["config"]["resume"]
    if resumes and run.kind is TRAIN and run.manifest() is None:
        run.adopt(_manifest_of_older(run.folder, precision))
    old = run.manifest() if resumes else None
    began_with = recipe["own_weights"] if old is None else old.fingerprints.get(_OWN_WEIGHTS)
    run.describe(
        {**recipe["config"], "precision": precision},
        fingerprints={
            "training data": recipe["data_fingerprint"],
            "validation examples": recipe.get("validation"),
            "tracked examples": _tracked(recipe),
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
            "has the weights it began with: it is trained in place; pass it with those, or choose "
            "another --out"
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
    """What a run of a version without manifests is made of, as its recipe says."""
    recipe = json.loads((folder / _RECIPE).read_text(encoding="utf-8"))
    settings = dict(recipe["config"])
    if settings.get("precision") == "auto":  # which one it was is not on record
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
