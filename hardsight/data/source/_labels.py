"""Convert labels of any stored form to class indices, and check that they belong to the rows."""

from __future__ import annotations

import mmap
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.errors import DataError, LabelError, OptionError

_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]+)?")
# class indices this large, without names, must be identifiers that were stored as labels, unless
# there are about as many examples
_MANY_CLASSES = 1_000_000


def class_indices(
    values: Any, *, classes: Sequence[str] | None = None, where: str, least: int = 2
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Convert labels to ``[N]`` class indices, and return them with the names of the classes.

    Integers are indices, and so are floats that are whole numbers. Rows with a single 1 and
    otherwise zeros are one-hot. Strings are looked up in ``classes``; without it, numbers written
    as text are numbers, and other strings are numbered in sorted order.

    Args:
        values: one label per example.
        classes: names of the classes, position = label.
        where: where the labels come from, for error messages.
        least: smallest allowed number of classes.

    Returns:
        Indices in ``[0, C)`` and ``C`` names; numbered names if none are known.

    Raises:
        LabelError: a label is missing, negative, not a whole number, or beyond the last class; or
            two different strings are the same number.
        DataError: there is only one class.

    Example:
        >>> indices, names = class_indices(["dog", "cat", "dog"], where="labels.npy")
        >>> indices.tolist(), names
        ([1, 0, 1], ('cat', 'dog'))
    """
    known = None if classes is None else class_names(classes)
    array = _one_per_example(values, where)
    if array.ndim == 2:
        # this also refuses rows with several labels
        array, known = _from_one_hot(array, known, where)
    if array.dtype.kind in "OSU":
        array, known = _from_strings(array, known, where)
    indices = _whole_numbers(array, where)
    if known is None:
        known = numbered_names(indices, where)
    _check_range(indices, known, where)
    # a head of one class has nothing to compare with
    if len(known) < least:
        raise DataError(
            f"expected at least two classes, got only {known[0]!r} in {where}; hardness compares "
            "an example's class with the others, so if the model knows more classes, name all of "
            "them with classes=[...] (--classes)"
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
        _NUMBER.fullmatch(v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v))
        for v in {v for v in array.reshape(-1).tolist() if not isinstance(v, list | np.ndarray)}
    )


def class_names(classes: Sequence[str]) -> tuple[str, ...]:
    """``classes`` as a tuple of distinct names.

    Raises:
        OptionError: a name occurs twice, or a single string was given.
    """
    if isinstance(classes, str):
        raise OptionError(f"expected classes to be a list of names, got the string {classes!r}")
    names = tuple(str(name) for name in classes)
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise OptionError(f"expected every class name once, got {', '.join(repeated)} repeatedly")
    return names


def single_class_index(value: Any, classes: tuple[str, ...], *, where: str) -> int:
    """One label of a user's dataset as a class index; ``classes`` may be empty (unknown).

    Raises:
        LabelError: as :func:`class_indices`, and for a string if no class names are known.
    """
    array = np.asarray(value)
    if array.size == 1 and _is_missing(array.reshape(-1)[0]):
        raise LabelError(f"the label of {where} is missing; remove the example first")
    if array.size == 1 and array.dtype.kind in "OSU" and not classes:
        text = str(array.reshape(-1)[0])
        # a number written with leading zeros is more likely a code than an index
        if not text.isdecimal() or str(int(text)) != text:  # "007" may be a name
            raise LabelError(
                f"the label of {where} is the string {text!r}; pass classes=[...] so that names "
                "become class indices"
            )
    # a row with a single 1 is one-hot; two 1s are two labels
    if array.ndim == 1 and array.size > 1 and _is_one_hot(array[None]).all():
        _check_width(array.size, classes or None, f"label of {array.size} values", where)
        return int(array.argmax())
    if array.size != 1:
        raise LabelError(
            f"expected one label for {where}, got {array.size} values; soft labels become indices "
            "with argmax"
        )
    array = array.reshape(1)
    if array.dtype.kind in "OSU":
        array, _ = _from_strings(array, classes or None, where)
    index = _whole_numbers(array, where)
    # without names the number of classes is not known yet
    if classes or index[0] < 0:
        _check_range(index, classes, where)
    return int(index[0])


def numbered_names(indices: NDArray[np.int64], where: str) -> tuple[str, ...]:
    """Names for classes that have none: their numbers, up to the highest label.

    Raises:
        LabelError: labels are so few and so high that they must be identifiers.
    """
    highest = int(indices.max())
    # about as many examples as identifiers is what a list of files looks like
    if highest >= max(_MANY_CLASSES, 10 * len(indices)):
        raise LabelError(
            f"expected class indices in {where}, got {highest}, which looks like an identifier; "
            "number the classes from 0, or name them: classes=[...] (--classes)"
        )
    return tuple(str(index) for index in range(highest + 1)) or ("0",)


def check_range(labels: NDArray[np.integer[Any]], num_classes: int) -> None:
    """Raise ``LabelError`` unless all labels are in ``[0, num_classes)``."""
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        raise LabelError(
            f"expected labels in [0, {num_classes}), got {int(labels[outside][0])} at position "
            f"{int(outside.argmax())}"
        )


def _one_per_example(values: Any, where: str) -> NDArray[Any]:
    """Labels ``[N]``, or rows of them ``[N, C]`` that may be one-hot."""
    array = _stacked(values, where)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2):
        raise LabelError(
            f"expected one label per example in {where}, got shape {list(array.shape)}"
        )
    if not len(array):
        raise DataError(f"no examples in {where}: there are no labels")
    return array


def _stacked(values: Any, where: str) -> NDArray[Any]:
    """An array of labels; a column of lists, as parquet files and data frames have it, as rows."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        array = np.empty(len(values), dtype=object)
        array[:] = values
    rows = array.tolist() if array.dtype == object and array.ndim == 1 else []
    lengths = {len(row) for row in rows if isinstance(row, list | tuple | np.ndarray)}
    if not lengths:
        return array
    refuse_missing(rows, where)
    # a mix of lists and single labels is a mistake in the file
    if len(lengths) > 1 or not all(isinstance(row, list | tuple | np.ndarray) for row in rows):
        shown = " and ".join(str(length) for length in sorted(lengths)[:2])
        raise LabelError(
            f"expected one label per example in {where}, got lists of {shown} values; store class "
            "indices"
        )
    return np.array(rows)


def _from_one_hot(
    array: NDArray[Any], known: tuple[str, ...] | None, where: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    broken = np.flatnonzero(~_is_one_hot(array))
    if len(broken):
        row = array[broken[0]].tolist()
        shown = f"{row[:8]}"[:-1] + ", ...]" if len(row) > 8 else f"{row}"
        raise LabelError(
            f"expected one label per example in {where}, got {shown} at position {broken[0]}; "
            "soft labels become indices with argmax(axis=1)"
        )
    width = array.shape[1]
    _check_width(width, known, f"labels of {width} values", where)
    return array.argmax(axis=1), known or tuple(str(index) for index in range(width))


def _is_one_hot(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row is a single 1 among zeros."""
    if rows.dtype.kind not in "biuf":
        return np.zeros(len(rows), dtype=np.bool_)
    are_bits = ((rows == 0) | (rows == 1)).all(axis=1)
    is_one_hot: NDArray[np.bool_] = are_bits & (rows.sum(axis=1) == 1)
    return is_one_hot


def _check_width(width: int, known: tuple[str, ...] | None, what: str, where: str) -> None:
    if known is not None and width != len(known):
        raise LabelError(
            f"got one-hot {what} for {len(known)} classes in {where}; pass the classes they stand "
            "for, in order"
        )


def _is_missing(value: Any) -> bool:
    """None, NaN, and what pandas writes for a missing value."""
    if isinstance(value, list | tuple | np.ndarray):
        return False
    is_pandas = type(value).__name__ in ("NAType", "NaTType")
    # NaN is the one value that differs from itself
    return value is None or is_pandas or bool(value != value)


def refuse_missing(values: list[Any], where: str) -> None:
    """Raise ``LabelError`` if a label is missing."""
    missing = sum(_is_missing(value) for value in values)
    if missing:
        raise LabelError(
            f"{missing} of {len(values)} labels in {where} are missing; remove those examples first"
        )


def _from_strings(
    array: NDArray[Any], known: tuple[str, ...] | None, where: str
) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    refuse_missing(array.tolist(), where)
    # an array of objects may also hold numbers, or numbers and names, which would be sorted as text
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
    # distinct names are few, labels many: each name is looked at once
    distinct, positions = np.unique(texts, return_inverse=True)
    names = [str(name) for name in distinct]
    # names go before numbers: classes may be called "9" to "0", in this order
    if known is not None and set(names) <= set(known):
        place = {name: index for index, name in enumerate(known)}
        return np.array([place[name] for name in names])[positions], known
    if all(_NUMBER.fullmatch(name) for name in names):
        return _different_numbers(names, where)[positions], known
    if known is not None:
        unknown = [name for name in names if name not in set(known)]
        raise LabelError(
            f"label {unknown[0]!r} in {where} is none of the {len(known)} classes "
            f"({_some(known)}); correct it or pass the full list of classes"
        )
    return positions, tuple(names)


def _different_numbers(texts: list[str], where: str) -> NDArray[Any]:
    """The numbers that strings write, each in one way only."""
    written: dict[float, str] = {}
    for text in texts:
        if float(text) in written:
            raise LabelError(
                f"labels {written[float(text)]!r} and {text!r} in {where} would both be class "
                f"{float(text):g}; write a class in one way, or name them all: classes=[...] "
                "(--classes)"
            )
        written[float(text)] = text
    return np.array(list(written))


def _whole_numbers(array: NDArray[Any], where: str) -> NDArray[np.int64]:
    if array.dtype == np.uint64 and int(array.max(initial=0)) >= 2**63:  # as int64: negative
        raise LabelError(
            f"expected labels in {where} to be class indices, got {array.max()}; number the "
            "classes from 0, or pass names"
        )
    if array.dtype.kind in "biu":
        # what lies in a file stays there: of a hundred million labels a copy takes 800 MB
        return array.astype(np.int64, copy=not _is_mapped(array))
    if array.dtype.kind != "f":
        raise LabelError(f"expected labels in {where} to be integers, got {array.dtype}")
    if np.isnan(array).any():
        refuse_missing(array.tolist(), where)
    # beyond 2^53 a float no longer names one integer
    broken = ~np.isfinite(array) | (np.floor(array) != array) | (np.abs(array) > 2**53)
    if broken.any():
        raise LabelError(
            f"expected labels in {where} to be whole numbers, got {array[broken][0]}; store class "
            "indices or class names"
        )
    return array.astype(np.int64)


def _is_mapped(array: NDArray[Any]) -> bool:
    """Whether the values are those of a file, and not a caller's, who may change them."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def _check_range(indices: NDArray[np.int64], known: tuple[str, ...], where: str) -> None:
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= len(known):
        wrong = low if low < 0 else high
        position = int(np.argmax(indices == wrong))
        hint = (
            "negative labels often mean unlabelled: remove those examples, or name the classes"
            if low < 0
            else "correct it, or name every class"
        )
        bound = f"[0, {len(known)})" if known else "0 or above"
        place = where if len(indices) == 1 else f"position {position} of {where}"
        raise LabelError(f"expected labels in {bound}, got {wrong} at {place}; {hint}")


def _some(names: Sequence[str], limit: int = 8) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, ..."


def check_index(values: Any, data: Any, *, option: str) -> None:
    """Refuse values whose index pairs them with other examples than their positions do.

    Only pandas' objects have an index. Values that count their rows from 0, or have the index of
    the data, mean their positions.

    Args:
        values: one per example, in any form.
        data: what the user named or passed as the data.
        option: what the values are called, for the message.

    Raises:
        DataError: the index holds the entries of the data's index in another order; or the data
            has no index, and it holds the numbers of the rows in another order.

    Example:
        >>> import pandas as pd
        >>> check_index(pd.Series([5, 6], index=[1, 0]), [[0.5], [1.5]], option="labels")
        Traceback (most recent call last):
        ...
        hardsight.errors.DataError: the index of labels holds the numbers 0 to 1 in another order...
    """
    index = _index(values)
    if index is None or _counts_rows(index):
        return
    of_data = _index(data)
    by_place = f"if they belong to the rows by position, pass {option}.reset_index(drop=True)"
    if of_data is not None:
        # counted only if it matters: entries may be there twice, and need not have an order
        if len(of_data) != len(index) or of_data.equals(index):
            return
        if Counter(of_data) == Counter(index):
            raise DataError(
                f"the index of {option} holds the entries of the data's index in another order, "
                f"so that there are two ways to read them; {by_place}; if by name, pass "
                f"{option}.reindex(X.index), X being the data"
            )
    elif _counts_rows(index.sort_values() if _is_whole(index) else index):
        raise DataError(
            f"the index of {option} holds the numbers 0 to {len(index) - 1:,} in another order, "
            f"so that there are two ways to read them; {by_place}; if by these numbers, pass "
            f"{option}.sort_index()"
        )


def _index(values: Any) -> Any:
    # a list has a member of that name as well
    return values.index if hasattr(values, "iloc") else None


def _is_whole(index: Any) -> bool:
    return bool(index.dtype.kind in "iu")


def _counts_rows(index: Any) -> bool:
    """Whether it is 0, 1, 2 and so on."""
    return _is_whole(index) and np.array_equal(index.to_numpy(), np.arange(len(index)))
