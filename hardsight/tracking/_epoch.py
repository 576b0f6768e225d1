"""One epoch as columns: a value per example, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hardsight.errors import DataError, LabelError, NonFiniteError, OptionError
from hardsight.tracking._measures import MEASURES, Rows

REPEATS = ("error", "first")
REPEATS_MEANT = (
    "If repeats are meant (a sampler that draws with replacement, a loader that starts anew after "
    "a resume), pass repeats='first'"
)
Columns = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class EpochRules:
    """What an epoch must keep to.

    Attributes:
        num_examples: indices run from 0 to one less.
        num_classes: so do labels.
        repeats: what an example seen twice in an epoch is: an ``"error"``, or only the ``"first"``
            time counts.
        padding_rows: how many rows other ranks may repeat, because samplers of distributed
            training fill their last round.
        num_ranks: the order of a row, modulo this, is its rank.
    """

    num_examples: int
    num_classes: int
    repeats: str = "error"
    padding_rows: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if self.repeats not in REPEATS:
            raise OptionError(
                f"expected repeats to be one of {', '.join(REPEATS)}, got {self.repeats!r}"
            )


def epoch_columns(
    rows: Rows, rules: EpochRules, known_labels: NDArray[np.int32], epoch: int
) -> Columns:
    """Columns of length N from the rows of all ranks.

    Args:
        rows: of all ranks, on the CPU.
        rules: what they must keep to.
        known_labels: label of each example in earlier epochs, -1 where not yet seen, ``[N]``.
        epoch: counted from 1, for messages.

    Returns:
        the measures, NaN where an example was not seen; ``label`` and ``prediction``, -1 there.

    Raises:
        DataError: an index is out of range, or repeats.
        LabelError: a label is out of range, or changed since an earlier epoch.
        NonFiniteError: a measure is NaN or infinite.
    """
    index, labels = rows.index.numpy(), rows.labels.numpy()
    check_index(index, rules.num_examples)
    check_label_range(labels, rules.num_classes, index)
    keep = _first_rows(index, rows.order.numpy(), rules, epoch)
    index, labels = index[keep], labels[keep].astype(np.int32)
    _check_same_labels(index, labels, known_labels, epoch)
    values, prediction = rows.values.numpy()[keep], rows.prediction.numpy()[keep]
    _check_finite(index, values, epoch)
    columns: Columns = {
        name: _scattered(rules.num_examples, index, values[:, place], np.float32(math.nan))
        for place, name in enumerate(MEASURES)
    }
    columns["label"] = _scattered(rules.num_examples, index, labels, np.int32(-1))
    columns["prediction"] = _scattered(
        rules.num_examples, index, prediction.astype(np.int32), np.int32(-1)
    )
    return columns


def check_index(index: NDArray[np.int64], num_examples: int) -> None:
    """Raise unless every index is in ``[0, num_examples)``."""
    outside = (index < 0) | (index >= num_examples)
    if outside.any():
        raise DataError(
            f"expected indices in [0, {num_examples}), got {_listed(index[outside])}; give the "
            "tracker the length of the dataset that numbers them (see with_index)"
        )


def check_label_range(
    labels: NDArray[np.int64], num_classes: int, index: NDArray[np.int64]
) -> None:
    """Raise unless every label is in ``[0, num_classes)``."""
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        raise LabelError(
            f"expected labels in [0, {num_classes}), got {_listed(labels[outside])} for the "
            f"examples {_listed(index[outside])}; leave out rows without a label"
        )


def _first_rows(
    index: NDArray[np.int64], order: NDArray[np.int64], rules: EpochRules, epoch: int
) -> NDArray[np.int64]:
    """Positions of the first time each example was seen."""
    latest_first = np.argsort(order, kind="stable")[::-1]
    rows = np.full(rules.num_examples, -1)
    rows[index[latest_first]] = latest_first  # of several rows of an example the last one stays
    found: NDArray[np.int64] = rows[rows >= 0]
    if rules.repeats == "error" and len(found) < len(index):
        _check_repeats(index, order % rules.num_ranks, rules, epoch)
    return found


def _check_repeats(
    index: NDArray[np.int64], rank: NDArray[np.int64], rules: EpochRules, epoch: int
) -> None:
    pairs, counts = np.unique(np.stack([index, rank]), axis=1, return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"examples {_listed(pairs[0, counts > 1])} came more than once in epoch {epoch}; "
            f"call end_epoch() after every epoch, and update() once per step. {REPEATS_MEANT}"
        )
    repeated = len(index) - len(np.unique(index))
    if repeated > rules.padding_rows:
        raise DataError(
            f"{repeated} examples of epoch {epoch} came on more than one rank, more than a sampler "
            f"adds to fill its last round ({rules.padding_rows}); give each rank its own part of "
            "the data with DistributedSampler, or pass repeats='first'"
        )


def _check_same_labels(
    index: NDArray[np.int64], labels: NDArray[np.int32], known: NDArray[np.int32], epoch: int
) -> None:
    before = known[index]
    changed = (before >= 0) & (before != labels)
    if changed.any():
        first = int(changed.argmax())
        raise LabelError(
            f"the labels of {int(changed.sum())} examples changed by epoch {epoch}: example "
            f"{int(index[first])} was {int(before[first])} and is {int(labels[first])}; an index "
            "must name the same example all through training. If labels are meant to change, "
            "start a new tracker"
        )


def _check_finite(index: NDArray[np.int64], values: NDArray[np.float32], epoch: int) -> None:
    broken = ~np.isfinite(values)
    if broken.any():
        names = [name for name, column in zip(MEASURES, broken.T, strict=True) if column.any()]
        raise NonFiniteError(
            f"{int(broken.any(axis=1).sum())} examples of epoch {epoch} have values that are not "
            f"finite ({', '.join(names)}): {_listed(index[broken.any(axis=1)])}; training has "
            "diverged, or their inputs are broken"
        )


def _scattered(
    length: int, index: NDArray[np.int64], values: NDArray[np.generic], missing: np.generic
) -> NDArray[np.generic]:
    column = np.full(length, missing)
    column[index] = values
    return column


def _listed(values: NDArray[np.generic], most: int = 5) -> str:
    """The first few values, in words."""
    unique = np.unique(values)
    shown = ", ".join(str(value) for value in unique[:most])
    return f"{shown}, ... ({len(unique)} in all)" if len(unique) > most else shown


def as_index(values: object, name: str) -> torch.Tensor:
    """Whole numbers as an integer tensor ``[B]``, on whatever device they are."""
    tensor = torch.as_tensor(values)
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise DataError(
            f"expected {name} to be whole numbers [B], got {tensor.dtype} {list(tensor.shape)}"
        )
    return tensor.long()
