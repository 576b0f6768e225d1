"""Data frames of pandas: a column of pictures or paths, and one of labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.data.formats._cells import CellSource
from hardsight.data.formats._columns import IMAGE_COLUMNS, LABELS, PATHS, chosen_column
from hardsight.data.formats._listed import listed_images, rows_of_split
from hardsight.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.data.source import ExampleSource


def frame_source(frame: Any, *, classes: Sequence[str] | None, split: str | None) -> ExampleSource:
    """The examples of a data frame; relative paths start from the working directory.

    Raises:
        DataError: no column, or more than one, can be the pictures or the labels.
        LabelError: a label is missing or not a class.
    """
    spec = type(frame).__name__
    if not len(frame):
        raise DataError(f"no examples in {spec}: it has no rows")
    names = [str(name) for name in frame.columns]
    where = f"the columns of {spec}"
    columns = {name: frame.iloc[:, at].to_numpy() for at, name in enumerate(names)}
    label = chosen_column(names, LABELS, "labels", where)
    stored = (name for name in IMAGE_COLUMNS if name in names and not _are_paths(columns[name]))
    pictures = next(stored, None) or chosen_column(names, PATHS, "pictures or paths", where)
    labels, known = _labels(frame.iloc[:, names.index(label)])
    cells, given = columns[pictures], known if classes is None else classes
    if _are_paths(cells):
        return listed_images(
            [os.fspath(cell) for cell in cells], labels, root=Path.cwd(), spec=spec,
            classes=given, split=split, columns=columns,
        )  # fmt: skip
    rows = rows_of_split(columns, split, spec)
    if rows is not None:
        columns = {name: values[rows] for name, values in columns.items()}
        cells, labels = columns[pictures], labels[rows]
    return CellSource(cells, labels, spec=spec, classes=given, root=Path.cwd(), columns=columns)


def _are_paths(cells: NDArray[Any]) -> bool:
    return all(isinstance(cell, str | os.PathLike) for cell in cells)


def _labels(column: Any) -> tuple[NDArray[Any], Sequence[str] | None]:
    """Labels of a column, and the names of its categories in their order."""
    values = column.to_numpy(dtype=object)
    values[column.isna().to_numpy()] = None
    categories = getattr(column.dtype, "categories", None)
    if categories is None or not all(isinstance(name, str) for name in categories):
        return _plain(values), None
    return values, tuple(categories)


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """Objects as numbers, if that is what all of them are."""
    numbers = all(isinstance(value, int | float | np.number | np.bool_) for value in values)
    return np.array(values.tolist()) if numbers else values
