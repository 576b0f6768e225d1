"""Pictures in cells of a table: encoded, decoded, as an array, or as a path."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from hardsight.data.formats._arrays import array_content
from hardsight.data.pixels import decode, decode_file
from hardsight.data.source import Example, ExampleSource, Fingerprint, class_indices, content_digest
from hardsight.errors import BadExampleError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CellSource(ExampleSource):
    """Pictures in cells: encoded, as ``{bytes, path}``, as a path, decoded, or as an array.

    Args:
        cells: one per example.
        labels: one per cell, in any form that :func:`class_indices` takes.
        spec: as the user named it.
        classes: names, position = label.
        root: folder that relative paths start from.
        columns: others, by name.
    """

    def __init__(
        self,
        cells: Sequence[Any],
        labels: Any,
        *,
        spec: str,
        classes: Sequence[str] | None,
        root: Path,
        columns: Mapping[str, NDArray[Any]],
    ) -> None:
        self.spec, self._cells, self._root, self._columns = spec, list(cells), root, columns
        where = f"the labels of {spec}"
        self.labels, self.classes = class_indices(labels, classes=classes, where=where)

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, index: int) -> Example:
        content = cell_content(self._cells[index], self._root)
        return Example(self.id_of(index), self.label_of(index), content)

    def column(self, name: str) -> NDArray[Any] | None:
        """Another column of the frame."""
        return self._columns.get(name)

    def fingerprint(self) -> str:
        """SHA-256 over labels, classes and evenly spaced cells; it misses changes between them."""
        mark = Fingerprint("cells").add_array(self.labels).add_names(self.classes)
        return mark.add(content_digest(self._cells.__getitem__, len(self))).hexdigest()


def cell_content(cell: Any, root: Path) -> Any:
    """The picture in a cell.

    Raises:
        BadExampleError: there is none, or it cannot be decoded.
    """
    if isinstance(cell, Mapping):
        stored, path = cell.get("bytes"), cell.get("path")
        cell = stored if stored is not None else path
    if cell is None or cell is np.nan:
        raise BadExampleError("no image is stored for it")
    if isinstance(cell, bytes | bytearray | memoryview):
        return decode(bytes(cell))
    if isinstance(cell, str | os.PathLike):
        return decode_file(root / cell)
    if isinstance(cell, Image.Image):
        cell.load()
        return cell
    if isinstance(cell, np.ndarray):
        return array_content(cell, "its cell")
    raise BadExampleError(f"expected a picture, got {type(cell).__name__}")
