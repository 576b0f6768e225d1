"""Read the rows of a large matrix a tile at a time.

The size of tiles depends only on the number of classes, not on the machine, the number of threads
or where the matrix is. So every pass over the same rows gives the same numbers, and a matrix on
disk gives the same labels as in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight.errors import LabelError, NonFiniteError, ProbabilityError, ShapeError
from hardsight.geometry import unit_vectors, widen
from hardsight.scores import angular_visual_confidence

Matrix: TypeAlias = "Tensor | NDArray[Any]"
Floats: TypeAlias = "NDArray[np.floating[Any]]"
Integers: TypeAlias = "NDArray[np.integer[Any]]"

_TILE_ENTRIES = 1 << 19  # 2 MiB of float32: stays in the cache through several passes
_LEAST_ROWS = 16
_TILES_AT_ONCE = 16  # per task of a thread


@dataclass(frozen=True)
class Probabilities:
    """Rows of probabilities ``[N, C]``, checked on request."""

    source: Matrix
    num_rows: int
    num_classes: int
    tolerance: float
    parallel: bool = True  # several threads may read tiles at the same time

    def tile(self, start: int, stop: int) -> Floats:
        """Rows from ``start`` to ``stop``, as they are."""
        return to_numpy(self.source[start:stop])

    def picked(self, rows: Integers) -> Floats:
        """A copy of some rows, which must be in ascending order."""
        if isinstance(self.source, Tensor):
            part = self.source[torch.from_numpy(rows).to(self.source.device)]
            return to_numpy(part)
        return to_numpy(self.source.take(rows, axis=0))

    def largest(self, tile: Floats, start: int) -> tuple[Integers, Floats]:
        """Column and value of the largest entry of each row of a tile; the first of equal ones.

        Raises:
            ProbabilityError: a row is not a distribution.
            NonFiniteError: a row holds NaN.
        """
        # the bits of floats, read as unsigned integers, keep the order of numbers from +0 on; -0,
        # negative numbers and NaN are larger than all of them. So argmax also finds invalid
        # entries, without another pass over the tile
        best = tile.view(f"u{tile.itemsize}").argmax(axis=1)
        largest = entries(tile, best)
        sums = np.einsum("ij->i", tile)  # twice as fast as tile.sum(axis=1)
        sums_fit = np.abs(sums - 1).max() <= self.tolerance  # False if it is NaN
        if sums_fit and largest.min() > 0:
            return best, largest
        if not (sums_fit and tile.min() >= 0):
            _explain(tile, start, self.tolerance)
        best = tile.argmax(axis=1)
        return best, entries(tile, best)


@dataclass(frozen=True)
class AngularConfidences:
    """Rows of angular visual confidence, computed on request."""

    embeddings: Matrix
    unit_weights: Tensor
    num_rows: int
    num_classes: int
    parallel: bool = False  # the matrix product uses all threads itself

    def tile(self, start: int, stop: int) -> Floats:
        """Compute rows from ``start`` to ``stop``.

        Raises:
            NonFiniteError: an entry is NaN.
        """
        part = self.embeddings[start:stop]
        part = as_tensor("embeddings", part).detach().to(self.unit_weights.device)
        tile = to_numpy(angular_visual_confidence(part, self.unit_weights))
        if np.isnan(tile).any():
            row = start + int(np.isnan(tile).any(axis=1).argmax())
            raise NonFiniteError(
                f"embeddings or class_weights hold NaN or infinity (see row {row:,})"
            )
        return tile


Rows: TypeAlias = Probabilities | AngularConfidences


def as_matrix(values: Matrix | Sequence[Any]) -> Matrix:
    """Tensors and arrays as they are; anything else, such as a list, as an array."""
    return values if isinstance(values, Tensor | np.ndarray) else np.asarray(values)


def as_tensor(name: str, values: Matrix | Sequence[Any]) -> Tensor:
    """Tensors as they are; arrays and lists as new tensors.

    Raises:
        ShapeError: the dtype does not exist in torch.
    """
    array = as_matrix(values)
    if isinstance(array, Tensor):
        return array
    check_numbers(name, array)
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def as_labels(name: str, labels: Matrix | Sequence[Any]) -> Tensor:
    """Class indices ``[N]`` as int64, on the CPU.

    Raises:
        ShapeError: not a vector.
        LabelError: not integers.
    """
    indices = as_tensor(name, labels)
    if indices.ndim != 1:
        raise ShapeError(f"expected {name} [N], got {list(indices.shape)}")
    if len(indices) and (indices.is_floating_point() or indices.is_complex()):
        raise LabelError(f"expected {name} to be integers, got {indices.dtype}")
    return indices.detach().cpu().long()


def check_numbers(name: str, values: Matrix) -> None:
    """Raise if torch has no dtype for an array, such as for float128.

    Raises:
        ShapeError: says what to convert it to.
    """
    if isinstance(values, Tensor) or (values.dtype.kind in "fiub" and values.dtype.itemsize <= 8):
        return
    raise ShapeError(
        f"expected {name} to be numbers of at most 64 bits, got {values.dtype}; convert them, for "
        f"example with {name}.astype('float64')"
    )


def probabilities(probs: Matrix) -> Probabilities:
    """``probs`` ``[N, C]`` as rows.

    Raises:
        ShapeError: not a floating-point matrix, or one without rows or classes.
    """
    _check_matrix("probs", probs)
    # half-precision probabilities have a relative error of up to 2^-9, and so has their sum
    narrow = np.dtype(np.float16) if isinstance(probs, np.ndarray) else torch.float16
    coarse = probs.dtype in (narrow, torch.bfloat16)
    return Probabilities(probs, probs.shape[0], probs.shape[1], 1e-2 if coarse else 1e-3)


def angular_confidences(
    embeddings: Matrix | None, class_weights: Matrix | None, probs: Matrix, rule: str
) -> AngularConfidences:
    """Angular visual confidence ``[N, C]`` of the examples of ``probs``, as rows.

    Raises:
        ShapeError: a tensor is missing, or shapes do not fit.
    """
    if embeddings is None or class_weights is None:
        missing = [
            name
            for name, tensor in (("embeddings", embeddings), ("class_weights", class_weights))
            if tensor is None
        ]
        raise ShapeError(f"rule {rule!r} needs angles: pass {' and '.join(missing)} too")
    embeddings, class_weights = as_matrix(embeddings), as_matrix(class_weights)
    _check_matrix("embeddings", embeddings)
    _check_matrix("class_weights", class_weights)
    if (
        embeddings.shape[0] != probs.shape[0]
        or class_weights.shape[0] != probs.shape[1]
        or embeddings.shape[1] != class_weights.shape[1]
    ):
        raise ShapeError(
            "expected probs [N, C], embeddings [N, D] and class_weights [C, D], got probs "
            f"{list(probs.shape)}, embeddings {list(embeddings.shape)}, class_weights "
            f"{list(class_weights.shape)}"
        )
    weights = as_tensor("class_weights", class_weights).detach()
    return AngularConfidences(embeddings, unit_vectors(weights), *probs.shape)


def over_picked(
    rows: Rows, mask: NDArray[np.bool_], work: Callable[[Integers, Floats], None]
) -> None:
    """Call ``work(at, part)`` with the positions of the rows in ``mask`` and copies of them."""
    at = np.flatnonzero(mask)
    if isinstance(rows, Probabilities):  # their values do not depend on the tile, unlike a product
        _in_parts(rows, len(at), lambda i, j: work(at[i:j], rows.picked(at[i:j])))
        return

    def of_tile(start: int, stop: int) -> None:
        first, last = np.searchsorted(at, (start, stop))
        if last > first:
            work(at[first:last], rows.tile(start, stop)[at[first:last] - start])

    over_tiles(rows, of_tile)


def over_tiles(rows: Rows, work: Callable[[int, int], None]) -> None:
    """Call ``work(start, stop)`` for every tile, on as many threads as torch may use."""
    _in_parts(rows, rows.num_rows, work)


def _in_parts(rows: Rows, count: int, work: Callable[[int, int], None]) -> None:
    size = max(_LEAST_ROWS, _TILE_ENTRIES // rows.num_classes)
    tiles = [(at, min(at + size, count)) for at in range(0, count, size)]
    workers = torch.get_num_threads() if rows.parallel else 1
    if workers == 1 or len(tiles) <= _TILES_AT_ONCE:
        for start, stop in tiles:
            work(start, stop)
        return

    def task(first: int) -> None:
        for start, stop in tiles[first : first + _TILES_AT_ONCE]:
            work(start, stop)

    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(task, range(0, len(tiles), _TILES_AT_ONCE)):
            pass


def entries(tile: NDArray[Any], columns: Integers) -> NDArray[Any]:
    """One entry of each row."""
    picked: NDArray[Any] = tile[np.arange(len(tile)), columns]
    return picked


def to_numpy(part: Matrix) -> Floats:
    """A part of a matrix or vector in float32 or wider, on the CPU."""
    if isinstance(part, Tensor):
        array: Floats = widen(part.detach()).cpu().numpy()
        return array
    return np.asarray(part, dtype=np.promote_types(part.dtype, np.float32))


def _check_matrix(name: str, matrix: Matrix) -> None:
    if len(matrix.shape) != 2 or 0 in matrix.shape:
        raise ShapeError(
            f"expected {name} to be a matrix with at least 1 row and 1 column, got "
            f"{list(matrix.shape)}"
        )
    check_numbers(name, matrix)
    if isinstance(matrix, Tensor):
        floating = matrix.is_floating_point()
    else:
        floating = np.issubdtype(matrix.dtype, np.floating)
    if not floating:
        raise ShapeError(f"expected {name} to be floating point, got {matrix.dtype}")


def _explain(tile: Floats, start: int, tolerance: float) -> None:
    holes = np.isnan(tile).any(axis=1)
    if holes.any():
        raise NonFiniteError(
            f"probs hold NaN, first in row {start + int(holes.argmax()):,}; a model whose logits "
            "overflow gives such rows"
        )
    sums = tile.sum(axis=1)
    bad = (np.abs(sums - 1) > tolerance) | (tile < 0).any(axis=1)
    row = int(bad.argmax())
    raise ProbabilityError(
        f"expected rows of probabilities, none negative, that sum to 1 within {tolerance:g}; row "
        f"{start + row:,} has the smallest entry {tile[row].min():g} and the sum {sums[row]:g}. "
        "Apply softmax to logits first"
    )
