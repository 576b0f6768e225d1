"""Give the items of any dataset a stable index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch.utils.data import Dataset, IterableDataset

from hardsight.errors import DataError, OptionError

KEY = "index"


class IndexedDataset(Dataset[Any]):
    """A map-style dataset whose every item carries its index.

    An item ``(inputs, label, ...)`` becomes ``(index, inputs, label, ...)``; a mapping gets the
    key ``"index"``; anything else becomes ``(index, item)``. The index is a plain integer, so any
    collate function makes a tensor of it. Shuffling, samplers and workers do not change it.

    Args:
        dataset: has ``__len__`` and ``__getitem__``.
        of: which positions are the index. ``"wrapper"``: those in ``dataset`` itself, which for a
            ``Subset`` run from 0 to its own length. ``"root"``: those in the dataset that a
            ``Subset`` (of a ``Subset`` ...) was taken from.

    Attributes:
        dataset: the wrapped dataset.
        num_examples: length of the dataset that the indices refer to, for a tracker.

    Raises:
        DataError: the dataset is a stream, whose items have no position.
        OptionError: ``of`` is neither of the two.

    Example:
        >>> from torch.utils.data import Subset
        >>> letters = [("a", 0), ("b", 1), ("c", 0)]
        >>> IndexedDataset(letters)[2]
        (2, 'c', 0)
        >>> IndexedDataset(Subset(letters, [2, 1]), of="root")[0]
        (2, 'c', 0)
    """

    def __init__(self, dataset: Any, *, of: Literal["wrapper", "root"] = "wrapper") -> None:
        if of not in ("wrapper", "root"):
            raise OptionError(f"expected of to be 'wrapper' or 'root', got {of!r}")
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        ):
            raise DataError(
                f"expected a map-style dataset with __len__ and __getitem__, got "
                f"{type(dataset).__name__}; items of a stream have no stable index: yield an index "
                "yourself as the first element"
            )
        self.dataset, self.of = dataset, of
        self.num_examples = len(_root(dataset) if of == "root" else dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: int) -> Any:
        position = self._position(position)
        return _with_index(self._index(position), self.dataset[position])

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Many items at once, as a DataLoader asks for a batch."""
        positions = [self._position(position) for position in positions]
        # a dataset may read a batch faster than item by item
        if hasattr(self.dataset, "__getitems__"):
            items = self.dataset.__getitems__(positions)
        else:
            items = [self.dataset[position] for position in positions]
        return [
            _with_index(self._index(position), item)
            for position, item in zip(positions, items, strict=True)
        ]

    def without_index(self) -> Any:
        """The wrapped dataset, for code that numbers its items by position, such as scoring.

        Raises:
            DataError: the indices are positions in another dataset.
        """
        if self.of == "root" and _is_subset(self.dataset):
            raise DataError(
                "expected the index of every item to be its position, got positions in the "
                "dataset that a Subset was taken from; pass that dataset, without with_index"
            )
        return self.dataset

    def _position(self, position: int) -> int:
        # negative positions count from the end, as in Python
        place = int(position) + (len(self) if position < 0 else 0)
        if not 0 <= place < len(self):
            raise IndexError(f"expected a position in [0, {len(self)}), got {position}")
        return place

    def _index(self, position: int) -> int:
        dataset = self.dataset
        while self.of == "root" and _is_subset(dataset):
            position, dataset = int(dataset.indices[position]), dataset.dataset
        return position


def with_index(dataset: Any, *, of: Literal["wrapper", "root"] = "wrapper") -> IndexedDataset:
    """``dataset`` with its index in every item; see :class:`IndexedDataset`.

    Example:
        >>> with_index([{"text": "a"}])[0]
        {'text': 'a', 'index': 0}
    """
    return IndexedDataset(dataset, of=of)


def _with_index(index: int, item: Any) -> Any:
    if isinstance(item, Mapping):
        if KEY in item:
            raise DataError(
                f"items of the dataset have the key {KEY!r} already; use it as the index without "
                "with_index, or rename it"
            )
        return {**item, KEY: index}
    # a tuple even for a list: default_collate treats both the same
    if isinstance(item, tuple | list):
        return (index, *item)
    return (index, item)


def _is_subset(dataset: Any) -> bool:
    # by its attributes, since other libraries have subset classes of their own
    return hasattr(dataset, "dataset") and hasattr(dataset, "indices")


def _root(dataset: Any) -> Any:
    while _is_subset(dataset):
        dataset = dataset.dataset
    return dataset
