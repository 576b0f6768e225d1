"""Parquet files of labelled images, or of embeddings."""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hardsight.data.formats._stored import StoredArray
from hardsight.data.formats._tables import (
    IMAGE_COLUMNS,
    LABELS,
    PATHS,
    SPLIT,
    ListedImages,
    cell_content,
    chosen_column,
    column_list,
    listed_images,
    plain_name,
    rows_of_split,
)
from hardsight.data.source import (
    Example,
    ExampleSource,
    Fingerprint,
    LabelPlace,
    class_indices,
    existing,
    id_at,
)
from hardsight.errors import BadExampleError, DataError, ShapeError
from hardsight.run_folder import open_parquet

LABEL_COLUMNS = ("label", "labels")
EMBEDDING_COLUMNS = ("embeddings", "embedding")
# Rows are decoded in batches of about 8 MiB, and the file is read in pieces of 1 MiB.
_BATCH_BYTES, _BUFFER_BYTES = 8 * 1024**2, 1024**2


@dataclass(frozen=True)
class _RowGroup:
    file: Path
    number: int
    start: int  # position of its first row, counted over all files
    batch_rows: int


class RowReader:
    """Rows of parquet files by position; reading in order decodes every row once.

    Only one batch of rows (about 8 MiB) is held at a time. A step back within a row group decodes
    that group again from its start.

    Args:
        files: the files, in order.
        columns: the columns to read.
    """

    def __init__(self, files: Sequence[Path], columns: list[str]) -> None:
        self._columns, self._groups, self._length = columns, list[_RowGroup](), 0
        for file in files:
            metadata = opened(file).metadata
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                # as many rows as make about 8 MiB, so that large pictures are decoded a few at a
                # time
                width = group.total_byte_size / max(group.num_rows, 1)
                rows = max(1, int(_BATCH_BYTES / max(width, 1)))
                if group.num_rows:
                    self._groups.append(_RowGroup(file, number, self._length, rows))
                self._length += group.num_rows
        self._starts = [group.start for group in self._groups]
        # the row group being read, and the position of the first row of the current batch
        self._number, self._first = -1, 0
        self._batch: pa.RecordBatch = []
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._let_go()

    def __len__(self) -> int:
        return self._length

    def rows(self, start: int, stop: int) -> pa.Table:
        """Return rows ``start`` to ``stop``."""
        parts = []
        while start < stop:
            first, batch = self._batch_at(start)
            part = batch.slice(start - first, stop - start)
            parts.append(part)
            start += len(part)
        return pa.Table.from_batches(parts)

    def _batch_at(self, position: int) -> tuple[int, pa.RecordBatch]:
        # a fork shares the file position with its parent, so a forked worker opens the file again
        if self._process != os.getpid():
            self._let_go()
        number = bisect.bisect_right(self._starts, position) - 1
        try:
            # arrow can only read a group from its start, so an earlier row means starting again
            if number != self._number or position < self._first:
                self._open(number)
            while position >= self._first + len(self._batch):
                self._first, self._batch = self._first + len(self._batch), next(self._batches)
        except StopIteration:
            self._let_go()
            raise OSError("the row group ends before its last row") from None
        except Exception:  # a damaged page; starting again keeps later rows from being shifted
            self._let_go()
            raise
        return self._first, self._batch

    def _open(self, number: int) -> None:
        group = self._groups[number]
        # Neither mapped nor read ahead, since a row group may be larger than memory.
        file = open_parquet(group.file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        self._batches = file.iter_batches(
            group.batch_rows, row_groups=[group.number], columns=self._columns, use_threads=False
        )
        self._number, self._first, self._batch = number, group.start, next(self._batches)

    def _let_go(self) -> None:
        self._process, self._number, self._first = os.getpid(), -1, 0
        self._batch, self._batches = [], iter(())

    def __getstate__(self) -> dict[str, Any]:
        # iterators and batches cannot be pickled, and -1 is no process, so the copy opens the file
        hidden = {"_batch", "_batches"}
        kept = {name: value for name, value in self.__dict__.items() if name not in hidden}
        return {**kept, "_process": -1}


class ParquetSource(ExampleSource):
    """Images in parquet files, in a column ``image``, with their labels in a column ``label``.

    An image is stored as ``{bytes, path}`` or as bytes. If it has no bytes, it is read from its
    path, which starts from the folder of the first file. Class names come from the schema's Hugging
    Face metadata, if there are any. The ids are the stored paths if every image has a distinct one,
    else positions.

    Args:
        files: the files, in order.
        spec: how the user named the data.
        classes: class names; the position of a name is its label.
        label_columns: names that the column of labels may have.
        image_columns: names that the column of pictures may have.

    Raises:
        DataError: a column is missing, or the files have different columns.
    """

    def __init__(
        self,
        files: Sequence[Path],
        *,
        spec: str,
        classes: Sequence[str] | None = None,
        label_columns: Sequence[str] = LABEL_COLUMNS,
        image_columns: Sequence[str] = IMAGE_COLUMNS,
    ) -> None:
        self.spec, self._files = spec, list(files)
        schema = common_schema(self._files)
        self._column = one_column(schema, image_columns, spec)
        label = one_column(schema, label_columns, spec)
        self._in_struct = pa.types.is_struct(schema.field(self._column).type)
        self._check_type(schema.field(self._column).type)
        self._reader = RowReader(self._files, [self._column])
        if not len(self._reader):
            raise DataError(f"no examples in {spec}: the file has no rows")
        self.labels, self.classes = class_indices(
            column_values(self._files, label),
            classes=classes or stored_class_names(schema, label),
            where=f"column {label!r} of {spec}",
        )
        self._ids = self._stored_paths(schema)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        try:
            value = self._reader.rows(index, index + 1).column(0)[0].as_py()
        except (OSError, pa.ArrowException) as err:
            raise BadExampleError(f"cannot be read: {' '.join(str(err).split())}") from err
        content = cell_content(value, self._files[0].parent.absolute())
        return Example(self.id_of(index), self.label_of(index), content)

    def id_of(self, index: int) -> str:
        """Return the stored path, or the position if there are no usable paths."""
        return id_at(self._ids, index)

    def fingerprint(self) -> str:
        """Return the SHA-256 of labels, and each file's size, footer and evenly spaced pieces."""
        mark = Fingerprint("parquet").add_array(self.labels).add_names(self.classes)
        for file in self._files:
            mark.add_file(file)
        return mark.hexdigest()

    def pictures_mark(self) -> str | None:
        """Return a mark of the files; ``None`` if they only hold the pictures' paths."""
        value = self._reader.rows(0, 1).column(0)[0].as_py()
        stored = value.get("bytes") if isinstance(value, dict) else value
        # parquet files that hold paths stay the same when the pictures change
        if not isinstance(stored, bytes):
            return None
        mark = Fingerprint("pictures in parquet").add(len(self), self._column)
        for file in self._files:
            mark.add_stamp(file).add_file(file)
        return mark.hexdigest()

    def column(self, name: str) -> NDArray[Any] | None:
        """Return another column, such as ``human_counts``, or ``None`` if there is none."""
        return _other_column(self._files, name)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the files' columns."""
        return tuple(common_schema(self._files).names)

    def _check_type(self, kind: pa.DataType) -> None:
        fields = {kind.field(n).name for n in range(kind.num_fields)} if self._in_struct else set()
        if "bytes" not in fields and not (
            pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        ):
            raise DataError(
                f"expected column {self._column!r} of {self.spec} to hold encoded images, as "
                f"{{bytes, path}} or as bytes, got {kind}"
            )

    def _stored_paths(self, schema: pa.Schema) -> pa.ChunkedArray | None:
        if not self._in_struct or schema.field(self._column).type.get_field_index("path") < 0:
            return None
        kind = schema.field(self._column).type
        if pa.types.is_null(kind.field("path").type):  # pandas writes this if all are missing
            return None
        # only the paths are read, not the pictures beside them
        leaf = f"{self._column}.path"
        paths = pa.chunked_array(
            [
                chunk.field("path")
                for file in self._files
                for chunk in opened(file).read([leaf], use_threads=False).column(0).chunks
            ],
            type=pa.string(),
        )
        # ids must tell examples apart
        unique = paths.null_count == 0 and len(paths.unique()) == len(paths)
        return paths.combine_chunks() if unique else None


def holds_paths(schema: pa.Schema, image: str | None = None) -> bool:
    """Return whether the images are given as paths, by an image column of text or a path column.

    If the user names the column ``image``, that one decides.
    """
    names = IMAGE_COLUMNS if image is None else (image,)
    named = next((name for name in names if name in schema.names), None)
    if named is not None:
        return _is_text(schema.field(named).type)
    return any(
        plain_name(name) in PATHS and _is_text(schema.field(name).type) for name in schema.names
    )


def parquet_paths(
    files: Sequence[Path],
    schema: pa.Schema,
    *,
    spec: str,
    classes: Sequence[str] | None,
    split: str | None,
    by_column: bool,
    image: str | None = None,
    label: str | None = None,
) -> ListedImages:
    """Return the images that a column of parquet files names.

    Paths start from the first file's folder.

    Args:
        files: the files, in order.
        schema: the schema of all files.
        spec: how the user named the data.
        classes: class names; the position of a name is its label.
        split: the split to keep.
        by_column: whether a column ``split`` assigns rows to splits, instead of the file names.
        image: name of the column of paths; ``None`` finds it by the usual names.
        label: name of the column of labels; ``None`` finds it by the usual names.

    Raises:
        DataError: no column or several columns could be the paths or the labels.
    """
    where = f"the columns of {spec}"
    text = [name for name in schema.names if _is_text(schema.field(name).type)]
    path = image or chosen_column(text, PATHS, "paths", where)
    label = label or chosen_column(schema.names, LABELS, "labels", where)
    splits = [name for name in schema.names if plain_name(name) == SPLIT] if by_column else []
    columns = {name: column_values(files, name) for name in splits}
    source = listed_images(
        column_values(files, path).tolist(),
        column_values(files, label),
        root=files[0].parent.absolute(),
        spec=spec,
        classes=classes or stored_class_names(schema, label),
        split=split if by_column else None,
        columns=columns,
        column=partial(_other_column, files),
        names=schema.names,
    )
    source.label_place = LabelPlace(
        # a glob pattern is not a folder, so the folder of the first match stands in for it
        "parquet", tuple(files), existing(spec) if os.path.exists(spec) else files[0].parent,
        name=label, paths=path,
        rows=rows_of_split(columns, split if by_column else None, spec),
    )  # fmt: skip
    return source


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _other_column(files: Sequence[Path], name: str) -> NDArray[Any] | None:
    return column_values(files, name) if name in common_schema(files).names else None


class ParquetEmbeddings(StoredArray):
    """A column of equally long lists of floats, read in parts as an array ``[N, D]``."""

    def __init__(self, files: Sequence[Path], column: str, *, spec: str) -> None:
        self._reader, self._files, self._spec = RowReader(files, [column]), files, spec
        if not len(self._reader):
            raise DataError(f"no embeddings in {spec}: the file has no rows")
        first = self._reader.rows(0, 1).column(0)
        kind = first.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and not (
            pa.types.is_fixed_size_list(kind)
        ):
            raise DataError(f"expected column {column!r} of {spec} to hold lists, got {kind}")
        if not pa.types.is_floating(kind.value_type):
            raise DataError(f"expected lists of floats in column {column!r} of {spec}, got {kind}")
        self.dtype: np.dtype[Any] = np.dtype(kind.value_type.to_pandas_dtype())
        self.shape = (len(self._reader), len(first[0].as_py() or ()))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows ``start`` to ``stop``, clipped at the end the way slices are."""
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        if stop <= start:
            return np.empty((0, self.shape[1]), dtype=self.dtype)
        parts = [self._matrix(chunk) for chunk in self._reader.rows(start, stop).column(0).chunks]
        return np.concatenate(parts)  # a copy of these rows, since arrow's memory is read-only

    def add_to(self, mark: Fingerprint) -> None:
        """Add the files' size, footer and evenly spaced pieces, since rows would need decoding."""
        for file in self._files:
            mark.add_file(file)

    def _matrix(self, lists: pa.Array) -> NDArray[Any]:
        values = lists.flatten()  # drops missing lists, so the lengths are checked below
        lengths = np.asarray(lists.value_lengths().fill_null(-1))
        if (lengths != self.shape[1]).any() or values.null_count:
            raise ShapeError(
                f"expected embeddings of width {self.shape[1]} in every row of {self._spec}, got "
                f"{sorted(set(lengths.tolist()) - {self.shape[1]}) or 'missing values'}"
            )
        matrix: NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return matrix.reshape(-1, self.shape[1])


def opened(file: Path) -> pq.ParquetFile:
    """Open a parquet file, mapped into memory.

    Raises:
        DataError: the file is not a parquet file.
    """
    try:
        return open_parquet(file, memory_map=True)
    except (OSError, pa.ArrowException) as err:
        raise DataError(f"{file} is not a readable parquet file: {err}") from err


def common_schema(files: Sequence[Path]) -> pa.Schema:
    """Return the schema that all files share.

    Raises:
        DataError: the files have different columns, or two columns have the same name.
    """
    schemas = [opened(file).schema_arrow for file in files]
    for file, schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0]):
            raise DataError(
                f"expected the same columns in every file, got {', '.join(schemas[0].names)} in "
                f"{files[0].name} and {', '.join(schema.names)} in {file.name}; name files of one "
                "kind"
            )
    names = schemas[0].names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:  # there is no way to tell which one is meant
        raise DataError(f"column {twice!r} is there twice in {files[0].name}; rename or drop one")
    return schemas[0]


def one_column(schema: pa.Schema, names: Sequence[str], spec: str) -> str:
    """Return the first of ``names`` that is a column.

    Raises:
        DataError: none of them is a column.
    """
    for name in names:
        if name in schema.names:
            return name
    option = {LABEL_COLUMNS[0]: "label", IMAGE_COLUMNS[0]: "image"}.get(names[0])
    instead = f"name yours by {option}_column= (--{option}-column)" if option else "rename yours"
    raise DataError(
        f"no column {names[0]!r} in {spec}: it has {column_list(schema.names)}; "
        f"{instead}, or load the file yourself and pass a Dataset"
    )


def column_values(files: Sequence[Path], column: str) -> NDArray[Any]:
    """Return one column of all files as an array."""
    # only this column is read, because the others may hold pictures
    parts = [opened(file).read([column], use_threads=False).column(0) for file in files]
    values: NDArray[Any] = pa.chunked_array([c for part in parts for c in part.chunks]).to_numpy()
    return values


def stored_class_names(schema: pa.Schema, column: str) -> tuple[str, ...] | None:
    """Return the class names in the metadata that Hugging Face ``datasets`` writes."""
    try:
        stored = json.loads((schema.metadata or {})[b"huggingface"])
        names = stored["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    if isinstance(names, dict):  # older files: {"0": "cat", ...}
        names = [names[str(index)] for index in range(len(names))]
    return tuple(str(name) for name in names)
