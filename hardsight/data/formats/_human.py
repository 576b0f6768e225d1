"""Human selection frequency: how often people chose an image's label."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.data.formats._parquet import opened
from hardsight.data.formats._stored import stored_arrays
from hardsight.data.source import HUMAN_COUNTS, ExampleSource, existing
from hardsight.errors import DataError, MissingDataError, ShapeError
from hardsight.table import ScoreTable

_INDEX_COLUMN = "index"
_ID_COLUMNS = ("id", "image", "path", "file", "filename", "image_name")
_VALUE_COLUMNS = (
    "human_frequency", "human_selection_frequency", "selection_frequency", "frequency", "hsf",
)  # fmt: skip


def human_frequency(
    source: ExampleSource | ScoreTable, *, file: str | os.PathLike[str] | None = None
) -> NDArray[np.float64]:
    r"""Return the share of people who chose the label of each example.

    .. math:: f_i = \frac{\mathrm{counts}_{i, y_i}}{\sum_c \mathrm{counts}_{i, c}}

    Args:
        source: a source from :func:`hardsight.data.open_source`, or a table of its scores, whose
            rows are matched by index or id.
        file: needed if the source has no column ``human_counts``. Either counts ``[N, C]`` in the
            source's order (``.npy``, such as ``cifar10h-counts.npy``, or the column
            ``human_counts`` of a ``.parquet``), or a CSV with a column of ids (``id``, ``image``,
            ``path``, ...; whole ids or file names) or positions (``index``, from 0) and a column
            of frequencies (``human_frequency``, ``frequency``, ...).

    Returns:
        ``[N]`` in ``[0, 1]``; larger is easier for people. NaN if a CSV does not list an
        example.

    Raises:
        MissingDataError: there are no counts, or the file does not exist.
        ShapeError: the number of counts differs from the number of examples or classes.
        DataError: counts are negative or all 0, a frequency is outside ``[0, 1]``, an id or index
            of a CSV is repeated, or an index is past the last example.

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Definition 2 (human selection frequency);
        Peterson et al., Human uncertainty makes classification more robust, 2019 (CIFAR-10H).
    """
    rows = _rows_of_table(source) if isinstance(source, ScoreTable) else _rows_of_source(source)
    if file is not None:
        path = existing(file)
        if path.suffix.lower() == ".csv":
            return _from_csv(rows, path)
        return _shares(rows, _stored_counts(path), str(path))
    counts = None if isinstance(source, ScoreTable) else source.column(HUMAN_COUNTS)
    if counts is None:
        raise MissingDataError(
            f"{rows.spec} holds no column {HUMAN_COUNTS!r}; pass file=, with counts [N, C] "
            "(.npy, .parquet) or a CSV of ids and frequencies"
        )
    return _shares(rows, _stacked(counts, rows.spec), rows.spec)


@dataclass(frozen=True)
class _Rows:
    """The examples whose frequency is asked for.

    Attributes:
        spec: what the examples are called in messages.
        ids: names of the examples.
        labels: classes of the examples.
        positions: positions of the examples in the source.
        length: number of examples in the source.
        num_classes: number of classes of the source.
    """

    spec: str
    ids: list[str]
    labels: NDArray[np.int64]
    positions: NDArray[np.int64]
    length: int
    num_classes: int


def _rows_of_source(source: ExampleSource) -> _Rows:
    labels, count = source.labels, len(source)
    ids = [source.id_of(index) for index in range(count)]
    return _Rows(source.spec, ids, labels, np.arange(count), count, len(source.classes))


def _rows_of_table(table: ScoreTable) -> _Rows:
    """Return the rows of a table; unreadable examples have no row, but count towards the length."""
    positions = table.column("index").astype(np.int64)
    unread = int(table.metadata.get("counts", {}).get("errors", 0))
    last = int(positions.max()) if len(positions) else -1
    labels, num_classes = table.column("label").astype(np.int64), len(table.classes)
    outputs = (table.metadata.get("class_order") or {}).get("labels")
    if outputs:  # labels are numbers of the model's outputs, but counts are in the data's order
        number = {output: label for label, output in enumerate(outputs)}
        labels = np.array([number[output] for output in labels.tolist()], dtype=np.int64)
        num_classes = len(outputs)
    return _Rows(
        spec=str(table.path or "the table"),
        ids=[str(name) for name in table.column("id")],
        labels=labels,
        positions=positions,
        length=max(len(table) + unread, last + 1),
        num_classes=num_classes,
    )


def _shares(rows: _Rows, counts: NDArray[Any], where: str) -> NDArray[np.float64]:
    wanted = (rows.length, rows.num_classes)
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
    shares: NDArray[np.float64] = counts[rows.positions, rows.labels] / totals[rows.positions]
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
    if path.suffix.lower() == ".parquet":
        return _parquet_counts(path)
    arrays = stored_arrays(path)
    counts = next((arrays[name] for name in ("", HUMAN_COUNTS, "counts") if name in arrays), None)
    if counts is None:
        raise DataError(
            f"expected one array, or one named {HUMAN_COUNTS!r}, in {path}, got "
            f"{', '.join(arrays) or 'none'}"
        )
    return counts.whole()


def _parquet_counts(path: Path) -> NDArray[Any]:
    with opened(path) as file:
        if HUMAN_COUNTS not in file.schema_arrow.names:
            raise DataError(
                f"expected a column {HUMAN_COUNTS!r} in {path}, got "
                f"{', '.join(file.schema_arrow.names) or 'none'}"
            )
        lists = file.read([HUMAN_COUNTS])[HUMAN_COUNTS].to_numpy()
    return _stacked(lists, str(path))


def _from_csv(rows: _Rows, path: Path) -> NDArray[np.float64]:
    key, stated = _csv_frequencies(path)
    if key == _INDEX_COLUMN:
        frequencies = _by_position(rows, stated, path)
        first = "0"
    else:
        frequencies = _by_name(rows, stated, path)
        first = repr(rows.ids[0]) if rows.ids else "none"
    if np.isnan(frequencies).all():
        raise DataError(
            f"{path} lists none of the {len(rows.ids):,} examples of {rows.spec}; expected ids "
            f"such as {first}, got {next(iter(stated), 'no rows')!r}"
        )
    return frequencies


def _by_name(rows: _Rows, stated: dict[str, float], path: Path) -> NDArray[np.float64]:
    ids = rows.ids
    # file names are tried only if no whole id is listed
    keys = ids if any(name in stated for name in ids) else [name.rpartition("/")[2] for name in ids]
    repeated = [key for key, count in Counter(keys).items() if count > 1 and key in stated]
    if repeated:
        raise DataError(
            f"{path} names {repeated[0]!r}, which {rows.spec} holds more than once; use whole "
            f"ids such as {ids[0]!r}"
        )
    return np.array([stated.get(key, np.nan) for key in keys])


def _by_position(rows: _Rows, stated: dict[str, float], path: Path) -> NDArray[np.float64]:
    for name in stated:
        if not name.isdecimal() or int(name) >= rows.length:
            raise DataError(
                f"expected an index from 0 to {rows.length - 1} in {path}, as {rows.spec} has "
                f"{rows.length:,} examples, got {name!r}; use the file of this split"
            )
    values = {int(name): value for name, value in stated.items()}
    return np.array([values.get(int(position), np.nan) for position in rows.positions])


def _csv_frequencies(path: Path) -> tuple[str, dict[str, float]]:
    """Return the name of the id column, and the frequency of each id."""
    rows = csv.DictReader(io.StringIO(_csv_text(path), newline=""))
    try:
        columns = [name.strip() for name in rows.fieldnames or ()]
        rows.fieldnames = columns
        key = next((name for name in (*_ID_COLUMNS, _INDEX_COLUMN) if name in columns), None)
        value = next((name for name in _VALUE_COLUMNS if name in columns), None)
        if key is None or value is None:
            raise DataError(
                f"expected a column of ids ({', '.join(_ID_COLUMNS)} or {_INDEX_COLUMN}) and one "
                f"of frequencies ({', '.join(_VALUE_COLUMNS)}) in {path}, got "
                f"{', '.join(columns) or 'no header'}"
            )
        frequencies: dict[str, float] = {}
        for row in rows:
            name, text = (row[key] or "").strip(), (row[value] or "").strip()
            if key == _INDEX_COLUMN and name.isdecimal():
                name = str(int(name))  # "007" is position 7
            if name in frequencies:
                raise DataError(f"{path}, line {rows.line_num}: {name!r} is listed twice")
            frequencies[name] = _frequency(text, f"{path}, line {rows.line_num}")
    except csv.Error as err:
        raise DataError(
            f"{path}, line {rows.line_num + 1}: {err}; expected a CSV of ids and frequencies"
        ) from err
    return key, frequencies


def _csv_text(path: Path) -> str:
    """Return the text of a file.

    Spreadsheets also save in other encodings. Guessing one would garble names, so they are refused.
    """
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = 1 + content.count(b"\n", 0, err.start)
        raise DataError(
            f"{path}, line {line}: byte 0x{content[err.start]:02x} is not UTF-8; save it as UTF-8 "
            "(a spreadsheet calls it 'CSV UTF-8'), or turn it into that: iconv -f LATIN1 -t UTF-8"
        ) from err


def _frequency(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not 0 <= number <= 1:
        raise DataError(f"{where}: expected a frequency in [0, 1], got {text!r}")
    return number
