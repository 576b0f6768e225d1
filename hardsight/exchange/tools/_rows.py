"""What is exported of a run to any tool: rows with names, reasons, decisions and pictures."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import DataError, HardsightError
from hardsight.gallery import class_numbers
from hardsight.suspects import Suspects, suspects_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.data import ExampleSource
    from hardsight.table import ScoreTable


@dataclass(frozen=True)
class RunRows:
    """A table, its suspects, and what was decided about its rows.

    Attributes:
        table: the table of the run.
        classes: names of the classes, position = number in the table.
        decided: by row of the table, the class that reviewers agree on; -1 if there is none.
        verdict: by row, the verdict, such as ``"relabel"``; empty without a decision, and
            ``"disputed"`` if reviewers disagree.
    """

    table: ScoreTable
    classes: tuple[str, ...]
    decided: NDArray[np.int64]
    verdict: list[str]

    @cached_property
    def suspects(self) -> Suspects:
        """The evidence about every label."""
        return suspects_of(self.table)

    @cached_property
    def label(self) -> NDArray[np.int64]:
        """Class of every row before any decision."""
        return class_numbers(self.table, "label")

    @cached_property
    def fixed(self) -> NDArray[np.int64]:
        """Class of every row after the decisions."""
        return np.where(self.decided >= 0, self.decided, self.label)

    @cached_property
    def prediction(self) -> NDArray[np.int64]:
        """The model's class of every row."""
        return class_numbers(self.table, "prediction")

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """Position of every row in its data."""
        return class_numbers(self.table, "index")

    @cached_property
    def ids(self) -> list[str]:
        """Name of every row."""
        return [str(id) for id in self.table.column("id").tolist()]

    @cached_property
    def quality(self) -> NDArray[np.float64]:
        """Place in the order of suspects, as a share: 0 for the most suspect row."""
        ranks = np.empty(len(self.table))
        ranks[self.suspects.order] = np.arange(len(self.table)) / max(1, len(self.table) - 1)
        return ranks

    def name_of(self, label: int) -> str:
        """Name of a class; empty for none."""
        if label < 0:
            return ""
        return self.classes[label] if label < len(self.classes) else str(label)

    def chosen(self, rows: str, limit: int | None) -> NDArray[np.int64]:
        """Rows to export: all in their order, or the suspects, most suspect first."""
        if rows == "all":
            return np.arange(len(self.table))[:limit]
        order = self.suspects.order[self.suspects.is_suspect[self.suspects.order]]
        return order[:limit].astype(np.int64)


class Pictures:
    """The pictures or texts of the examples, as files, bytes or strings.

    Args:
        source: the data; ``None`` if it cannot be opened.
        rows: the rows of the run.
        root: the folder of the data, if it is a folder.

    Attributes:
        missing: number of pictures that could not be read.
        left_out: number of examples that are missing in the result.
    """

    def __init__(self, source: ExampleSource | None, rows: RunRows, root: Path | None) -> None:
        self.source, self._rows, self.root = source, rows, root
        self.missing = self.left_out = 0

    @cached_property
    def are_texts(self) -> bool:
        """Whether the examples are texts."""
        return isinstance(getattr(self.source, "texts", None), list)

    def text_of(self, row: int) -> str | None:
        """The text of an example; ``None`` if it cannot be read."""
        position = self._position(row)
        if self.source is None or position is None:
            return None
        try:
            content = self.source[position].content
        except (OSError, HardsightError):
            return None
        return content if isinstance(content, str) else None

    def count_left_out(self, count: int, of: int) -> list[str]:
        """Store how many examples are missing in the result, and return a note about it.

        Raises:
            DataError: all of them are missing.
        """
        what = "text" if self.are_texts else "picture"
        if of and count == of:
            raise DataError(
                f"none of the {of:,} examples has a {what} that can be read, so there is nothing "
                "to export; say where the data is with --data"
            )
        self.left_out = count
        note = f"{count:,} examples have no {what} that can be read and are left out"
        return [note] if count else []

    def file_of(self, row: int) -> Path | None:
        """The file of an example, if it has one of its own."""
        position = self._position(row)
        if position is None or self.source is None or not self.source.has_files:
            return None
        return self.source.file_of(position).absolute()

    def bytes_of(self, row: int) -> bytes | None:
        """The bytes of the file, or the picture as PNG; ``None`` if it cannot be read."""
        from PIL import Image

        file, position = self.file_of(row), self._position(row)
        try:
            if file is not None:
                return file.read_bytes()
            if self.source is None or position is None:
                return None
            content = self.source[position].content
        except (OSError, HardsightError):
            self.missing += 1
            return None
        if not isinstance(content, Image.Image):
            return None
        sink = io.BytesIO()
        content.save(sink, "PNG")
        return sink.getvalue()

    def written(self, rows: NDArray[np.int64], folder: Path) -> Iterator[tuple[int, str | None]]:
        """Write a picture for each row, and yield the row with its file name in ``folder``."""
        for row in rows.tolist():
            content = self.bytes_of(row)
            name = f"{int(self._rows.index[row])}.png"
            if content is not None:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            yield row, None if content is None else name

    @property
    def have_files(self) -> bool:
        """Whether the examples are files that can be named instead of copied."""
        return self.source is not None and self.source.has_files

    def _position(self, row: int) -> int | None:
        """The position of an example in the data; ``None`` if the data has another one there."""
        if self.source is None:
            return None
        position = self.source.position_of(int(self._rows.index[row]))
        if not 0 <= position < len(self.source):
            return None
        return position if self.source.id_of(position) == self._rows.ids[row] else None


HERE = "<out>"  # in a note: the place of the result, which is a temporary one while it is written
HERE_WHOLE = "<whole out>"  # the same as an absolute path, for programs started elsewhere


def plain(value: Any) -> Any:
    """A number for JSON; ``None`` if it is not finite."""
    number = float(value)
    return number if np.isfinite(number) else None


def under(file: Path, root: Path | None) -> str:
    """A path relative to a folder, with forward slashes; the whole path if it lies elsewhere."""
    if root is None:
        return file.as_posix()
    try:
        return Path(os.path.abspath(file)).relative_to(os.path.abspath(root)).as_posix()
    except ValueError:
        return file.as_posix()
