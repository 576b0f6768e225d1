"""Read what a model states about itself, and what training wrote beside its weights."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from torch import Tensor, nn

from hardsight.errors import ModelError
from hardsight.models._registry import MODELS
from hardsight.models._weights import load_weights, sha256
from hardsight.preprocessing import Preprocessing
from hardsight.run_folder import replacing, write_json

_FILE, WEIGHTS = "model.json", "model.safetensors"
_FORMAT = 1  # format of model.json
_DIGEST = "weights_digest"  # a key of model.json that earlier versions did not write
_FILTERS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
_DEFAULT_CROP = 0.875  # timm's own default
_WRAPPERS = ("module", "_orig_mod")  # where DataParallel and torch.compile keep the model


@dataclass(frozen=True)
class ClassNames:
    """Names of a model's outputs.

    Attributes:
        names: names by output; empty if nothing names the outputs.
        origin: where they are stated, in words.
        others: further lists of names in the same order, such as WordNet ids.
        possible: names that the model itself does not state. Those of a part of the model count if
            there are as many as outputs; for guesses see :attr:`is_guess`.
        is_guess: whether the names are guessed from the number of outputs, so that they only count
            if they match the names in the data.
    """

    names: tuple[str, ...] = ()
    origin: str = ""
    others: tuple[tuple[str, ...], ...] = ()
    possible: tuple[ClassNames, ...] = ()
    is_guess: bool = False


def own_classes(model: nn.Module, kind: str = "") -> ClassNames:
    """Return the class names that a module states.

    They are looked up in this order: ``classes`` or ``class_names``, a list of names or a mapping
    from numbers; ``class_to_idx``; ``id2label``, also of ``config``, as in transformers; and
    ``pretrained_cfg["label_names"]``, as in timm. If the module itself states none, one of its
    parts may, such as a transformers model in a wrapper that only returns its logits. And a model
    of timm or torchvision may be trained on ImageNet.

    Args:
        model: any module, which may be inside DataParallel or torch.compile.
        kind: its name in messages; by default its class.
    """
    kind = kind or type(model).__name__
    inner: nn.Module | None = model
    while inner is not None:
        stated = _stated(inner, kind)
        if stated.names:
            return stated
        inner = _inside(inner)
    return ClassNames(possible=(*_of_parts(model, kind), *_of_imagenet(model)))


def _inside(wrapper: nn.Module) -> nn.Module | None:
    """Return the module inside DataParallel or a compiled module."""
    children = dict(wrapper.named_children())
    return next((children[name] for name in _WRAPPERS if set(children) == {name}), None)


def _of_parts(model: nn.Module, kind: str) -> list[ClassNames]:
    """Return the names that parts of a model state, if all of these parts agree."""
    stated = [_stated(part, f"{type(part).__name__} in {kind}") for part in model.modules()]
    named = [names for names in stated if names.names]
    return named[:1] if len({names.names for names in named}) == 1 else []


def _of_imagenet(model: nn.Module) -> Iterator[ClassNames]:
    """Yield the ImageNet names if a part of a model is from a package that trains on ImageNet."""
    # only packages that are loaded already: a model that comes from one has loaded it
    timm, meta = sys.modules.get("timm"), sys.modules.get("torchvision.models._meta")
    for part in model.modules():
        if timm is not None and isinstance(getattr(part, "pretrained_cfg", None), Mapping):
            guess = imagenet_of_timm(timm, part)
            if guess.names:
                yield replace(guess, is_guess=True)
                return
        if meta is not None and type(part).__module__.startswith("torchvision.models."):
            words = tuple(getattr(meta, "_IMAGENET_CATEGORIES", ()))
            yield ClassNames(words, "torchvision's ImageNet", is_guess=True)
            return


def imagenet_of_timm(timm: Any, model: nn.Module) -> ClassNames:
    """Return the names of the ImageNet variant that has as many classes as the model's outputs."""
    subset = timm.data.infer_imagenet_subset(model)
    if subset is None:
        return ClassNames()
    info = timm.data.ImageNetInfo(subset)
    words = tuple(info.label_descriptions())
    return ClassNames(words, f"timm's {subset}", (tuple(info.label_names()),))


def _stated(model: Any, kind: str) -> ClassNames:
    for attribute in ("classes", "class_names"):
        names = _listed(getattr(model, attribute, None))
        if names is not None:
            return named(names, f"{attribute} of {kind}")
    numbers = getattr(model, "class_to_idx", None)
    if isinstance(numbers, Mapping):
        names = _in_order({number: name for name, number in numbers.items()}, len(numbers))
        if names is not None:
            return named(names, f"class_to_idx of {kind}")
    for holder in (getattr(model, "config", None), model):
        labels = getattr(holder, "id2label", None)
        names = _in_order(labels, len(labels)) if isinstance(labels, Mapping) else None
        if names is not None:
            return named(names, f"id2label of {kind}")
    config = getattr(model, "pretrained_cfg", None)
    names = _listed(config.get("label_names")) if isinstance(config, Mapping) else None
    return ClassNames() if names is None else named(names, f"label_names of {kind}")


def named(names: Sequence[Any], origin: str) -> ClassNames:
    """Return names with their origin, or none if they are placeholders such as ``LABEL_0``.

    Numbers are kept, because they are the names of digits.
    """
    texts = tuple(str(name) for name in names)
    return ClassNames() if are_placeholders(texts) else ClassNames(texts, origin)


def are_placeholders(names: Sequence[str]) -> bool:
    """Return whether names contain nothing but their position.

    Example:
        >>> are_placeholders(["LABEL_0", "LABEL_1"]), are_placeholders(["cat", "LABEL_1"])
        (True, False)
    """
    words = re.compile(r"(?:label|class)[ _-]?0*(\d+)", re.IGNORECASE)
    return all(
        (number := words.fullmatch(name)) is not None and int(number[1]) == position
        for position, name in enumerate(names)
    )


def _listed(value: Any) -> list[str] | None:
    """Return names in order, from a list, an array of text or a mapping from numbers."""
    if isinstance(value, Mapping):
        return _in_order(value, len(value))
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    is_list = isinstance(value, list | tuple) and bool(value)
    return list(value) if is_list and all(isinstance(name, str) for name in value) else None


def _in_order(labels: Mapping[Any, Any], count: int) -> list[str] | None:
    """Return names by number, or ``None`` if the numbers are not 0, 1, 2, ... or there are none."""
    try:
        by_number = {int(key): str(value) for key, value in labels.items()}
    except (TypeError, ValueError):
        return None
    if not count or sorted(by_number) != list(range(count)):
        return None
    return [by_number[number] for number in range(count)]


def own_preprocessing(model: nn.Module) -> Preprocessing | None:
    """Return the preprocessing that a module states, or ``None``.

    It is looked up in this order: ``preprocessing``, a :class:`Preprocessing` or a mapping of its
    fields; ``pretrained_cfg`` or ``default_cfg``, a mapping with timm's keys.

    Raises:
        ModelError: ``preprocessing`` is something else.
    """
    stated = getattr(model, "preprocessing", None)
    if isinstance(stated, Preprocessing) or stated is None:
        how: Preprocessing | None = stated
    else:
        how = _from_fields(stated, type(model).__name__)
    for attribute in ("pretrained_cfg", "default_cfg"):
        config = getattr(model, attribute, None)
        if how is None and isinstance(config, Mapping) and "input_size" in config:
            how = from_timm(config, origin=f"{attribute} of {type(model).__name__}")
    return how


def _from_fields(stated: Any, kind: str) -> Preprocessing:
    names = [field.name for field in fields(Preprocessing)]
    if not isinstance(stated, Mapping) or not set(stated) <= set(names):
        got = ", ".join(map(str, stated)) if isinstance(stated, Mapping) else type(stated).__name__
        raise ModelError(
            f"expected {kind}.preprocessing to be a hardsight Preprocessing or a mapping with some "
            f"of {', '.join(names)}, got {got}"
        )
    return Preprocessing(**{"origin": f"preprocessing of {kind}", **_with_tuples(stated)})


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of :class:`Preprocessing` from a file, with tuples instead of lists."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}


def from_timm(config: Mapping[str, Any], *, origin: str) -> Preprocessing:
    """Return the preprocessing of timm's data configuration (``input_size``, ``crop_pct``, ...).

    Raises:
        ModelError: the way of cropping is not supported here.
    """
    channels, height, width = config["input_size"]
    if config.get("crop_mode") not in (None, "center", "squash"):
        raise ModelError(
            f"the {origin} has crop_mode={config['crop_mode']!r}, which cannot be followed; pass "
            "preprocessing=Preprocessing(...) instead, or size, mean and std together (--size, "
            "--mean, --std)"
        )
    return Preprocessing(
        size=(height, width),
        mean=tuple(config.get("mean", (0.0,))),
        std=tuple(config.get("std", (1.0,))),
        crop=float(config.get("crop_pct") or _DEFAULT_CROP),
        squash=config.get("crop_mode") == "squash",
        interpolation=_known_filter(config.get("interpolation")),
        channels=channels,
        origin=origin,
    )


def from_torchvision(preset: Any, *, origin: str) -> Preprocessing:
    """Return the preprocessing of the classification preset that comes with torchvision weights."""
    crop, resize = preset.crop_size[0], preset.resize_size[0]
    return Preprocessing(
        size=(crop, crop),
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        crop=crop / resize,
        interpolation=_known_filter(preset.interpolation.value),
        channels=3,
        origin=origin,
    )


def _known_filter(name: Any) -> str:
    """Return the name of a resampling filter; ``bilinear`` for ``random`` and filters we lack."""
    return name if name in _FILTERS else "bilinear"


@dataclass(frozen=True)
class StoredModel:
    """What the folder of a trained model says.

    Attributes:
        spec: how the user named the model.
        options: options of its factory, including ``num_classes`` if the factory takes it.
        preprocessing: preprocessing of images in training, which scoring has to repeat.
        classes: class names; the position of a name is its label.
    """

    spec: str
    options: dict[str, Any]
    preprocessing: Preprocessing
    classes: tuple[str, ...]

    def write(self, folder: Path, state: dict[str, Tensor]) -> None:
        """Write ``model.safetensors`` and ``model.json``, each renamed into place.

        ``model.json`` contains the digest of the weights, so that weights that were changed later
        are not mistaken for the trained ones.
        """
        with replacing(folder / WEIGHTS) as partial:
            save_file(state, partial)
            digest = sha256(partial)
        content = {
            "format": _FORMAT, **asdict(self), "spec": _from_anywhere(self.spec),
            _DIGEST: digest,
        }  # fmt: skip
        write_json(folder / _FILE, content)


def _from_anywhere(spec: str) -> str:
    """Return ``hf:FOLDER`` with an absolute path, so that it is valid in any working directory."""
    kind, _, name = spec.partition(":")
    return f"hf:{Path(name).resolve()}" if kind == "hf" and Path(name).is_dir() else spec


def is_stored_model(name: str) -> bool:
    """Return whether a name is the folder of a trained model."""
    return (Path(name) / _FILE).is_file()


@dataclass(frozen=True)
class Described:
    """A stored model and the file that describes it.

    Attributes:
        file: the ``model.json``.
        model: the model that the file describes.
        digest: sha256 of the ``model.safetensors`` beside it; ``None`` if it was not recorded.
    """

    file: Path
    model: StoredModel
    digest: str | None = None

    def digest_of(self, weights: str | os.PathLike[str]) -> str | None:
        """Return the recorded sha256 of a weights file, or ``None`` if there is none.

        Digests of single epochs and rounds are not recorded.
        """
        is_own = Path(weights).resolve() == (self.file.parent / WEIGHTS).resolve()
        return self.digest if is_own else None


def stored_model(folder: Path, *, trusted: Sequence[str]) -> Described:
    """Read what :meth:`StoredModel.write` wrote.

    Args:
        folder: the folder that holds ``model.json``.
        trusted: names and prefixes that may be built without asking the user. Otherwise a
            downloaded file could make us run its own code.

    Raises:
        ModelError: the file is damaged, or names code outside of ``trusted``.
    """
    described = _description(folder / _FILE)
    spec = described.model.spec
    if spec.partition(":")[0] not in trusted:
        code = spec if ":" in spec else "FILE.py:FACTORY"
        raise ModelError(
            f"{described.file} names the code {spec!r}, which is not run unless you ask for it; "
            f"if you trust it: --model {code} --weights {folder / WEIGHTS}"
        )
    return described


def load_stored(model: nn.Module, folder: Path) -> None:
    """Load the weights that :meth:`StoredModel.write` wrote, if they have not changed.

    Raises:
        MissingDataError: there is no weights file.
        ModelError: the weights were changed, do not fit ``model``, or the folder is damaged.
    """
    described = _description(folder / _FILE)
    load_weights(model, folder / WEIGHTS, digest=described.digest_of(folder / WEIGHTS))


def described_weights(weights: str | os.PathLike[str]) -> Described | None:
    """Return the description in the ``model.json`` that belongs to a weights file, or ``None``.

    Weights of single epochs and rounds are in a folder below the folder of their run.

    Raises:
        ModelError: the description is damaged.
    """
    path = Path(weights)
    own = path.parent if path.name == WEIGHTS else None
    # resolved, because a link or a relative name does not show the folders above it
    above = path.resolve().parent
    is_epoch = path.suffix in (".safetensors", ".ckpt")
    if re.fullmatch(r"checkpoints|round-\d+", above.name) and is_epoch:
        own = own if own is not None and (own / _FILE).is_file() else above.parent
    if own is None or not (own / _FILE).is_file() or not _is_ours(own / _FILE):
        return None
    return _description(own / _FILE)


def _is_ours(file: Path) -> bool:
    """Return whether a file called ``model.json`` is ours; a damaged file may be."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return isinstance(content, dict) and {"format", "spec"} <= set(content)


def description_of(
    model: str | nn.Module, weights: str | os.PathLike[str] | None
) -> StoredModel | None:
    """Return the description that ``hardsight train`` wrote in a model's folder or for its weights.

    Raises:
        ModelError: the description is damaged.
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
    """Raise if a user names another model than the one that the weights belong to.

    Args:
        described: the description of the weights.
        spec: the model that the user names or passes.
        options: options for its factory.
        num_classes: number of classes for its factory.

    Raises:
        ModelError: the network, an option or the number of classes differs.
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
    """Return whether two names may mean the same code; a file may have been moved."""
    if isinstance(spec, nn.Module):
        kind = MODELS[stored].__name__ if stored in MODELS else stored
        return ":" in kind or kind == type(spec).__name__
    code, trained = _named_code(_from_anywhere(spec)), _named_code(stored)
    return code == trained or ":" not in trained  # without ":", a module was passed as an object


def _named_code(spec: str) -> str:
    """Return a name without the parts that differ between two ways to write it."""
    if spec in MODELS:
        return f"hardsight.models:{MODELS[spec].__name__}"
    place, _, factory = spec.rpartition(":")
    return f"{Path(place).name}:{factory}" if place.endswith(".py") else spec


def _description(file: Path) -> Described:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.pop("format") != _FORMAT:
            raise ValueError(f"format is not {_FORMAT}")
        stored = StoredModel(
            spec=str(content["spec"]),
            options=dict(content["options"]),
            preprocessing=Preprocessing(**_with_tuples(content["preprocessing"])),
            classes=tuple(content["classes"]),
        )
        digest = content.get(_DIGEST)
        if not isinstance(digest, str | None):
            raise TypeError(f"{_DIGEST} is {digest!r}")
    except PermissionError as err:  # of another user; training again would not help
        raise ModelError(f"cannot read {file}: {err.strerror}; ask its owner") from err
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise ModelError(
            f"{file} does not describe a model ({type(err).__name__}: {err}); train it again, or "
            "pass the model and its weights by name"
        ) from err
    return Described(file, stored, digest)
