"""Examples and classes near an example, from the embeddings that a run kept."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

EMBEDDINGS = "embeddings.npy"  # a row for each row of the table, in its order
CLASS_WEIGHTS = "class_weights.npy"  # a row for each class
_PART_BYTES = 16 * 2**20  # that are read at once


class Neighbours:
    """What lies near an example; nothing if the run kept no embeddings.

    The file is read in parts, so that it may be larger than the memory; only the lengths of its
    rows are held.

    Args:
        table: of the run.
    """

    def __init__(self, table: ScoreTable) -> None:
        self._rows, self._classes = _stored(table)
        self._lengths: NDArray[np.float32] | None = None
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return self._rows is not None

    def similar(self, row: int, count: int) -> list[tuple[int, float]]:
        """The rows nearest to one by angle, with the angle in radians, nearest first.

        Rows that are not finite, or zero, have no angle and are not among them.
        """
        if self._rows is None:
            return []
        own = _unit(np.asarray(self._rows[row], np.float32))
        if own is None:
            return []
        cosines = np.empty(len(self._rows), np.float32)
        lengths = self._lengths_of_rows()
        with np.errstate(invalid="ignore", divide="ignore"):
            for start, part in self._parts():
                ends = slice(start, start + len(part))
                cosines[ends] = part @ own / lengths[ends]
        cosines[~np.isfinite(cosines)] = -np.inf
        cosines[row] = -np.inf
        best = np.argpartition(-cosines, min(count, len(cosines) - 1))[:count]
        best = best[np.isfinite(cosines[best])]
        near = [(int(at), self._angle(own, int(at))) for at in best]
        return sorted(near, key=lambda one: one[1])

    def classes(self, row: int, label: int, count: int) -> list[dict[str, Any]]:
        """The classes nearest to a row by angle, nearest first; none if weights were not kept.

        The class of its label is always among them.
        """
        if self._rows is None or self._classes is None:
            return []
        own = _unit(np.asarray(self._rows[row], np.float32))
        if own is None:
            return []
        angles = [_angle(own, weight) for weight in _units(self._classes)]
        order = np.argsort(angles, kind="stable").tolist()
        shown = [*order[:count], *(at for at in order[count:] if at == label)]
        return [{"label": at, "angle": float(angles[at])} for at in shown]

    def _angle(self, own: NDArray[np.float32], row: int) -> float:
        assert self._rows is not None
        other = _unit(np.asarray(self._rows[row], np.float32))
        return np.pi / 2 if other is None else _angle(own, other)

    def _lengths_of_rows(self) -> NDArray[np.float32]:
        with self._lock:
            if self._lengths is None:
                assert self._rows is not None
                lengths = np.empty(len(self._rows), np.float32)
                for start, part in self._parts():
                    lengths[start : start + len(part)] = np.sqrt(np.einsum("nd,nd->n", part, part))
                self._lengths = lengths
            return self._lengths

    def _parts(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        assert self._rows is not None
        step = max(1, _PART_BYTES // (4 * self._rows.shape[1]))
        for start in range(0, len(self._rows), step):
            yield start, np.asarray(self._rows[start : start + step], np.float32)


def _stored(table: ScoreTable) -> tuple[NDArray[Any] | None, NDArray[np.float32] | None]:
    if table.path is None:
        return None, None
    folder = table.path.absolute().parent
    rows = _array(folder / EMBEDDINGS)
    if rows is None or len(rows) != len(table):
        return None, None
    weights = _array(folder / CLASS_WEIGHTS)
    if weights is None or weights.shape[1] != rows.shape[1]:
        return rows, None
    return rows, np.asarray(weights, np.float32)


def _array(file: Any) -> NDArray[Any] | None:
    """A matrix in a file, mapped; ``None`` if there is none that can be read."""
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
    """Between two units; exact also where they nearly coincide, unlike the arc of a cosine."""
    apart, together = np.linalg.norm(first - second), np.linalg.norm(first + second)
    return float(2 * np.arctan2(apart, together))
