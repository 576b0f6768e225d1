"""Rows of features in any form that a classifier of scikit-learn takes, by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from hardsight.data.formats._stored import StoredArray
from hardsight.data.formats._tables import LABELS, chosen_column
from hardsight.data.source import in_memory
from hardsight.errors import DataError, ShapeError


class FeatureRows:
    """Rows of an array, a sparse matrix, a data frame or a list, in the form they came in.

    Args:
        rows: one per example.

    Raises:
        DataError: it has no rows.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows.tocsr() if hasattr(rows, "tocsr") else rows
        if not len(self):
            raise DataError("no examples: the features have no rows")

    def __len__(self) -> int:
        shape = getattr(self._rows, "shape", None)
        return len(self._rows) if shape is None else int(shape[0])

    def at(self, positions: Sequence[int] | slice) -> Any:
        """The rows at some positions."""
        if hasattr(self._rows, "iloc"):
            return self._rows.iloc[positions]
        if isinstance(self._rows, list):
            if isinstance(positions, slice):
                return self._rows[positions]
            return [self._rows[at] for at in positions]
        return self._rows[positions]


class ComputedRows(StoredArray):
    """Numbers that are made of rows when they are read, such as features out of a pipeline.

    Args:
        rows: what they are made of.
        made_of: from some rows to their numbers, ``[n, D]``.
    """

    def __init__(self, rows: FeatureRows, made_of: Callable[[Any], NDArray[Any]]) -> None:
        self._rows, self._made_of = rows, made_of
        first = made_of(rows.at(slice(0, 1)))
        self.shape, self.dtype = (len(rows), *first.shape[1:]), first.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The numbers of rows ``start`` to ``stop``."""
        return self._made_of(self._rows.at(slice(start, stop))).astype(self.dtype, copy=False)


def feature_rows(
    data: Any, labels: Any, *, columns: Sequence[str] | None, width: int | None
) -> tuple[FeatureRows, Any, Any]:
    """Rows, labels and ids out of what a user passes beside a classifier.

    Args:
        data: array, tensor, sparse matrix, list, or data frame, maybe with a column of labels; a
            table of Arrow or Polars is one.
        labels: one per row; ``None`` if the data frame has them.
        columns: of the data frame that the classifier was fitted on, if it was fitted on one.
        width: how many columns it was fitted on, if it tells.

    Raises:
        DataError: there are no labels, or columns that the classifier needs are missing.
        ShapeError: the data frame has more or fewer columns.
    """
    if hasattr(data, "to_pandas") and hasattr(data, "columns"):  # else its names would be lost
        data = data.to_pandas()
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return _of_frame(data, labels, columns, width)
    if labels is None:
        raise DataError("features need labels; pass labels=y, one per row")
    if not isinstance(data, list) and not hasattr(data, "tocsr"):
        data = in_memory(data)
    return FeatureRows(data), labels, None


def _of_frame(
    frame: Any, labels: Any, columns: Sequence[str] | None, width: int | None
) -> tuple[FeatureRows, Any, Any]:
    names = [str(name) for name in frame.columns]
    aside = []
    if labels is None:
        label = chosen_column(names, LABELS, "labels", "the columns of DataFrame")
        labels = frame.iloc[:, names.index(label)].to_numpy()
        aside.append(label)
    ids = frame["id"].to_numpy() if "id" in names and "id" not in (columns or ()) else None
    if columns is not None:
        missing = [name for name in columns if name not in names]
        if missing:
            raise DataError(
                f"the model was fitted on columns that DataFrame does not have: "
                f"{', '.join(missing[:8])}; it has {', '.join(names[:8])}"
            )
        return FeatureRows(frame[list(columns)]), labels, ids
    kept = [name for name in names if name not in aside]
    if ids is not None and len(kept) != width:
        kept.remove("id")
    if width is not None and len(kept) != width:
        raise ShapeError(
            f"the model was fitted on {width} columns without names, DataFrame has {len(kept)} "
            f"beside its labels ({', '.join(kept[:8])}); pass those alone, and labels=y"
        )
    return FeatureRows(frame.iloc[:, [names.index(name) for name in kept]].to_numpy()), labels, ids
