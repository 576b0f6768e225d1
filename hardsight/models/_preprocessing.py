"""The preprocessing a model asks for, read from the configuration formats in use."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from hardsight.errors import ModelError
from hardsight.preprocessing import Preprocessing

_FILTERS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
_DEFAULT_CROP = 0.875  # timm's own default


def own_preprocessing(model: nn.Module) -> Preprocessing | None:
    """What a module says about itself, if it does.

    Looked for in this order: ``preprocessing``, a :class:`Preprocessing` or a mapping of its
    fields; ``pretrained_cfg`` or ``default_cfg``, a mapping with the keys of timm.

    Raises:
        ModelError: ``preprocessing`` is something else.
    """
    stated = getattr(model, "preprocessing", None)
    if isinstance(stated, Preprocessing) or stated is None:
        found: Preprocessing | None = stated
    else:
        found = _from_fields(stated, type(model).__name__)
    for attribute in ("pretrained_cfg", "default_cfg"):
        config = getattr(model, attribute, None)
        if found is None and isinstance(config, Mapping) and "input_size" in config:
            found = from_timm(config, origin=f"{attribute} of {type(model).__name__}")
    return found


def _from_fields(stated: Any, kind: str) -> Preprocessing:
    names = [field.name for field in fields(Preprocessing)]
    if not isinstance(stated, Mapping) or not set(stated) <= set(names):
        got = ", ".join(map(str, stated)) if isinstance(stated, Mapping) else type(stated).__name__
        raise ModelError(
            f"expected {kind}.preprocessing to be a hardsight Preprocessing or a mapping with some "
            f"of {', '.join(names)}, got {got}"
        )
    values: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in stated.items()
    }
    return Preprocessing(**{"origin": f"preprocessing of {kind}", **values})


def from_timm(config: Mapping[str, Any], *, origin: str) -> Preprocessing:
    """Preprocessing from timm's data configuration (``input_size``, ``crop_pct``, ...).

    Raises:
        ModelError: a way of cropping that we do not have.
    """
    channels, height, width = config["input_size"]
    if config.get("crop_mode") not in (None, "center", "squash"):
        raise ModelError(
            f"the {origin} has crop_mode={config['crop_mode']!r}, which cannot be followed; say "
            "what to do instead by preprocessing=Preprocessing(...), or by size, mean and std "
            "together (--size, --mean, --std)"
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
