"""A trained model as a folder: how to build it, what it wants of images, and its weights."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from hardsight.errors import ModelError
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


def stored_model(folder: Path, *, trusted: Sequence[str]) -> StoredModel:
    """What :meth:`StoredModel.write` wrote.

    Args:
        folder: holds ``model.json``.
        trusted: names and prefixes that may be built without asking; a file must not be able to
            name code of its own.

    Raises:
        ModelError: it is damaged, or names code outside of ``trusted``.
    """
    file = folder / _FILE
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
    if stored.spec.partition(":")[0] not in trusted:
        code = stored.spec if ":" in stored.spec else "FILE.py:FACTORY"
        raise ModelError(
            f"{file} names the code {stored.spec!r}, which is not run without being asked for; "
            f"if you trust it: --model {code} --weights {folder / WEIGHTS}"
        )
    return stored
