"""Lists of labelled pictures: CSV files, and columns of paths or cells."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hardsight.data.formats._arrays import array_content
from hardsight.data.formats._folder import ImageFiles
from hardsight.data.pixels import decode, decode_file
from hardsight.data.source import (
    Example,
    ExampleSource,
    Fingerprint,
    LabelPlace,
    class_indices,
    content_digest,
    evenly_spaced,
)
from hardsight.errors import BadExampleError, DataError, LabelError, OptionError, UnknownPartError

# The first name is the documented one and wins over the others.
PATHS = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image_path", "img_path",
    "image_file", "image", "img",
)  # fmt: skip
LABELS = (
    "label", "labels", "class", "class_name", "classname", "class_id", "category", "target",
    "targets", "y",
)  # fmt: skip
SPLIT = "split"
IMAGE_COLUMNS = ("image", "img")  # columns that hold the picture itself
IMAGE_LIST = "image_list.txt"
LIST_SUFFIXES = (".csv", ".tsv")
_SHOWN = 12  # names of columns in a message: a table of features may have thousands
_LOOKED_AT = 16  # files that are looked for before the whole list is called wrong


# What to do if no column has one of the usual names, by what the column holds.
_REMEDIES = {
    "labels": "name yours by label_column= (--label-column), or write a header such as path,label",
    "paths": "write a header such as path,label, or text,label for texts; --text-column "
    "(text_column=) names texts of another header",
}


def column_list(columns: Sequence[str]) -> str:
    """Return the names of columns for a message, and how many there are if they are too many.

    Example:
        >>> column_list(["path", "stars"])
        'path, stars'
    """
    names = ", ".join(columns[:_SHOWN]) or "no columns"
    left = len(columns) - _SHOWN
    return f"{names} and {left:,} more" if left > 0 else names


def named_column(columns: Sequence[str], stated: str, role: str, spec: str) -> str:
    """Return the column that the user names as its label, text or image column.

    Raises:
        UnknownPartError: there is no such column.

    Example:
        >>> named_column(["path", "stars"], "stars", "label", "x.csv")
        'stars'
    """
    if stated not in columns:
        raise UnknownPartError(
            f"no column {stated!r} in {spec}: it has {column_list(columns)}; pass "
            f"{role}_column= (--{role}-column) with one of them"
        )
    return stated


def chosen_column(
    columns: Sequence[str],
    names: Sequence[str],
    role: str,
    where: str,
    *,
    remedy: str | None = None,
) -> str:
    """Return the column that has one of ``names``, whatever its case and separators.

    Args:
        columns: the columns there are.
        names: the names the column may have. The first one is the documented one, and wins.
        role: what the column holds, for messages.
        where: the header, for messages.
        remedy: what to do if no column has such a name, if it is not what ``role`` usually asks.

    Raises:
        DataError: no column has such a name, or several have.

    Example:
        >>> chosen_column(["File Name", "Label"], PATHS, "paths", "the header of x.csv")
        'File Name'
    """
    if len(names) == 1 and list(columns).count(names[0]) == 1:  # spelled exactly as the user did
        return names[0]
    plain = [plain_name(column) for column in columns]
    twice = [name for name, count in Counter(plain).items() if count > 1 and name in names]
    if twice:
        raise DataError(f"column {twice[0]!r} is there twice in {where}; remove one")
    fitting = [column for column, name in zip(columns, plain, strict=True) if name in names]
    documented = [column for column in fitting if plain_name(column) == names[0]]
    if len(fitting) == 1 or documented:
        return (documented or fitting)[0]
    if fitting:
        raise DataError(
            f"columns {fitting[0]!r} and {fitting[1]!r} could both be the {role} in {where}; "
            f"rename the one that is meant to {names[0]}"
        )
    remedy = remedy or _REMEDIES.get(role, "write a header such as path,label")
    raise DataError(
        f"no column of {role} in {where}: expected one of {', '.join(names)}, got "
        f"{column_list(columns)}; {remedy}"
    )


def plain_name(column: str) -> str:
    """Return a column's name in lower case, with underscores.

    Example:
        >>> plain_name(" Image-Path ")
        'image_path'
    """
    return column.strip().lower().replace(" ", "_").replace("-", "_")


class CellSource(ExampleSource):
    """Pictures stored in the cells of a column.

    A cell may hold an encoded picture, ``{bytes, path}``, a path, a decoded picture or an array.

    Args:
        cells: one cell per example.
        labels: one label per cell, in any form that :func:`class_indices` takes.
        spec: how the user named the data.
        classes: class names; the position of a name is its label.
        root: the folder that relative paths start from.
        columns: the other columns, by name.
    """

    def __init__(
        self,
        cells: Sequence[Any],
        labels: Any,
        *,
        spec: str,
        classes: Sequence[str] | None,
        root: Path,
        columns: Mapping[str, NDArray[Any]],
    ) -> None:
        self.spec, self._cells, self._root, self._columns = spec, list(cells), root, columns
        where = f"the labels of {spec}"
        self.labels, self.classes = class_indices(labels, classes=classes, where=where)

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, index: int) -> Example:
        content = cell_content(self._cells[index], self._root)
        return Example(self.id_of(index), self.label_of(index), content)

    def column(self, name: str) -> NDArray[Any] | None:
        """Return another column of the frame, or ``None`` if there is no such column."""
        return self._columns.get(name)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the frame's columns."""
        return tuple(map(str, self._columns))

    def fingerprint(self) -> str:
        """Return the SHA-256 of labels, classes and evenly spaced cells.

        A change in a cell between the sampled ones is not noticed.
        """
        mark = Fingerprint("cells").add_array(self.labels).add_names(self.classes)
        return mark.add(content_digest(self._cells.__getitem__, len(self))).hexdigest()


def cell_content(cell: Any, root: Path) -> Any:
    """Return the picture in a cell.

    Raises:
        BadExampleError: the cell is empty, or its content cannot be decoded.
    """
    if isinstance(cell, Mapping):
        stored, path = cell.get("bytes"), cell.get("path")
        cell = stored if stored is not None else path
    if cell is None or cell is np.nan:
        raise BadExampleError("no image is stored for it")
    if isinstance(cell, bytes | bytearray | memoryview):
        return decode(bytes(cell))
    if isinstance(cell, str | os.PathLike):
        return decode_file(root / cell)
    if isinstance(cell, Image.Image):
        # PIL opens files lazily; loading now makes a damaged picture fail here
        cell.load()
        return cell
    if isinstance(cell, np.ndarray):
        return array_content(cell, "its cell")
    raise BadExampleError(f"expected a picture, got {type(cell).__name__}")


class ListedImages(ImageFiles):
    """Image files in the order of a list.

    Args:
        root: the folder that relative paths start from; a path may lead out of it.
        paths: the paths as the list writes them; they are also the ids.
        labels: one label per path, in any form that :func:`class_indices` takes.
        spec: how the user named the data.
        classes: class names; the position of a name is its label.
        column: returns another column of the list by name, or ``None`` if there is none.
        names: the names of all columns.

    Raises:
        DataError: none of the files looked for exists.
        LabelError: a label is missing or not a class.
    """

    def __init__(
        self,
        root: Path,
        paths: Sequence[str],
        labels: Any,
        *,
        spec: str,
        classes: Sequence[str] | None,
        column: Callable[[str], NDArray[Any] | None],
        names: Sequence[str] = (),
    ) -> None:
        indices, found = class_indices(labels, classes=classes, where=f"the labels of {spec}")
        encoded = [os.fsencode(path) for path in paths]
        super().__init__(root, encoded, indices, classes=found, spec=spec, kind="list")
        self._column, self._column_names = column, tuple(names)
        # a few files are enough to tell a wrong root folder from single missing pictures
        looked = [self._path(index) for index in evenly_spaced(len(self), _LOOKED_AT)]
        if not any(os.path.exists(path) for path in looked):
            raise DataError(
                f"none of the pictures that {spec} names is there: looked for "
                f"{os.fsdecode(looked[0])}; relative paths start from {root}"
            )

    def __getitem__(self, index: int) -> Example:
        try:
            return super().__getitem__(index)
        except BadExampleError as err:
            raise BadExampleError(f"{err}: {os.fsdecode(self._path(index))}") from err

    def column(self, name: str) -> NDArray[Any] | None:
        """Return another column of the list, or ``None`` if there is no such column."""
        return self._column(name)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the list's columns."""
        return self._column_names


def csv_images(
    file: Path,
    *,
    spec: str,
    classes: Sequence[str] | None,
    split: str | None,
    image: str | None = None,
    label: str | None = None,
) -> ListedImages:
    """Return the labelled images that a CSV file names; paths start from the file's folder.

    Args:
        file: a file with a header and columns of paths and labels, separated by commas, semicolons
            or tabs; a column ``split`` may assign rows to splits.
        spec: how the user named the data.
        classes: class names; the position of a name is its label.
        split: the split to keep.
        image: name of the column of paths; ``None`` finds it by the usual names.
        label: name of the column of labels; ``None`` finds it by the usual names.

    Raises:
        DataError: the file cannot be read, or no column or several could be the paths or labels.
        UnknownPartError: a column that is named is not there.
        LabelError: a label is missing or not a class.
    """
    header, rows = csv_cells(file, spec)
    where = f"the header of {spec}"
    path, label_at = (
        header.index(
            chosen_column(header, names, f"{holds}s", where)
            if stated is None
            else named_column(header, stated, role, spec)
        )
        for stated, names, holds, role in (
            (image, PATHS, "path", "image"),
            (label, LABELS, "label", "label"),
        )
    )
    check_cells(header, rows, spec, quoted="a, b.png")
    for number, row in rows:
        if not row[path].strip():
            raise DataError(f"line {number} of {spec} names no picture; remove it")
    columns = {name: [row[at].strip() for _, row in rows] for at, name in enumerate(header)}
    source = listed_images(
        columns[header[path]],
        [text or None for text in columns[header[label_at]]],
        root=file.parent.absolute(),
        spec=spec,
        classes=classes,
        split=split,
        columns=columns,
    )
    source.label_place = LabelPlace(
        "list", (file,), file, name=header[label_at], paths=header[path],
        rows=rows_of_split(columns, split, spec),
    )  # fmt: skip
    return source


def listed_images(
    paths: Sequence[str],
    labels: Any,
    *,
    root: Path,
    spec: str,
    classes: Sequence[str] | None,
    split: str | None,
    columns: Mapping[str, Any],
    column: Callable[[str], NDArray[Any] | None] | None = None,
    names: Sequence[str] | None = None,
) -> ListedImages:
    """Return the images of one split of a list, or all of them if it has no column ``split``.

    Args:
        paths: the paths of all rows.
        labels: the labels of all rows.
        root: the folder that relative paths start from.
        spec: how the user named the data.
        classes: class names; the position of a name is its label.
        split: the split to keep.
        columns: columns of all rows by name, including ``split`` if there is one.
        column: returns any column by its name; by default, looks it up in ``columns``.
        names: names of all columns; by default, those of ``columns``.
    """
    # filled in two steps: np.array(labels, dtype=object) would turn a list of lists into a matrix
    values: NDArray[Any] = np.empty(len(paths), dtype=object)
    values[:] = list(labels)
    kept = rows_of_split(columns, split, spec)
    rows = np.arange(len(paths)) if kept is None else kept
    every = columns.get if column is None else column
    return ListedImages(
        root,
        [str(paths[row]) for row in rows],
        values[rows],
        spec=spec,
        classes=classes_of_all(values, kept, classes, spec),
        column=partial(_kept_column, every, kept),
        names=[str(name) for name in (columns if names is None else names)],
    )


def classes_of_all(
    labels: NDArray[Any],
    kept: NDArray[np.int64] | None,
    classes: Sequence[str] | None,
    spec: str,
) -> Sequence[str] | None:
    """Return the class names over all splits, so that every split numbers the classes the same way.

    Missing labels in another split are ignored. If the labels of all splits cannot be read as
    classes, the result is ``None``, and the kept split decides for itself.
    """
    if classes is not None or kept is None:
        return classes
    stated = [
        label
        for label in labels.tolist()
        if label is not None and not (isinstance(label, float) and np.isnan(label))
    ]
    try:
        return class_indices(stated, where=f"the labels of {spec}", least=1)[1]
    except (DataError, LabelError):
        return None


def rows_of_split(
    columns: Mapping[str, Any], split: str | None, spec: str
) -> NDArray[np.int64] | None:
    """Return the rows that belong to ``split``, or ``None`` for all rows.

    Raises:
        DataError: there are several splits and none was asked for, or there is no such split.
        OptionError: a split was asked for, but there is no column ``split``.
    """
    name = next((column for column in columns if plain_name(str(column)) == SPLIT), None)
    if name is None:
        if split is not None:
            raise OptionError(f"split cannot be used here: {spec} has no column {SPLIT!r}")
        return None
    stated = [str(value) for value in columns[name]]
    known = list(dict.fromkeys(stated))
    if split is None:
        if len(known) > 1:
            raise DataError(
                f"{spec} holds the splits {', '.join(known[:8])}; pass split={known[0]!r}"
            )
        return None
    if split not in known:
        raise UnknownPartError(f"no split {split!r} in {spec}; it has {', '.join(known[:8])}")
    return np.flatnonzero([value == split for value in stated])


def visda_images(file: Path, *, classes: Sequence[str], spec: str) -> ImageFiles:
    """Return the images that lines such as ``aeroplane/0001.png 0`` name, in their order.

    Args:
        file: the list; paths are relative to its folder and may not leave it.
        classes: class names; the position of a name is its label.
        spec: how the user named the data.

    Raises:
        DataError: a line is not a path and a label, a label is not a class, or there are no lines.
    """
    names: list[bytes] = []
    labels: list[int] = []
    for number, line in enumerate(_lines(file), start=1):
        if line.strip():
            name, label = _entry(line, len(classes), f"line {number} of {file}")
            names.append(name)
            labels.append(label)
    if not names:
        raise DataError(f"{file} names no images; expected lines such as 'aeroplane/1.png 0'")
    return ImageFiles(file.parent, names, labels, classes=classes, spec=spec, kind="folder")


def csv_cells(file: Path, spec: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header, and the cells of every later line with its number, without blank lines."""
    try:
        # Excel begins its UTF-8 files with a byte order mark, which utf-8-sig removes
        with file.open(newline="", encoding="utf-8-sig") as source:
            first = source.readline()
            source.seek(0)
            # the separator is the one that the header uses most often
            separator = max((",", ";", "\t"), key=first.count)
            reader = csv.reader(source, delimiter=separator)
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except UnicodeDecodeError as err:
        raise DataError(f"{spec} is not UTF-8 text ({err}); save it as UTF-8") from err
    except csv.Error as err:
        raise DataError(f"{spec} cannot be read as a table: {err}; check its quotes") from err
    except OSError as err:
        raise DataError(f"cannot read {spec}: {err.strerror or err}") from err
    header = [cell.strip() for cell in rows[0][1]] if rows else []
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"column {twice!r} is there twice in {spec}; remove one, or rename it")
    return header, rows[1:]


def check_cells(
    header: Sequence[str], rows: Sequence[tuple[int, list[str]]], spec: str, *, quoted: str
) -> None:
    """Raise ``DataError`` unless there are rows, each as long as the header.

    The message shows ``quoted``, a cell that needs quotes, to show how quotes are written.
    """
    for number, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"line {number} of {spec} has {len(row)} cells, the header {len(header)}; quote "
                f'cells that hold the separator: "{quoted}"'
            )
    if not rows:
        raise DataError(f"no examples in {spec}: it has no rows below its header")


def _kept_column(
    column: Callable[[str], Any], rows: NDArray[np.int64] | None, name: str
) -> NDArray[Any] | None:
    found = column(name)
    if found is None:
        return None
    values = np.asarray(found)
    return values if rows is None else values[rows]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"cannot read {file}: {err}") from err


def _entry(line: str, num_classes: int, where: str) -> tuple[bytes, int]:
    """Return the path and the label of a line; a path may contain spaces."""
    path, _, label = line.strip().rpartition(" ")
    if not path or not label.isdecimal():
        raise DataError(f"expected a path and a label in {where}, got {line.strip()[:80]!r}")
    if int(label) >= num_classes:
        raise DataError(f"expected a label below {num_classes} in {where}, got {label}")
    # downloaded lists must not make us read files outside their folder
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts:
        raise DataError(f"expected a path below the list's folder in {where}, got {path[:80]!r}")
    return os.fsencode(path), int(label)
