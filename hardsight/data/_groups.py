"""Read the attributes by which examples are grouped: columns, folder levels, joined tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hardsight._checks import warn
from hardsight.data.formats import EmbeddingSource
from hardsight.data.source import ExampleSource, check_index
from hardsight.errors import DataError, MissingDataError, OptionError, UnknownPartError
from hardsight.registry import unknown_name
from hardsight.run_folder import read_parquet

Source = ExampleSource | EmbeddingSource
_LEVEL = "folder:"
_TABLES = (".csv", ".parquet")
_KEYS = ("id", "path", "index")  # columns by which a table can be joined
_FORMS = (
    "a column that is stored beside the examples, folder:1 for the first folder of their paths, or "
    "FILE.csv:COLUMN or FILE.parquet:COLUMN for a table with a column id, path or index"
)


def group_columns(
    source: Source, group: str | Sequence[str] | Mapping[str, Any], *, data: Any = None
) -> dict[str, NDArray[Any]]:
    """Attributes of all examples by name, ``[N]`` each.

    Args:
        source: the data.
        group: the name of a stored column (parquet, CSV, a data frame, a Hugging Face dataset);
            ``folder:1`` for the first folder of an example's path, ``folder:2`` for the next;
            ``FILE.csv:COLUMN`` or ``FILE.parquet:COLUMN`` for a table that is joined by its column
            ``id``, ``path`` or ``index``; several of these; or arrays by name. An example that a
            joined table does not have is in no group.
        data: what the source was opened from; the index of a data frame says which of its rows
            is which.

    Raises:
        DataError: there is no such column, level or table, or it fits no example; or the index of
            an array of pandas pairs it with other examples than its order does.
        MissingDataError: there is no such file.
        OptionError: two attributes have the same name, or the data is a stream.

    Example:
        >>> from hardsight.data import open_source
        >>> digits = open_source("builtin:digits", split="test")
        >>> list(group_columns(digits, {"even": digits.labels % 2 == 0}))
        ['even']
    """
    if isinstance(source, ExampleSource) and source.is_stream:
        raise OptionError(f"group cannot be used here: {source.spec} is a stream")
    if isinstance(group, Mapping):
        for name, values in group.items():
            check_index(values, data, option=f"group[{name!r}]")
        return {str(name): _array(name, values, source) for name, values in group.items()}
    asked = [group] if isinstance(group, str) else list(group)
    columns: dict[str, NDArray[Any]] = {}
    for text in asked:
        name, values = _named(source, text)
        if name in columns:
            raise OptionError(f"two groups are called {name!r}; name each attribute once")
        columns[name] = values
    return columns


def _array(name: str, values: Any, source: Source) -> NDArray[Any]:
    column = np.asarray(values)
    if column.shape != (len(source),):
        raise DataError(
            f"expected a value of {name!r} for each of the {len(source):,} examples of "
            f"{source.spec}, got shape {list(column.shape)}"
        )
    return column


def _named(source: Source, text: str) -> tuple[str, NDArray[Any]]:
    if text.startswith(_LEVEL):
        return text.replace(":", " "), _folder_level(source, text)
    file, colon, column = text.rpartition(":")
    if colon and file.lower().endswith(_TABLES):
        return column, _joined(source, Path(file), column)
    stored = source.column(text) if isinstance(source, ExampleSource) else None
    if stored is None:
        names = source.column_names if isinstance(source, ExampleSource) else ()
        why = unknown_name("group column", text, list(names)) if names else (
            f"{source.spec} stores no column {text!r}"
        )  # fmt: skip
        raise UnknownPartError(f"{why}; expected {_FORMS}")
    values = np.asarray(stored)
    if values.ndim != 1 or (values.dtype == object and isinstance(values[0], dict | list | bytes)):
        raise DataError(
            f"the column {text!r} of {source.spec} does not hold one plain value per example; "
            "name another"
        )
    return text, values


def _folder_level(source: Source, text: str) -> NDArray[Any]:
    digits = text.removeprefix(_LEVEL)
    if not digits.isdigit() or int(digits) < 1:
        raise OptionError(f"expected folder:1, folder:2 or the like, got {text!r}")
    level = int(digits)
    folders = [source.id_of(at).replace("\\", "/").split("/")[:-1] for at in range(len(source))]
    if not any(len(parts) >= level for parts in folders):
        raise DataError(
            f"no example of {source.spec} lies {level} folders deep, such as "
            f"{source.id_of(0)!r}; name a level that is there"
        )
    names = [parts[level - 1] if len(parts) >= level else None for parts in folders]
    return np.array(names, dtype=object)


def _joined(source: Source, file: Path, column: str) -> NDArray[Any]:
    """A column of a table, in the order of the examples; ``None`` for one it does not have."""
    if not file.is_file():
        raise MissingDataError(f"no table at {file} to take the group {column!r} from")
    rows = _read(file)
    doubled = [name for name in (column, *_KEYS) if rows.column_names.count(name) > 1]
    if doubled:
        raise DataError(f"column {doubled[0]!r} is there twice in {file}; remove one, or rename it")
    if column not in rows.column_names:
        unknown = unknown_name("group column", column, rows.column_names)
        raise UnknownPartError(f"{unknown} (of {file})")
    key = next((name for name in _KEYS if name in rows.column_names), None)
    if key is None:
        raise DataError(
            f"expected a column {', '.join(_KEYS[:-1])} or {_KEYS[-1]} in {file} to join it by, "
            f"got {', '.join(rows.column_names)}"
        )
    keys = [str(value) for value in rows.column(key).to_pylist()]
    values = dict(zip(keys, rows.column(column).to_pylist(), strict=True))
    if len(values) < len(keys):
        twice = next(name for at, name in enumerate(keys) if name in keys[:at])
        raise DataError(f"{file} has more than one row for {key} {twice!r}; keep one of them")
    own = _own_keys(source, key)
    in_order = [values.get(name) for name in own]
    if not any(name in values for name in own):
        raise DataError(
            f"no example of {source.spec} is in {file}: it names {key} {keys[0]!r}, the data "
            f"{own[0]!r}"
        )
    lacking = [name for name in own if name not in values]
    if lacking:
        warn(
            f"{len(lacking):,} of {len(own):,} examples of {source.spec} are not in {file}, such "
            f"as {key} {lacking[0]!r}: they are in no group of {column!r}"
        )
    return np.array(in_order, dtype=object)


def _own_keys(source: Source, key: str) -> list[str]:
    if key == "index":
        return [str(number) for number in source.numbered(range(len(source))).tolist()]
    return [source.id_of(at) for at in range(len(source))]


def _read(file: Path) -> pa.Table:
    try:
        if file.suffix.lower() == ".parquet":
            return read_parquet(file)
        from pyarrow import csv

        # 007 is a name: as a number it would be that of another example
        names = csv.ConvertOptions(column_types={"id": pa.string(), "path": pa.string()})
        return csv.read_csv(file, convert_options=names)
    except (pa.ArrowInvalid, OSError) as err:
        raise DataError(f"cannot read the table {file}: {err}") from err
