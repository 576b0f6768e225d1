"""The folder of a training run: whose it is, and whether a run may go on in it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from hardsight.errors import OutputError, RunExistsError, RunMismatchError
from hardsight.run.loop import versions, write_json, writing
from hardsight.run.train._config import TrainConfig
from hardsight.run.train._setup import Sources

_RECIPE = "recipe.json"
# what may change between an interrupted run and its continuation
_FREE_TO_CHANGE = (
    "resume", "workers", "resident", "device", "compile", "capture", "autotune", "out",
)  # fmt: skip


def is_first_process() -> bool:
    from lightning.pytorch.utilities import rank_zero_only

    return int(getattr(rank_zero_only, "rank", 0) or 0) == 0


def recipe_of(config: TrainConfig, sources: Sources) -> dict[str, Any]:
    """Everything that decides the result."""
    return {
        "config": dataclasses.asdict(config),
        "data_fingerprint": sources.fingerprint,
        "preprocessing": dataclasses.asdict(sources.train.how),
        "versions": versions("lightning"),
    }


def prepare(folder: Path, recipe: dict[str, Any], *, resume: bool) -> None:
    """Make the folder, or check that the run in it is this one.

    Raises:
        RunExistsError: something is there and ``resume`` was not asked for.
        RunMismatchError: the run there has another recipe or other data, or no checkpoint yet and
            a module with other weights.
    """
    file = folder / _RECIPE
    if not resume:
        _check_free(folder)
    elif file.exists():
        _check_same(json.loads(file.read_text(encoding="utf-8")), recipe, folder)
        return
    with writing(folder, step="choose another out"):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, recipe)


def _check_free(folder: Path) -> None:
    """Raise where something would be lost; a run that ended before its first epoch is nothing."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is no folder; choose another out")
    part = folder / f"{_RECIPE}.part"  # of a run that died at once
    if not folder.exists() or all(entry == part for entry in folder.iterdir()):
        return
    if not (folder / _RECIPE).exists():
        raise RunExistsError(f"{folder} holds files that are no training run; choose another out")
    if (folder / "checkpoints").exists():
        raise RunExistsError(
            f"{folder} holds a training run; choose another out, or continue it with --resume"
        )


def differing_keys(old: dict[str, Any], new: dict[str, Any], kind: type[Any]) -> list[str]:
    """What two recipes set differently, in words, but for what may change.

    A plain key of ``kind`` that an older version did not know has its default there.
    """
    new = json.loads(json.dumps(new))  # tuples as lists
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    before = {**defaults, **old["config"]}
    return [
        f"{key} = {before.get(key)!r} instead of {value!r}"
        for key, value in new["config"].items()
        if key not in _FREE_TO_CHANGE and before.get(key) != value
    ]


def _check_same(old: dict[str, Any], new: dict[str, Any], folder: Path) -> None:
    differing = differing_keys(old, new, TrainConfig)
    if old["data_fingerprint"] != new["data_fingerprint"]:
        differing.append("other training data")
    if old.get("validation") != new.get("validation"):
        differing.append("other validation examples")
    if old.get("tracked", {}) != new.get("tracked", {}):
        differing.append("other tracked examples")
    began_anew = not (folder / "checkpoints").exists()
    if began_anew and not differing and old.get("own_weights") != new.get("own_weights"):
        raise RunMismatchError(
            f"the run in {folder} ended before its first checkpoint, and the module no longer has "
            "the weights it began with: it is trained in place; pass it with those, or choose "
            "another out"
        )
    if differing:
        raise RunMismatchError(
            f"the run in {folder} cannot be continued with this recipe: it has "
            f"{'; '.join(differing)}; use the same recipe, or another out"
        )
