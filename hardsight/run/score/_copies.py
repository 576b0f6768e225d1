"""Whether rows of stored embeddings are also in a fold that their head learns from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hardsight.data import EmbeddingSource
from hardsight.data.source import SharedExamples, evenly_spaced
from hardsight.run.loop import Folds, tell_of_copies

_LOOKED_AT = 1000  # rows of fold 1
_AT_ONCE = 1 << 24  # bytes of rows


def warn_of_copies(source: EmbeddingSource, folds: Folds) -> None:
    """Warn of rows that the head of their fold has seen after all, in another place."""
    own = folds.unseen(1)
    picked = own[evenly_spaced(len(own), _LOOKED_AT)]
    # numbers first, which are made for many rows at once; of few rows all bytes are compared
    wanted = np.concatenate([
        marks[picked[(picked >= start) & (picked < start + len(marks))] - start]
        for start, _, marks in _marked(source)
    ])  # fmt: skip
    known: dict[bytes, int] = {}
    looked_for: list[tuple[int, bytes]] = []
    is_picked = np.zeros(len(source), dtype=bool)
    is_picked[picked] = True
    for start, rows, marks in _marked(source):
        alike = np.flatnonzero(np.isin(marks, wanted))
        # no head learns from a row that is not finite
        for row in alike[np.isfinite(rows[alike]).all(axis=1)].tolist():
            at, content = start + row, _digest(rows[row])
            if folds.number[at] != 1:
                known.setdefault(content, at)
            elif is_picked[at]:
                looked_for.append((at, content))
    pairs = [(at, known[content]) for at, content in looked_for if content in known]
    shared = SharedExamples(
        looked_at=len(picked),
        of=len(own),
        shared=len(pairs),
        compared_with=len(source) - len(own),
        others=len(source) - len(own),
        first=(source.id_of(pairs[0][0]), source.id_of(pairs[0][1])) if pairs else None,
    )
    tell_of_copies(shared)


def _marked(
    source: EmbeddingSource,
) -> Iterator[tuple[int, NDArray[np.floating], NDArray[np.uint64]]]:
    """All rows, some at once, with where they start and a number for each; equal rows agree."""
    size = source.dtype.itemsize
    many = max(1, _AT_ONCE // (8 * source.width))
    factors = np.random.default_rng(0).integers(1, 2**63, source.width, dtype=np.uint64)
    for start in range(0, len(source), many):
        rows = np.ascontiguousarray(source.chunk(start, min(start + many, len(source))))
        # einsum, since the product of whole numbers by @ takes ten times as long
        marks = np.einsum("nd,d->n", rows.view(f"u{size}").astype(np.uint64), factors)
        yield start, rows, marks


def _digest(row: NDArray[np.floating]) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()
