"""Paths a user names, and cheap fingerprints of what lies there."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import DataError, MissingDataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAMPLES, _SAMPLE_BYTES, _SAMPLE_ROWS = 16, 4096, 64


def existing(path: str | os.PathLike[str]) -> Path:
    """The path, with ``~`` expanded.

    Raises:
        MissingDataError: nothing is there; the message names the part of the path that is.
        DataError: it may not be looked at, or is a pipe or device, which would block.
    """
    file = Path(path).expanduser()
    try:
        if file.is_dir() or is_regular(file):
            return file
        if file.exists():
            raise DataError(
                f"{path} is neither a file nor a folder, but a pipe, socket or device; write its "
                "content to a file first"
            )
        above = next((parent for parent in file.parents if parent.exists()), Path("."))
    except OSError as err:
        raise DataError(f"cannot open {path}: {err.strerror or err}") from err
    raise MissingDataError(f"no file or folder {path}; the path exists up to {above.resolve()}")


def is_regular(file: Path) -> bool:
    """Whether a path, or where its links lead, is a plain file: reading it ends."""
    return stat.S_ISREG(file.stat().st_mode) if file.exists() else False


def check_listable(folder: Path) -> None:
    """Raise ``DataError`` if the folder may not be listed."""
    try:
        os.scandir(folder).close()
    except OSError as err:
        raise DataError(
            f"cannot list {folder}: {err.strerror or err}; check its permissions"
        ) from err


def matching(pattern: str) -> list[Path]:
    """Files that match a glob pattern, sorted.

    Raises:
        MissingDataError: there are none.
    """
    found = sorted(Path(name) for name in glob.glob(os.path.expanduser(pattern), recursive=True))
    files = [file for file in found if file.is_file()]
    if not files:
        raise MissingDataError(f"no file matches {pattern}; check the pattern and its folder")
    return files


def is_pattern(text: str) -> bool:
    """Whether ``text`` must be a glob pattern: it has wildcards and names no file itself."""
    return glob.has_magic(text) and not os.path.exists(os.path.expanduser(text))


class Fingerprint:
    """A SHA-256 over a few facts, each set off from the next."""

    def __init__(self, kind: str) -> None:
        self._digest = hashlib.sha256()
        self.add(kind)

    def add(self, *facts: object) -> Fingerprint:
        """Take in facts whose text describes them fully."""
        for fact in facts:
            self._take(str(fact).encode("utf-8", "surrogatepass"))
        return self

    def add_names(self, names: Iterable[str]) -> Fingerprint:
        """Take in names, such as those of the classes."""
        return self.add(len(names := list(names)), *names)

    def add_array(self, array: NDArray[Any]) -> Fingerprint:
        """Take in a small array in full, such as the labels."""
        self.add(array.shape, array.dtype)
        self._take(np.ascontiguousarray(array).tobytes())
        return self

    def add_rows(self, array: Any) -> Fingerprint:
        """Take in shape, dtype and evenly spaced rows of a large array, in memory or stored."""
        self.add(array.shape, array.dtype)
        for row in evenly_spaced(array.shape[0], _SAMPLE_ROWS):
            rows = array.read(row, row + 1) if hasattr(array, "read") else array[row : row + 1]
            self._take(np.ascontiguousarray(rows).tobytes())
        return self

    def add_file(self, file: Path) -> Fingerprint:
        """Take in size and evenly spaced pieces of a file, its end (a footer) among them."""
        size = file.stat().st_size
        self.add(size)
        with file.open("rb") as source:
            for offset in evenly_spaced(max(size - _SAMPLE_BYTES, 0) + 1, _SAMPLES):
                source.seek(offset)
                self._take(source.read(_SAMPLE_BYTES))
        return self

    def hexdigest(self) -> str:
        """The fingerprint of everything taken in so far."""
        return self._digest.hexdigest()

    def _take(self, content: bytes) -> None:
        self._digest.update(len(content).to_bytes(8, "little"))
        self._digest.update(content)


def evenly_spaced(length: int, count: int) -> list[int]:
    """Up to ``count`` distinct positions from first to last.

    Example:
        >>> evenly_spaced(100, 3)
        [0, 50, 99]
    """
    return sorted({round(x) for x in np.linspace(0, length - 1, min(count, length))})
