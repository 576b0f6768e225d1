"""The preprocessing a model asks for, read from the configuration formats in use."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from hardsight.errors import ModelError
from hardsight.preprocessing import Preprocessing

_PIL_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_FILTERS = frozenset(_PIL_FILTERS.values())
_DEFAULT_CROP = 0.875  # timm's and Hugging Face ConvNeXt's own default


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
    """Preprocessing from timm's data configuration (``input_size``, ``crop_pct``, ...)."""
    channels, height, width = config["input_size"]
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


def from_hugging_face(config: Mapping[str, Any], *, channels: int, origin: str) -> Preprocessing:
    """Preprocessing from an image processor's configuration (``preprocessor_config.json``)."""
    size, crop, squash = _hugging_face_size(config)
    # the processor computes (255 * factor * pixel - mean) / std from pixels in [0, 1]
    factor = 255 * config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 255
    normalised = config.get("do_normalize", True) and config.get("image_mean") is not None
    mean = config["image_mean"] if normalised else (0.0,)
    std = config["image_std"] if normalised else (1.0,)
    return Preprocessing(
        size=size,
        mean=tuple(value / factor for value in mean),
        std=tuple(value / factor for value in std),
        crop=crop,
        squash=squash,
        interpolation=_known_filter(_PIL_FILTERS.get(config.get("resample", 2))),
        channels=channels,
        origin=origin,
    )


def _hugging_face_size(
    config: Mapping[str, Any],
) -> tuple[tuple[int, int] | None, float, bool]:
    """Input size, share kept by the centre crop, and whether the aspect ratio is given up."""
    resized = _sides(config.get("size")) if config.get("do_resize", True) else None
    cropped = _sides(config.get("crop_size")) if config.get("do_center_crop", False) else None
    edge_only = isinstance(config.get("size"), int) or "shortest_edge" in (config.get("size") or ())
    if resized and edge_only and config.get("crop_pct"):  # ConvNeXt: squashed from 384 on
        large = resized[0] >= 384
        return resized, 1.0 if large else float(config["crop_pct"]), large
    if resized and cropped:
        return cropped, min(1.0, cropped[0] / resized[0]), not edge_only
    return cropped or resized, 1.0, bool(resized) and not edge_only


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width from a number, ``{height, width}`` or ``{shortest_edge}``."""
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping) and "height" in size:
        return size["height"], size["width"]
    if isinstance(size, Mapping) and "shortest_edge" in size:
        return size["shortest_edge"], size["shortest_edge"]
    return None


def _known_filter(name: Any) -> str:
    """The name of a resampling filter; ``bilinear`` for ``random`` and for those we do not have."""
    return name if name in _FILTERS else "bilinear"
