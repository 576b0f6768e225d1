"""The folder of an adaptation: whose it is, and whether a run may go on in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hardsight.errors import OutputError, RunExistsError, RunMismatchError
from hardsight.run._adapt_config import AdaptConfig
from hardsight.run._files import write_json, writing
from hardsight.run._train_folder import differing_keys

_RECIPE = "adapt.json"


def prepare_adaptation(folder: Path, recipe: dict[str, Any], *, resume: bool) -> None:
    """Make the folder, or check that the run in it is this one.

    Raises:
        RunExistsError: something is there and ``resume`` was not asked for.
        RunMismatchError: the run there has other settings, data or weights.
    """
    file = folder / _RECIPE
    if file.exists() and resume:
        _check_same(json.loads(file.read_text(encoding="utf-8")), recipe, folder)
        return
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is no folder; choose another out")
    part = file.with_name(f"{_RECIPE}.part")  # of a run that died at once
    if folder.exists() and any(entry != part for entry in folder.iterdir()):
        held = "an adaptation" if file.exists() else "files that are no adaptation"
        way = ", or continue it with --resume (resume=True)" if file.exists() else ""
        raise RunExistsError(f"{folder} holds {held}; choose another out{way}")
    with writing(folder, step="choose another out"):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, recipe)


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
