"""Write classes the way the data already does: as numbers, names or one-hot rows."""

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
    """The stored value of every class that examples are changed to.

    If some example already has the class, its value is used: a number, a name or a row of a one-hot
    array. Any other class is written by name if the data uses names, and by number if it uses
    numbers.

    Args:
        raw: labels as they are stored, one per example.
        before: class of each label, ``[N]``.
        fixed: the corrected labels.
        where: where the labels are stored, for error messages.

    Raises:
        PatchError: it is unclear how a class would be written.
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
    """The stored value of a class that no example has yet."""
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
    # if every label is its class number, so is the new one
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
    """The stored labels of all kept examples, with the changes applied.

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
