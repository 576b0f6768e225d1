"""Rows of features by position, in any form that a scikit-learn classifier takes."""

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
        rows: one row per example.

    Raises:
        DataError: there are no rows.
    """

    def __init__(self, rows: Any) -> None:
        # of the sparse formats, CSR is the one that can be indexed by rows
        self._rows = rows.tocsr() if hasattr(rows, "tocsr") else rows
        if not len(self):
            raise DataError("no examples: the features have no rows")

    def __len__(self) -> int:
        # a sparse matrix has a shape, but its len() is ambiguous and raises
        shape = getattr(self._rows, "shape", None)
        return len(self._rows) if shape is None else int(shape[0])

    def at(self, positions: Sequence[int] | slice) -> Any:
        """Return the rows at some positions."""
        if hasattr(self._rows, "iloc"):
            return self._rows.iloc[positions]
        if isinstance(self._rows, list):
            if isinstance(positions, slice):
                return self._rows[positions]
            return [self._rows[at] for at in positions]
        return self._rows[positions]


class ComputedRows(StoredArray):
    """Numbers that are computed from rows when they are read, such as the output of a pipeline.

    Args:
        rows: the rows to compute from.
        made_of: maps some rows to their numbers, ``[n, D]``.
    """

    def __init__(self, rows: FeatureRows, made_of: Callable[[Any], NDArray[Any]]) -> None:
        self._rows, self._made_of = rows, made_of
        first = made_of(rows.at(slice(0, 1)))
        self.shape, self.dtype = (len(rows), *first.shape[1:]), first.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the numbers of rows ``start`` to ``stop``."""
        return self._made_of(self._rows.at(slice(start, stop))).astype(self.dtype, copy=False)


def feature_rows(
    data: Any, labels: Any, *, columns: Sequence[str] | None, width: int | None
) -> tuple[FeatureRows, Any, Any]:
    """Return rows, labels and ids from the data that a user passes beside a classifier.

    Args:
        data: array, tensor, sparse matrix, list or data frame, perhaps with a column of labels; an
            Arrow or Polars table counts as a data frame.
        labels: one label per row; ``None`` if the data frame contains them.
        columns: columns of the data frame that the classifier was fitted on, if it was fitted on a
            data frame.
        width: number of columns that the classifier was fitted on, if it states one.

    Raises:
        DataError: there are no labels, or columns that the classifier needs are missing.
        ShapeError: the data frame has more or fewer columns than the classifier was fitted on.
    """
    if hasattr(data, "to_pandas") and hasattr(data, "columns"):  # in_memory() would lose the names
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
        where, remedy = "the columns of DataFrame", "pass them by labels=, one per row"
        label = chosen_column(names, LABELS, "labels", where, remedy=remedy)
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
    # a column "id" is a feature only if the classifier was fitted on that many columns
    kept = [name for name in names if name not in aside]
    if ids is not None and len(kept) != width:
        kept.remove("id")
    if width is not None and len(kept) != width:
        raise ShapeError(
            f"the model was fitted on {width} columns without names, DataFrame has {len(kept)} "
            f"beside its labels ({', '.join(kept[:8])}); pass those alone, and labels=y"
        )
    return FeatureRows(frame.iloc[:, [names.index(name) for name in kept]].to_numpy()), labels, ids
