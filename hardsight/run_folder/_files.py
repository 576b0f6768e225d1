"""Files that appear when they are complete, and an answer to a disk that is full."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError

from hardsight.errors import HardsightError, OutputError

PARTIAL = ".tmp-"  # how the name of an incomplete file begins
AGAIN = "free some space and run again with --resume (resume=True)"
# rows of a group in a parquet file: what pyarrow takes by default, and the most that is held in
# memory while a table is written
ROWS_PER_GROUP = 1 << 20


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A path to write to; what is there at the end takes the place of ``file``.

    The content is on the disk before the name is, so a power cut leaves the old file or the new
    one. After an error nothing is left of the new one.
    """
    with partial_for(file) as partial:
        yield partial
        put_in_place(partial, file)


@contextmanager
def partial_for(file: Path) -> Iterator[Path]:
    """A path beside ``file`` to write to; an error removes what is there."""
    # a name of its own, so that two processes that write the same page do not mix their bytes
    partial = file.with_name(f"{PARTIAL}{secrets.token_hex(4)}-{file.name}")
    try:
        yield partial
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def put_in_place(partial: Path, place: Path) -> None:
    """Sync what was written under another name, file or folder, and give it its name."""
    if partial.is_file():
        _sync(partial)
    partial.replace(place)
    _sync(place.parent)


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    with replacing(file) as partial:
        partial.write_bytes(content)


def write_text(file: Path, text: str) -> None:
    """Write UTF-8; half a surrogate pair, as in names from a broken file system, becomes ``?``."""
    write_bytes(file, text.encode("utf-8", "replace"))


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write plain values, indented by two."""
    write_text(file, json.dumps(content, indent=2) + "\n")


def write_parquet(
    file: Path, parts: Iterable[pa.Table], schema: pa.Schema, **encoding: Any
) -> None:
    """Write tables, one below the other, as a file that is there as a whole or not at all.

    Args:
        file: to write.
        parts: tables of the columns of ``schema``, of any length.
        schema: with the metadata of the file.
        encoding: options of ``pyarrow.parquet.ParquetWriter``.
    """
    with replacing(file) as partial:
        fill_parquet(partial, parts, schema, **encoding)


def open_parquet(file: Path, **options: Any) -> pq.ParquetFile:
    """A parquet file to read from; options are those of ``pyarrow.parquet.ParquetFile``.

    By its whole path: pyarrow takes ``run:1/table.parquet`` for an address of another file system.
    """
    return pq.ParquetFile(file.absolute(), **options)


def read_parquet(file: Path, columns: list[str] | None = None) -> pa.Table:
    """All rows of a parquet file."""
    with open_parquet(file) as opened:
        return opened.read(columns)


def fill_parquet(file: Path, parts: Iterable[pa.Table], schema: pa.Schema, **encoding: Any) -> None:
    """The same for a file that has no name of its own yet.

    Groups have the length that pyarrow gives them when it has the whole table, so the bytes do not
    depend on the parts' length; only one group is in memory at a time.
    """
    options = {"compression": "zstd", **encoding}
    with file.open("wb") as sink, pq.ParquetWriter(sink, schema, **options) as writer:
        for group in row_groups(parts, schema):
            writer.write_table(group, row_group_size=ROWS_PER_GROUP)


def row_groups(parts: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all parts in full groups, the last one as long as it comes; at least one."""
    waiting: list[pa.Table] = []
    held, is_first = 0, True
    for part in parts:
        waiting.append(part.replace_schema_metadata(schema.metadata))
        held += part.num_rows
        while held >= ROWS_PER_GROUP:
            rows = pa.concat_tables(waiting)
            yield rows.slice(0, ROWS_PER_GROUP)
            is_first = False
            waiting, held = [rows.slice(ROWS_PER_GROUP)], held - ROWS_PER_GROUP
    if held or is_first:
        yield pa.concat_tables(waiting) if waiting else schema.empty_table()


@contextmanager
def writing(place: Path, *, step: str) -> Iterator[None]:
    """Say what to do if a disk is full or a folder cannot be written to.

    Args:
        place: file or folder that is written.
        step: what to do, in words.

    Raises:
        OutputError: with the reason of the system; safetensors has an error of its own for it.
    """
    try:
        yield
    except HardsightError:  # some of ours are OSErrors too
        raise
    except (OSError, SafetensorError) as err:
        reason = getattr(err, "strerror", None) or err
        raise OutputError(f"cannot write to {place}: {reason}; {step}") from err


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; what is gone is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the incomplete files of a writer that was killed."""
    for leftover in folder.glob(f"{PARTIAL}*"):
        remove(leftover)


def _sync(path: Path) -> None:
    """Ask for a file, or the names in a folder, to be on the disk."""
    is_folder = path.is_dir()
    try:
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        # Windows and some network file systems do not sync folders; a file's content must be safe
        if not is_folder:
            raise
