"""Rank the examples of a pool by a model's measures of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.errors import OptionError
from hardsight.registry import unknown_name
from hardsight.selection import even_quotas

Floats = NDArray[np.floating[Any]]

# rule -> the column it uses, and whether a large value is urgent
_COLUMNS = {
    "margin": ("probability_gap", False),
    "entropy": ("entropy", True),
    "angular_margin": ("angle_gap", False),
    "avc": ("avc", False),
}
RULES = (*_COLUMNS, "coverage", "random")
_ROWS_AT_ONCE = 65536


def ranked(
    columns: Mapping[str, Floats],
    predictions: NDArray[np.int64],
    *,
    budget: int,
    by: str = "margin",
    balanced: bool = False,
    embeddings: NDArray[np.float32] | None = None,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Positions of the examples to label next, the most urgent first.

    Args:
        columns: those of ``entropy``, ``probability_gap``, ``angle_gap`` and ``avc`` that the rule
            needs, ``[N]`` each; an example with NaN is never chosen.
        predictions: of each example, ``[N]``; -1 if its output is not finite.
        budget: how many examples to choose.
        by: the rule.
        balanced: take examples of every predicted class in turns, while there are any.
        embeddings: ``[N, D]``, for ``coverage``.
        seed: of ``random``.

    Raises:
        OptionError: the budget is not between 1 and the number of usable examples, or there is no
            such rule.

    Example:
        >>> gaps = {"probability_gap": np.array([0.9, 0.1, 0.5])}
        >>> ranked(gaps, np.array([0, 0, 1]), budget=2).tolist()
        [1, 2]
    """
    if by not in RULES:
        raise OptionError(unknown_name("rule", by, list(RULES)))
    usable = np.flatnonzero(predictions >= 0)
    if not 1 <= budget <= len(usable):
        raise OptionError(
            f"expected a budget from 1 to the {len(usable):,} usable examples of the pool, got "
            f"{budget:,}"
        )
    groups = [usable]
    if balanced:
        _, sizes = np.unique(predictions[usable], return_counts=True)
        order = usable[np.argsort(predictions[usable], kind="stable")]
        groups = np.split(order, np.cumsum(sizes)[:-1])
    quotas = even_quotas(np.array([len(group) for group in groups]), budget).tolist()
    parts = [
        group[_first(group, columns, quota, by, embeddings, seed)]
        for group, quota in zip(groups, quotas, strict=True)
        if quota
    ]
    return _in_turns(parts)


def _first(
    rows: NDArray[np.int64],
    columns: Mapping[str, Floats],
    count: int,
    by: str,
    embeddings: NDArray[np.float32] | None,
    seed: int,
) -> NDArray[np.int64]:
    """Places among ``rows`` of the examples to take, the most urgent first."""
    if by == "random":
        return np.random.default_rng([seed, *b"queue"]).permutation(len(rows))[:count]
    if by == "coverage":
        assert embeddings is not None
        return k_centres(embeddings, count, rows=rows)
    name, is_large_urgent = _COLUMNS[by]
    values = columns[name][rows]
    return np.argsort(-values if is_large_urgent else values, kind="stable")[:count]


def k_centres(
    embeddings: NDArray[np.float32], count: int, *, rows: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Examples that cover a pool: each next example is the farthest, by angle, from all before.

    The first is the nearest to the mean direction. The pool is read in chunks, once for every
    example taken, so it may be mapped from a file.

    Args:
        embeddings: ``[N, D]``.
        count: how many examples to choose.
        rows: examples to choose among; all by default.

    Returns:
        places among ``rows``, in the order in which they are taken.

    Example:
        >>> rows = np.array([[1, 0], [1, 0.5], [0.2, 1], [-1, 0.1]], dtype=np.float32)
        >>> k_centres(rows, 2).tolist()
        [2, 3]

    Reference:
        Sener and Savarese, Active Learning for Convolutional Neural Networks: A Core-Set Approach,
        ICLR 2018, Algorithm 1; with cosines in place of Euclidean distances, and no labelled start.
    """
    among = np.arange(len(embeddings)) if rows is None else rows
    mean = sum(_units(embeddings, part).sum(axis=0) for part in _chunks(among))
    nearest = _cosines(embeddings, among, np.asarray(mean))  # largest cosine to any taken example
    taken = [int(np.argmax(nearest))]
    nearest = np.full(len(among), -np.inf)
    while len(taken) < count:
        centre = _units(embeddings, among[taken[-1:]])[0]
        np.maximum(nearest, _cosines(embeddings, among, centre), out=nearest)
        nearest[taken[-1]] = np.inf
        taken.append(int(np.argmin(nearest)))
    return np.array(taken)


def _chunks(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [rows[at : at + _ROWS_AT_ONCE] for at in range(0, len(rows), _ROWS_AT_ONCE)]


def _units(embeddings: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    part = embeddings[rows]
    norms = np.linalg.norm(part, axis=1, keepdims=True)
    return (part / np.where(norms == 0, 1, norms)).astype(np.float32)


def _cosines(
    embeddings: NDArray[np.float32], rows: NDArray[np.int64], centre: NDArray[np.float32]
) -> Floats:
    parts = [_units(embeddings, part) @ centre for part in _chunks(rows)]
    return np.concatenate(parts).astype(np.float64)


def _in_turns(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The first of each part, then the second of each, and so on."""
    turns = np.concatenate([np.arange(len(part)) for part in parts])
    return np.concatenate(parts)[np.argsort(turns, kind="stable")]
