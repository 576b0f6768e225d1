"""A model by name: our own, from a package, a file, timm, torchvision or Hugging Face."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from hardsight.config import toml_value
from hardsight.errors import ModelError
from hardsight.models._factory import model_from_factory
from hardsight.models._named import (
    hugging_face_model,
    local_weights,
    timm_model,
    torchvision_model,
)
from hardsight.models._preprocessing import own_preprocessing
from hardsight.models._registry import MODELS
from hardsight.models._stored import WEIGHTS, is_stored_model, stored_model
from hardsight.models._weights import load_weights, sha256
from hardsight.preprocessing import Preprocessing
from hardsight.registry import nearest_name

_FORMS = (
    "package.module:factory, file.py:factory, timm:NAME, torchvision:NAME, hf:NAME, an nn.Module, "
    f"the folder of a trained model, or one of {', '.join(MODELS)}"
)
_PACKAGES = ("timm", "torchvision", "hf")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to be run, and what is known about it.

    Attributes:
        model: in eval mode.
        spec: how it was named; the class of a module that was passed as it is.
        preprocessing: what it wants done to images; ``None`` where nothing says so.
        weights_digest: sha256 of the weights file; ``None`` where there was none.
        weights_origin: where the weights come from, in words for the metadata.
        options: what its factory was given.
        network: its name in the folder of a trained model; empty where there is no folder.
        classes: names, position = label, where the folder of a trained model tells them.
    """

    model: nn.Module
    spec: str
    preprocessing: Preprocessing | None
    weights_digest: str | None
    weights_origin: str
    options: Mapping[str, Any] = field(default_factory=dict)
    network: str = ""
    classes: tuple[str, ...] = ()

    @property
    def built_as(self) -> str:
        """How to name the network itself, also where it came from the folder of a trained model."""
        return self.network or self.spec


def load_model(
    spec: str | nn.Module,
    *,
    weights: str | os.PathLike[str] | None = None,
    num_classes: int | None = None,
    options: Mapping[str, Any] | None = None,
    if_taken: Mapping[str, Any] | None = None,
) -> LoadedModel:
    """Build a model and load its weights; nothing in a weights file is ever run as code.

    ``timm:NAME`` and ``torchvision:NAME`` download nothing by themselves: without ``weights`` they
    are randomly initialised, and ``weights_origin`` says so. ``hf:NAME`` is a trained model, from
    a local folder or the hub.

    Args:
        spec: a name of ours such as ``resnet18`` (see :data:`MODELS`), ``package.module:factory``,
            ``file.py:factory``, ``timm:NAME``, ``torchvision:NAME``, ``hf:NAME``, the folder of a
            model that ``hardsight train`` wrote, or a module, which is used as it is. A factory
            is a class or a function. Options may follow: ``amc13:width=0.5,channels=1``. Python
            code named here is run, so name only code you trust.
        weights: a safetensors or torch file of tensors. For timm and torchvision also
            ``"pretrained"``, the package's own weights, downloaded where they are not cached; for
            torchvision the name of a set of weights, such as ``"IMAGENET1K_V2"``.
        num_classes: given to the factory if it takes it.
        options: given to the factory, over those in ``spec``.
        if_taken: likewise, but only where the factory has such an option and nothing else sets it.

    Returns:
        the model in eval mode, with its preprocessing where it or its package states one.

    Raises:
        ModelError: the model cannot be built, or the weights do not fit it.
        MissingDataError: a file that was named does not exist.
        MissingExtraError: timm, torchvision or transformers is not installed.
        UnsafeFileError: the weights file would have to run code.

    Example:
        >>> loaded = load_model("hardsight.models:SmallCNN", num_classes=3)
        >>> loaded.model.head.out_features, loaded.weights_origin
        (3, 'as made by hardsight.models:SmallCNN')
        >>> load_model("amc13:width=0.5").options
        {'width': 0.5}
    """
    given = dict(options or {})
    if isinstance(spec, str) and is_stored_model(spec):
        if given:
            raise ModelError(
                f"{spec} is a trained model, built with the options it was trained with; leave its "
                f"options out, got {', '.join(given)}"
            )
        return _from_folder(Path(spec), weights)
    if isinstance(spec, str):
        spec, own = _split_options(spec)
        given = {**own, **given}
    pretrained = _package_weights(spec, weights)
    loaded = _built(spec, pretrained, num_classes, given, dict(if_taken or {}))
    if weights is not None and pretrained is None:
        digest = load_weights(loaded.model, weights)
        origin = f"file {Path(weights).name}"
        loaded = replace(loaded, weights_digest=digest, weights_origin=origin)
    loaded.model.eval()
    return loaded


def _built(
    spec: str | nn.Module,
    pretrained: str | None,
    num_classes: int | None,
    options: dict[str, Any],
    if_taken: dict[str, Any],
) -> LoadedModel:
    """The model with the weights it is built with."""
    if isinstance(spec, nn.Module):
        if options:
            raise ModelError(f"a {type(spec).__name__} is built already; leave its options out")
        return LoadedModel(spec, type(spec).__name__, own_preprocessing(spec), None, "as passed")
    kind, _, name = spec.rpartition(":") if ".py:" in spec else spec.partition(":")
    if spec in MODELS:
        kind, name = "hardsight.models", MODELS[spec].__name__
    if not kind or not name:
        near = nearest_name(spec, list(MODELS))
        hint = f" Did you mean {near!r}?" if near else ""
        raise ModelError(f"cannot tell what model {spec!r} is.{hint} Expected {_FORMS}")
    if kind == "hf":
        model, found = hugging_face_model(name, num_classes=num_classes)
        file = local_weights(name)
        digest = None if file is None else sha256(file)
        return LoadedModel(model, spec, found, digest, f"as stored in {spec}")
    if kind in _PACKAGES:
        build = timm_model if kind == "timm" else torchvision_model
        model, found = build(name, pretrained=pretrained, num_classes=num_classes, options=options)
        origin = f"{kind} {pretrained}" if pretrained else "random initialisation"
        used = {**({} if num_classes is None else {"num_classes": num_classes}), **options}
        return LoadedModel(model, spec, found, None, origin, used)
    if num_classes is not None:
        if_taken = {**if_taken, "num_classes": num_classes}
    model, used = model_from_factory(kind, name, options=options, if_taken=if_taken)
    return LoadedModel(model, spec, own_preprocessing(model), None, f"as made by {spec}", used)


def _from_folder(folder: Path, weights: str | os.PathLike[str] | None) -> LoadedModel:
    """A model that ``hardsight train`` wrote, with the preprocessing it was trained with."""
    stored = stored_model(folder, trusted=(*MODELS, *_PACKAGES))
    file = folder / WEIGHTS if weights is None else weights
    loaded = load_model(stored.spec, weights=file, options=stored.options)
    return replace(
        loaded,
        spec=str(folder),
        preprocessing=stored.preprocessing,
        network=stored.spec,
        classes=tuple(stored.classes),
    )


def _split_options(spec: str) -> tuple[str, dict[str, Any]]:
    """``NAME:key=value,key=value`` as the name and the options."""
    name, colon, text = spec.rpartition(":")
    if not colon or "=" not in text:
        return spec, {}
    pairs = [part.partition("=") for part in text.split(",")]
    return name, {key.strip(): toml_value(value.strip()) for key, _, value in pairs}


def _package_weights(spec: str | nn.Module, weights: str | os.PathLike[str] | None) -> str | None:
    """The name of weights that a package brings itself; ``None`` where a file is meant."""
    if not isinstance(spec, str) or not isinstance(weights, str):
        return None
    if spec.startswith("torchvision:") and not Path(weights).exists():
        return weights if weights.isidentifier() else None
    return weights if spec.startswith("timm:") and weights == "pretrained" else None
