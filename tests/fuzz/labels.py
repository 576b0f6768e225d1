"""A grammar of labels: what lies in a file, and the class of each example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tests.fuzz.draw import Array, Draw

NAMES = ("ant", "bee", "cat", "dog")
ODD_NAMES = ("[red]", "a b", "é名", "x,y")


@dataclass(frozen=True)
class Labels:
    """One label per example.

    Attributes:
        stored: as the file has them; a list where numpy has no type for them.
        indices: the class of each example.
        classes: names, position = label.
        must_refuse: why no class could be right; empty if there is one.
        may_refuse: whether a refusal is as good an answer.
    """

    stored: Any
    indices: Array
    classes: list[str]
    must_refuse: str = ""
    may_refuse: bool = False

    def as_column(self) -> pa.Array:
        """As a table has them: lists for rows of several values, and none missing at the end."""
        if isinstance(self.stored, list):
            return pa.array(self.stored)
        flat = pa.array(self.stored if self.stored.ndim == 1 else self.stored.tolist())
        missing = pa.nulls(len(self.indices) - len(flat), flat.type)
        return pa.concat_arrays([flat, missing])


def make_labels(draw: Draw, count: int) -> Labels:
    """Draw labels of two to four classes for ``count`` examples."""
    classes = draw.whole("labels.classes", 2, 4)
    indices = draw.shuffled("labels.order", [at % classes for at in range(count)])
    plain = np.array(indices, dtype=np.int64)
    kind = draw.pick("labels", list(_KINDS), faults=list(_FAULTS), plain=0.5)
    return {**_KINDS, **_FAULTS}[kind](plain, classes)


def _numbered(classes: int) -> list[str]:
    return [str(label) for label in range(classes)]


def _whole(indices: Array, classes: int) -> Labels:
    return Labels(indices, indices, _numbered(classes))


def _of_type(dtype: str) -> Any:
    def labels(indices: Array, classes: int) -> Labels:
        return Labels(indices.astype(dtype), indices, _numbered(classes))

    return labels


def _column(indices: Array, classes: int) -> Labels:
    return Labels(indices[:, None], indices, _numbered(classes))


def _flags(indices: Array, classes: int) -> Labels:
    two = indices % 2
    return Labels(two.astype(bool), two, _numbered(2))


def _named(names: tuple[str, ...], dtype: str = "U") -> Any:
    def labels(indices: Array, classes: int) -> Labels:
        used = sorted(names[:classes])
        encoded = [name.encode() if dtype == "S" else name for name in used]
        return Labels(np.array(encoded)[indices], indices, used)

    return labels


def _digits(indices: Array, classes: int) -> Labels:
    return Labels(np.array(_numbered(classes))[indices], indices, _numbered(classes))


def _padded_digits(indices: Array, classes: int) -> Labels:
    names = ["01", "1", "2", "3"][:classes]
    why = "01 and 1 are two names and one number"
    return Labels(np.array(names)[indices], indices, names, why)


def _gap(indices: Array, classes: int) -> Labels:
    apart = np.where(indices == 1, classes, indices)
    return Labels(apart, apart, _numbered(classes + 1))


def _one_hot(indices: Array, classes: int) -> Labels:
    return Labels(np.eye(classes)[indices], indices, _numbered(classes))


def _soft(indices: Array, classes: int) -> Labels:
    soft = 0.8 * np.eye(classes)[indices] + 0.2 / classes
    return Labels(soft, indices, _numbered(classes), "a share of several classes is not a label")


def _one_is(value: float, why: str) -> Any:
    def labels(indices: Array, classes: int) -> Labels:
        stored = indices.astype(np.float64 if isinstance(value, float) else np.int64)
        stored[-1] = value
        return Labels(stored, indices, _numbered(classes), why)

    return labels


def _unsigned(indices: Array, classes: int) -> Labels:
    stored = indices.astype(np.uint64)
    stored[-1] = 2**63 + 1
    return Labels(stored, indices, _numbered(classes), "a label is beyond any count of classes")


def _dates(indices: Array, classes: int) -> Labels:
    stored = indices.astype("datetime64[D]")
    return Labels(stored, indices, _numbered(classes), "a date is not a class")


def _too_few(indices: Array, classes: int) -> Labels:
    return Labels(indices[:-1], indices, _numbered(classes), "an example has no label")


def _missing(indices: Array, classes: int) -> Labels:
    stored = [NAMES[label] for label in indices]
    return Labels([*stored[:-1], None], indices, list(NAMES[:classes]), "a label is missing")


def _single(indices: Array, classes: int) -> Labels:
    none = np.zeros_like(indices)
    return Labels(none, none, ["0"], may_refuse=True)


_KINDS: dict[str, Any] = {
    "whole": _whole,
    "int32": _of_type("int32"),
    "uint8": _of_type("uint8"),
    "float": _of_type("float64"),
    "flags": _flags,
    "column": _column,
    "names": _named(NAMES),
    "bytes": _named(NAMES, "S"),
    "odd names": _named(ODD_NAMES),
    "digits": _digits,
    "gap": _gap,
    "one-hot": _one_hot,
}
_FAULTS: dict[str, Any] = {
    "padded digits": _padded_digits,
    "soft": _soft,
    "negative": _one_is(-1, "a label is negative"),
    "fraction": _one_is(0.5, "a label is not whole"),
    "nan": _one_is(float("nan"), "a label is missing"),
    "infinite": _one_is(float("inf"), "a label is not finite"),
    "huge": _one_is(49_999_999, "a label is an identifier"),
    "identifier": _one_is(10**12, "a label is an identifier"),
    "unsigned": _unsigned,
    "dates": _dates,
    "too few": _too_few,
    "missing": _missing,
    "single": _single,
}
