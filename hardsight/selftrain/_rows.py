"""Rows of a large matrix, a tile at a time.

How rows are cut into tiles depends on the number of classes alone: not on the machine, the
number of threads or where the matrix lies. Every pass over the same rows therefore sees the same
numbers, and a matrix on disk gives the labels of the same matrix in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight.errors import NonFiniteError, ProbabilityError, ShapeError
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
    parallel: bool = True  # several tiles may be asked for at the same time

    def tile(self, start: int, stop: int) -> Floats:
        """Rows from ``start`` to ``stop``, as they are."""
        return to_numpy(self.source[start:stop])

    def check(self, tile: Floats, start: int) -> None:
        """Raise unless every row of a tile is a distribution."""
        sums = np.einsum("ij->i", tile)  # twice as fast as tile.sum(axis=1)
        off = np.abs(sums - 1).max()
        if not (off <= self.tolerance and tile.min() >= 0):  # also where either is NaN
            _explain(tile, start, self.tolerance)


@dataclass(frozen=True)
class AngularConfidences:
    """Rows of angular visual confidence, computed when asked for."""

    embeddings: Matrix
    unit_weights: Tensor
    num_rows: int
    num_classes: int
    parallel: bool = False  # the matrix product has threads of its own

    def tile(self, start: int, stop: int) -> Floats:
        """Rows from ``start`` to ``stop``."""
        part = self.embeddings[start:stop]
        if not isinstance(part, Tensor):
            part = torch.from_numpy(np.array(part))
        part = part.detach().to(self.unit_weights.device)
        tile = to_numpy(angular_visual_confidence(part, self.unit_weights))
        self.check(tile, start)
        return tile

    def check(self, tile: Floats, start: int) -> None:
        """Raise unless every entry of a tile is a number."""
        if np.isnan(tile).any():
            row = start + int(np.isnan(tile).any(axis=1).argmax())
            raise NonFiniteError(
                f"embeddings or class_weights hold NaN or infinity (see row {row:,})"
            )


Rows: TypeAlias = Probabilities | AngularConfidences


def probabilities(probs: Matrix) -> Probabilities:
    """``probs`` ``[N, C]`` as rows.

    Raises:
        ShapeError: not a floating-point matrix, or one without rows or classes.
    """
    _check_matrix("probs", probs)
    # a half-precision probability is off by up to 2^-9 of itself, so their sum is as well
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
            for name, given in (("embeddings", embeddings), ("class_weights", class_weights))
            if given is None
        ]
        raise ShapeError(f"rule {rule!r} works on angles: pass {' and '.join(missing)} too")
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
    if isinstance(class_weights, Tensor):
        weights = class_weights.detach()
    else:
        weights = torch.from_numpy(np.array(class_weights))
    return AngularConfidences(embeddings, unit_vectors(weights), *probs.shape)


def over_tiles(rows: Rows, work: Callable[[int, int], None]) -> None:
    """Call ``work(start, stop)`` for every tile, on as many threads as torch may use."""
    size = max(_LEAST_ROWS, _TILE_ENTRIES // rows.num_classes)
    tiles = [(at, min(at + size, rows.num_rows)) for at in range(0, rows.num_rows, size)]
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
