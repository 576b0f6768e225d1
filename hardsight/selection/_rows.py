"""Read and write lists of rows: numbers of examples in the data they were selected from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from hardsight.errors import DataError, MissingDataError
from hardsight.run_folder import MEND, TABLE_METADATA, open_parquet, write_parquet, writing
from hardsight.table import ScoreTable

_FORMS = "a .parquet or .csv file with a column 'index', an .npy file, or an array"


@dataclass(frozen=True)
class RowList:
    """Numbers of examples, and where they come from.

    Attributes:
        index: the numbers as the user passed them, or a mask of booleans.
        fingerprint: of the data they were selected from, if the file says so.
        origin: for messages.
    """

    index: NDArray[Any]
    fingerprint: str | None = None
    origin: str = "rows"

    def numbers(self, length: int, spec: str) -> NDArray[np.int64]:
        """Check the rows against the data, and return them in ascending order.

        Args:
            length: number of examples of the data.
            spec: name of the data.

        Raises:
            DataError: the rows are not numbers of distinct examples of this data.
        """
        index = self.index
        if index.ndim != 1:
            raise DataError(f"expected {self.origin} to be a list [n], got {list(index.shape)}")
        if index.dtype == np.bool_:
            if len(index) != length:
                raise DataError(
                    f"expected a mask of the {length:,} examples of {spec}, got {len(index):,} "
                    f"booleans in {self.origin}"
                )
            index = np.flatnonzero(index)
        if not len(index):
            raise DataError(f"{self.origin} names no row of {spec}; select at least one")
        if index.dtype.kind not in "iu":
            raise DataError(
                f"expected {self.origin} to be whole numbers, the column 'index' of a table, got "
                f"{index.dtype}"
            )
        # sorted, because sources are read in their own order and tables are ordered by index
        rows = np.sort(index.astype(np.int64))
        if rows[0] < 0 or rows[-1] >= length:
            worst = rows[0] if rows[0] < 0 else rows[-1]
            raise DataError(
                f"{self.origin} names row {worst}, but {spec} has the rows 0 to {length - 1}; "
                "select from a table of this data"
            )
        if (rows[1:] == rows[:-1]).any():
            twice = int(rows[1:][rows[1:] == rows[:-1]][0])
            raise DataError(f"{self.origin} names row {twice} more than once; name each row once")
        return rows


def read_rows(rows: str | os.PathLike[str] | ArrayLike) -> RowList:
    """Read a list of rows from a file or an array.

    Args:
        rows: a file of :func:`write_rows`, another parquet or CSV file with a column ``index``, an
            ``.npy`` file, an array of whole numbers, or an array of one boolean per example.

    Raises:
        MissingDataError: there is no such file.
        DataError: the file is not a list of rows.
    """
    # values are checked later, when the data is known; see RowList.numbers
    if not isinstance(rows, str | os.PathLike):
        return RowList(np.asarray(rows))
    file = Path(rows)
    if not file.is_file():
        raise MissingDataError(f"no list of rows at {file}; expected {_FORMS}")
    readers = {".parquet": _parquet, ".csv": _csv, ".npy": _npy}
    if file.suffix.lower() not in readers:
        raise DataError(f"cannot tell what {file} is; expected {_FORMS}")
    try:
        return readers[file.suffix.lower()](file)
    except (pa.ArrowInvalid, OSError, ValueError) as err:
        # our own errors, which are ValueErrors, say more than those of a reader
        if isinstance(err, DataError):
            raise
        raise DataError(
            f"cannot read a list of rows from {file}: {err}; expected {_FORMS}"
        ) from err


def write_rows(
    file: str | os.PathLike[str], table: ScoreTable, index: NDArray[np.int64], **facts: Any
) -> Path:
    """Write the selected rows of a table to a file, with their ids.

    Args:
        file: to write, ``.parquet``; an existing file is replaced.
        table: that they were selected from.
        index: of the rows, ascending; :func:`select` returns it.
        facts: how they were selected, kept in the metadata.

    Raises:
        DataError: the name does not end in ``.parquet``.
        OutputError: the file cannot be written.
    """
    path = Path(file)
    if path.suffix.lower() != ".parquet":
        raise DataError(f"expected a name that ends in .parquet for a list of rows, got {path}")
    # with the fingerprint of the data, so that using the list with other data is noticed
    about = {"select": facts, "data": table.metadata.get("data", {}), "rows": len(index)}
    schema = pa.schema(
        [("index", pa.int64()), ("id", pa.string())],
        metadata={TABLE_METADATA: json.dumps(about, sort_keys=True).encode()},
    )
    with writing(path, step=f"{MEND}, or choose another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(path, _kept(table, index, schema), schema, compression="zstd")
    return path


def _kept(table: ScoreTable, index: NDArray[np.int64], schema: pa.Schema) -> Iterator[pa.Table]:
    for part in table.parts(["index", "id"]):
        rows, own = part.to_arrow(), part.column("index")
        # clamped to the last place; for rows behind it the comparison is then false
        places = np.minimum(np.searchsorted(index, own), len(index) - 1)
        kept = rows.filter(pa.array(index[places] == own))
        # cast to one schema, since parts of older tables may have large strings
        yield kept.cast(pa.schema(schema, metadata=None)).replace_schema_metadata(schema.metadata)


def _parquet(file: Path) -> RowList:
    with open_parquet(file) as opened:
        if "index" not in opened.schema_arrow.names:
            raise DataError(
                f"expected a column 'index' in {file}, got "
                f"{', '.join(opened.schema_arrow.names)}; write one with `hardsight select`"
            )
        stored = (opened.schema_arrow.metadata or {}).get(TABLE_METADATA, b"{}")
        index = opened.read(["index"]).column("index").to_numpy()
    about: Mapping[str, Any] = json.loads(stored)
    return RowList(index, (about.get("data") or {}).get("fingerprint"), str(file))


def _csv(file: Path) -> RowList:
    from pyarrow import csv

    rows = csv.read_csv(file)
    if "index" not in rows.column_names:
        raise DataError(f"expected a column 'index' in {file}, got {', '.join(rows.column_names)}")
    return RowList(rows.column("index").to_numpy(), None, str(file))


def _npy(file: Path) -> RowList:
    return RowList(np.load(file, allow_pickle=False), None, str(file))
