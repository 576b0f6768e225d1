"""One decoded example, and what every source of examples can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from hardsight.data.source._view import SourceView

HUMAN_COUNTS = "human_counts"  # the column of how many people chose each class


@dataclass(frozen=True)
class Example:
    """One decoded example.

    Attributes:
        id: path relative to the folder, key, or position as text.
        label: class index.
        content: an upright RGB or grey ``PIL.Image``, a numpy array, or anything else that a
            user's own dataset yields.
    """

    id: str
    label: int
    content: Any


@dataclass(frozen=True)
class Loading:
    """How a user's DataLoader loads; ``None`` leaves the choice to the caller."""

    batch_size: int | None = None
    workers: int | None = None
    collate: Callable[[list[Any]], Any] | None = None
    worker_init: Callable[[int], None] | None = None
    context: Any = None


class ExampleSource(ABC):
    """Labelled examples by position; may be sent to loader workers.

    A source of your own derives from this class and defines ``spec``, ``classes``, ``__len__``,
    ``__getitem__`` and ``fingerprint``. Everything else has a default.

    Attributes:
        spec: as the user named it; the class name of a Python object.
        classes: names, position = label; empty if a user's dataset does not tell.
        loading: settings of the DataLoader that the data came in.
        images: all pictures, uint8 ``[N, H, W]`` or ``[N, H, W, 3]``, if they lie decoded in
            memory.
        numbers: position of every example in what the user named, ascending, ``[N]``, if that is
            not its position here: those that a DataLoader's sampler picks.
        passed_over: what lies beside the examples and is not one of them, as ``{kind: count}``.
        is_stream: reading starts at the first example every time.
        is_model_ready: tensors and arrays come as the model takes them, from a user's own dataset.
    """

    spec: str
    classes: tuple[str, ...]
    loading: Loading = Loading()
    images: NDArray[np.uint8] | None = None
    numbers: NDArray[np.int64] | None = None
    passed_over: Mapping[str, int] = {}
    is_stream: bool = False
    is_model_ready: bool = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Example:
        """The decoded example; ``BadExampleError`` if it cannot be read."""
        ...

    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 that changes when the data does, without reading all of it."""
        ...

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Class indices, ``[N]``, read once; decodes the examples only if nothing lists them."""
        return np.array([self[index].label for index in range(len(self))], dtype=np.int64)

    @property
    def named_classes(self) -> tuple[str, ...]:
        """``classes``, or numbers up to the highest label if the data does not name them.

        Raises:
            LabelError: labels are so few and so high that they must be identifiers.
        """
        from hardsight.data.source._labels import numbered_names

        return self.classes or numbered_names(self.labels, f"the labels of {self.spec}")

    def label_of(self, index: int) -> int:
        """Label of the example, without decoding it if the source can."""
        return int(self.labels[index])

    def id_of(self, index: int) -> str:
        """Name of the example, without decoding it."""
        return str(index)

    def sample(self, index: int) -> Any:
        """What a user's own dataset yields, for the ``collate_fn`` of ``loading``."""
        raise NotImplementedError(f"{type(self).__name__} has no collate_fn to feed")

    def column(self, name: str) -> NDArray[Any] | None:
        """A column stored beside the examples, such as ``human_counts``; ``None`` without it."""
        return None

    def numbered(self, positions: ArrayLike) -> NDArray[np.int64]:
        """The numbers of the examples at ``positions``; see ``numbers``."""
        at = np.asarray(positions, dtype=np.int64)
        return at if self.numbers is None else self.numbers[at]

    @property
    def span(self) -> int:
        """One more than the largest number: how many rows a list by number has."""
        return len(self) if self.numbers is None else int(self.numbers[-1]) + 1

    def position_of(self, number: int) -> int:
        """Where the example is that has this number; see ``numbers``."""
        return number if self.numbers is None else int(np.searchsorted(self.numbers, number))

    def subset(self, rows: ArrayLike) -> ExampleSource:
        """The examples at ``rows``, in that order."""
        view = self._view(rows=rows)
        view.spec = f"{len(view):,} of {self.spec}"
        return view

    def relabelled(
        self, labels: ArrayLike, *, classes: tuple[str, ...] | None = None, spec: str | None = None
    ) -> ExampleSource:
        """The same examples with other labels, ``[N]``, of the same or of other classes."""
        return self._view(labels=labels, classes=classes, spec=spec)

    def renumbered(
        self, labels: Sequence[int], classes: Sequence[str], *, spec: str | None = None
    ) -> ExampleSource:
        """The same examples with other numbers for their classes, also of a stream.

        Args:
            labels: new label of each old one, ``[C]``; several may become one.
            classes: names, position = new label.
            spec: what the result is called; as this source if ``None``.
        """
        return self._view(renumber=labels, classes=classes, spec=spec)

    def without_labels(self) -> ExampleSource:
        """The same examples with labels that nobody can read: each is -1."""
        return self._view(labels=np.full(len(self), -1))

    def _view(self, **changes: Any) -> SourceView:
        from hardsight.data.source._view import SourceView

        return SourceView([self], **changes)


def id_at(ids: Any, index: int) -> str:
    """The stored id at a position as text; the position itself if none are stored."""
    if ids is None:
        return str(index)
    value = ids[index]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
