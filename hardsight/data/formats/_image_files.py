"""Image files by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hardsight.data.pixels import decode_file
from hardsight.data.source import Example, ExampleSource, Fingerprint, evenly_spaced, is_regular

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_SAMPLE_IMAGES = 64  # of which the fingerprint reads a part


class ImageFiles(ExampleSource):
    """Image files, each with a label.

    Args:
        root: folder that the names are relative to.
        names: paths of the files.
        labels: class indices, one per file.
        classes: names, position = label.
        spec: as the user named it.
        kind: how the files were found; part of the fingerprint.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        names: Sequence[bytes],
        labels: ArrayLike,
        *,
        classes: Sequence[str],
        spec: str,
        kind: str,
    ) -> None:
        self.spec, self.classes = spec, tuple(classes)
        self._root, self._kind = os.fsencode(root), kind
        # arrow and numpy instead of lists: loader workers share them without copying
        self._names = pa.array(names, type=pa.large_binary())
        self.labels = np.array(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        return Example(self.id_of(index), self.label_of(index), decode_file(self._path(index)))

    def id_of(self, index: int) -> str:
        """Path relative to the folder, with forward slashes."""
        return printable(self._names[index].as_py()).replace(os.sep, "/")

    def fingerprint(self) -> str:
        """SHA-256 over names, sizes, labels, classes and evenly spaced images."""
        mark = Fingerprint(self._kind).add_names(self.classes).add_array(self.labels)
        for index in range(len(self)):
            mark.add(self.id_of(index), _file_size(self._path(index)))
        for index in evenly_spaced(len(self), _SAMPLE_IMAGES):
            path = Path(os.fsdecode(self._path(index)))
            with suppress(OSError):  # reading it is a bad example
                if is_regular(path):  # a pipe would block for ever, a device never end
                    mark.add_file(path)
        return mark.hexdigest()

    def _path(self, index: int) -> bytes:
        return os.path.join(self._root, bytes(self._names[index].as_py()))


def printable(name: bytes) -> str:
    r"""A file name as text; bytes that are not UTF-8 are written as ``\xNN``."""
    return name.decode("utf-8", "backslashreplace")


def _file_size(path: bytes) -> int:
    """Bytes of a file; -1 for a dangling link, reading which is a bad example."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
