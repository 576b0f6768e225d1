"""Sources made of other sources: joined, and with other labels."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.data._files import Fingerprint
from hardsight.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from hardsight.data._example import Example, ExampleSource


class JoinedSource:
    """Several sources of the same classes, one after the other.

    Args:
        parts: in order, each with its name, which becomes the beginning of its ids.
        spec: as the user named it.

    Raises:
        DataError: the classes differ.
    """

    def __init__(self, parts: Sequence[tuple[str, ExampleSource]], *, spec: str) -> None:
        self.spec, self._names = spec, [name for name, _ in parts]
        self._parts = [part for _, part in parts]
        self.classes = self._parts[0].classes
        for name, part in parts:
            if part.classes != self.classes:
                raise DataError(
                    f"expected the classes of {self._names[0]} in every part of {spec}, got "
                    f"{', '.join(part.classes[:8])} in {name}; name parts with the same classes"
                )
        self._starts = [0, *itertools.accumulate(len(part) for part in self._parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Example:
        part, inner = self._place(index)
        return replace(self._parts[part][inner], id=self.id_of(index))

    def id_of(self, index: int) -> str:
        """Name of the part and the id in it, unless that begins with it."""
        part, inner = self._place(index)
        name, own = self._names[part], self._parts[part].id_of(inner)
        return own if own.startswith(f"{name}/") else f"{name}/{own}"

    def label_of(self, index: int) -> int:
        """Label of the example."""
        part, inner = self._place(index)
        return self._parts[part].label_of(inner)

    def fingerprint(self) -> str:
        """SHA-256 over the fingerprints of the parts."""
        mark = Fingerprint("joined").add_names(self._names)
        return mark.add(*(part.fingerprint() for part in self._parts)).hexdigest()

    def column(self, name: str) -> NDArray[Any] | None:
        """A stored column, where every part has it."""
        columns = (stored_column(part, name) for part in self._parts)
        found = [values for values in columns if values is not None]
        return np.concatenate(found) if len(found) == len(self._parts) else None

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        part = bisect.bisect_right(self._starts, index) - 1
        return part, index - self._starts[part]


class RelabelledSource:
    """A source with other numbers for its classes.

    Classes may be grouped, such as those of CIFAR-100 in 20 super-classes, or numbered as a model
    numbers them.

    Args:
        source: with its own labels.
        groups: new label of each old one, ``[C]``.
        classes: names, position = new label.
        spec: as the user named it.

    Attributes:
        source: as given.

    Raises:
        DataError: there is no new label for a class.
    """

    def __init__(
        self, source: ExampleSource, groups: Sequence[int], classes: Sequence[str], *, spec: str
    ) -> None:
        if len(source.classes) > len(groups):
            raise DataError(
                f"expected at most {len(groups)} classes in {source.spec} for {spec}, got "
                f"{len(source.classes)}"
            )
        self.spec, self.classes, self.source = spec, tuple(classes), source
        self._groups = tuple(groups)
        for name in ("dataset", "loading", "samples", "is_stream"):  # of a user's own data
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Example:
        example = self.source[index]
        return replace(example, label=self._groups[example.label])

    def id_of(self, index: int) -> str:
        """Name of the example."""
        return self.source.id_of(index)

    def label_of(self, index: int) -> int:
        """New label of the example."""
        return self._groups[self.source.label_of(index)]

    def translated(self, labels: Tensor) -> Tensor:
        """New labels of old ones, ``[B]``."""
        import torch

        new: Tensor = torch.tensor(self._groups)[labels]
        return new

    def fingerprint(self) -> str:
        """SHA-256 over the source and the new labels."""
        mark = Fingerprint("relabelled").add(self.source.fingerprint(), self._groups)
        return mark.add_names(self.classes).hexdigest()


def renumbered(source: Any, labels: Sequence[int], classes: Sequence[str]) -> Any:
    """The same examples with other numbers for their classes.

    Args:
        source: of examples or of embeddings.
        labels: new label of each old one.
        classes: names, position = new label.
    """
    own = getattr(source, "renumbered", None)
    if own is not None:
        return own(labels, classes)
    return RelabelledSource(source, labels, classes, spec=source.spec)


def stored_column(source: Any, name: str) -> NDArray[Any] | None:
    """A column stored beside the examples of a source, such as ``human_counts``, if it has it."""
    column = getattr(source, "column", None)
    found: NDArray[Any] | None = None if column is None else column(name)
    return found
