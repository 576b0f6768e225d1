"""Examples and classes near an example, from the embeddings that a run kept."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.run_folder import CLASS_WEIGHTS, EMBEDDINGS, NEAREST, fold_folder, open_parquet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

_PART_ROWS = 8192  # rows that are read and multiplied at once


class Neighbours:
    """Examples and classes near an example; none if the run kept no embeddings.

    Embeddings are read in parts, so they may be larger than the memory. Only the lengths of the
    rows are kept.

    Args:
        table: the table of the run.
    """

    def __init__(self, table: ScoreTable) -> None:
        self._parts, self._weights = _stored(table)
        self._starts = np.cumsum([0, *(len(part) for part in self._parts)])
        self._lengths: NDArray[np.float32] | None = None
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def has_classes(self) -> bool:
        """Whether the classes nearest to an example are known."""
        return bool(self._parts) and self._weights is not None

    def similar(self, row: int, count: int) -> list[tuple[int, float]]:
        """The rows nearest to a row and their angles in radians, nearest first.

        Rows whose embedding is zero or not finite have no angle and are left out.
        """
        own = self._unit_of(row)
        if own is None:
            return []
        lengths = self._lengths_of_rows()
        cosines = np.empty(len(lengths), np.float32)
        with np.errstate(invalid="ignore", divide="ignore"):
            for start, part in self._blocks():
                ends = slice(start, start + len(part))
                cosines[ends] = part @ own / lengths[ends]
        cosines[~np.isfinite(cosines)] = -np.inf
        cosines[row] = -np.inf
        best = np.argpartition(-cosines, min(count, len(cosines) - 1))[:count]
        near = [(int(at), self._angle(own, int(at))) for at in best if np.isfinite(cosines[at])]
        return sorted(near, key=lambda one: one[1])

    def classes(self, row: int, label: int, count: int) -> list[dict[str, Any]]:
        """The classes nearest to a row by angle, nearest first; none if weights were not kept.

        The label is always included.
        """
        own = None if self._weights is None else self._unit_of(row)
        if own is None or self._weights is None:
            return []
        order = np.argsort(-(self._weights @ own), kind="stable").tolist()
        shown = [*order[:count], *(at for at in order[count:] if at == label)]
        return [{"label": at, "angle": _angle(own, self._weights[at])} for at in shown]

    def _unit_of(self, row: int) -> NDArray[np.float32] | None:
        """The embedding of a row at length 1; ``None`` if it has no direction, or was not kept."""
        if not self._parts:
            return None
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return _unit(np.asarray(self._parts[number][row - self._starts[number]], np.float32))

    def _angle(self, own: NDArray[np.float32], row: int) -> float:
        other = self._unit_of(row)
        assert other is not None, "a row without a direction is not near to any"
        return _angle(own, other)

    def _lengths_of_rows(self) -> NDArray[np.float32]:
        with self._lock:
            if self._lengths is None:
                lengths = np.empty(int(self._starts[-1]), np.float32)
                for start, part in self._blocks():
                    lengths[start : start + len(part)] = np.sqrt(np.einsum("nd,nd->n", part, part))
                self._lengths = lengths
            return self._lengths

    def _blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """All rows, some at a time, with the number of the first."""
        for start, part in zip(self._starts.tolist(), self._parts, strict=False):
            for first in range(0, len(part), _PART_ROWS):
                block = np.asarray(part[first : first + _PART_ROWS], np.float32)
                yield start + first, block


class NearestClasses:
    """The classes nearest to suspect examples, as stored by a scoring run.

    Args:
        table: the table of the run. For a run by folds, the classes come from the folder of each
            fold.
    """

    def __init__(self, table: ScoreTable) -> None:
        self._run = None if table.path is None else table.path.absolute().parent
        self._files: dict[int, _KeptClasses] = {}

    def __bool__(self) -> bool:
        return any(self._file(fold).is_file() for fold in (0, 1)) if self._run else False

    def of(self, index: int, fold: int = 0) -> list[dict[str, Any]]:
        """Classes and their angles to an example, nearest first; empty if they were not kept.

        Args:
            index: position of the example in its data.
            fold: fold of the example; 0 if the run has no folds.
        """
        if not self:
            return []
        if fold not in self._files:
            self._files[fold] = _KeptClasses(self._file(fold))
        return self._files[fold].of(index)

    def _file(self, fold: int) -> Path:
        assert self._run is not None
        return (fold_folder(self._run, fold) / "scores" if fold else self._run) / NEAREST


class _KeptClasses:
    """One file with nearest classes, of which one group of rows is read at a time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._index: NDArray[np.int64] | None = None
        self._starts = np.zeros(1, np.int64)
        self._group: tuple[int, NDArray[Any], NDArray[Any]] | None = None  # the last one read
        self._lock = threading.Lock()

    def of(self, index: int) -> list[dict[str, Any]]:
        with self._lock:
            try:
                return self._read(index)
            except (OSError, KeyError, ValueError, pa.ArrowException):
                return []  # a file that is gone or damaged must not stop the review

    def _read(self, index: int) -> list[dict[str, Any]]:
        if self._index is None:
            self._index, self._starts = self._contents()
        found = np.flatnonzero(self._index == index)
        if not len(found):
            return []
        number = int(np.searchsorted(self._starts, found[0], side="right")) - 1
        if self._group is None or self._group[0] != number:  # its other rows are likely to be next
            self._group = number, *self._rows_of(number)
        _, classes, angles = self._group
        at = int(found[0] - self._starts[number])
        pairs = zip(classes[at].tolist(), angles[at].tolist(), strict=True)
        return [{"label": label, "angle": angle} for label, angle in pairs]

    def _contents(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The index of every row, and the row at which each group of the file begins."""
        with open_parquet(self._file) as opened:
            groups = range(opened.metadata.num_row_groups)
            counts = [opened.metadata.row_group(at).num_rows for at in groups]
            stored = opened.read(["index"]).column("index").combine_chunks()
        index: NDArray[Any] = np.from_dlpack(stored)
        return index, np.cumsum([0, *counts])

    def _rows_of(self, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Classes and angles of a group of rows."""
        with open_parquet(self._file) as opened:
            rows = opened.read_row_group(number, columns=["classes", "angles"])
        columns = (rows.column(name).combine_chunks() for name in ("classes", "angles"))
        # to_numpy would make pyarrow import pandas
        classes, angles = (
            np.from_dlpack(column.flatten()).reshape(len(rows), -1) for column in columns
        )
        return classes, angles


def _stored(table: ScoreTable) -> tuple[list[NDArray[Any]], NDArray[np.float32] | None]:
    """Embeddings and class weights stored with a table, if their sizes match its rows."""
    if table.path is None:
        return [], None
    folder = table.path.absolute().parent / EMBEDDINGS
    found = [_array(file) for file in sorted(folder.glob("[0-9]*.npy"))]
    parts = [part for part in found if part is not None]
    widths = {part.shape[1] for part in parts}
    if len(widths) != 1 or len(parts) < len(found) or sum(map(len, parts)) != len(table):
        return [], None
    weights = _array(folder / CLASS_WEIGHTS)
    if weights is None or weights.shape[1] not in widths:
        return parts, None
    return parts, _units(np.asarray(weights, np.float32))


def _array(file: Path) -> NDArray[Any] | None:
    """The matrix in a file, mapped into memory; ``None`` if it cannot be read."""
    try:
        found: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    return found if found.ndim == 2 and found.dtype.kind == "f" else None


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32] | None:
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if np.isfinite(length) and length > 0 else None


def _units(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _angle(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """The angle between two unit vectors; unlike ``arccos``, exact even if it is close to 0."""
    apart, together = np.linalg.norm(first - second), np.linalg.norm(first + second)
    return float(2 * np.arctan2(apart, together))
