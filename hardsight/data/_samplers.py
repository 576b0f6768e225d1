"""Which examples a user's DataLoader reads."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sampled_rows(loader: Any) -> NDArray[np.int64] | None:
    """Positions that a DataLoader's sampler names, ascending; ``None`` if they are all there are.

    The sampler is asked once, and the random state it draws from is put back. ``drop_last`` plays
    no part: an example in an incomplete batch is one too.

    Raises:
        DataError: the sampler draws examples more than once, names none, or names something that
            is not a position.
    """
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    batches = loader.batch_sampler
    if batches is None:  # batch_size=None
        sampler, items = loader.sampler, loader.sampler
    elif type(batches) is BatchSampler:
        sampler, items = batches.sampler, batches.sampler
    else:
        sampler, items = batches, (item for batch in batches for item in batch)
    length = len(loader.dataset)
    if type(sampler) is SequentialSampler:
        return None
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == length:
        return None
    with _states_kept(sampler):
        rows = _positions(items, length, type(sampler).__name__)
    return None if len(rows) == length else rows


def _positions(items: Iterable[Any], length: int, name: str) -> NDArray[np.int64]:
    seen: set[int] = set()
    for item in items:
        position = _position(item)
        if position is None or not 0 <= position < length:
            raise DataError(
                f"expected positions in [0, {length}) from the sampler {name}, got {item!r}; pass "
                "a torch Subset with the positions instead"
            )
        if position in seen:  # also where a sampler never ends
            raise DataError(
                f"the sampler {name} draws examples more than once, so that chance would decide "
                "which ones have a row; pass loader.dataset to read all of them, or a torch Subset"
            )
        seen.add(position)
    if not seen:
        raise DataError(f"the sampler {name} names no examples; pass one that does")
    return np.array(sorted(seen), dtype=np.int64)


def _position(item: Any) -> int | None:
    try:
        return operator.index(item)
    except TypeError:
        return None


@contextmanager
def _states_kept(sampler: Any) -> Iterator[None]:
    """The random states that a sampler may draw from are the same afterwards."""
    import random

    import torch

    inner = (sampler, getattr(sampler, "sampler", None))
    own = [found for part in inner if (found := getattr(part, "generator", None)) is not None]
    states = [generator.get_state() for generator in own]
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)  # noqa: NPY002
            for generator, state in zip(own, states, strict=True):
                generator.set_state(state)
