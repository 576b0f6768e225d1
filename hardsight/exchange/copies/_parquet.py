"""A corrected copy of parquet files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hardsight.exchange.copies._list import rebased_path, said_of_paths
from hardsight.exchange.copies._values import stored_values
from hardsight.run_folder import open_parquet

if TYPE_CHECKING:
    from hardsight.data import EmbeddingSource, ExampleSource
    from hardsight.data.source import FixedLabels, LabelPlace
    from hardsight.exchange.copies._links import Links

_HUGGING_FACE = b"huggingface"  # where `datasets` keeps the names of classes


def write_parquet_copy(
    source: ExampleSource | EmbeddingSource,
    fixed: FixedLabels,
    target: Path,
    out: Path,
    links: Links,
) -> list[str]:
    """Write the same rows with corrected labels; other columns and the metadata stay as they are.

    Args:
        source: the data to copy.
        fixed: its corrected labels.
        target: the file to write, or a folder if a folder or several files are copied.
        out: the final place, from which relative paths start.
        links: links or copies the other files of a folder.

    Returns:
        notes about the copy.
    """
    place = source.label_place
    assert place is not None
    raw = [value for file in place.files for value in _column(file, place.name)]
    own = np.arange(len(raw)) if place.rows is None else place.rows
    where = f"column {place.name!r} of {source.spec}"
    values = stored_values([raw[row] for row in own.tolist()], source.labels, fixed, where=where)
    for at in fixed.changed.tolist():
        raw[int(own[at])] = values[int(fixed.labels[at])]
    keep = np.ones(len(raw), np.bool_)
    keep[own[~fixed.kept]] = False
    # names of classes that no example has any more are not added
    most = int(fixed.labels[fixed.kept].max(initial=-1))
    start = rebased = 0
    for file in place.files:
        to = target if place.root.is_file() else target / file.relative_to(place.root)
        lies = out if place.root.is_file() else out / file.relative_to(place.root)
        to.parent.mkdir(parents=True, exist_ok=True)
        copy = _Copy(file, lies, place, fixed.classes[: most + 1])
        # ``raw`` has the labels of all files; each file takes its part
        start += copy.write(to, raw[start:], keep[start:])
        rebased += copy.rebased
    notes = [said_of_paths(rebased)] if rebased else []
    return notes + (_others(place, target, links) if place.root.is_dir() else [])


def _column(file: Path, name: str) -> list[Any]:
    with open_parquet(file) as opened:
        values: list[Any] = opened.read([name]).column(0).to_pylist()
    return values


def _others(place: LabelPlace, target: Path, links: Links) -> list[str]:
    """Other parquet files of a folder, such as those of other splits, as they are."""
    for file in sorted({*place.root.glob("*.parquet"), *place.root.glob("data/*.parquet")}):
        if file not in place.files and file.is_file():
            links.place(file, target / file.relative_to(place.root))
    return links.notes()


class _Copy:
    """One file, copied a group of rows at a time."""

    def __init__(self, file: Path, out: Path, place: LabelPlace, classes: tuple[str, ...]) -> None:
        self._file, self._out, self._place, self._classes = file, out, place, classes
        self.rebased = 0

    def write(self, target: Path, raw: list[Any], keep: Any) -> int:
        """Write the kept rows with labels from ``raw``, and return how many rows the file had."""
        with open_parquet(self._file) as opened:
            schema = _with_classes(opened.schema_arrow, self._place.name, self._classes)
            # the compression of the original
            packed = opened.metadata.row_group(0).column(0).compression if opened.num_row_groups \
                else "snappy"  # fmt: skip
            done = 0
            # an open file: pyarrow takes names as UTF-8 in every locale
            with (
                target.open("wb") as sink,
                pq.ParquetWriter(sink, schema, compression=packed.lower()) as writer,
            ):
                for number in range(opened.num_row_groups):
                    rows = opened.read_row_group(number)
                    stop = done + len(rows)
                    rows = self._fixed(rows, raw[done:stop]).filter(pa.array(keep[done:stop]))
                    writer.write_table(rows.replace_schema_metadata(schema.metadata))
                    done = stop
        return done

    def _fixed(self, rows: pa.Table, raw: list[Any]) -> pa.Table:
        name = self._place.name
        at, field = rows.column_names.index(name), rows.schema.field(name)
        rows = rows.set_column(at, field, pa.array(_plain(raw), field.type))
        if not self._place.paths or self._file.parent.resolve() == self._out.parent.resolve():
            return rows
        at = rows.column_names.index(self._place.paths)
        field = rows.schema.field(self._place.paths)
        is_plain = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        if not is_plain and not (
            pa.types.is_struct(field.type) and field.type.get_field_index("path") >= 0
        ):
            return rows
        # paths only matter for pictures that are not stored in the file itself
        cells = rows.column(at)
        if not is_plain and not _lack_bytes(cells):
            return rows
        moved = [self._moved(cell) for cell in cells.to_pylist()]
        return rows.set_column(at, field, pa.array(moved, field.type))

    def _moved(self, cell: Any) -> Any:
        if isinstance(cell, dict):
            if cell.get("bytes") is not None or not cell.get("path"):
                return cell
            return {**cell, "path": self._path(cell["path"])}
        return self._path(cell) if isinstance(cell, str) else cell

    def _path(self, path: str) -> str:
        # paths start from the folder of the first file
        there = rebased_path(path, self._place.files[0], self._out)
        self.rebased += there != path
        return there


def _plain(raw: list[Any]) -> list[Any]:
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in raw]


def _lack_bytes(cells: pa.ChunkedArray) -> bool:
    return any(chunk.field("bytes").null_count for chunk in cells.chunks)


def _with_classes(schema: pa.Schema, column: str, classes: tuple[str, ...]) -> pa.Schema:
    """The schema, with the names of classes that are new in the metadata of `datasets`."""
    metadata = dict(schema.metadata or {})
    try:
        stored = json.loads(metadata[_HUGGING_FACE])
        names = stored["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return schema
    # a dictionary of older files, or names enough
    if not isinstance(names, list) or len(names) >= len(classes):
        return schema
    stored["info"]["features"][column]["names"] = [*names, *classes[len(names) :]]
    return schema.with_metadata({**metadata, _HUGGING_FACE: json.dumps(stored).encode()})
