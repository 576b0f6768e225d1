"""Which examples a user's DataLoader reads."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.data.source import states_kept
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
    inner = (sampler, getattr(sampler, "sampler", None))
    own = [drawn for part in inner if (drawn := getattr(part, "generator", None)) is not None]
    with states_kept(*own):
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
        if position in seen:  # which also ends an endless sampler
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
