"""One decoded example, and what every source of examples can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Example:
    """One decoded example.

    Attributes:
        id: path relative to the folder, key, or position as text.
        label: class index.
        content: an upright RGB or grey ``PIL.Image``, a numpy array, or whatever a user's own
            dataset yields.
    """

    id: str
    label: int
    content: Any


def id_at(ids: Any, index: int) -> str:
    """The stored id at a position as text; the position itself where none are stored."""
    if ids is None:
        return str(index)
    value = ids[index]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class ExampleSource(Protocol):
    """Labelled examples by position; may be sent to loader workers.

    Attributes:
        spec: as the user named it; the class name of a Python object.
        classes: names, position = label; empty where a user's dataset does not tell.
    """

    spec: str
    classes: tuple[str, ...]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example:
        """The decoded example; ``BadExampleError`` where it cannot be read."""
        ...

    def id_of(self, index: int) -> str:
        """Name of the example, without decoding it."""
        ...

    def label_of(self, index: int) -> int:
        """Label of the example, without decoding it where the source can."""
        ...

    def fingerprint(self) -> str:
        """SHA-256 that changes when the data does, without reading all of it."""
        ...
