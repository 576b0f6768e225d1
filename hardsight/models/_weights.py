"""Load weights from a file without ever running code from it."""

import hashlib
import os
import pickle
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hardsight._checks import first_line
from hardsight.errors import MissingDataError, ModelError, UnsafeFileError

State = dict[str, Tensor]

_NESTED_UNDER = ("state_dict", "model_state_dict", "model")  # keys of common training scripts
_PREFIXES = ("module.", "_orig_mod.", "model.")  # of DataParallel, torch.compile and wrappers


def load_weights(
    model: nn.Module, file: str | os.PathLike[str], *, digest: str | None = None
) -> str:
    """Load a weights file into ``model``, and return the file's sha256.

    The file is a safetensors file, or a torch file that holds only tensors. The state dict may be
    nested under ``state_dict``, ``model_state_dict`` or ``model``. The prefixes ``module.``,
    ``_orig_mod.`` and ``model.`` are stripped if that makes the names fit.

    Args:
        model: the model that takes the weights.
        file: the file that holds them.
        digest: sha256 of the file when it was written; ``None`` if it is not known.

    Raises:
        MissingDataError: there is no such file.
        UnsafeFileError: the file would have to run code to be loaded.
        ModelError: the file is damaged, holds no weights or those of another model, or was changed
            since it was written. The model is left as it was.
    """
    path = Path(file)
    if not path.is_file():
        raise MissingDataError(f"no weights file at {path}; expected .safetensors, .pt or .pth")
    if not os.access(path, os.R_OK):  # safetensors would say that there is no such file
        raise ModelError(f"cannot read the weights {path}: Permission denied; ask their owner")
    state = _fitted(_state(path), model)
    _check_fit(state, model, path)
    actual = sha256(path)
    if digest is not None and actual != digest:
        # safetensors has no checksum, so nobody would notice that a changed byte is another weight
        raise ModelError(
            f"{path} was changed since the run wrote it: its sha256 is {actual[:12]}..., and "
            f"{path.with_name('model.json')} says {digest[:12]}...; copy the file again from where "
            "it was whole, or train again. If you changed the weights on purpose, move the file to "
            "another folder and name it by --weights"
        )
    model.load_state_dict(state, strict=False)
    return actual


def sha256(path: Path) -> str:
    """Return the digest of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state(path: Path) -> State:
    if path.suffix == ".safetensors":
        try:
            state: State = load_file(path)
        except SafetensorError as err:
            raise ModelError(f"{path} is not a readable safetensors file: {err}") from err
        return state
    return _state_in(_torch_content(path), path)


def _torch_content(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            # torch's warnings about such files say less than the errors below
            warnings.filterwarnings("ignore", message=".*(TorchScript archive|pickle protocol)")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as err:
        if _wants_code(err, path):
            raise UnsafeFileError(
                f"{path} holds more than tensors and would have to run code to be loaded "
                f"({_refused(err)}); if you trust its source, load it where you made it and save "
                "the weights alone: torch.save(model.state_dict(), FILE)"
            ) from err
        raise ModelError(f"{path} is not a readable torch file: {first_line(err)}") from err
    except (RuntimeError, EOFError, OSError, KeyError, ValueError) as err:
        if "TorchScript" in str(err):
            raise UnsafeFileError(
                f"{path} is a TorchScript archive, a program rather than weights; save the weights "
                "alone: torch.save(torch.jit.load(FILE).state_dict(), OTHER_FILE)"
            ) from err
        raise ModelError(f"{path} is not a readable torch file: {first_line(err)}") from err


def _wants_code(err: pickle.UnpicklingError, path: Path) -> bool:
    """Return whether a pickle asked for more than torch allows, instead of not being a pickle."""
    if any(word in str(err) for word in ("GLOBAL", "allowlist", "safe_globals")):
        return True
    # torch says "Unsupported operand" of files that are no pickles, too: the first byte decides
    with path.open("rb") as file:
        return "Unsupported operand" in str(err) and file.read(1) == pickle.PROTO


def _refused(err: pickle.UnpicklingError) -> str:
    """Return the object that a pickle asked for, extracted from torch's long message."""
    words = str(err).split("GLOBAL ", 1)
    return f"it asks for {words[1].split()[0]}" if len(words) == 2 else "refused by torch"


def _state_in(content: Any, path: Path) -> State:
    """Return the state dict in the content of a torch file."""
    nested = content
    while isinstance(nested, Mapping):
        if nested and all(isinstance(value, Tensor) for value in nested.values()):
            return {str(name): value for name, value in nested.items()}
        inner = [nested[key] for key in _NESTED_UNDER if isinstance(nested.get(key), Mapping)]
        if not inner:
            break
        nested = inner[0]
    held = ", ".join(map(str, list(nested)[:5])) if isinstance(nested, Mapping) else ""
    raise ModelError(
        f"{path} holds no state dict: got {type(nested).__name__}{f' with {held}' if held else ''};"
        " save one with torch.save(model.state_dict(), FILE)"
    )


def _fitted(state: State, model: nn.Module) -> State:
    """Return the state without prefixes, if that makes its names fit the model."""
    wanted = set(model.state_dict())
    stripped = state
    while True:
        prefix = next((p for p in _PREFIXES if all(n.startswith(p) for n in stripped)), None)
        if prefix is None or wanted & set(stripped):
            break
        stripped = {name.removeprefix(prefix): value for name, value in stripped.items()}
    return stripped if wanted & set(stripped) else state


def _check_fit(state: State, model: nn.Module, path: Path) -> None:
    wanted = model.state_dict()
    # the counter of batches in batch norm is optional: older checkpoints do not have it
    missing = [n for n in wanted if n not in state and not n.endswith("num_batches_tracked")]
    unexpected = [name for name in state if name not in wanted]
    if missing or unexpected:
        raise ModelError(
            f"{path} does not fit {type(model).__name__}: missing {_some(missing)}; unexpected "
            f"{_some(unexpected)}; check that the file was saved from this model"
        )
    other = [
        f"{name} {list(state[name].shape)} instead of {list(value.shape)}"
        for name, value in wanted.items()
        if name in state and state[name].shape != value.shape
    ]
    if other:
        raise ModelError(
            f"{path} does not fit {type(model).__name__}: {_some(other)}; build the model with the "
            "same options, such as num_classes"
        )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more if listed else "none"
