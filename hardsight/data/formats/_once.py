"""Iterators, which can be read once: a look at their first samples must not take them away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hardsight.errors import DataError

_MOST_KEPT = 1024  # samples; enough to look at, few enough to hold


class ReadOnce:
    """An iterator that starts again as long as no more than its first samples were read.

    Args:
        samples: a generator or another iterator.
    """

    def __init__(self, samples: Iterator[Any]) -> None:
        self._samples, self._name = samples, type(samples).__name__
        self._kept: list[Any] = []
        self._is_past = False

    def __iter__(self) -> Iterator[Any]:
        if self._is_past:
            raise DataError(
                f"a {self._name} can be read only once, and more than its first {_MOST_KEPT:,} "
                "samples have been read; pass a list, a Dataset, or an IterableDataset that starts "
                "again"
            )
        yield from self._kept
        for sample in self._samples:
            if not self._is_past:
                self._kept.append(sample)
                if len(self._kept) > _MOST_KEPT:
                    self._kept, self._is_past = [], True
            yield sample
