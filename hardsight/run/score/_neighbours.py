"""Find the nearest neighbours of every example: of another label, and earlier ones of its own.

Nearest means the largest cosine. Two blocks of rows are multiplied at a time, so memory does not
grow with the number of examples; time grows with its square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight._checks import warn
from hardsight.run.loop import progress
from hardsight.run_folder import NEIGHBOURS, RunFolder

_MOST_PRODUCTS = {"cpu": 1e14}  # multiplications of one search: about an hour on two cores
_ROWS, _OTHERS = 2048, 8192  # of a block, whose float32 similarities take 64 MiB


class Vectors(Protocol):
    """Embeddings that are read a part at a time."""

    def __len__(self) -> int:
        """The number of embeddings."""
        ...

    def chunk(self, start: int, stop: int) -> NDArray[np.floating]:
        """Embeddings ``start`` to ``stop``, ``[n, D]``."""
        ...


class StoredVectors:
    """Embeddings in parts of any length, such as the files of a run.

    Args:
        parts: arrays ``[n, D]``, which may lie in files.
    """

    def __init__(self, parts: list[NDArray[np.floating]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def chunk(self, start: int, stop: int) -> NDArray[np.floating]:
        """Embeddings ``start`` to ``stop``, which may span several parts."""
        wanted = []
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            first = end - len(part)
            if first < stop and end > start:
                wanted.append(part[max(0, start - first) : stop - first])
        return np.concatenate(wanted) if wanted else np.empty((0, 0), np.float32)


def keep_neighbours(
    folder: RunFolder,
    vectors: Vectors,
    shards: Callable[[], Iterator[pa.Table]],
    *,
    device: torch.device,
    show: bool | None,
) -> None:
    """Write the nearest neighbours of all rows beside the table, unless that would take hours.

    Args:
        folder: of the run.
        vectors: the embedding of every row.
        shards: the rows, in the order of the vectors.
        device: where the products are computed.
        show: force the progress bar on or off.
    """
    width = vectors.chunk(0, 1).shape[1]
    if len(vectors) ** 2 * width > _MOST_PRODUCTS.get(device.type, math.inf):
        warn(
            f"the embeddings are kept, but there was no search for near-duplicates: among "
            f"{len(vectors):,} examples it would take hours on this device; score on a GPU"
        )
        return
    keys = [(part["index"].to_numpy(), part["label"].to_numpy()) for part in shards()]
    index, labels = (np.concatenate([key[at] for key in keys]) for at in range(2))
    with progress("nearest neighbours", total=len(vectors), done=0, show=show) as advance:
        rows = neighbours(vectors, index, labels, device=device, advance=advance)
    folder.write_side_file(NEIGHBOURS, rows)


def neighbours(
    vectors: Vectors,
    index: NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    device: torch.device,
    advance: Callable[[int], None] = lambda rows: None,
) -> pa.Table:
    """The nearest neighbours of all examples, exactly.

    Args:
        vectors: the embedding of every example; one that has length 0 or is not finite has no
            neighbours.
        index: of every example in its data.
        labels: of every example; below 0 means no label, which never counts as another label.
        device: where the products are computed.
        advance: called with the number of examples that are done.

    Returns:
        for every example ``index``, ``nearest`` (cosine to the nearest other example), ``other``
        (index of the nearest example with another label, -1 if there is none), ``similarity``
        (cosine to it; NaN if there is none), ``earlier`` (index of the nearest earlier example
        with the same label, where two examples without a label count as the same; -1 if there is
        none) and ``earlier_similarity`` (cosine to that example).
    """
    classes = torch.from_numpy(labels).to(device)
    blocks: list[tuple[Tensor, ...]] = []
    for start in range(0, len(vectors), _ROWS):
        rows = _unit(vectors, start, start + _ROWS, device)
        blocks.append(_nearest(vectors, rows, start, classes))
        advance(len(rows))
    nearest, other, similarity, earlier, before = (
        torch.cat(parts).cpu().numpy() for parts in zip(*blocks, strict=True)
    )
    return pa.table(
        {
            "index": index,
            "nearest": _or_nan(nearest),
            "other": np.where(np.isfinite(similarity), index[other], -1),
            "similarity": _or_nan(similarity),
            "earlier": np.where(np.isfinite(before), index[earlier], -1),
            "earlier_similarity": _or_nan(before),
        }
    )


def _or_nan(cosine: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(np.isfinite(cosine), cosine, np.float32(np.nan))


def _nearest(vectors: Vectors, rows: Tensor, start: int, classes: Tensor) -> tuple[Tensor, ...]:
    """Neighbours of a block of rows, as five tensors ``[n]``.

    They are: nearest, other, similarity, earlier, earlier similarity, as in :func:`neighbours`.
    """
    nearest = torch.full((len(rows),), -torch.inf, device=rows.device)
    other = earlier = torch.zeros_like(nearest, dtype=torch.int64)
    similarity = before = nearest
    own = classes[start : start + len(rows), None]
    at = torch.arange(start, start + len(rows), device=rows.device)
    for first in range(0, len(vectors), _OTHERS):
        others = _unit(vectors, first, first + _OTHERS, rows.device)
        # a vector without a direction gives NaN, which would win every maximum
        cosine = (rows @ others.T).nan_to_num_(nan=-torch.inf)
        itself = at - first
        inside = (itself >= 0) & (itself < len(others))
        # no example is its own neighbour
        cosine[inside.nonzero()[:, 0], itself[inside]] = -torch.inf
        nearest = torch.maximum(nearest, cosine.amax(dim=1))
        theirs = classes[None, first : first + len(others)]
        is_same = theirs == own
        if first < start + len(rows):  # later blocks hold no earlier examples
            places = torch.arange(first, first + len(others), device=rows.device)
            is_later = places[None] > at[:, None]
            alike = cosine.masked_fill(~is_same | is_later, -torch.inf)
            before, earlier = _closer(before, earlier, alike, first)
        cosine.masked_fill_(is_same | (theirs < 0) | (own < 0), -torch.inf)
        similarity, other = _closer(similarity, other, cosine, first)
    return nearest, other, similarity, earlier, before


def _closer(largest: Tensor, place: Tensor, cosine: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The largest cosines and their places after another block, which begins at ``first``."""
    best, at = cosine.max(dim=1)
    is_closer = best > largest  # strictly: of equal cosines the first stays
    return torch.where(is_closer, best, largest), torch.where(is_closer, at + first, place)


def _unit(vectors: Vectors, start: int, stop: int, device: torch.device) -> Tensor:
    """Rows of length 1; NaN for those that have no direction."""
    part = np.asarray(vectors.chunk(start, min(stop, len(vectors))), np.float32)
    rows = torch.from_numpy(np.ascontiguousarray(part)).to(device)
    rows = rows / rows.abs().amax(dim=1, keepdim=True)  # squares of large numbers would overflow
    return torch.nn.functional.normalize(rows, dim=1, eps=0)
