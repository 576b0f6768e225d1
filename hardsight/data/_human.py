"""How often people chose an image's label: human selection frequency."""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.data._files import existing
from hardsight.data._stored import stored_arrays
from hardsight.data._wrapped import stored_column
from hardsight.errors import DataError, MissingDataError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.data._example import ExampleSource

COUNTS_COLUMN = "human_counts"
_ID_COLUMNS = ("id", "image", "path", "file", "filename", "image_name")
_VALUE_COLUMNS = (
    "human_frequency", "human_selection_frequency", "selection_frequency", "frequency", "hsf",
)  # fmt: skip


def human_frequency(
    source: ExampleSource, *, file: str | os.PathLike[str] | None = None
) -> NDArray[np.float64]:
    r"""Share of people who chose the label of each example.

    .. math:: f_i = \frac{\mathrm{counts}_{i, y_i}}{\sum_c \mathrm{counts}_{i, c}}

    Args:
        source: from :func:`hardsight.data.open_source`.
        file: where the source has no column ``human_counts``: counts ``[N, C]`` in the source's
            order (``.npy``, such as ``cifar10h-counts.npy``), or a CSV with a column of ids
            (``id``, ``image``, ``path``, ...; whole ids or file names) and one of frequencies
            (``human_frequency``, ``frequency``, ...).

    Returns:
        ``[N]`` in ``[0, 1]``; larger is easier for people. NaN where a CSV does not list an
        example.

    Raises:
        MissingDataError: there are no counts, or no such file.
        ShapeError: the number of counts differs from that of examples or classes.
        DataError: counts are negative or all 0, a frequency is outside ``[0, 1]``, or an id of a
            CSV repeats.

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Definition 2 (human selection frequency);
        Peterson et al., Human uncertainty makes classification more robust, 2019 (CIFAR-10H).
    """
    if file is not None:
        path = existing(file)
        if path.suffix.lower() == ".csv":
            return _from_csv(source, path)
        return _shares(source, _stored_counts(path), str(path))
    counts = stored_column(source, COUNTS_COLUMN)
    if counts is None:
        raise MissingDataError(
            f"{source.spec} holds no column {COUNTS_COLUMN!r}; pass file=, with counts [N, C] "
            "(.npy) or a CSV of ids and frequencies"
        )
    return _shares(source, _stacked(counts, source.spec), source.spec)


def _shares(source: ExampleSource, counts: NDArray[Any], where: str) -> NDArray[np.float64]:
    wanted = (len(source), len(source.classes))
    if counts.shape != wanted:
        raise ShapeError(
            f"expected human counts [{wanted[0]}, {wanted[1]}] (examples, classes) in {where}, "
            f"got {list(counts.shape)}; use the counts of this split, in its order"
        )
    totals = counts.sum(axis=1, dtype=np.float64)
    bad = np.flatnonzero((counts < 0).any(axis=1) | ~(totals > 0))
    if len(bad):
        raise DataError(
            f"expected counts of at least one person per example in {where}, got "
            f"{counts[bad[0]].tolist()} at position {bad[0]} ({len(bad)} such examples)"
        )
    labels = np.array([source.label_of(index) for index in range(len(source))])
    shares: NDArray[np.float64] = counts[np.arange(len(labels)), labels] / totals
    return shares


def _stacked(lists: NDArray[Any], where: str) -> NDArray[Any]:
    lengths = Counter(-1 if row is None else len(row) for row in lists)
    if len(lengths) > 1 or -1 in lengths:
        seen = ", ".join("none" if n < 0 else str(n) for n in sorted(lengths))
        raise ShapeError(
            f"expected as many human counts in every row of {where}, got {seen}; a row needs one "
            "count per class"
        )
    return np.stack(list(lists))


def _stored_counts(path: Path) -> NDArray[Any]:
    arrays = stored_arrays(path)
    found = next((arrays[name] for name in ("", COUNTS_COLUMN, "counts") if name in arrays), None)
    if found is None:
        raise DataError(
            f"expected one array, or one named {COUNTS_COLUMN!r}, in {path}, got "
            f"{', '.join(arrays) or 'none'}"
        )
    return found.whole()


def _from_csv(source: ExampleSource, path: Path) -> NDArray[np.float64]:
    stated = _csv_frequencies(path)
    ids = [source.id_of(index) for index in range(len(source))]
    keys = ids if any(name in stated for name in ids) else [name.rpartition("/")[2] for name in ids]
    repeated = [key for key, count in Counter(keys).items() if count > 1 and key in stated]
    if repeated:
        raise DataError(
            f"{path} names {repeated[0]!r}, which {source.spec} holds more than once; use whole "
            f"ids such as {ids[0]!r}"
        )
    found = np.array([stated.get(key, np.nan) for key in keys])
    if np.isnan(found).all():
        raise DataError(
            f"{path} lists none of the {len(ids):,} examples of {source.spec}; expected ids such "
            f"as {ids[0]!r}, got {next(iter(stated), 'no rows')!r}"
        )
    return found


def _csv_frequencies(path: Path) -> dict[str, float]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        columns = [name.strip() for name in rows.fieldnames or ()]
        rows.fieldnames = columns
        key = next((name for name in _ID_COLUMNS if name in columns), None)
        value = next((name for name in _VALUE_COLUMNS if name in columns), None)
        if key is None or value is None:
            raise DataError(
                f"expected a column of ids ({', '.join(_ID_COLUMNS)}) and one of frequencies "
                f"({', '.join(_VALUE_COLUMNS)}) in {path}, got {', '.join(columns) or 'no header'}"
            )
        found: dict[str, float] = {}
        for row in rows:
            name, text = (row[key] or "").strip(), (row[value] or "").strip()
            if name in found:
                raise DataError(f"{path}, line {rows.line_num}: {name!r} is listed twice")
            found[name] = _frequency(text, f"{path}, line {rows.line_num}")
    return found


def _frequency(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not 0 <= number <= 1:
        raise DataError(f"{where}: expected a frequency in [0, 1], got {text!r}")
    return number
