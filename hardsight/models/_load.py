"""A model by name: from a package, a file, timm, torchvision or Hugging Face."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from hardsight.errors import ModelError
from hardsight.models._factory import model_from_factory
from hardsight.models._named import (
    hugging_face_model,
    local_weights,
    timm_model,
    torchvision_model,
)
from hardsight.models._preprocessing import own_preprocessing
from hardsight.models._weights import load_weights, sha256
from hardsight.preprocessing import Preprocessing

_FORMS = (
    "package.module:factory, file.py:factory, timm:NAME, torchvision:NAME, hf:NAME or an nn.Module"
)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to be run, and what is known about it.

    Attributes:
        model: in eval mode.
        spec: how it was named; the class of a module that was passed as it is.
        preprocessing: what it wants done to images; ``None`` where nothing says so.
        weights_digest: sha256 of the weights file; ``None`` where there was none.
        weights_origin: where the weights come from, in words for the metadata.
    """

    model: nn.Module
    spec: str
    preprocessing: Preprocessing | None
    weights_digest: str | None
    weights_origin: str


def load_model(
    spec: str | nn.Module,
    *,
    weights: str | os.PathLike[str] | None = None,
    num_classes: int | None = None,
) -> LoadedModel:
    """Build a model and load its weights; nothing in a weights file is ever run as code.

    ``timm:NAME`` and ``torchvision:NAME`` download nothing by themselves: without ``weights`` they
    are randomly initialised, and ``weights_origin`` says so. ``hf:NAME`` is a trained model, from
    a local folder or the hub.

    Args:
        spec: ``package.module:factory``, ``file.py:factory``, ``timm:NAME``, ``torchvision:NAME``,
            ``hf:NAME``, or a module, which is used as it is. A factory is a class or a function.
            Python code named here is run, so name only code you trust.
        weights: a safetensors or torch file of tensors. For timm and torchvision also
            ``"pretrained"``, the package's own weights, downloaded where they are not cached; for
            torchvision the name of a set of weights, such as ``"IMAGENET1K_V2"``.
        num_classes: given to the factory if it takes it.

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
    """
    pretrained = _package_weights(spec, weights)
    loaded = _built(spec, pretrained=pretrained, num_classes=num_classes)
    if weights is not None and pretrained is None:
        digest = load_weights(loaded.model, weights)
        origin = f"file {Path(weights).name}"
        loaded = replace(loaded, weights_digest=digest, weights_origin=origin)
    loaded.model.eval()
    return loaded


def _built(
    spec: str | nn.Module, *, pretrained: str | None, num_classes: int | None
) -> LoadedModel:
    """The model with the weights it is built with."""
    if isinstance(spec, nn.Module):
        return LoadedModel(spec, type(spec).__name__, own_preprocessing(spec), None, "as passed")
    kind, _, name = spec.rpartition(":") if ".py:" in spec else spec.partition(":")
    if not kind or not name:
        raise ModelError(f"cannot tell what model {spec!r} is; expected {_FORMS}")
    if kind == "hf":
        model, found = hugging_face_model(name, num_classes=num_classes)
        file = local_weights(name)
        digest = None if file is None else sha256(file)
        return LoadedModel(model, spec, found, digest, f"as stored in {spec}")
    if kind in ("timm", "torchvision"):
        build = timm_model if kind == "timm" else torchvision_model
        model, found = build(name, pretrained=pretrained, num_classes=num_classes)
        origin = f"{kind} {pretrained}" if pretrained else "random initialisation"
        return LoadedModel(model, spec, found, None, origin)
    model = model_from_factory(kind, name, num_classes=num_classes)
    return LoadedModel(model, spec, own_preprocessing(model), None, f"as made by {spec}")


def _package_weights(spec: str | nn.Module, weights: str | os.PathLike[str] | None) -> str | None:
    """The name of weights that a package brings itself; ``None`` where a file is meant."""
    if not isinstance(spec, str) or not isinstance(weights, str):
        return None
    if spec.startswith("torchvision:") and not Path(weights).exists():
        return weights if weights.isidentifier() else None
    return weights if spec.startswith("timm:") and weights == "pretrained" else None
