"""Translate settings of transformers' image processors to :class:`Preprocessing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hardsight.errors import ModelError
from hardsight.preprocessing import Preprocessing

_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
# Processors that rescale before they resize, so that no pixel is rounded in between. All others
# resize bytes, either with Pillow, which gives the same bytes on every machine and is followed
# here, or with torchvision, whose bytes depend on the processor's instructions. The two differ by
# one grey level.
_RESIZE_FLOATS = {"DINOv3ViTImageProcessor"}
_READ = {
    "do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor",
    "do_normalize", "image_mean", "image_std", "do_convert_rgb", "default_to_square",
}  # fmt: skip
# keys that do not change images: names, formats of inputs and outputs, options for label maps
_WITHOUT_EFFECT = {
    "image_processor_type", "feature_extractor_type", "processor_class", "auto_map", "_auto_class",
    "_processor_class", "_valid_processor_keys", "_valid_kwargs_names", "name_or_path",
    "input_data_format", "return_tensors", "device", "disable_grouping", "do_reduce_labels",
    "reduce_labels", "num_channels",
}  # fmt: skip


@dataclass(frozen=True)
class _Geometry:
    """How an image is resized and cropped.

    Attributes:
        size: size of the input; ``None`` if it depends on the image.
        resize: the short side, or height and width; ``None`` if the image is not resized.
        first: if a square is cropped before resizing, its share of the short side.
    """

    size: tuple[int, int] | None = None
    resize: int | tuple[int, int] | None = None
    first: float | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of :class:`Preprocessing`, as shares of the size if they are exact."""
        if self.first is not None:
            return {"size": self.size, "crop": self.first, "crop_first": True}
        if self.size is None or self.resize is None:
            return {"size": self.size, "resize": self.resize}
        is_square = self.size[0] == self.size[1]
        sides = self.resize if isinstance(self.resize, tuple) else (self.resize, self.resize)
        shares = [kept / whole for kept, whole in zip(self.size, sides, strict=True)]
        if shares[0] == shares[1] and (is_square or isinstance(self.resize, tuple)):
            squash = isinstance(self.resize, tuple)
            return {"size": self.size, "crop": shares[0], "squash": squash}
        return {"size": self.size, "resize": self.resize}


class _RefusedError(Exception):
    """A setting that cannot be followed, in words."""


def from_hugging_face(
    settings: Mapping[str, Any], *, kind: str, channels: int, origin: str
) -> Preprocessing:
    """Return the preprocessing for all settings of an image processor, including defaults.

    Args:
        settings: settings of the processor.
        kind: its class without ``Fast`` or ``Pil``; keys have other meanings in each class.
        channels: number of channels of the model's input.
        origin: where the settings come from, in words for the metadata.

    Raises:
        ModelError: settings are not supported here; the message names all of them.
    """
    # MobileViT's processor stores a normalisation but does not apply it
    values = {**settings, "do_normalize": False} if kind == "MobileViTImageProcessor" else settings
    own = _OWN_KEYS.get(kind, ())
    refused = [
        f"{key}={value!r}"
        for key, value in values.items()
        if key not in _READ | _WITHOUT_EFFECT | set(own) and _matters(key, value)
    ]
    try:
        geometry = _GEOMETRIES.get(kind, _standard)(values)
        mean, std = _normalisation(values)
        interpolation = _filter(values.get("resample", 2))
    except _RefusedError as err:
        refused.append(str(err))
    if refused:
        raise ModelError(
            f"the {origin} is a {kind} with settings that cannot be followed: "
            f"{', '.join(refused)}; pass preprocessing=Preprocessing(...) instead, or size, mean "
            "and std together (--size, --mean, --std)"
        )
    return Preprocessing(
        mean=mean,
        std=std,
        interpolation=interpolation,
        channels=channels,
        origin=origin,
        crop_rounds_down=True,
        resize_in_float=kind in _RESIZE_FLOATS and bool(values.get("do_rescale")),
        **geometry.fields(),
        bgr=bool(values.get("do_flip_channel_order")),
    )


def _matters(key: str, value: Any) -> bool:
    """Return whether a key that we do not read would change an image."""
    if key == "data_format":
        return str(getattr(value, "value", value)) != "channels_first"
    if key == "pad_size":  # only has an effect with do_pad, which is refused anyway
        return False
    return value is not None and value is not False


def _standard(settings: Mapping[str, Any]) -> _Geometry:
    resize, crop = _resize(settings), _crop(settings)
    if resize is None and crop is not None:
        raise _RefusedError("do_center_crop=True with do_resize=False")
    if isinstance(resize, tuple):
        return _Geometry(crop or resize, resize)
    return _Geometry(crop, resize)


def _convnext(settings: Mapping[str, Any]) -> _Geometry:
    side = _resize(settings)
    if side is None:
        return _standard(settings)
    if isinstance(side, tuple):
        raise _RefusedError(_size(settings))
    if _crop(settings) is not None:
        raise _RefusedError("do_center_crop=True, after a crop by crop_pct")
    if side >= 384:  # this class stretches large images instead of cropping them
        return _Geometry((side, side), (side, side))
    share = settings.get("crop_pct")
    if not share:
        raise _RefusedError(f"crop_pct={share!r} with a shortest edge below 384")
    return _Geometry((side, side), int(side / share))


def _poolformer(settings: Mapping[str, Any]) -> _Geometry:
    resize, share = _resize(settings), settings.get("crop_pct")
    if resize is None or share is None:
        return _standard(settings)
    crop = _crop(settings)
    sides = resize if isinstance(resize, tuple) else (resize, resize)
    height, width = (int(side / share) for side in sides)
    if sides[0] == sides[1]:  # this class resizes by the short side even for a square size
        return _Geometry(crop, height)
    return _Geometry(crop or (height, width), (height, width))


def _levit(settings: Mapping[str, Any]) -> _Geometry:
    resize = _resize(settings)
    if isinstance(resize, int):
        return _Geometry(_crop(settings), int((256 / 224) * resize))  # LeViT's own enlargement
    return _standard(settings)


def _perceiver(settings: Mapping[str, Any]) -> _Geometry:
    resize, crop = _resize(settings), _crop(settings)
    if crop is None:
        return _standard(settings)
    if not isinstance(resize, tuple):
        raise _RefusedError(f"do_center_crop with {_size(settings)}")
    if resize[0] / crop[0] != resize[1] / crop[1]:
        raise _RefusedError(f"size={settings['size']} with crop_size={settings['crop_size']}")
    return _Geometry(resize, first=resize[0] / crop[0])


_GEOMETRIES: Mapping[str, Callable[[Mapping[str, Any]], _Geometry]] = {
    "ConvNextImageProcessor": _convnext,
    "LevitImageProcessor": _levit,
    "PerceiverImageProcessor": _perceiver,
    "PoolFormerImageProcessor": _poolformer,
}
_OWN_KEYS = {
    "ConvNextImageProcessor": ("crop_pct",),
    "EfficientNetImageProcessor": ("rescale_offset", "include_top"),
    "MobileViTImageProcessor": ("do_flip_channel_order",),
    "PoolFormerImageProcessor": ("crop_pct",),
}


def _resize(settings: Mapping[str, Any]) -> int | tuple[int, int] | None:
    """Return the short side, or height and width, that an image is resized to."""
    if not settings.get("do_resize"):
        return None
    sides = _stated(settings.get("size"))
    if set(sides) == {"height", "width"}:
        return int(sides["height"]), int(sides["width"])
    if set(sides) == {"shortest_edge"}:
        return int(sides["shortest_edge"])
    raise _RefusedError(_size(settings))


def _crop(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    if not settings.get("do_center_crop"):
        return None
    sides = _stated(settings.get("crop_size"))
    if set(sides) != {"height", "width"}:
        raise _RefusedError(f"crop_size={settings.get('crop_size')}")
    return int(sides["height"]), int(sides["width"])


def _stated(size: Any) -> dict[str, int]:
    sides = dict(size) if isinstance(size, Mapping) else {}
    return {key: value for key, value in sides.items() if value is not None}


def _size(settings: Mapping[str, Any]) -> str:
    return f"size={settings.get('size')}"


def _normalisation(
    settings: Mapping[str, Any],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation on the pixel scale [0, 1] that combine all value settings.

    A processor turns a pixel p into (255 factor p - offset - mean) / std. EfficientNet's divides by
    std once more.
    """
    factor, offset = 255.0, 0.0
    if settings.get("do_rescale"):
        factor *= settings.get("rescale_factor") or 1 / 255
        offset = 1.0 if settings.get("rescale_offset") else 0.0
    stds = _values(settings, "image_std")
    mean = _values(settings, "image_mean") if settings.get("do_normalize") else (0.0,)
    std = stds if settings.get("do_normalize") else (1.0,)
    if settings.get("include_top"):
        most = max(len(std), len(stds))
        pairs = zip(_spread(std, most), _spread(stds, most), strict=True)
        std = tuple(first * second for first, second in pairs)
    return (
        tuple((offset + value) / factor for value in mean),
        tuple(value / factor for value in std),
    )


def _values(settings: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """Return a number for all channels, or one per channel; it may be missing if it is not used."""
    value: Any = settings.get(key)
    wanted = settings.get("do_normalize") or (settings.get("include_top") and key == "image_std")
    if value is None and not wanted:
        return (1.0,)
    try:
        return tuple(float(v) for v in value) if hasattr(value, "__iter__") else (float(value),)
    except (TypeError, ValueError):
        raise _RefusedError(f"{key}={value!r}") from None


def _spread(values: tuple[float, ...], count: int) -> tuple[float, ...]:
    return values * count if len(values) == 1 else values


def _filter(resample: Any) -> str:
    """Return the name of a Pillow filter, which transformers stores as a number."""
    try:
        return _FILTERS[int(resample)]
    except (KeyError, TypeError, ValueError):
        raise _RefusedError(f"resample={resample!r}") from None
