"""Pictures decoded once and kept: for many runs over the same small data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from hardsight.data.formats._arrays import ArraySource
from hardsight.data.formats._mapped import MemoryArray
from hardsight.data.pixels import eight_bit
from hardsight.data.source import HUMAN_COUNTS, Fingerprint
from hardsight.errors import DataError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from hardsight.data.source import ExampleSource


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
