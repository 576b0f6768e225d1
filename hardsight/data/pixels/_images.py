"""Decode image files to upright RGB or grey pictures, and make thumbnails.

Only formats that Pillow decodes by itself are opened, so that a file cannot start another program:
an EPS file would call Ghostscript.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from hardsight.errors import BadExampleError

_COMMON = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".bmp", ".dib", ".webp")
_OTHERS = (".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif")
EXTENSIONS = frozenset((*_COMMON, *_OTHERS))
_FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")
MAX_PIXELS = 100_000_000
"""Larger images, 300 MB as RGB, are refused as decompression bombs."""


def decode_file(path: str | bytes | os.PathLike[str]) -> Image.Image:
    """The picture in a file; see :func:`decode`.

    Raises:
        BadExampleError: the file cannot be opened, is not a regular file, or is not an image.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block forever
            raise BadExampleError("not a regular file")
        with open(path, "rb") as file:
            return decode(file)
    except OSError as err:
        raise BadExampleError(f"cannot be opened: {err.strerror or err}") from err


def decode(source: bytes | io.BufferedIOBase) -> Image.Image:
    """The first frame of an image, upright, as RGB or grey (``L``).

    Rotation by EXIF is applied. 16-bit values are scaled to 8 bits. 32-bit and float images have
    no fixed white: values within [0, 1] (floats), [0, 255] or [0, 65535] are read on that scale,
    others are stretched from their minimum to their maximum. An alpha channel is dropped, as in
    the usual training pipelines.

    Raises:
        BadExampleError: it is empty, truncated, not an image, or larger than ``MAX_PIXELS``.
    """
    file = io.BytesIO(source) if isinstance(source, bytes | memoryview) else source
    if not file.read(1):
        raise BadExampleError("empty: 0 bytes")
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata; real damage raises
        try:
            return _decoded(file)
        except BadExampleError:
            raise
        except UnidentifiedImageError:
            raise BadExampleError("not an image in a known format") from None
        except Image.DecompressionBombError as err:
            raise BadExampleError(f"too large: {_one_line(err)}") from err
        except Exception as err:  # decoders of damaged files raise almost anything
            raise BadExampleError(f"damaged image: {_one_line(err)}") from err


def thumbnail(content: Any, *, size: int = 96) -> bytes | None:
    r"""A thumbnail of an example as PNG or JPEG bytes.

    Args:
        content: an image, or an array or tensor that looks like one: ``[H, W]``, ``[H, W, C]`` or
            ``[C, H, W]`` with 1 or 3 channels. Floats outside [0, 1] are stretched from their
            minimum to their maximum.
        size: largest width and height in pixels; smaller images keep theirs.

    Returns:
        The smaller one of PNG and JPEG, and PNG for tiny images; ``None`` if it is not an image.

    Example:
        >>> import numpy as np
        >>> thumbnail(np.zeros((8, 8), dtype=np.uint8))[:4]
        b'\x89PNG'
        >>> thumbnail(np.zeros(512)) is None
        True
    """
    image = content if isinstance(content, Image.Image) else _picture_of(content)
    if image is None:
        return None
    image = eight_bit(image).copy()
    image.thumbnail((size, size), Image.Resampling.LANCZOS)
    png = _encoded(image, format="PNG", optimize=True)
    if max(image.size) <= 32:
        return png
    jpeg = _encoded(image, format="JPEG", quality=85)
    return min(png, jpeg, key=len)


def picture(array: NDArray[Any]) -> Image.Image:
    """An 8-bit array ``[H, W]``, ``[H, W, 1]``, ``[H, W, 3]`` or ``[H, W, 4]`` as an image."""
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(array[..., :3] if array.ndim == 3 else array))


@cache
def _formats() -> list[str]:
    Image.init()
    return [name for name in _FORMATS if name in Image.OPEN]


def _decoded(file: Any) -> Image.Image:
    image: Image.Image = Image.open(file, formats=_formats())
    if image.width * image.height > MAX_PIXELS:
        raise BadExampleError(
            f"too large: {image.width} x {image.height} pixels, the limit is {MAX_PIXELS:,}"
        )
    image.load()
    return eight_bit(_upright(image))


def _upright(image: Image.Image) -> Image.Image:
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:  # with unreadable EXIF data the orientation is unknown
        return image
    return image


def eight_bit(image: Image.Image) -> Image.Image:
    """The image as ``L`` or ``RGB``; see :func:`decode` for the scales."""
    mode = image.mode
    if mode in ("L", "RGB"):
        return image
    if mode.startswith("I;16"):
        return _from_sixteen_bits(np.asarray(image))
    if mode in ("I", "F"):
        return _from_wide_values(np.asarray(image), sixteen=image.format in ("PNG", "PPM"))
    if mode in ("1", "LA", "La"):
        return image.convert("LA").convert("L") if mode == "La" else image.convert("L")
    if mode in ("P", "PA", "RGBa"):
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def _from_sixteen_bits(values: NDArray[Any]) -> Image.Image:
    # 65535 / 257 = 255; adding 128, half of 257, rounds to the nearest value
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))


def _from_wide_values(values: NDArray[Any], *, sixteen: bool) -> Image.Image:
    finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(finite.min()), float(finite.max())
    white = 65535.0 if sixteen else _white(low, high, whole=values.dtype.kind in "iu")
    scaled = (finite - low) / max(high - low, 1e-300) if white is None else finite / white
    return Image.fromarray(np.rint(scaled * 255).astype(np.uint8))


def _white(low: float, high: float, *, whole: bool) -> float | None:
    scales = (255.0, 65535.0) if whole else (1.0, 255.0, 65535.0)
    return next((scale for scale in scales if low >= 0 and high <= scale), None)


def _picture_of(content: Any) -> Image.Image | None:
    """An image from an array or tensor that looks like one."""
    if hasattr(content, "detach"):  # a torch tensor, without importing torch
        content = content.detach().cpu()
        content = (content.float() if content.is_floating_point() else content).numpy()
    if not isinstance(content, np.ndarray):
        return None
    array = _channels_last(content)
    if array is None or not array.size or array.dtype.kind not in "biuf":
        return None
    if array.dtype != np.uint8:
        values = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        low, high = float(values.min()), float(values.max())
        white = _white(low, high, whole=True) if array.dtype.kind in "iu" else None
        if array.dtype.kind in "bf" and low >= 0 and high <= 1:
            white = 1.0
        values = (values - low) / max(high - low, 1e-300) if white is None else values / white
        array = np.rint(values * 255).astype(np.uint8)
    return picture(array)


def _channels_last(array: NDArray[Any]) -> NDArray[Any] | None:
    if array.ndim == 4 and array.shape[0] == 1:
        array = array[0]
    if array.ndim == 2:
        return array if min(array.shape) >= 4 else None
    if array.ndim != 3:
        return None
    if array.shape[0] in (1, 3) and array.shape[2] not in (1, 3, 4):
        return array.transpose(1, 2, 0)
    if array.shape[2] in (1, 3, 4):
        return array
    return array.transpose(1, 2, 0) if array.shape[0] in (1, 3) else None


def _encoded(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()


def _one_line(err: BaseException) -> str:
    text = " ".join(str(err).split()) or type(err).__name__
    return text if len(text) <= 200 else text[:197] + "..."
