"""The index and the labels in a batch, as loaders of an indexed dataset give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hardsight.errors import DataError
from hardsight.tracking._dataset import KEY

LABEL_KEYS = ("labels", "label", "target", "targets", "y")


def index_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    """Index ``[B]`` and labels ``[B]`` of a batch.

    Args:
        batch: ``(index, inputs, labels, ...)``, or a mapping with ``index`` and ``labels``.

    Raises:
        DataError: one of the two is not there.

    Example:
        >>> import torch
        >>> index_and_labels((torch.tensor([7]), torch.rand(1, 4), torch.tensor([2])))
        (tensor([7]), tensor([2]))
    """
    index = labels = None
    if isinstance(batch, Mapping):
        index = batch.get(KEY)
        labels = next((batch[key] for key in LABEL_KEYS if key in batch), None)
        found = f"a mapping with the keys {', '.join(map(str, batch))}"
    elif isinstance(batch, tuple | list) and len(batch) >= 3:
        index, labels = batch[0], batch[2]
        found = f"{type(batch).__name__} of {', '.join(map(_described, batch))}"
    else:
        found = f"{_described(batch)}"
    if not (_are_whole(index) and _are_whole(labels)):
        raise DataError(
            "expected batches (index, inputs, labels) or a mapping with 'index' and 'labels', got "
            f"{found}; wrap the dataset in hardsight.tracking.with_index"
        )
    assert isinstance(index, Tensor)
    assert isinstance(labels, Tensor)
    return index, labels


def _are_whole(values: Any) -> bool:
    return isinstance(values, Tensor) and values.ndim == 1 and not values.is_floating_point()


def _described(part: Any) -> str:
    if isinstance(part, Tensor):
        return f"{part.dtype} {list(part.shape)}"
    return type(part).__name__
