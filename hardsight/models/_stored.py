"""A trained model as a folder: how to build it, what it wants of images, and its weights."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import nn

from hardsight.errors import ModelError
from hardsight.models._registry import MODELS
from hardsight.preprocessing import Preprocessing
from hardsight.run_folder import replacing, write_json

if TYPE_CHECKING:
    from torch import Tensor

_FILE, WEIGHTS = "model.json", "model.safetensors"
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """What the folder of a trained model says.

    Attributes:
        spec: how the model was named.
        options: given to its factory, ``num_classes`` included where it took it.
        preprocessing: done to images in training; to be done in scoring.
        classes: names, position = label.
    """

    spec: str
    options: dict[str, Any]
    preprocessing: Preprocessing
    classes: tuple[str, ...]

    def write(self, folder: Path, state: "dict[str, Tensor]") -> None:
        """Write ``model.safetensors`` and ``model.json``, each renamed into place."""
        with replacing(folder / WEIGHTS) as partial:
            save_file(state, partial)
        content = {"format": _FORMAT, **dataclasses.asdict(self), "spec": _from_anywhere(self.spec)}
        write_json(folder / _FILE, content)


def _from_anywhere(spec: str) -> str:
    """``hf:FOLDER`` with the whole path of a local folder, which may be named from elsewhere."""
    kind, _, name = spec.partition(":")
    return f"hf:{Path(name).resolve()}" if kind == "hf" and Path(name).is_dir() else spec


def is_stored_model(name: str) -> bool:
    """Whether a name is the folder of a trained model."""
    return (Path(name) / _FILE).is_file()


@dataclasses.dataclass(frozen=True)
class Described:
    """A stored model and the file that says so."""

    file: Path
    model: StoredModel


def stored_model(folder: Path, *, trusted: Sequence[str]) -> Described:
    """What :meth:`StoredModel.write` wrote.

    Args:
        folder: holds ``model.json``.
        trusted: names and prefixes that may be built without asking; a file must not be able to
            name code of its own.

    Raises:
        ModelError: it is damaged, or names code outside of ``trusted``.
    """
    described = _description(folder / _FILE)
    spec = described.model.spec
    if spec.partition(":")[0] not in trusted:
        code = spec if ":" in spec else "FILE.py:FACTORY"
        raise ModelError(
            f"{described.file} names the code {spec!r}, which is not run without being asked for; "
            f"if you trust it: --model {code} --weights {folder / WEIGHTS}"
        )
    return described


def described_weights(weights: str | os.PathLike[str]) -> Described | None:
    """What ``model.json`` says about a file of weights, if one lies beside it.

    The weights of single epochs and rounds lie in a folder below that of their run.

    Raises:
        ModelError: it is damaged.
    """
    path = Path(weights)
    own = path.parent if path.name == WEIGHTS else None
    # a link or a name without its folder says nothing of what is above
    above = path.resolve().parent
    is_epoch = path.suffix in (".safetensors", ".ckpt")
    if re.fullmatch(r"checkpoints|round-\d+", above.name) and is_epoch:
        own = own if own is not None and (own / _FILE).is_file() else above.parent
    if own is None or not (own / _FILE).is_file() or not _is_ours(own / _FILE):
        return None
    return _description(own / _FILE)


def _is_ours(file: Path) -> bool:
    """Whether a file called ``model.json`` is one of ours; a damaged one may be."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return isinstance(content, dict) and {"format", "spec"} <= set(content)


def description_of(
    model: str | nn.Module, weights: str | os.PathLike[str] | None
) -> StoredModel | None:
    """What ``hardsight train`` wrote about a model: in its folder, or beside its weights.

    Raises:
        ModelError: it is damaged.
    """
    if isinstance(model, str) and is_stored_model(model):
        return _description(Path(model) / _FILE).model
    described = None if weights is None else described_weights(weights)
    return None if described is None else described.model


def check_agrees(
    described: Described,
    spec: str | nn.Module,
    options: Mapping[str, Any],
    num_classes: int | None,
) -> None:
    """Raise if a user names another model than the one that weights were trained in.

    Args:
        described: the weights' own description.
        spec: the model that the user names or passes.
        options: for its factory.
        num_classes: for its factory.

    Raises:
        ModelError: another network, another option, or another number of classes.
    """
    stored, step = described.model, f"name the folder itself: --model {described.file.parent}"
    if not _is_same_network(spec, stored.spec):
        said = spec if isinstance(spec, str) else type(spec).__name__
        raise ModelError(
            f"{described.file} says that these weights are of {stored.spec}, got {said}; {step}"
        )
    stated = {**options, **({} if num_classes is None else {"num_classes": num_classes})}
    for name, value in stated.items():
        if name in stored.options and stored.options[name] != value:
            raise ModelError(
                f"{described.file} says that these weights were trained with {name}="
                f"{stored.options[name]!r}, got {name}={value!r}; leave it out, or {step}"
            )


def _is_same_network(spec: str | nn.Module, stored: str) -> bool:
    """Whether two names may be of the same code; a file may have been moved."""
    if isinstance(spec, nn.Module):
        kind = MODELS[stored].__name__ if stored in MODELS else stored
        return ":" in kind or kind == type(spec).__name__
    code, trained = _named_code(_from_anywhere(spec)), _named_code(stored)
    return code == trained or ":" not in trained  # a class that was passed as a module


def _named_code(spec: str) -> str:
    """A name without what differs between two ways to write it."""
    if spec in MODELS:
        return f"hardsight.models:{MODELS[spec].__name__}"
    place, _, factory = spec.rpartition(":")
    return f"{Path(place).name}:{factory}" if place.endswith(".py") else spec


def _description(file: Path) -> Described:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.pop("format") != _FORMAT:
            raise ValueError(f"format is not {_FORMAT}")
        how: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in content["preprocessing"].items()
        }
        stored = StoredModel(
            spec=str(content["spec"]),
            options=dict(content["options"]),
            preprocessing=Preprocessing(**how),
            classes=tuple(content["classes"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise ModelError(
            f"{file} does not describe a model ({type(err).__name__}: {err}); train it again, or "
            "pass the model and its weights by name"
        ) from err
    return Described(file, stored)
