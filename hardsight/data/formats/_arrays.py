"""Arrays of examples: images or vectors in ``.npz`` and ``.npy`` files, idx files and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.data.pixels import picture
from hardsight.data.source import Example, ExampleSource, Fingerprint, class_indices, id_at
from hardsight.errors import DataError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.data.formats._mapped import StoredArray


class ArraySource(ExampleSource):
    """Examples in one array, first dimension = example.

    Images are ``[N, H, W]``, ``[N, H, W, C]`` or ``[N, C, H, W]``: uint8 becomes pictures; uint16
    and floats stay arrays ``[H, W(, C)]``, floats on the scale ``[0, 1]``. Rows of ``[N, D]`` are
    vectors for models of such inputs.

    Args:
        spec: as the user named it.
        examples: the array.
        labels: one per example.
        classes: names, position = label.
        ids: one per example; positions if there are none.

    Raises:
        ShapeError: lengths differ, or the shape is not that of an image.
        DataError: the dtype has no defined white, or there are no examples.
    """

    def __init__(
        self,
        spec: str,
        examples: StoredArray,
        labels: Any,
        *,
        classes: Sequence[str] | None = None,
        ids: Any = None,
    ) -> None:
        self.spec, self._examples, self._ids = spec, examples, ids
        if not examples.shape or not examples.shape[0]:
            raise DataError(f"no examples in {spec}: the array is {list(examples.shape)}")
        self._channels_first = _channels_first(examples.shape, spec)
        _check_dtype(examples.dtype, examples.shape, spec)
        self.labels, self.classes = class_indices(
            labels, classes=classes, where=f"the labels of {spec}"
        )
        for name, values in (("labels", self.labels), ("ids", ids)):
            if values is not None and len(values) != len(self):
                raise ShapeError(
                    f"expected one row per example, got images {list(examples.shape)}, {name} "
                    f"[{len(values)}] in {spec}; pass the {name} of these images"
                )

    def __len__(self) -> int:
        return self._examples.shape[0]

    def __getitem__(self, index: int) -> Example:
        array = self._examples.read(index, index + 1)[0]
        content = _content(array, channels_first=self._channels_first)
        return Example(self.id_of(index), self.label_of(index), content)

    def id_of(self, index: int) -> str:
        """Name of the example."""
        return id_at(self._ids, index)

    def fingerprint(self) -> str:
        """SHA-256 over shape, labels and evenly spaced examples."""
        mark = Fingerprint("arrays")
        self._examples.add_to(mark)
        return mark.add_array(self.labels).add_names(self.classes).hexdigest()


def array_content(array: NDArray[Any], where: str) -> Any:
    """One example in an array of its own: a picture if it is 8-bit, else the array.

    Raises:
        ShapeError: the shape is not that of an image or a vector.
        DataError: the dtype has no defined white.
    """
    shape = (1, *array.shape)
    _check_dtype(array.dtype, shape, where)
    return _content(array, channels_first=_channels_first(shape, where))


def _content(array: NDArray[Any], *, channels_first: bool) -> Any:
    if channels_first:
        array = array.transpose(1, 2, 0)
    if array.dtype == np.uint8 and array.ndim > 1:
        return picture(array)
    # models compute in float32
    return array.astype(np.float32 if array.dtype.kind == "f" else array.dtype)


def _check_dtype(dtype: np.dtype[Any], shape: tuple[int, ...], spec: str) -> None:
    if len(shape) > 2 and not (dtype in (np.uint8, np.uint16) or dtype.kind == "f"):
        raise DataError(
            f"expected images of uint8, uint16 or floats in [0, 1], got {dtype} in {spec}; "
            "convert them, e.g. images.astype('uint8')"
        )


def _channels_first(shape: tuple[int, ...], spec: str) -> bool:
    if len(shape) in (2, 3):
        return False
    if len(shape) == 4:
        first, last = shape[1] in (1, 3), shape[3] in (1, 3, 4)
        if first != last:
            return first
    raise ShapeError(
        f"expected images [N, H, W], [N, H, W, C] or [N, C, H, W] with 1 or 3 channels, got "
        f"{list(shape)} in {spec}"
    )


def digits(split: str | None) -> tuple[NDArray[np.uint8], NDArray[np.int64], list[str]]:
    """Scikit-learn's 8x8 digits: images, labels, ids.

    Every fourth digit is the test split; neighbours in the file come from one writer, so both
    splits hold every writer.

    Args:
        split: ``"train"``, ``"test"``, or ``None`` for all 1,797.
    """
    from sklearn.datasets import load_digits

    if split not in (None, "train", "test"):
        raise DataError(f"builtin:digits has the splits train and test, got {split!r}")
    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # stored as 0..16
    position = np.arange(len(images))
    chosen = position[(position % 4 == 3) == (split == "test")] if split else position
    labels = bunch.target.astype(np.int64)
    return images[chosen], labels[chosen], [f"digits/{number:04d}" for number in chosen]
