"""The nearest example of every example, and the nearest one with another label, by cosine.

Two blocks of rows are multiplied at a time, so that memory does not grow with the number of
examples; the time does, with its square.
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

_MOST_PRODUCTS = {"cpu": 1e14}  # of a search: about an hour on two cores
_ROWS, _OTHERS = 2048, 8192  # of a block: 64 MiB of similarities


class Vectors(Protocol):
    """Embeddings that are read a part at a time."""

    def __len__(self) -> int:
        """How many there are."""
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
        """Embeddings ``start`` to ``stop``; those of several parts are put together."""
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
        vectors: one for every row.
        shards: the rows, in the order of the vectors.
        device: that multiplies.
        show: force the progress bar on or off.
    """
    width = vectors.chunk(0, 1).shape[1]
    if len(vectors) ** 2 * width > _MOST_PRODUCTS.get(device.type, math.inf):
        warn(
            f"the embeddings are kept, but near-duplicates were not looked for: among "
            f"{len(vectors):,} examples that would take hours on this device; score on a GPU"
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
        vectors: one for every example; one of length 0 or that is not finite has no neighbour.
        index: of every example in its data.
        labels: of every example; one without a label, below 0, is nobody's other label.
        device: that multiplies.
        advance: called with the number of examples that are done.

    Returns:
        for every example ``index``, ``nearest`` (cosine to the nearest other example), ``other``
        (index of the nearest example with another label, -1 if there is none) and ``similarity``
        (cosine to it; NaN if there is none).
    """
    classes = torch.from_numpy(labels).to(device)
    blocks: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, len(vectors), _ROWS):
        rows = _unit(vectors, start, start + _ROWS, device)
        blocks.append(_nearest(vectors, rows, start, classes))
        advance(len(rows))
    nearest, place, similarity = (
        torch.cat([part[at] for part in blocks]).cpu().numpy() for at in range(3)
    )
    has_other = np.isfinite(similarity)
    return pa.table(
        {
            "index": index,
            "nearest": np.where(np.isfinite(nearest), nearest, np.nan).astype(np.float32),
            "other": np.where(has_other, index[place], -1),
            "similarity": np.where(has_other, similarity, np.nan).astype(np.float32),
        }
    )


def _nearest(
    vectors: Vectors, rows: Tensor, start: int, classes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of some rows: largest cosine, place of the nearest with another label, and its cosine."""
    nothing = torch.full((len(rows),), -torch.inf, device=rows.device)
    nearest, similarity, place = nothing, nothing, torch.zeros_like(nothing, dtype=torch.int64)
    own = classes[start : start + len(rows), None]
    for first in range(0, len(vectors), _OTHERS):
        others = _unit(vectors, first, first + _OTHERS, rows.device)
        cosine = (rows @ others.T).nan_to_num_(nan=-torch.inf)
        itself = torch.arange(len(rows), device=rows.device) + start - first
        inside = (itself >= 0) & (itself < len(others))
        cosine[inside.nonzero()[:, 0], itself[inside]] = -torch.inf
        nearest = torch.maximum(nearest, cosine.amax(dim=1))
        theirs = classes[None, first : first + len(others)]
        cosine.masked_fill_((theirs == own) | (theirs < 0) | (own < 0), -torch.inf)
        best, at = cosine.max(dim=1)
        closer = best > similarity  # the first of equal ones stays
        similarity = torch.where(closer, best, similarity)
        place = torch.where(closer, at + first, place)
    return nearest, place, similarity


def _unit(vectors: Vectors, start: int, stop: int, device: torch.device) -> Tensor:
    """Rows of length 1; NaN for those that have no direction."""
    part = np.asarray(vectors.chunk(start, min(stop, len(vectors))), np.float32)
    rows = torch.from_numpy(np.ascontiguousarray(part)).to(device)
    rows = rows / rows.abs().amax(dim=1, keepdim=True)  # squares of large numbers would overflow
    return torch.nn.functional.normalize(rows, dim=1, eps=0)
