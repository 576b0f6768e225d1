"""Prepare examples for a model, by one rule for every kind of data.

================================================  =============================================
pictures, and arrays of a file or of memory       all of the preprocessing
8-bit tensors and arrays of a user's own dataset  the same: they are pixels of 0 to 255
float tensors and arrays of such a dataset        only what the user stated
vectors, text, anything else                      nothing; stated options are refused
================================================  =============================================

Floats on the scale 0 to 255 are always refused unless ``white`` is stated. Everything here is done
with Pillow and numpy, so that loader processes do not need torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hardsight._checks import warn
from hardsight.data.pixels._images import MAX_PIXELS, eight_bit, picture
from hardsight.data.source import ExampleSource, in_memory
from hardsight.errors import BadExampleError, DataError, OptionError
from hardsight.preprocessing import Preprocessing
from hardsight.registry import unknown_name

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
_SLACK = 0.1  # how far resizing and noise may push a pixel out of [0, 1]
_LOOKED_AT = 64  # examples that are tried to find a readable one
_SAMPLED = 1024  # values of an example that are checked
_BRIGHT = 32  # all but the darkest pictures have a byte above this
_PLAIN = Preprocessing()
_LATER = "resize_in_float"  # a field that older versions did not record


class PixelOptions(NamedTuple):
    """What the user says about the pixels of a model's inputs; it overrides the model."""

    size: int | tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    channels: int | None = None
    crop: float | None = None
    squash: bool | None = None
    white: float | None = None

    @property
    def are_complete(self) -> bool:
        """Whether the user has set everything that matters."""
        return None not in (self.size, self.mean, self.std)

    def stated(self) -> dict[str, Any]:
        """The options that the user gave, checked.

        Raises:
            OptionError: a value is outside its range.
        """
        values = {key: value for key, value in self._asdict().items() if value is not None}
        if isinstance(self.size, int):
            values["size"] = (self.size, self.size)
        if min(values.get("size", (1, 1))) < 1 or len(values.get("size", (1, 1))) != 2:
            raise OptionError(f"expected a size of at least 1 x 1 pixels, got {self.size}")
        if self.mean is not None and not all(map(math.isfinite, self.mean)):
            raise OptionError(
                f"expected every mean to be finite, got {self.mean}; 0 leaves pixels alone"
            )
        if self.std is not None and not all(0 < value < math.inf for value in self.std):
            raise OptionError(
                f"expected every std to be above 0 and finite, got {self.std}; 1 leaves pixels "
                "alone"
            )
        if self.channels not in (None, 1, 3):
            raise OptionError(f"expected 1 or 3 channels, got {self.channels}")
        if self.crop is not None and not 0 < self.crop <= 1:
            raise OptionError(
                f"expected crop, the share that the centre crop keeps, in (0, 1], got {self.crop}"
            )
        if self.white is not None and not 0 < self.white < math.inf:
            raise OptionError(f"expected white to be above 0 and finite, got {self.white}")
        return values


def wanted_preprocessing(known: Preprocessing, pixels: PixelOptions) -> Preprocessing:
    """The preprocessing of the model, with the options of the user applied.

    Raises:
        OptionError: a value is outside its range, or there is a crop but no size.
    """
    changes = pixels.stated()
    if not changes:
        return known
    origin = f"{', '.join(changes)} as given; otherwise {known.origin}"
    # a new size replaces everything that the model says about sizes and crops
    known = known.at_size(changes["size"]) if "size" in changes else known
    if "crop" in changes or "squash" in changes:  # which say all there is to say
        known = replace(known, resize=None, crop_first=False)
        if known.size is None:
            raise OptionError(
                "crop and squash say how pictures are brought to a size; pass size=(H, W) (--size) "
                "as well"
            )
    stated = tuple(dict.fromkeys((*known.stated, *changes)))
    return replace(known, **changes, stated=stated, origin=origin)


def stated_preprocessing(preprocessing: Preprocessing | None) -> Preprocessing | None:
    """A user's own preprocessing, with all values that differ from the default as ``stated``."""
    if preprocessing is None:
        return None
    plain = Preprocessing()
    names = [field.name for field in fields(plain)]
    # a value that equals the default counts as not stated, even if the user wrote it
    changed = [
        name
        for name in names
        if name not in ("origin", "stated") and getattr(preprocessing, name) != getattr(plain, name)
    ]
    stated = tuple(dict.fromkeys((*preprocessing.stated, *changed)))
    return replace(preprocessing, stated=stated)


def decisive(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded values that decide what is done to an image, without their origin.

    ``resize_in_float`` is included only if it is on, because older records do not have it.

    Example:
        >>> decisive({"mean": (0.5,), "origin": "mean as given", "stated": ("mean",)})
        {'mean': (0.5,)}
    """
    # an older record without the field means the same as one that says no
    left_out = {"origin", "stated", *(() if recorded.get(_LATER) else (_LATER,))}
    return {name: value for name, value in recorded.items() if name not in left_out}


def model_input(content: Image.Image | NDArray[Any], how: Preprocessing) -> NDArray[np.float32]:
    r"""One picture as the input of a model.

    .. math:: x_c = \frac{p_c / p_\text{white} - \mathrm{mean}_c}{\mathrm{std}_c}

    White is that of ``how``, by default 255 for images and 8-bit arrays, 65535 for 16-bit arrays,
    and 1 for float arrays.

    Args:
        content: image, or array ``[H, W]`` or ``[H, W, C]``.
        how: size, channels and normalisation.

    Returns:
        ``[C, H, W]``, float32.

    Raises:
        OptionError: ``how`` has an unknown interpolation, or means that fit no channel.
        BadExampleError: the picture is so elongated that it would not fit into memory.

    Example:
        >>> from hardsight.preprocessing import Preprocessing
        >>> grey = Image.new("L", (4, 2), 255)
        >>> model_input(grey, Preprocessing(mean=(0.5,), std=(0.5,))).shape
        (1, 2, 4)
    """
    planes = _planes(content, how, _channels(how))
    white = (how.white or 255.0) if planes.dtype == np.uint8 else 1.0
    values = np.empty(planes.shape, dtype=np.float32)
    means, stds = _per_channel(how.mean, len(planes)), _per_channel(how.std, len(planes))
    for plane, value, mean, std in zip(planes, values, means, stds, strict=True):
        # plane by plane is several times faster than broadcasting over strided channels, and
        # (p / white - mean) / std takes only one multiplication and one subtraction this way
        np.multiply(plane, np.float32(1 / (white * std)), out=value)
        value -= np.float32(mean / std)
    return values


def raw_pixels(content: Image.Image | NDArray[Any], how: Preprocessing) -> NDArray[Any]:
    """One picture in the size and channels of :func:`model_input`, before mean and std.

    Training stores these pixels, and augments and normalises them on the device.

    Returns:
        ``[C, H, W]``: bytes of a picture or an 8-bit array, else float32 with white at 1.
    """
    return np.array(_planes(content, how, how.channels), order="C")


def _planes(
    content: Image.Image | NDArray[Any], how: Preprocessing, channels: int | None
) -> NDArray[Any]:
    if isinstance(content, Image.Image):
        image = eight_bit(content)
        # three values of mean or std ask for RGB, so that grey pictures become RGB
        mode = {None: image.mode, 1: "L", 3: "RGB"}[channels]
        if image.mode != mode:
            image = image.convert(mode)
        if how.resize_in_float:
            pixels = _array_pixels(np.asarray(image), how, channels)
        else:
            pixels = np.asarray(_fitted(image, how))
    else:
        pixels = _array_pixels(content, how, channels)
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    # reversed planes are a view, and cost nothing
    return planes[::-1] if how.bgr else planes


def _channels(how: Preprocessing) -> int | None:
    if how.channels not in (None, 1, 3):
        raise OptionError(f"expected 1 or 3 channels, got {how.channels}")
    if not all(how.std):
        raise OptionError(f"expected std without zeros, got {how.std}")
    return how.channels or (3 if max(len(how.mean), len(how.std)) == 3 else None)


def _array_pixels(
    array: NDArray[Any], how: Preprocessing, channels: int | None
) -> NDArray[np.float32]:
    """Each channel is resized on its own, in float: 16-bit and float arrays, or if it is asked."""
    # white of unsigned integers is their largest value
    own = float(np.iinfo(array.dtype).max) if array.dtype.kind == "u" else 1.0
    values = array.astype(np.float32) / np.float32(how.white or own)
    if values.ndim == 2:
        values = values[:, :, None]
    # an alpha channel is dropped, as for pictures
    values = values[:, :, :3]
    if channels == 3 and values.shape[2] == 1:
        values = values.repeat(3, axis=2)
    if channels == 1 and values.shape[2] == 3:
        values = values @ np.array([[0.299], [0.587], [0.114]], dtype=np.float32)  # ITU-R 601-2
    if how.resize is None and how.size in (None, values.shape[:2]) and not how.crop_first:
        return values
    planes = [_fitted(Image.fromarray(values[:, :, c]), how) for c in range(values.shape[2])]
    return np.stack([np.asarray(plane) for plane in planes], axis=2)


def _fitted(image: Image.Image, how: Preprocessing) -> Image.Image:
    """Resize and centre crop to ``how.size``, rounding as the library of the model does."""
    if how.size is None and how.resize is None:
        return image
    if how.crop_first:
        side = int(how.crop * min(image.size))
        image = _centre(image, (side, side), rounds_down=how.crop_rounds_down)
    box = _box(image.height, image.width, how)
    # a strip of one pixel by 10,000 would become huge
    if box[0] * box[1] > MAX_PIXELS:
        raise BadExampleError(
            f"too elongated: {image.width} x {image.height} pixels would become {box[1]} x {box[0]}"
        )
    if (image.height, image.width) != box:
        image = image.resize((box[1], box[0]), _filter(how.interpolation))
    return _centre(image, how.size or box, rounds_down=how.crop_rounds_down)


def _box(height: int, width: int, how: Preprocessing) -> tuple[int, int]:
    """Return the size that an image is resized to before its centre is cut out."""
    if isinstance(how.resize, int):
        return _cover(height, width, (how.resize, how.resize))
    if how.resize is not None or how.size is None:
        return how.resize or (height, width)
    if how.crop_first:
        return how.size
    box = (
        # a quotient that is whole in decimals may come out slightly below that in binary
        math.floor(how.size[0] / how.crop + 1e-6),
        math.floor(how.size[1] / how.crop + 1e-6),
    )
    return box if how.squash else _cover(height, width, box)


def _cover(height: int, width: int, box: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest size with the image's aspect ratio that covers the box."""
    if height * box[1] <= width * box[0]:
        # int(), because torchvision rounds down here
        return box[0], max(box[1], int(box[0] * width / height))
    return max(box[0], int(box[1] * height / width)), box[1]


def _centre(image: Image.Image, size: tuple[int, int], *, rounds_down: bool) -> Image.Image:
    """Return the middle of an image, with black around it if the image is smaller."""
    spare = (image.height - size[0], image.width - size[1])
    # torchvision rounds the offset of a crop to nearest; other libraries round it down
    top, left = (pixels // 2 if rounds_down else round(pixels / 2) for pixels in spare)
    return image.crop((left, top, left + size[1], top + size[0]))


def _filter(name: str) -> Image.Resampling:
    try:
        return _FILTERS[name]
    except KeyError:
        raise OptionError(unknown_name("interpolation", name, _FILTERS)) from None


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    if len(values) not in (1, channels):
        counts = "1 value for grey images" if channels == 1 else f"1 or {channels} values for RGB"
        raise OptionError(f"expected mean and std with {counts}, got {len(values)}")
    return values * channels if len(values) == 1 else values


@dataclass(frozen=True)
class PixelContent:
    """Pixels that still have to be prepared for the model.

    Attributes:
        content: a picture, or an array ``[H, W]`` or ``[H, W, C]``.
        how: the preprocessing to apply.
        is_model_ready: whether it is a float tensor or array from a user's own dataset.
    """

    content: Image.Image | NDArray[Any]
    how: Preprocessing
    is_model_ready: bool = False


def pixels_of(content: Any, how: Preprocessing, source: ExampleSource) -> PixelContent | None:
    """Return the pixels of an example, or ``None`` if it goes to the model as it is.

    Args:
        content: content of an example of ``source``.
        how: what the model expects, combined with what the user stated.
        source: says whether its tensors are already as the model takes them.

    Raises:
        DataError: floats are on the scale 0 to 255, or are normalised already.
        OptionError: a stated option cannot be applied.
    """
    if isinstance(content, Image.Image):
        return PixelContent(content, how)
    is_tensor = hasattr(content, "detach")
    if not is_tensor and not isinstance(content, np.ndarray):
        _refuse_stated(type(content).__name__, how, source)
        return None
    if not is_tensor and not source.is_model_ready:
        if content.ndim < 2:
            _refuse_stated(f"vectors {list(content.shape)}", how, source)
            return None
        if content.dtype == np.uint8 and (content.ndim == 2 or content.shape[2] in (1, 3, 4)):
            return PixelContent(picture(content), how)
        _check_scale(content, how, source, is_model_ready=False)
        return PixelContent(content, how)
    return _own_pixels(content, how, source)


def prepared(content: Any, how: Preprocessing, source: ExampleSource) -> Any:
    """Return an example as the model takes it: pixels as ``[C, H, W]`` in float32."""
    pixels = pixels_of(content, how, source)
    return content if pixels is None else model_input(pixels.content, pixels.how)


def applied_preprocessing(source: ExampleSource, how: Preprocessing) -> Preprocessing:
    """Return the preprocessing that is really applied, judged by the first readable example.

    Warns if 8-bit tensors are divided by 255, or if tensors seem to lack the model's normalisation.

    Raises:
        DataError: floats are on the scale 0 to 255, or are normalised already.
        OptionError: a stated option cannot be applied.
    """
    if source.loading.collate is not None:
        check_collated(how, source)
        return Preprocessing(origin=f"inputs as the collate_fn of {source.spec} makes them")
    content = _first_content(source)
    if content is None:
        return how
    pixels = pixels_of(content, how, source)
    if pixels is None:
        _warn_of_plain_pixels(content, how, source)
        return Preprocessing(origin=f"the inputs of {source.spec}, as they are")
    if pixels.is_model_ready:
        if how.white is None and {"mean", "std"}.isdisjoint(how.stated):
            _warn_of_plain_pixels(content, how, source)
        return replace(pixels.how, origin=f"{how.origin}; applied to the tensors of {source.spec}")
    is_ours = isinstance(content, Image.Image) or not source.is_model_ready
    if not is_ours and how.white is None:
        warn(
            f"the 8-bit tensors of {source.spec} are read as pixels of 0 to 255 and divided by "
            "255, as pictures are; pass white=255 to agree, or white=1 (--white) if the model does "
            "that itself"
        )
    return how


def check_collated(how: Preprocessing, source: ExampleSource) -> None:
    """Raise if options are stated for inputs that a user's own collate_fn makes.

    Raises:
        OptionError: an option is stated, and cannot be applied.
    """
    if how.stated:
        raise OptionError(
            f"{_said(how)} cannot be applied to what the collate_fn of {source.spec} makes; leave "
            "it out, or the collate_fn"
        )


def _own_pixels(content: Any, how: Preprocessing, source: ExampleSource) -> PixelContent | None:
    """Return the pixels of a tensor or array from a user's own dataset."""
    array = in_memory(content)
    first = _channels_first(array.shape, is_tensor=hasattr(content, "detach"))
    if array.dtype == np.uint8 and (first is not None or array.ndim == 2):
        return PixelContent(picture(array.transpose(1, 2, 0) if first else array), how)
    if array.dtype.kind != "f" or first is None:
        _refuse_stated(f"{array.dtype} {list(array.shape)}", how, source)
        return None
    if not how.stated:
        # A sample is enough: checking every value of every example would be another pass over
        # memory.
        middle = max(0, array.size // 2 - _SAMPLED // 2)
        some = array.reshape(-1)[middle : middle + _SAMPLED]
        _check_scale(some, _PLAIN, source, is_model_ready=True)
        return None
    stated = how.of_tensors
    _check_scale(array, stated, source, is_model_ready=True)
    return PixelContent(array.transpose(1, 2, 0) if first else array, stated, is_model_ready=True)


def _channels_first(shape: tuple[int, ...], *, is_tensor: bool) -> bool | None:
    """Return whether channels come first, or ``None`` if it is not a picture.

    If both readings fit, tensors count as channels first and arrays as channels last.
    """
    if len(shape) != 3:
        return None
    first, last = shape[0] in (1, 3), shape[2] in (1, 3, 4)
    if first and last:
        return is_tensor
    return first if first or last else None


def _check_scale(
    values: NDArray[Any], how: Preprocessing, source: ExampleSource, *, is_model_ready: bool
) -> None:
    """Raise unless floats are on the scale that will be assumed for them."""
    if values.dtype.kind != "f" or how.white is not None or not values.size:
        return
    high = float(values.max())
    if high <= 1 + _SLACK and not how.normalises:
        return
    low = float(values.min())
    # Inputs that are ready for the model may be on any scale, so only whole numbers count as bytes.
    are_bytes = (
        _BRIGHT < high <= 255 and bool((values == np.rint(values)).all())
        if is_model_ready
        else high > 2
    )
    if low >= 0 and are_bytes:
        raise DataError(
            f"floats of {source.spec} run from {low:g} to {high:g}, and white is 1 for floats; "
            "pass white=255 (--white 255) to divide by it, or white=1 if the model takes them as "
            "they are"
        )
    # No pixels in [0, 1] have a standard deviation above 0.5. A larger one may have been measured
    # on these very values.
    is_of_pixels = how.normalises and (is_model_ready or max(how.std) <= 0.5)
    if is_of_pixels and (low < -_SLACK or high > 1 + _SLACK):
        raise DataError(
            f"mean and std are for pixels in [0, 1], and floats of {source.spec} run from {low:g} "
            f"to {high:g}, as if they were normalised already; give pixels, or pass mean=0 and "
            "std=1 (--mean 0 --std 1)"
        )


def _refuse_stated(what: str, how: Preprocessing, source: ExampleSource) -> None:
    """Raise ``OptionError`` if options are stated for examples that go to the model as they are."""
    if how.stated:
        raise OptionError(
            f"{_said(how)} cannot be applied to the examples of {source.spec}, which are {what}, "
            "not pictures; leave it out"
        )


def _said(how: Preprocessing) -> str:
    return ", ".join(how.stated)


def _first_content(source: ExampleSource) -> Any:
    """Return the first readable content, or ``None`` if none of the first few can be read."""
    positions = range(_LOOKED_AT if source.is_stream else min(_LOOKED_AT, len(source)))
    for position in positions:
        try:
            return source[position].content
        except BadExampleError:
            continue
        except IndexError:  # the stream has ended
            break
    return None


def _warn_of_plain_pixels(content: Any, how: Preprocessing, source: ExampleSource) -> None:
    """Warn if tensors that go to the model as they are were probably not normalised.

    That is likely if they lie in [0, 1] and the model subtracts a mean, or if they run up to 255.
    Floats that are not whole numbers may also be on any other scale, so they only cause a warning.
    """
    if not isinstance(content, np.ndarray) and not hasattr(content, "detach"):
        return
    array = in_memory(content)
    is_picture = _channels_first(array.shape, is_tensor=True) is not None
    if not is_picture or array.dtype.kind != "f" or not array.size:
        return
    low, high = float(array.min()), float(array.max())
    said = ""
    if how.normalises and low >= 0 and 0 < high <= 1:
        said = (
            f"the tensors of {source.spec} lie in [0, 1] and go to the model as they are, but "
            f"it states mean {_values(how.mean)} and std {_values(how.std)}; if they are "
            "pixels, pass these as mean and std"
        )
    elif low >= 0 and _BRIGHT < high <= 255:
        said = (
            f"floats of {source.spec} run from {low:g} to {high:g} and go to the model as they "
            "are; if they are pixels of 0 to 255, pass white=255 (--white 255), and white=1 to "
            "agree"
        )
    if said:
        warn(said)


def _values(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
