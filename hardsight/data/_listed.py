"""Images named in a text file, a path and a label per line, as VisDA-17 comes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa

from hardsight.data._folder import FolderSource
from hardsight.errors import DataError

IMAGE_LIST = "image_list.txt"


class ListedSource(FolderSource):
    """Images that a list names, in its order: ``aeroplane/0001.png 0``.

    Args:
        file: the list; paths are relative to its folder and may not leave it.
        classes: names, position = label.
        spec: as the user named it.

    Raises:
        DataError: a line is no path and label, a label is no class, or there are no lines.
    """

    def __init__(self, file: Path, *, classes: Sequence[str], spec: str) -> None:
        self.spec, self._root, self.classes = spec, os.fsencode(file.parent), tuple(classes)
        names: list[bytes] = []
        labels: list[int] = []
        for number, line in enumerate(_lines(file), start=1):
            if line.strip():
                name, label = _entry(line, len(self.classes), f"line {number} of {file}")
                names.append(name)
                labels.append(label)
        if not names:
            raise DataError(f"{file} names no images; expected lines such as 'aeroplane/1.png 0'")
        self._names = pa.array(names, type=pa.large_binary())
        self.labels = np.array(labels, dtype=np.int64)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"cannot read {file}: {err}") from err


def _entry(line: str, num_classes: int, where: str) -> tuple[bytes, int]:
    """Path and label of a line; a path may hold spaces."""
    path, _, label = line.strip().rpartition(" ")
    if not path or not label.isdecimal():
        raise DataError(f"expected a path and a label in {where}, got {line.strip()[:80]!r}")
    if int(label) >= num_classes:
        raise DataError(f"expected a label below {num_classes} in {where}, got {label}")
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts:
        raise DataError(f"expected a path below the list's folder in {where}, got {path[:80]!r}")
    return os.fsencode(path), int(label)
