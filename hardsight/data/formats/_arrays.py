"""Arrays of examples: images or vectors in ``.npz`` and ``.npy`` files, idx files and memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from hardsight.data.formats._stored import MemoryArray, StoredArray
from hardsight.data.pixels import eight_bit, picture
from hardsight.data.source import (
    HUMAN_COUNTS,
    Example,
    ExampleSource,
    Fingerprint,
    check_lengths,
    class_indices,
    id_at,
    row_marks,
)
from hardsight.errors import DataError, ShapeError, UnknownPartError


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
        check_lengths(spec, "images", examples.shape, labels=self.labels, ids=ids)

    def __len__(self) -> int:
        return self._examples.shape[0]

    def __getitem__(self, index: int) -> Example:
        array = self._examples.read(index, index + 1)[0]
        content = _content(array, channels_first=self._channels_first)
        return Example(self.id_of(index), self.label_of(index), content)

    def id_of(self, index: int) -> str:
        """Name of the example."""
        return id_at(self._ids, index)

    def stored_marks(self) -> NDArray[np.int64] | None:
        """From a few bytes of every row of the array, ``[N]``."""
        return row_marks(self._examples)

    def stored_bytes(self, index: int) -> bytes:
        """The row of the array."""
        return self._examples.read(index, index + 1).tobytes()

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
        raise UnknownPartError(f"builtin:digits has the splits train and test, got {split!r}")
    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # stored as 0..16
    position = np.arange(len(images))
    chosen = position[(position % 4 == 3) == (split == "test")] if split else position
    labels = bunch.target.astype(np.int64)
    return images[chosen], labels[chosen], [f"digits/{number:04d}" for number in chosen]


class MemorySource(ArraySource):
    """Pictures in memory, with cheap copies: other rows, other labels, other pixels.

    Args:
        images: ``[N, H, W]`` or ``[N, H, W, 3]``, uint8.
        labels: one per picture, in any form that :func:`class_indices` takes.
        classes: names, position = label.
        spec: what they are called in messages and results.
        ids: one per picture; positions if there are none.
        human_counts: how many people chose each class, ``[N, C]``, if that is known.

    Raises:
        DataError: the images are not uint8, or there are none.
        ShapeError: lengths differ.
        LabelError: a label is not a class.

    Example:
        >>> dots = MemorySource(np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1], spec="dots")
        >>> len(dots.subset([0, 2])), dots.subset([0, 2]).labels.tolist()
        (2, [0, 0])
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: ArrayLike,
        *,
        classes: Sequence[str] | None = None,
        spec: str = "images in memory",
        ids: Sequence[str] | None = None,
        human_counts: NDArray[Any] | None = None,
    ) -> None:
        is_grey, is_colour = images.ndim == 3, images.ndim == 4 and images.shape[-1] == 3
        if images.dtype != np.uint8 or not (is_grey or is_colour):
            raise DataError(
                f"expected images [N, H, W] or [N, H, W, 3] of uint8, got {list(images.shape)} of "
                f"{images.dtype}"
            )
        super().__init__(spec, MemoryArray(images), labels, classes=classes, ids=ids)
        if human_counts is not None and len(human_counts) != len(images):
            raise ShapeError(
                f"expected one row of human counts per image, got {len(human_counts)} for "
                f"{len(images)} images"
            )
        self.images: NDArray[np.uint8] = images
        self.human_counts = human_counts

    def subset(self, rows: ArrayLike) -> MemorySource:
        """The pictures at ``rows``, in that order."""
        at = np.asarray(rows)
        at = at if at.size else at.astype(np.int64)  # an empty list is one of floats
        counts = None if self.human_counts is None else self.human_counts[at]
        ids = [self.id_of(int(row)) for row in np.arange(len(self))[at]]
        return self._changed(
            images=self.images[at], labels=self.labels[at], ids=ids, human_counts=counts
        )

    def relabelled(
        self, labels: ArrayLike, *, classes: tuple[str, ...] | None = None, spec: str | None = None
    ) -> MemorySource:
        """The same pictures with other labels."""
        changes = {"labels": labels, "classes": classes, "spec": spec}
        return self._changed(**{key: new for key, new in changes.items() if new is not None})

    def renumbered(
        self, labels: Sequence[int], classes: Sequence[str], *, spec: str | None = None
    ) -> MemorySource:
        """The same pictures with other numbers for their classes."""
        new = np.asarray(labels, dtype=np.int64)[self.labels]
        # what people chose is counted by the old numbers
        return self._changed(
            labels=new, classes=tuple(classes), spec=spec or self.spec, human_counts=None
        )

    def with_images(self, images: NDArray[np.uint8]) -> MemorySource:
        """Other pictures with the same labels, such as degraded ones."""
        return self._changed(images=images)

    def column(self, name: str) -> NDArray[Any] | None:
        """``human_counts``, if they are known."""
        return self.human_counts if name == HUMAN_COUNTS else None

    def fingerprint(self) -> str:
        """SHA-256 over all pixels and labels, made once: copies differ in few of them."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        mark = Fingerprint("memory").add_array(self.images).add_array(self.labels)
        return mark.add_names(self.classes).hexdigest()

    def _changed(self, **changes: Any) -> MemorySource:
        same = {
            "images": self.images,
            "labels": self.labels,
            "classes": self.classes,
            "spec": self.spec,
            "ids": self._ids,
            "human_counts": self.human_counts,
        }
        return MemorySource(**{**same, **changes})


def decoded(source: ExampleSource) -> MemorySource:
    """All pictures of a source, decoded once.

    Args:
        source: of pictures of one size, see :func:`hardsight.data.open_source`.

    Raises:
        DataError: an example is not a picture, or sizes differ.
        BadExampleError: a picture cannot be read.

    Example:
        >>> from hardsight.data import open_source
        >>> decoded(open_source("builtin:digits")).images.shape
        (1797, 8, 8)
    """
    if isinstance(source, MemorySource):
        return source
    pictures: list[NDArray[np.uint8]] = []
    for index in range(len(source)):
        content = source[index].content
        if not isinstance(content, Image.Image):
            raise DataError(
                f"expected pictures in {source.spec}, got {type(content).__name__} at {index}"
            )
        pictures.append(np.asarray(eight_bit(content)))
        if pictures[-1].shape != pictures[0].shape:
            raise DataError(
                f"expected pictures of one size and mode in {source.spec}, got "
                f"{list(pictures[0].shape)} and {list(pictures[-1].shape)} at {index}"
            )
    counts = source.column(HUMAN_COUNTS)
    return MemorySource(
        np.stack(pictures),
        source.labels,
        classes=source.classes,
        spec=source.spec,
        ids=[source.id_of(index) for index in range(len(source))],
        human_counts=None if counts is None else np.stack(list(counts)),
    )
