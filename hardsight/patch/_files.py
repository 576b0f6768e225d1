"""Read and write patches as CSV, JSONL or parquet, with the same columns."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hardsight.errors import MissingDataError, OptionError, PatchError, RunExistsError
from hardsight.patch._patch import COLUMNS, NUMBERS, Patch
from hardsight.patch._text import defused, restored
from hardsight.run_folder import MEND, read_parquet, write_bytes, write_parquet, writing

if TYPE_CHECKING:
    import pandas as pd

PATCH_SUFFIXES = (".csv", ".jsonl", ".parquet")
_STEP = f"{MEND} or choose another --out"
_SCHEMA = pa.schema(
    [
        (name, pa.int64() if name in NUMBERS else pa.timestamp("us", "UTC") if name == "time"
         else pa.string())
        for name in COLUMNS
    ]
)  # fmt: skip


def read_patch(path: str | os.PathLike[str]) -> Patch:
    """Read a patch: decisions about labels, written by ``hardsight patch export`` or by hand.

    Args:
        path: a ``.csv``, ``.jsonl`` or ``.parquet`` file.

    Raises:
        MissingDataError: there is no such file.
        PatchError: the file is not a patch, or a row is not a valid decision.
    """
    file = Path(path)
    suffix = _suffix(file)
    if not file.is_file():
        raise MissingDataError(
            f"there is no patch {file}; write one with `hardsight patch export RUN`"
        )
    try:
        # only parquet is left, because the suffix was checked above
        rows = {".csv": _from_csv, ".jsonl": _from_jsonl}.get(suffix, _from_parquet)(file)
    except (csv.Error, UnicodeDecodeError, json.JSONDecodeError, pa.ArrowException) as err:
        raise PatchError(f"{file} cannot be read as a patch: {err}") from err
    except OSError as err:
        raise PatchError(f"cannot read {file}: {err.strerror or err}") from err
    return Patch(rows, where=str(file))


def write_patch(patch: Patch, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a patch as CSV, JSONL or parquet, depending on the suffix of the file name.

    The file is written completely or not at all. In a CSV, text that a spreadsheet could take for a
    formula begins with an apostrophe.

    Args:
        patch: the patch.
        path: the file to write.
        overwrite: whether to replace an existing file.

    Raises:
        RunExistsError: the file exists.
        OptionError: the file has another suffix.
        OutputError: the file cannot be written.
    """
    file = Path(path)
    suffix = _suffix(file)
    if file.exists() and not overwrite:
        raise RunExistsError(
            f"{file} exists; choose another --out, or replace it with --overwrite (overwrite=True)"
        )
    with writing(file, step=_STEP):
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = patch.to_pandas()
        if suffix == ".parquet":
            table = pa.Table.from_pandas(rows, schema=_SCHEMA, preserve_index=False)
            # metadata of pandas, which no other reader needs
            table = table.replace_schema_metadata(None)
            write_parquet(file, [table], table.schema)
        else:
            text = _as_csv(rows) if suffix == ".csv" else _as_jsonl(rows)
            write_bytes(file, text.encode("utf-8"))
    return file


def _suffix(file: Path) -> str:
    suffix = file.suffix.lower()
    if suffix not in PATCH_SUFFIXES:
        raise OptionError(
            f"expected a patch that ends with {', '.join(PATCH_SUFFIXES)}, got {file.name!r}"
        )
    return suffix


def _as_csv(rows: pd.DataFrame) -> str:
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, lineterminator="\r\n")  # both of which are then quoted in a cell
    writer.writerow(COLUMNS)
    for row in _plain(rows):
        writer.writerow(value if name in NUMBERS else defused(value) for name, value in row.items())
    return sink.getvalue()


def _as_jsonl(rows: pd.DataFrame) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _plain(rows))


def _plain(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as numbers and text; -1, which stands for no class, becomes empty."""
    records: list[dict[str, Any]] = rows.assign(time=_iso(rows)).to_dict("records")  # type: ignore[assignment]
    for row in records:
        for name in ("old", "new"):
            row[name] = None if row[name] < 0 else row[name]
    return records


def _iso(rows: pd.DataFrame) -> list[str]:
    return ["" if time is None or time != time else time.isoformat() for time in rows["time"]]


def _from_csv(file: Path) -> pd.DataFrame:
    import pandas as pd

    with file.open(newline="", encoding="utf-8-sig") as source:
        first = source.readline()
        source.seek(0)
        # spreadsheets write semicolons in countries with a decimal comma
        separator = max((",", ";", "\t"), key=first.count)
        # an empty file has no header either
        header, *rows = list(csv.reader(source, delimiter=separator, strict=True)) or [[]]
    header = [name.strip() for name in header]
    # spreadsheets leave empty lines at the end
    rows = [row for row in rows if row]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise PatchError(
                f"row {number} of {file} has {len(row)} cells, but the header has {len(header)}"
            )
    return pd.DataFrame([[restored(cell) for cell in row] for row in rows], columns=header)


def _from_jsonl(file: Path) -> pd.DataFrame:
    import pandas as pd

    with file.open(encoding="utf-8") as source:
        rows = [json.loads(line) for line in source if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise PatchError(f"expected an object in every line of {file}")
    return pd.DataFrame(rows, columns=None if rows else list(COLUMNS))


def _from_parquet(file: Path) -> pd.DataFrame:
    frame: pd.DataFrame = read_parquet(file).to_pandas()
    return frame
