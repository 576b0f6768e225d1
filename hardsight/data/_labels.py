"""Labels as class indices, from whatever form they were stored in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import DataError, LabelError, OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# An index above this is an identifier somebody stored as a label, not one of that many classes.
_MAX_CLASSES = 50_000_000


def class_indices(
    values: Any, *, classes: Sequence[str] | None = None, where: str, least: int = 2
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as ``[N]`` class indices, with the names of the classes.

    Integers are indices; floats too, when each is a whole number. Strings are looked up in
    ``classes``; without it, strings of digits are indices and other strings are numbered in
    sorted order.

    Args:
        values: one label per example.
        classes: names of the classes, position = label.
        where: the labels' origin, for messages.
        least: number of classes there must be.

    Returns:
        Indices in ``[0, C)`` and ``C`` names; numbered names where none are known.

    Raises:
        LabelError: a label is missing, negative, no whole number, or beyond the last class.
        DataError: there is one class only.

    Example:
        >>> indices, names = class_indices(["dog", "cat", "dog"], where="labels.npy")
        >>> indices.tolist(), names
        ([1, 0, 1], ('cat', 'dog'))
    """
    known = None if classes is None else class_names(classes)
    array = _one_per_example(values, where)
    if array.dtype.kind in "OSU":
        array, known = _from_strings(array, known, where)
    indices = _whole_numbers(array, where)
    if known is None:
        known = _numbered(indices, where)
    _check_range(indices, known, where)
    if len(known) < least:
        raise DataError(
            f"expected at least two classes, got only {known[0]!r} in {where}; hardness compares "
            "an example's class with the others: where the model knows more, name them all by "
            "classes=[...] (--classes)"
        )
    return indices, known


def are_names(values: Any) -> bool:
    """Whether labels are strings other than numbers.

    Example:
        >>> are_names(["dog", "cat"]), are_names(["0", "1"]), are_names([0, 1])
        (True, False, False)
    """
    array = np.asarray(values)
    return array.dtype.kind in "OSU" and not all(
        _is_index(v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v))
        for v in set(array.reshape(-1).tolist())
    )


def class_names(classes: Sequence[str]) -> tuple[str, ...]:
    """``classes`` as a tuple of distinct names.

    Raises:
        OptionError: a name occurs twice, or a single string was given.
    """
    if isinstance(classes, str):
        raise OptionError(f"expected classes to be a list of names, got the string {classes!r}")
    names = tuple(str(name) for name in classes)
    repeated = sorted({name for name in names if names.count(name) > 1}) if _repeats(names) else []
    if repeated:
        raise OptionError(f"expected every class name once, got {', '.join(repeated)} repeatedly")
    return names


def single_class_index(value: Any, classes: tuple[str, ...], *, where: str) -> int:
    """One label of a user's dataset as a class index; ``classes`` may be empty (unknown).

    Raises:
        LabelError: as :func:`class_indices`, and for a string where no class names are known.
    """
    array = np.asarray(value)
    if array.size == 1 and array.dtype.kind in "OSU" and not classes:
        text = str(array.reshape(-1)[0])
        if not _is_index(text):
            raise LabelError(
                f"the label of {where} is the string {text!r}; pass classes=[...] so that names "
                "become class indices"
            )
    if array.size != 1:
        raise LabelError(
            f"expected one label for {where}, got shape {list(array.shape)}; soft or one-hot "
            "labels become indices with argmax"
        )
    array = array.reshape(1)
    if array.dtype.kind in "OSU":
        array, _ = _from_strings(array, classes or None, where)
    index = _whole_numbers(array, where)
    if classes or index[0] < 0:
        _check_range(index, classes, where)
    return int(index[0])


def check_range(labels: NDArray[np.integer[Any]], num_classes: int) -> None:
    """Raise ``LabelError`` unless all labels are in ``[0, num_classes)``."""
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        raise LabelError(
            f"expected labels in [0, {num_classes}), got {int(labels[outside][0])} at position "
            f"{int(outside.argmax())}"
        )


def _repeats(names: tuple[str, ...]) -> bool:
    return len(set(names)) < len(names)


def _one_per_example(values: Any, where: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise LabelError(
            f"expected one label per example in {where}, got shape {list(array.shape)}; one-hot "
            "labels become indices with argmax(axis=1)"
        )
    if not len(array):
        raise DataError(f"no examples in {where}: there are no labels")
    return array


def _from_strings(
    array: NDArray[Any], known: tuple[str, ...] | None, where: str
) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    missing = sum(value is None or value != value for value in array.tolist())
    if missing:
        raise LabelError(
            f"{missing} of {len(array)} labels in {where} are missing; remove those examples first"
        )
    if not all(isinstance(value, str | bytes) for value in array.tolist()):
        try:
            return np.asarray(array.tolist(), dtype=np.float64), known
        except (TypeError, ValueError):
            raise LabelError(
                f"expected labels in {where} to be integers or names, got "
                f"{type(array.tolist()[0]).__name__}"
            ) from None
    texts = np.array(
        [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in array.tolist()]
    )
    names, positions = np.unique(texts, return_inverse=True)
    found = [str(name) for name in names]
    if known is not None and set(found) <= set(known):
        place = {name: index for index, name in enumerate(known)}
        return np.array([place[name] for name in found])[positions], known
    if all(_is_index(name) for name in found):
        return np.array([int(name) for name in found])[positions], known
    if known is not None:
        unknown = [name for name in found if name not in set(known)]
        raise LabelError(
            f"label {unknown[0]!r} in {where} is none of the {len(known)} classes "
            f"({_some(known)}); correct it or pass the full list of classes"
        )
    return positions, tuple(found)


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def _whole_numbers(array: NDArray[Any], where: str) -> NDArray[np.int64]:
    if array.dtype.kind in "biu":
        return array.astype(np.int64)
    if array.dtype.kind != "f":
        raise LabelError(f"expected labels in {where} to be integers, got {array.dtype}")
    missing = int(np.isnan(array).sum())
    if missing:
        raise LabelError(
            f"{missing} of {len(array)} labels in {where} are missing; remove those examples first"
        )
    # beyond 2^53 a float no longer names one integer
    broken = ~np.isfinite(array) | (np.floor(array) != array) | (np.abs(array) > 2**53)
    if broken.any():
        raise LabelError(
            f"expected labels in {where} to be whole numbers, got {array[broken][0]}; store class "
            "indices or class names"
        )
    return array.astype(np.int64)


def _numbered(indices: NDArray[np.int64], where: str) -> tuple[str, ...]:
    highest = int(indices.max())
    if highest >= _MAX_CLASSES:
        raise LabelError(
            f"expected class indices in {where}, got {highest}, which looks like an identifier; "
            "number the classes from 0"
        )
    return tuple(str(index) for index in range(highest + 1)) or ("0",)


def _check_range(indices: NDArray[np.int64], known: tuple[str, ...], where: str) -> None:
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= len(known):
        wrong = low if low < 0 else high
        position = int(np.argmax(indices == wrong))
        hint = (
            "negative labels often mean unlabelled: remove those examples"
            if low < 0
            else "correct it, or name every class"
        )
        bound = f"[0, {len(known)})" if known else "0 or above"
        place = where if len(indices) == 1 else f"position {position} of {where}"
        raise LabelError(f"expected labels in {bound}, got {wrong} at {place}; {hint}")


def _some(names: Sequence[str], limit: int = 8) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, ..."
