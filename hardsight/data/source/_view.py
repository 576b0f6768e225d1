"""Other rows, labels or content of sources, seen as a source."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.data.source._source import HUMAN_COUNTS, Example, ExampleSource, Fingerprint, Loading
from hardsight.errors import DataError, ShapeError


class SourceView(ExampleSource):
    """Some or all examples of one or more sources, maybe with other labels or other content.

    A view copies nothing: it keeps rows and labels, and reads from its sources.

    Args:
        parts: of the same classes, seen one after the other.
        rows: positions to keep, counted over all parts, in the order in which they are to come.
        labels: of the rows kept; those of the parts if ``None``.
        renumber: new label of each label of the parts, ``[C]``, instead of ``labels``.
        classes: names for these, position = label; those of the parts if ``None``.
        spec: what the view is called; as the first part if ``None``.
        names: of the parts; each begins the ids of its part.

    Attributes:
        parts: as given.
        renumber: as given.

    Raises:
        DataError: the classes of the parts differ, or one of them has no new number.
        ShapeError: not one label per example.
    """

    def __init__(
        self,
        parts: Sequence[ExampleSource],
        *,
        rows: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        renumber: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
        spec: str | None = None,
        names: Sequence[str] = (),
    ) -> None:
        first = parts[0]
        self.spec = first.spec if spec is None else spec
        self.classes = first.classes if classes is None else tuple(classes)
        self.parts, self._names = tuple(parts), tuple(names)
        for name, part in zip(names, parts, strict=False):
            if part.classes != first.classes:
                raise DataError(
                    f"expected the classes of {names[0]} in every part of {self.spec}, got "
                    f"{', '.join(part.classes[:8])} in {name}; name parts with the same classes"
                )
        self.renumber = None if renumber is None else np.array(renumber, dtype=np.int64)
        if self.renumber is not None and len(self.renumber) < len(first.classes):
            raise DataError(
                f"expected a new label for each of the {len(first.classes)} classes of "
                f"{self.spec}, got {len(self.renumber)}"
            )
        # through arange, so that negative positions and masks mean what they mean to numpy
        self._rows = None if rows is None else np.arange(self._starts[-1])[_indices(rows)]
        self._labels = None if labels is None else np.array(labels, dtype=np.int64)
        if self._labels is not None and self._labels.shape != (len(self),):
            raise ShapeError(
                f"expected one label for each of the {len(self)} examples of {self.spec}, got "
                f"shape {list(self._labels.shape)}"
            )
        self._take_traits()

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Position of the first example of each part, and behind the last one."""
        return np.array([0, *itertools.accumulate(len(part) for part in self.parts)])

    def use_parts(self, parts: Sequence[ExampleSource]) -> None:
        """Look at other sources of the same examples, such as one with decoded pictures."""
        self.parts = tuple(parts)
        self._take_traits()

    def _take_traits(self) -> None:
        """What holds of the parts and still holds of the view."""
        # of several parts most traits are not those of the whole
        only = self.parts[0] if len(self.parts) == 1 else None
        self.is_model_ready = any(part.is_model_ready for part in self.parts)
        self.is_stream = any(part.is_stream for part in self.parts)
        self.stored_form, self.kind = self.parts[0].stored_form, self.parts[0].kind
        self.passed_over = only.passed_over if only is not None else {}
        if only is None:
            return
        if only.shown is not None:
            self.shown = only.shown if self._rows is None else only.shown.subset(self._rows)
        self.patches = only.patches
        self.whole = only.whole
        # labels that were replaced must not come back through a user's collate_fn
        if self._labels is None:  # a user's collate_fn would bring the labels back
            self.loading = only.loading
        else:
            self.loading = Loading(only.loading.batch_size, only.loading.workers)
        if self._rows is None:
            self.images, self.numbers = only.images, only.numbers
        # only rows in ascending order have numbers by which they can be found again
        elif (np.diff(self._rows) > 0).all():
            self.numbers = self._rows if only.numbers is None else only.numbers[self._rows]

    def __len__(self) -> int:
        return int(self._starts[-1]) if self._rows is None else len(self._rows)

    def __getitem__(self, index: int) -> Example:
        part, inner = self._place(index)
        example = self.parts[part][inner]
        # labels of a view decide over those of its sources
        label = self._renumbered(example.label) if self._labels is None else self.label_of(index)
        return Example(self.id_of(index), label, self.content(example.content, index))

    def content(self, content: Any, index: int) -> Any:
        """The content that the view shows; a kind of view that changes it says how here."""
        return content

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Class indices, ``[N]``."""
        if self._labels is not None:
            return self._labels
        whole = np.concatenate([part.labels for part in self.parts])
        whole = whole if self.renumber is None else self.renumber[whole]
        return whole if self._rows is None else whole[self._rows]

    def label_of(self, index: int) -> int:
        """Label of the example; asks its source alone."""
        if self._labels is not None:
            return int(self._labels[index])
        part, inner = self._place(index)
        return self._renumbered(self.parts[part].label_of(inner))

    def id_of(self, index: int) -> str:
        """Id in its source, behind the name of the part unless it begins with it."""
        part, inner = self._place(index)
        own = self.parts[part].id_of(inner)
        # parts may number their files alike
        begin = f"{self._names[part]}/" if self._names else ""
        return own if own.startswith(begin) else begin + own

    def sample(self, index: int) -> Any:
        """What the user's own dataset yields."""
        part, inner = self._place(index)
        return self.parts[part].sample(inner)

    def stored_marks(self) -> NDArray[np.int64] | None:
        """As the parts have them, unless the view shows other content than they do."""
        # a view that changes pictures stores none of them
        if type(self).content is not SourceView.content:
            return None
        marks = [known for part in self.parts if (known := part.stored_marks()) is not None]
        if len(marks) < len(self.parts) or len({part.stored_form for part in self.parts}) > 1:
            return None
        whole = np.concatenate(marks)
        return whole if self._rows is None else whole[self._rows]

    def stored_bytes(self, index: int) -> bytes:
        """As its part has it."""
        part, inner = self._place(index)
        return self.parts[part].stored_bytes(inner)

    def column(self, name: str) -> NDArray[Any] | None:
        """A stored column, if every part has it; counts per class only by the parts' classes."""
        # counts per class would be read by the wrong classes
        if name == HUMAN_COUNTS and self.classes != self.parts[0].classes:
            return None
        columns = [values for part in self.parts if (values := part.column(name)) is not None]
        if len(columns) < len(self.parts):
            return None
        whole = np.concatenate(columns)
        return whole if self._rows is None else whole[self._rows]

    @property
    def column_names(self) -> tuple[str, ...]:
        """Those of the first part that every part has."""
        known = [set(part.column_names) for part in self.parts]
        return tuple(name for name in self.parts[0].column_names if all(name in k for k in known))

    def fingerprint(self) -> str:
        """SHA-256 over the sources and all that the view changes."""
        mark = Fingerprint("view").add_names(self._names).add_names(self.classes)
        mark.add(*(part.fingerprint() for part in self.parts))
        for array in (self._rows, self._labels, self.renumber):
            if array is None:
                mark.add("as they are")
            else:
                mark.add_array(array)
        return mark.add(*self._facts()).hexdigest()

    def _facts(self) -> tuple[object, ...]:
        """What decides about changed content, for the fingerprint."""
        return ()

    def _renumbered(self, label: int) -> int:
        return label if self.renumber is None else int(self.renumber[label])

    def _place(self, index: int) -> tuple[int, int]:
        """Number of the part, and the position in it."""
        if self.is_stream:  # of unknown length
            return 0, index
        if not 0 <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        row = index if self._rows is None else int(self._rows[index])
        # starts of empty parts are equal: the last of them is the one that holds the row
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        return part, row - int(self._starts[part])


def _indices(rows: ArrayLike) -> NDArray[Any]:
    at = np.asarray(rows)
    return at if at.size else at.astype(np.int64)  # an empty list is one of floats
