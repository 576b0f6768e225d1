"""The folder of an adaptation: what it is made of, and whether a run may go on in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from hardsight.config import defaults_of
from hardsight.errors import ModelError, RunMismatchError
from hardsight.models import load_weights
from hardsight.run.adapt._config import AdaptConfig
from hardsight.run.train import MAY_CHANGE
from hardsight.run_folder import AGAIN, RunFolder, replacing, writing

_START = "start.safetensors"
_WEIGHTS = "weights to start from"


def prepare_adaptation(
    run: RunFolder, recipe: dict[str, Any], config: AdaptConfig, *, module: nn.Module | None,
    precision: str,
) -> dict[str, Any]:  # fmt: skip
    """Begin the run, or check that the one in the folder is this one.

    Args:
        run: claimed.
        recipe: everything that decides the result.
        config: of the run. What may change when it is continued is what may change in training.
        module: a user's own, which the run trains in place. Its weights are kept when a run begins,
            and given back to it when the run is continued, in place of those it holds by then.
        precision: that is computed in; ``auto`` depends on the device.

    Returns:
        the recipe, with the digest of the weights that the run began with.

    Raises:
        RunMismatchError: the run there has other settings, data or weights; a module is then left
            as it was.
    """
    old = run.manifest() if config.resume else None
    is_restored = module is not None and old is not None and (run.folder / _START).exists()
    if is_restored:
        assert old is not None
        recipe = {**recipe, "weights_digest": old.fingerprints.get(_WEIGHTS)}
    marks = {f"{domain} data": mark for domain, mark in recipe["fingerprints"].items()}
    run.describe(
        {**recipe["config"], "precision": precision},
        fingerprints={**marks, _WEIGHTS: recipe["weights_digest"]},
        versions=recipe["versions"],
        may_change=MAY_CHANGE,
        defaults=defaults_of(AdaptConfig),
        files=config.rules,
    )
    if is_restored and module is not None:
        _restore_start(run.folder, module)
    if not run.is_done:
        run.begin()
        if module is not None:
            _keep_start(run.folder, module)
    return recipe


def _keep_start(folder: Path, module: nn.Module) -> None:
    from hardsight.run.train.engine import plain_state  # needs Lightning

    file = folder / _START
    if not file.exists():  # nothing has been trained yet
        with writing(file, step=AGAIN), replacing(file) as partial:
            save_file(plain_state(module.state_dict()), partial)


def _restore_start(folder: Path, module: nn.Module) -> None:
    try:
        load_weights(module, folder / _START)
    except ModelError as err:
        raise RunMismatchError(
            f"the adaptation in {folder} cannot be continued with this module: {err}; pass a "
            "module of the same layers, or choose another --out"
        ) from err
