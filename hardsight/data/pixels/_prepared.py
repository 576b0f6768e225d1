"""What is done to an example before a model sees it: one rule for every kind of data.

================================================  =============================================
pictures, and arrays of a file or of memory       all of the preprocessing
8-bit tensors and arrays of a user's own dataset  the same: they are pixels of 0 to 255
float tensors and arrays of such a dataset        what the user stated herself, else nothing
vectors, text, anything else                      nothing; what is stated is refused
================================================  =============================================

Floats on the scale 0 to 255 are refused, whichever way they come, unless ``white`` is stated.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from hardsight.data.pixels._images import picture
from hardsight.data.pixels._pixels import model_input
from hardsight.data.source import in_memory
from hardsight.errors import BadExampleError, DataError, HardsightWarning, OptionError
from hardsight.preprocessing import Preprocessing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.data.source import ExampleSource

_SLACK = 0.1  # how far resizing and noise may carry a pixel out of [0, 1]
_LOOKED_AT = 64  # examples, in search of one that can be read
_SAMPLED = 1024  # values of an example
_BRIGHT = 32  # a byte above this is in every picture but the darkest
_PLAIN = Preprocessing()


@dataclass(frozen=True)
class PixelContent:
    """Pixels that are ours to prepare.

    Attributes:
        content: a picture, or an array ``[H, W]`` or ``[H, W, C]``.
        how: what is to be done to it.
        is_model_ready: it is a float tensor or array of a user's own dataset.
    """

    content: Image.Image | NDArray[Any]
    how: Preprocessing
    is_model_ready: bool = False

    @property
    def is_eight_bit(self) -> bool:
        """Whether values are bytes."""
        return isinstance(self.content, Image.Image) or self.content.dtype == np.uint8


def pixels_of(content: Any, how: Preprocessing, source: ExampleSource) -> PixelContent | None:
    """The pixels of an example; ``None`` if it goes to the model as it is.

    Args:
        content: of an example of ``source``.
        how: what the model wants, and what the user stated.
        source: says whether tensors come as the model takes them.

    Raises:
        DataError: floats are on the scale 0 to 255, or normalised already.
        OptionError: something is stated that cannot be applied.
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
        _check_scale(content, how, source, is_model_ready=False)
        return PixelContent(content, how)
    return _own_pixels(content, how, source)


def prepared(content: Any, how: Preprocessing, source: ExampleSource) -> Any:
    """An example as the model takes it: pixels as ``[C, H, W]`` in float32."""
    pixels = pixels_of(content, how, source)
    return content if pixels is None else model_input(pixels.content, pixels.how)


def applied_preprocessing(source: ExampleSource, how: Preprocessing) -> Preprocessing:
    """What is really done to the examples of a source, for the record; from the first readable one.

    Warns if 8-bit tensors are divided by 255, or if tensors look as if they lacked the model's
    normalisation.

    Raises:
        DataError: floats are on the scale 0 to 255, or normalised already.
        OptionError: something is stated that cannot be applied.
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
        return replace(pixels.how, origin=f"{how.origin}; applied to the tensors of {source.spec}")
    is_ours = isinstance(content, Image.Image) or not source.is_model_ready
    if not is_ours and how.white is None:
        warnings.warn(
            f"the 8-bit tensors of {source.spec} are read as pixels of 0 to 255 and divided by "
            "255, as pictures are; pass white=255 to agree, or white=1 (--white) if the model does "
            "that itself",
            HardsightWarning,
            stacklevel=2,
        )
    return how


def check_collated(how: Preprocessing, source: ExampleSource) -> None:
    """Raise if something is stated about inputs that a user's own collate_fn makes.

    Raises:
        OptionError: it cannot be applied.
    """
    if how.stated:
        raise OptionError(
            f"{_said(how)} cannot be applied to what the collate_fn of {source.spec} makes; leave "
            "it out, or the collate_fn"
        )


def _own_pixels(content: Any, how: Preprocessing, source: ExampleSource) -> PixelContent | None:
    """A tensor or array of a user's own dataset."""
    array = in_memory(content)
    first = _channels_first(array.shape, is_tensor=hasattr(content, "detach"))
    if array.dtype == np.uint8 and (first is not None or array.ndim == 2):
        return PixelContent(picture(array.transpose(1, 2, 0) if first else array), how)
    if array.dtype.kind != "f" or first is None:
        _refuse_stated(f"{array.dtype} {list(array.shape)}", how, source)
        return None
    if not how.stated:
        # some of its values are enough: all of every example would be one more pass over memory
        middle = max(0, array.size // 2 - _SAMPLED // 2)
        some = array.reshape(-1)[middle : middle + _SAMPLED]
        _check_scale(some, _PLAIN, source, is_model_ready=True)
        return None
    stated = how.of_tensors
    _check_scale(array, stated, source, is_model_ready=True)
    return PixelContent(array.transpose(1, 2, 0) if first else array, stated, is_model_ready=True)


def _channels_first(shape: tuple[int, ...], *, is_tensor: bool) -> bool | None:
    """Where the channels of a picture are; ``None`` if it is none. If both fit, as is usual."""
    if len(shape) != 3:
        return None
    first, last = shape[0] in (1, 3), shape[2] in (1, 3, 4)
    if first and last:
        return is_tensor
    return first if first or last else None


def _check_scale(
    values: NDArray[Any], how: Preprocessing, source: ExampleSource, *, is_model_ready: bool
) -> None:
    """Raise unless floats are on the scale that will be taken for theirs."""
    if values.dtype.kind != "f" or how.white is not None or not values.size:
        return
    high = float(values.max())
    if high <= 1 + _SLACK and not how.normalises:
        return
    low = float(values.min())
    # what comes as the model takes it may be on any scale, and only bytes are whole numbers
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
    # a deviation above 0.5 is not one of pixels: it may have been measured on these very values
    is_of_pixels = how.normalises and (is_model_ready or max(how.std) <= 0.5)
    if is_of_pixels and (low < -_SLACK or high > 1 + _SLACK):
        raise DataError(
            f"mean and std are for pixels in [0, 1], and floats of {source.spec} run from {low:g} "
            f"to {high:g}, as if they were normalised already; give pixels, or pass mean=0 and "
            "std=1 (--mean 0 --std 1)"
        )


def _refuse_stated(what: str, how: Preprocessing, source: ExampleSource) -> None:
    """Raise ``OptionError`` if something is stated about examples that go to the model as is."""
    if how.stated:
        raise OptionError(
            f"{_said(how)} cannot be applied to the examples of {source.spec}, which are {what}, "
            "not pictures; leave it out"
        )


def _said(how: Preprocessing) -> str:
    return ", ".join(how.stated)


def _first_content(source: ExampleSource) -> Any:
    """The first content that can be read; ``None`` if none of the first few can."""
    positions = range(_LOOKED_AT if source.is_stream else min(_LOOKED_AT, len(source)))
    for position in positions:
        try:
            return source[position].content
        except BadExampleError:
            continue
        except IndexError:  # a stream that ends
            break
    return None


def _warn_of_plain_pixels(content: Any, how: Preprocessing, source: ExampleSource) -> None:
    """Tensors in [0, 1] for a model that subtracts a mean were probably not normalised."""
    is_array = isinstance(content, np.ndarray) or hasattr(content, "detach")
    if not how.normalises or not is_array:
        return
    array = in_memory(content)
    is_picture = _channels_first(array.shape, is_tensor=True) is not None
    if is_picture and array.dtype.kind == "f" and array.size:
        low, high = float(array.min()), float(array.max())
        if low >= 0 and 0 < high <= 1:
            warnings.warn(
                f"the tensors of {source.spec} lie in [0, 1] and go to the model as they are, but "
                f"it states mean {_values(how.mean)} and std {_values(how.std)}; if they are "
                "pixels, pass these as mean and std",
                HardsightWarning,
                stacklevel=3,
            )


def _values(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
