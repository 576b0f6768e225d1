"""How a stored form writes a class: as it writes it already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import PatchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.data.source import FixedLabels


def stored_values(
    raw: Sequence[Any] | NDArray[Any],
    before: NDArray[np.int64],
    fixed: FixedLabels,
    *,
    where: str,
) -> dict[int, Any]:
    """For every class that an example is given, the value that stands for it.

    A class that some example has already is written as that example has it, be it a number, a name
    or a row of a one-hot array. Of others, names are written as names and numbers as numbers.

    Args:
        raw: labels as they are stored, one per example.
        before: class of each, ``[N]``.
        fixed: what they become.
        where: the labels' origin, for messages.

    Raises:
        PatchError: it cannot be told how a class would be written.
    """
    # the first example of each class shows how the file writes it
    first = {int(label): raw[int(np.argmax(before == label))] for label in np.unique(before)}
    values = {}
    for label in np.unique(fixed.labels[fixed.changed]).tolist():
        if label in first:
            values[label] = first[label]
        else:
            values[label] = _unseen(label, first, fixed.classes, where)
    return values


def _unseen(label: int, first: dict[int, Any], classes: tuple[str, ...], where: str) -> Any:
    """How a class would be written that no example has yet."""
    name = classes[label] if label < len(classes) else str(label)
    known = [(number, value) for number, value in first.items()]
    if all(np.ndim(value) == 1 for _, value in known):
        width = len(known[0][1])
        if label < width:
            return np.eye(width, dtype=np.asarray(known[0][1]).dtype)[label]
        raise PatchError(
            f"{where} is one-hot with {width} classes and has no place for {name!r}; store class "
            "indices"
        )
    like = known[0][1]
    # numbers that are their own class: the next one is written the same way
    if all(_is_number(value) and float(value) == number for number, value in known):
        return str(label) if isinstance(like, str) else label
    if isinstance(like, str | bytes) and all(_text(v) == classes[n] for n, v in known):
        return name.encode() if isinstance(like, bytes) else name
    raise PatchError(
        f"cannot tell how {where} would write the class {name!r}, which no example has; add one "
        "example of it first"
    )


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def changed_array(
    raw: NDArray[Any], before: NDArray[np.int64], fixed: FixedLabels, *, where: str
) -> NDArray[Any]:
    """Stored labels with those of the changed examples in place; of the examples that stay.

    Raises:
        PatchError: a class does not fit into the type of the array.
    """
    values = stored_values(raw, before, fixed, where=where)
    new = raw.copy()
    if new.dtype.kind in "SU":  # a longer name must not be cut off
        widest = max([new.dtype, *(np.asarray(value).dtype for value in values.values())],
                     key=lambda kind: kind.itemsize)  # fmt: skip
        new = new.astype(widest)
    for label, value in values.items():
        rows = fixed.changed[fixed.labels[fixed.changed] == label]
        try:
            new[rows] = np.asarray(value)  # wraps, as the next line sees; numpy 1 warns of ints
            fits = bool((new[rows] == value).all())
        except (OverflowError, ValueError):
            fits = False
        if not fits:
            raise PatchError(
                f"class {value} does not fit into {where}, which holds {raw.dtype}; store the "
                "labels in a wider type"
            )
    return new[fixed.kept]
