"""The folder of an adaptation: whose it is, and whether a run may go on in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from hardsight.errors import ModelError, OutputError, RunExistsError, RunMismatchError
from hardsight.models import load_weights
from hardsight.run.adapt._config import AdaptConfig
from hardsight.run.loop import AGAIN, write_json, writing
from hardsight.run.train import differing_keys

_RECIPE, _START = "adapt.json", "start.safetensors"


def prepare_adaptation(
    folder: Path, recipe: dict[str, Any], *, resume: bool, module: nn.Module | None
) -> dict[str, Any]:
    """Make the folder, or check that the run in it is this one.

    Args:
        folder: of the run.
        recipe: everything that decides the result.
        resume: whether a run in the folder may be continued.
        module: a user's own, which the run trains in place. Its weights are kept when a run begins,
            and given back to it when the run is continued, whatever it holds by then.

    Returns:
        the recipe, with the digest of the weights that the run began with.

    Raises:
        RunExistsError: something is there and ``resume`` was not asked for.
        RunMismatchError: the run there has other settings, data or weights; a module is then left
            as it was.
    """
    file = folder / _RECIPE
    if file.exists() and resume:
        old = json.loads(file.read_text(encoding="utf-8"))
        if module is not None and (folder / _START).exists():
            recipe = {**recipe, "weights_digest": old["weights_digest"]}
            _check_same(old, recipe, folder)
            _restore_start(folder, module)
        else:
            _check_same(old, recipe, folder)
    else:
        _check_free(folder)
        with writing(folder, step="choose another out"):
            folder.mkdir(parents=True, exist_ok=True)
            write_json(file, recipe)
    if module is not None:
        _keep_start(folder, module)
    return recipe


def _check_free(folder: Path) -> None:
    """Raise where something is in the folder, but for what a run leaves that died at once."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is no folder; choose another out")
    part = folder / f"{_RECIPE}.part"
    if folder.exists() and any(entry != part for entry in folder.iterdir()):
        is_ours = (folder / _RECIPE).exists()
        held = "an adaptation" if is_ours else "files that are no adaptation"
        way = ", or continue it with --resume (resume=True)" if is_ours else ""
        raise RunExistsError(f"{folder} holds {held}; choose another out{way}")


def _keep_start(folder: Path, module: nn.Module) -> None:
    from hardsight.run.train.engine import plain_state  # needs Lightning

    file = folder / _START
    if not file.exists():  # nothing has been trained yet
        with writing(file, step=AGAIN):
            part = file.with_name(f"{_START}.part")
            save_file(plain_state(module.state_dict()), part)
            part.replace(file)


def _restore_start(folder: Path, module: nn.Module) -> None:
    try:
        load_weights(module, folder / _START)
    except ModelError as err:
        raise RunMismatchError(
            f"the adaptation in {folder} cannot be continued with this module: {err}; pass a "
            "module of the same layers, or another out"
        ) from err


def _check_same(old: dict[str, Any], new: dict[str, Any], folder: Path) -> None:
    differing = differing_keys(old, new, AdaptConfig)
    for domain, mark in new["fingerprints"].items():
        if old["fingerprints"][domain] != mark:
            differing.append(f"other {domain} data (its fingerprint differs)")
    if old["weights_digest"] != new["weights_digest"]:
        differing.append("other weights to start from")
    if differing:
        raise RunMismatchError(
            f"the adaptation in {folder} cannot be continued: it has {'; '.join(differing)}; use "
            "the same settings and data, or another out"
        )
