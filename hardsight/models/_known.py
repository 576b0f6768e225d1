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
_FORMAT = 1  # of model.json
_DIGEST = "weights_digest"  # a key of model.json, which earlier versions did not write
_FILTERS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
_DEFAULT_CROP = 0.875  # timm's own default
_WRAPPERS = ("module", "_orig_mod")  # names by which DataParallel and torch.compile hold a model


@dataclass(frozen=True)
class ClassNames:
    """Names of a model's outputs.

    Attributes:
        names: position = output; empty if nothing names them.
        origin: where they are stated, in words.
        others: further lists of names in the same order, such as WordNet ids.
        possible: names that the model itself does not state: those of a part of it, which count if
            there are as many as outputs, or guesses, see :attr:`is_guess`.
        is_guess: whether they are guessed from the number of outputs, so that they count only if
            they match those of the data.
    """

    names: tuple[str, ...] = ()
    origin: str = ""
    others: tuple[tuple[str, ...], ...] = ()
    possible: tuple[ClassNames, ...] = ()
    is_guess: bool = False


def own_classes(model: nn.Module, kind: str = "") -> ClassNames:
    """The class names that a module states.

    They are looked up in this order: ``classes`` or ``class_names``, a list of names or a mapping
    by their numbers; ``class_to_idx``; ``id2label``, also of ``config``, as in transformers;
    ``pretrained_cfg["label_names"]``, as in timm. If the module itself states none, a part of it
    may, such as a model of transformers in a wrapper that returns only its logits. And a model of
    timm or torchvision may be trained on ImageNet.

    Args:
        model: any module, also inside DataParallel or torch.compile.
        kind: its name in messages; its class by default.
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
    """The module inside DataParallel or a compiled module."""
    children = dict(wrapper.named_children())
    return next((children[name] for name in _WRAPPERS if set(children) == {name}), None)


def _of_parts(model: nn.Module, kind: str) -> list[ClassNames]:
    """The names that parts of a model state, if all of them agree."""
    stated = [_stated(part, f"{type(part).__name__} in {kind}") for part in model.modules()]
    named = [names for names in stated if names.names]
    return named[:1] if len({names.names for names in named}) == 1 else []


def _of_imagenet(model: nn.Module) -> Iterator[ClassNames]:
    """Names of the ImageNet classes, if a part of a model is of a package that trains on them."""
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
    """Names of the ImageNet variant with as many classes as the model has outputs, if any."""
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
    """Names with their origin; none if they are placeholders such as ``LABEL_0``.

    Numbers are kept, since they are the names of digits.
    """
    texts = tuple(str(name) for name in names)
    return ClassNames() if are_placeholders(texts) else ClassNames(texts, origin)


def are_placeholders(names: Sequence[str]) -> bool:
    """Whether names contain nothing but their position.

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
    """Names in their order from a list, an array of text or a mapping by their numbers."""
    if isinstance(value, Mapping):
        return _in_order(value, len(value))
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    is_list = isinstance(value, list | tuple) and bool(value)
    return list(value) if is_list and all(isinstance(name, str) for name in value) else None


def _in_order(labels: Mapping[Any, Any], count: int) -> list[str] | None:
    """Names by their number; ``None`` if the numbers are not 0, 1, 2, ... or there are none."""
    try:
        by_number = {int(key): str(value) for key, value in labels.items()}
    except (TypeError, ValueError):
        return None
    if not count or sorted(by_number) != list(range(count)):
        return None
    return [by_number[number] for number in range(count)]


def own_preprocessing(model: nn.Module) -> Preprocessing | None:
    """The preprocessing that a module states, if it states any.

    It is looked up in this order: ``preprocessing``, a :class:`Preprocessing` or a mapping of its
    fields; ``pretrained_cfg`` or ``default_cfg``, a mapping with the keys of timm.

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
    """Fields of :class:`Preprocessing` from a file, which has lists instead of tuples."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}


def from_timm(config: Mapping[str, Any], *, origin: str) -> Preprocessing:
    """Preprocessing from timm's data configuration (``input_size``, ``crop_pct``, ...).

    Raises:
        ModelError: a way of cropping that is not supported here.
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
    """Preprocessing from the classification preset that torchvision's weights carry."""
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
    """The name of a resampling filter; ``bilinear`` for ``random`` and for those we do not have."""
    return name if name in _FILTERS else "bilinear"


@dataclass(frozen=True)
class StoredModel:
    """What the folder of a trained model says.

    Attributes:
        spec: how the model was named.
        options: given to its factory, ``num_classes`` included if it took it.
        preprocessing: done to images in training; to be done in scoring.
        classes: names, position = label.
    """

    spec: str
    options: dict[str, Any]
    preprocessing: Preprocessing
    classes: tuple[str, ...]

    def write(self, folder: Path, state: dict[str, Tensor]) -> None:
        """Write ``model.safetensors`` and ``model.json``, each renamed into place.

        ``model.json`` holds the digest of the weights, so that weights which were changed later
        are not taken for the trained ones.
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
    """``hf:FOLDER`` with an absolute path for a local folder, valid from any working directory."""
    kind, _, name = spec.partition(":")
    return f"hf:{Path(name).resolve()}" if kind == "hf" and Path(name).is_dir() else spec


def is_stored_model(name: str) -> bool:
    """Whether a name is the folder of a trained model."""
    return (Path(name) / _FILE).is_file()


@dataclass(frozen=True)
class Described:
    """A stored model and the file that describes it.

    Attributes:
        file: ``model.json``.
        model: that it describes.
        digest: sha256 of the ``model.safetensors`` beside it; ``None`` if it was not recorded.
    """

    file: Path
    model: StoredModel
    digest: str | None = None

    def digest_of(self, weights: str | os.PathLike[str]) -> str | None:
        """The recorded sha256 of a file of weights; ``None`` if there is none.

        Digests of single epochs and rounds are not recorded.
        """
        is_own = Path(weights).resolve() == (self.file.parent / WEIGHTS).resolve()
        return self.digest if is_own else None


def stored_model(folder: Path, *, trusted: Sequence[str]) -> Described:
    """Read what :meth:`StoredModel.write` wrote.

    Args:
        folder: holds ``model.json``.
        trusted: names and prefixes that may be built without asking the user, since a file must
            not be able to make us run its own code.

    Raises:
        ModelError: it is damaged, or names code outside of ``trusted``.
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
    """Load the weights that :meth:`StoredModel.write` wrote, if they are still the same.

    Raises:
        MissingDataError: there is no file of weights.
        ModelError: they were changed since, do not fit ``model``, or the folder is damaged.
    """
    described = _description(folder / _FILE)
    load_weights(model, folder / WEIGHTS, digest=described.digest_of(folder / WEIGHTS))


def described_weights(weights: str | os.PathLike[str]) -> Described | None:
    """The description in ``model.json`` of a file of weights, if there is one beside it.

    The weights of single epochs and rounds are in a folder below that of their run.

    Raises:
        ModelError: it is damaged.
    """
    path = Path(weights)
    own = path.parent if path.name == WEIGHTS else None
    # resolved, since a link or a relative name does not show the folders above
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
    """The description that ``hardsight train`` wrote: in a model's folder, or beside its weights.

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
    """Raise if a user names another model than the weights belong to.

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
        stored = StoredModel(
            spec=str(content["spec"]),
            options=dict(content["options"]),
            preprocessing=Preprocessing(**_with_tuples(content["preprocessing"])),
            classes=tuple(content["classes"]),
        )
        digest = content.get(_DIGEST)
        if not isinstance(digest, str | None):
            raise TypeError(f"{_DIGEST} is {digest!r}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise ModelError(
            f"{file} does not describe a model ({type(err).__name__}: {err}); train it again, or "
            "pass the model and its weights by name"
        ) from err
    return Described(file, stored, digest)
