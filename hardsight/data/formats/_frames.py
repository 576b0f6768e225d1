"""Data frames whose columns hold pictures, or the paths of pictures, and labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.data.formats._tables import (
    IMAGE_COLUMNS,
    LABELS,
    PATHS,
    CellSource,
    chosen_column,
    classes_of_all,
    listed_images,
    named_column,
    rows_of_split,
)
from hardsight.data.source import ExampleSource
from hardsight.errors import DataError


def frame_source(
    frame: Any,
    *,
    classes: Sequence[str] | None,
    split: str | None,
    image: str | None = None,
    label: str | None = None,
) -> ExampleSource:
    """Return the examples of a data frame; relative paths start from the working directory.

    Raises:
        DataError: no column or several columns could be the pictures or the labels.
        LabelError: a label is missing or not a class.
    """
    spec = type(frame).__name__
    if not len(frame):
        raise DataError(f"no examples in {spec}: it has no rows")
    names = [str(name) for name in frame.columns]
    where = f"the columns of {spec}"
    # by position, since a frame may have two columns of the same name
    columns = {name: frame.iloc[:, at].to_numpy() for at, name in enumerate(names)}
    if label is not None:
        named_column(names, label, "label", spec)
    # also if it is named, since a frame may have it twice
    label = chosen_column(names, LABELS if label is None else (label,), "labels", where)
    stored = (name for name in IMAGE_COLUMNS if name in names and not _are_paths(columns[name]))
    pictures = (
        image or next(stored, None) or chosen_column(names, PATHS, "pictures or paths", where)
    )
    named_column(names, pictures, "image", spec)
    labels, known = _labels(frame.iloc[:, names.index(label)])
    cells, given = columns[pictures], known if classes is None else classes
    if _are_paths(cells):
        return listed_images(
            [os.fspath(cell) for cell in cells], labels, root=Path.cwd(), spec=spec,
            classes=given, split=split, columns=columns,
        )  # fmt: skip
    rows = rows_of_split(columns, split, spec)
    given = classes_of_all(labels, rows, given, spec)
    if rows is not None:
        columns = {name: values[rows] for name, values in columns.items()}
        cells, labels = columns[pictures], labels[rows]
    return CellSource(cells, labels, spec=spec, classes=given, root=Path.cwd(), columns=columns)


def _are_paths(cells: NDArray[Any]) -> bool:
    return all(isinstance(cell, str | os.PathLike) for cell in cells)


def _labels(column: Any) -> tuple[NDArray[Any], Sequence[str] | None]:
    """Return the labels in a column and, if it is categorical, its categories in their order."""
    # a copy, because pandas may return its own memory, which must not change
    values = column.to_numpy(dtype=object, copy=True)
    values[column.isna().to_numpy()] = None
    categories = getattr(column.dtype, "categories", None)
    if categories is None or not all(isinstance(name, str) for name in categories):
        return _plain(values), None
    return values, tuple(categories)


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of numbers if all values are numbers, else the objects unchanged."""
    numbers = all(isinstance(value, int | float | np.number | np.bool_) for value in values)
    return np.array(values.tolist()) if numbers else values
