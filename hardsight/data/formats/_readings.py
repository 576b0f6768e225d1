"""Check which value of a sample is its label, if several of them could be."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight._checks import warn
from hardsight.data.source import evenly_spaced, in_memory, states_kept
from hardsight.errors import DataError

_LOOKED_AT = 32  # samples that are checked
_ENOUGH = 8  # this many consecutive numbers are an index, and not labels by chance
_PLACES = ("second", "third", "fourth", "fifth", "sixth")
_STEP = "yield (input, label), or a mapping with 'image' and 'label'"


def check_reading(
    samples: Iterable[tuple[int, Any]], *, spec: str, listed: NDArray[Any] | None = None
) -> None:
    """Check samples with several whole numbers, of which the second value is read as the label.

    This warns if another value could be the label as well, unless the dataset lists its labels and
    they agree with the second value.

    Args:
        samples: positions and samples of a dataset; reading stops as soon as the case is clear.
        spec: name of the data.
        listed: labels that the dataset lists, ``[N]``.

    Raises:
        DataError: the second value is an index, or the listed labels are those of another value.
    """
    found = list(_numbers(samples))
    if not found:
        return
    positions = np.array([position for position, _ in found])
    labels, *others = np.array([numbers for _, numbers in found]).T
    known = None if listed is None or listed.dtype.kind not in "iu" else listed[positions]
    if known is not None and np.array_equal(known, labels):
        return
    for place, values in zip(_PLACES[1:], others, strict=False):
        if np.array_equal(values, labels) or _are_indices(values, positions, labels):
            continue
        said = f"of the samples of {spec}, the second value is read as the label, {_some(labels)}"
        if known is not None and np.array_equal(known, values):
            raise DataError(
                f"{said}, but the labels that it lists are those of the {place}, {_some(values)}; "
                f"{_STEP}"
            )
        if len(labels) >= _ENOUGH and np.array_equal(labels, positions):
            raise DataError(
                f"{said}: it counts the examples, as an index does, and the {place} does not, "
                f"{_some(values)}; {_STEP}"
            )
        warn(
            f"{said}, and the {place}, {_some(values)}, is not; if that is meant, {_STEP} to "
            "agree, and if not, yield the label as the second value"
        )
        return


def evenly_spaced_samples(dataset: Any) -> Iterator[tuple[int, Any]]:
    """Positions and samples of a map-style dataset, without those that cannot be read."""
    for position in evenly_spaced(len(dataset), _LOOKED_AT):
        try:
            with states_kept(seed=position):
                sample = dataset[position]
        except (Exception, SystemExit):  # reported when the run reads this example
            continue
        yield position, sample


def _are_indices(values: NDArray[Any], positions: NDArray[Any], labels: NDArray[Any]) -> bool:
    """Whether values are positions, or each is another one while labels repeat."""
    if np.array_equal(values, positions):
        return True
    return len(set(values)) == len(values) and len(set(labels)) < len(labels)


def _numbers(samples: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, list[int]]]:
    """Positions and the whole numbers behind the input, as long as all samples have as many."""
    count = None
    for position, sample in samples:
        if not isinstance(sample, tuple | list) or len(sample) < 3:
            return
        values = (_whole_number(value) for value in sample[1 : len(_PLACES) + 1])
        numbers = [value for value in itertools.takewhile(lambda value: value is not None, values)]
        if len(numbers) < 2 or count not in (None, len(numbers)):
            return
        count = len(numbers)
        yield position, numbers  # type: ignore[misc]


def _whole_number(value: Any) -> int | None:
    is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (is_number or isinstance(value, np.ndarray) or hasattr(value, "detach")):
        return None
    array = in_memory(value)
    return int(array) if array.ndim == 0 and array.dtype.kind in "iu" else None


def _some(values: NDArray[Any]) -> str:
    return ", ".join(map(str, values[:4].tolist())) + (", ..." if len(values) > 4 else "")
