"""Keep the attributes that examples are compared by as columns of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hardsight.data import EmbeddingSource, ExampleSource, group_columns
from hardsight.errors import OptionError
from hardsight.registry import ScoreSpec
from hardsight.run_folder import values_digest
from hardsight.table import KEY_COLUMNS


def _as_column(values: NDArray[Any]) -> pa.Array:
    """An attribute as a column: numbers and booleans as they are, all else as text."""
    # numpy's own numbers and booleans, which Arrow takes directly
    if values.dtype.kind in "iufb":
        return pa.array(values)
    known = [value for value in values.tolist() if value is not None]
    if known and all(isinstance(value, bool) for value in known):
        return pa.array(values.tolist(), pa.bool_())
    # a bool is an int to Python, but not a number here
    if known and all(isinstance(v, int | float) and not isinstance(v, bool) for v in known):
        return pa.array(values.tolist(), pa.float64(), from_pandas=True)
    texts = [None if value is None or value != value else str(value) for value in values.tolist()]
    return pa.array(texts, pa.string())


@dataclass(frozen=True)
class Groups:
    """Attributes of the examples, kept as columns of the table.

    Attributes:
        columns: by name, in the order of the source, ``[N]`` each.
        numbers: of the examples in the source, ascending, if they are not their positions.
    """

    columns: Mapping[str, pa.Array]
    numbers: NDArray[np.int64] | None

    def beside(self, rows: pa.Table) -> pa.Table:
        """Rows of the table with these columns at their end."""
        at = rows["index"].to_numpy()
        # the index of a row is its number in the data, not its place among the chosen rows
        at = at if self.numbers is None else np.searchsorted(self.numbers, at)
        for name, values in self.columns.items():
            rows = rows.append_column(name, values.take(pa.array(at)))
        return rows

    def digest(self) -> str:
        """A digest that changes when a value does."""
        return values_digest({name: column.to_pylist() for name, column in self.columns.items()})


def own_columns(groups: Groups | None, source: ExampleSource) -> Groups:
    """Columns that the source itself adds to its rows, such as the sentence of a token.

    Raises:
        OptionError: the user named groups, which are per example, and examples have several rows.
    """
    if groups is not None:
        raise OptionError(f"group cannot be used here: {source.spec} has a row for every token")
    return Groups(source.row_columns, None)


def groups_of(
    source: ExampleSource | EmbeddingSource,
    group: str | Sequence[str] | Mapping[str, Any],
    specs: Sequence[ScoreSpec],
    *,
    data: Any,
) -> Groups:
    """Attributes as columns of the table.

    Raises:
        DataError: as :func:`group_columns`.
        OptionError: the table has a column of that name.
    """
    columns = {}
    for name, values in group_columns(source, group, data=data).items():
        if name in (*KEY_COLUMNS, *(spec.name for spec in specs)):
            raise OptionError(
                f"the table has a column {name!r} of its own, so it cannot be a group; examples "
                "are compared by class in any case. Store the attribute under another name"
            )
        columns[name] = _as_column(values)
    return Groups(columns, source.numbers)
