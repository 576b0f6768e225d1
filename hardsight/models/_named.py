"""Models that timm, torchvision and transformers build by name."""

import difflib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from hardsight._optional import require
from hardsight.errors import ModelError
from hardsight.models._preprocessing import from_hugging_face, from_timm, from_torchvision
from hardsight.preprocessing import Preprocessing
from hardsight.registry import unknown_name

Named = tuple[nn.Module, Preprocessing | None]


def timm_model(
    name: str,
    *,
    pretrained: str | None,
    num_classes: int | None,
    options: Mapping[str, Any] | None = None,
) -> Named:
    """A timm model with its data configuration."""
    timm = require("timm", extra="models", feature=f"model timm:{name}")
    if not timm.is_model(name):
        raise ModelError(_unknown("timm", name, timm.list_models()))
    given = {} if num_classes is None else {"num_classes": num_classes}
    given |= options or {}
    model = _built(
        f"timm:{name}", timm.create_model, name, pretrained=pretrained is not None, **given
    )
    config = timm.data.resolve_model_data_config(model)
    return model, from_timm(config, origin=f"timm data config of {name}")


def torchvision_model(
    name: str,
    *,
    pretrained: str | None,
    num_classes: int | None,
    options: Mapping[str, Any] | None = None,
) -> Named:
    """A torchvision classifier with the preset of the chosen, or else the default, weights."""
    models = require("torchvision.models", extra="models", feature=f"model torchvision:{name}")
    known = models.list_models(module=models)
    if name.lower() not in known:
        raise ModelError(_unknown("torchvision", name, known))
    enum = models.get_model_weights(name)
    chosen = enum.DEFAULT
    if pretrained not in (None, "pretrained"):
        if pretrained not in enum.__members__:
            members = list(enum.__members__)
            raise ModelError(unknown_name(f"weights of {name}", str(pretrained), members))
        chosen = enum[pretrained]
    given: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    given |= {"weights": None if pretrained is None else chosen, **(options or {})}
    model = _built(f"torchvision:{name}", models.get_model, name, **given)
    origin = f"torchvision preset {enum.__name__}.{chosen.name}"
    return model, from_torchvision(chosen.transforms(), origin=origin)


def hugging_face_model(name: str, *, num_classes: int | None) -> Named:
    """An image classifier of transformers, from the hub or a local folder."""
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise ModelError(f"no folder {name} for hf:{name}; expected one of save_pretrained()")
    transformers = require("transformers", extra="models", feature=f"model hf:{name}")
    load = transformers.AutoModelForImageClassification.from_pretrained
    model = _built(f"hf:{name}", load, name)
    config: Any = model.config
    if num_classes is not None and num_classes != config.num_labels:
        raise ModelError(
            f"hf:{name} has {config.num_labels} classes, got num_classes={num_classes}; "
            "leave num_classes out, or choose a model with as many classes"
        )
    return model, _processor_of(name, transformers, getattr(config, "num_channels", 3))


def _unknown(package: str, name: str, known: list[str]) -> str:
    """Message for a model that does not exist; the full list would fill a screen."""
    nearest = difflib.get_close_matches(name, known, n=3)
    hint = f" Did you mean {', '.join(nearest)}?" if nearest else ""
    return f"unknown {package} model {name!r}.{hint} All names: {package}'s list_models()"


def _processor_of(name: str, transformers: Any, channels: int) -> Preprocessing | None:
    """The image processor's configuration beside a model, if there is one."""
    try:
        config, _ = transformers.ImageProcessingMixin.get_image_processor_dict(name)
    except OSError:
        return None
    return from_hugging_face(config, channels=channels, origin=f"image processor of hf:{name}")


def _built(spec: str, build: Any, *args: Any, **options: Any) -> nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of the package, about its own defaults
            model: nn.Module = build(*args, **options)
    except Exception as err:
        first = str(err).strip().splitlines()
        raise ModelError(
            f"cannot build {spec}: {type(err).__name__}: {first[0] if first else 'no message'}; "
            "check the name, or the network where weights are to be fetched"
        ) from err
    return model


def local_weights(name: str) -> Path | None:
    """The weights file of a Hugging Face model in a local folder, if it is a single one."""
    file = Path(name) / "model.safetensors"
    return file if file.is_file() else None
