"""From a decoded picture to the array a model is fed: pillow and numpy only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from hardsight.data.pixels._images import MAX_PIXELS, eight_bit
from hardsight.errors import BadExampleError, OptionError
from hardsight.registry import unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.preprocessing import Preprocessing

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}


def model_input(content: Image.Image | NDArray[Any], how: Preprocessing) -> NDArray[np.float32]:
    r"""One picture as a model wants it.

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
    channels = _channels(how)
    if isinstance(content, Image.Image):
        image = eight_bit(content)
        mode = {None: image.mode, 1: "L", 3: "RGB"}[channels]
        if image.mode != mode:
            image = image.convert(mode)
        pixels, white = np.asarray(_fitted(image, how)), how.white or 255.0
    else:
        pixels, white = _array_pixels(content, how, channels), 1.0
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    planes = planes[::-1] if how.bgr else planes
    values = np.empty(planes.shape, dtype=np.float32)
    means, stds = _per_channel(how.mean, len(planes)), _per_channel(how.std, len(planes))
    for plane, value, mean, std in zip(planes, values, means, stds, strict=True):
        # one plane at a time: several times quicker than broadcasting over strided channels
        np.multiply(plane, np.float32(1 / (white * std)), out=value)
        value -= np.float32(mean / std)
    return values


def _channels(how: Preprocessing) -> int | None:
    if how.channels not in (None, 1, 3):
        raise OptionError(f"expected 1 or 3 channels, got {how.channels}")
    if not all(how.std):
        raise OptionError(f"expected std without zeros, got {how.std}")
    return how.channels or (3 if max(len(how.mean), len(how.std)) == 3 else None)


def _array_pixels(
    array: NDArray[Any], how: Preprocessing, channels: int | None
) -> NDArray[np.float32]:
    """16-bit and float arrays: each channel is resized on its own, in float."""
    own = float(np.iinfo(array.dtype).max) if array.dtype.kind == "u" else 1.0
    values = array.astype(np.float32) / np.float32(how.white or own)
    if values.ndim == 2:
        values = values[:, :, None]
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
    """Resize and centre crop to ``how.size``, with the rounding of the library it came from."""
    if how.size is None and how.resize is None:
        return image
    if how.crop_first:
        side = int(how.crop * min(image.size))
        image = _centre(image, (side, side), rounds_down=how.crop_rounds_down)
    box = _box(image.height, image.width, how)
    if box[0] * box[1] > MAX_PIXELS:
        raise BadExampleError(
            f"too elongated: {image.width} x {image.height} pixels would become {box[1]} x {box[0]}"
        )
    if (image.height, image.width) != box:
        image = image.resize((box[1], box[0]), _filter(how.interpolation))
    return _centre(image, how.size or box, rounds_down=how.crop_rounds_down)


def _box(height: int, width: int, how: Preprocessing) -> tuple[int, int]:
    """What an image is resized to before its centre is cut out."""
    if isinstance(how.resize, int):
        return _cover(height, width, (how.resize, how.resize))
    if how.resize is not None or how.size is None:
        return how.resize or (height, width)
    if how.crop_first:
        return how.size
    box = (
        math.floor(how.size[0] / how.crop + 1e-6),
        math.floor(how.size[1] / how.crop + 1e-6),
    )
    return box if how.squash else _cover(height, width, box)


def _cover(height: int, width: int, box: tuple[int, int]) -> tuple[int, int]:
    """Smallest size of the image's own aspect ratio that covers the box."""
    if height * box[1] <= width * box[0]:
        return box[0], max(box[1], int(box[0] * width / height))
    return max(box[0], int(box[1] * height / width)), box[1]


def _centre(image: Image.Image, size: tuple[int, int], *, rounds_down: bool) -> Image.Image:
    """The middle of an image; black around it if the image is smaller."""
    spare = (image.height - size[0], image.width - size[1])
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
