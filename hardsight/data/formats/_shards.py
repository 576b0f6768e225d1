"""Pictures in tar files as webdataset stores them: the files of one example share their name."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hardsight.data.formats._folder import printable
from hardsight.data.pixels import EXTENSIONS, decode
from hardsight.data.source import (
    Example,
    ExampleSource,
    Fingerprint,
    class_indices,
)
from hardsight.errors import BadExampleError, DataError

TAR, PACKED_TAR = ".tar", (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_CLASS, _FACTS, _LABEL = "cls", "json", "label"
_MOST_BYTES = 1 << 20  # read of a file that holds a label, whatever size its header states


class TarSource(ExampleSource):
    """Pictures in uncompressed tar files, each found by its position in its file.

    Consecutive files with the same name up to the first dot, such as ``0007.jpg`` and ``0007.cls``,
    form an example. Its label is the number or name in the file ``cls``, or the value ``label`` in
    the file ``json``. Other files are ignored. Nothing is unpacked: the headers are read once to
    find the position of every picture, and then examples can be read in any order.

    Args:
        files: the tar files, in order.
        spec: how the user named the data.
        classes: class names; the position of a name is its label.
        label: key of the label in the files ``json``; if ``None``, a file ``cls`` is preferred.

    Raises:
        DataError: a file is damaged, or an example has no picture, several, or no label.
    """

    stored_form = "files"

    def __init__(
        self,
        files: Sequence[Path],
        *,
        spec: str,
        classes: Sequence[str] | None = None,
        label: str | None = None,
    ) -> None:
        self.spec, self._files = spec, list(files)
        found = _Headers()
        for number, file in enumerate(self._files):
            found.add(number, file, label)
        if not found.keys:
            raise DataError(f"no examples in {spec}: its files are empty")
        self._file = np.array(found.files, dtype=np.int32)
        self._offset = np.array(found.offsets, dtype=np.int64)
        self._size = np.array(found.sizes, dtype=np.int64)
        self._ids = _unique(found, self._files, spec)
        where = "the json files" if found.label_form == _FACTS else f"the files .{_CLASS}"
        self.labels, self.classes = class_indices(
            found.labels, classes=classes, where=f"{where} of {spec}"
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        try:
            stored = self.stored_bytes(index)
        except OSError as err:
            raise BadExampleError(f"cannot be read: {err.strerror or err}") from err
        return Example(self.id_of(index), self.label_of(index), decode(stored))

    def id_of(self, index: int) -> str:
        """Return the name in the tar file, after the tar file's name if names occur twice."""
        return str(self._ids[index].as_py())

    def fingerprint(self) -> str:
        """Return the SHA-256 of labels, positions, file sizes and evenly spaced pieces."""
        mark = Fingerprint("tar").add_array(self.labels).add_names(self.classes)
        for file in self._files:
            mark.add_file(file)
        return mark.add_array(self._offset).add_array(self._size).hexdigest()

    def pictures_mark(self) -> str | None:
        """Return a mark of the files and of the positions of the pictures in them."""
        mark = Fingerprint("pictures in tar").add_array(self._offset).add_array(self._size)
        for file in self._files:
            mark.add_stamp(file).add_file(file)
        return mark.hexdigest()

    def stored_marks(self) -> NDArray[np.int64]:
        """Return the sizes of the stored pictures, ``[N]``."""
        return self._size

    def stored_bytes(self, index: int) -> bytes:
        """Return the encoded picture."""
        offset, size = int(self._offset[index]), int(self._size[index])
        with self._files[self._file[index]].open("rb") as file:
            file.seek(offset)
            stored: bytes = file.read(size)
        if len(stored) < size:
            raise OSError(f"the file ends in it, {size - len(stored):,} bytes too early")
        return stored


@dataclass
class _Headers:
    """What the headers of the tar files say, with one entry per example in each list."""

    keys: list[str] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    label_form: str = ""

    def add(self, number: int, file: Path, label: str | None) -> None:
        """Add all examples of one file."""
        try:
            with file.open("rb") as content, tarfile.open(fileobj=content, mode="r:") as archive:
                for key, parts in _grouped(archive, content, file):
                    self._add(number, file, key, parts, content, label)
        except (tarfile.TarError, EOFError) as err:
            raise DataError(
                f"{file} is not a readable tar file ({err}); if it is compressed, unpack it: its "
                "examples could not be read in any order"
            ) from err
        except OSError as err:
            raise DataError(f"cannot read {file}: {err.strerror or err}") from err

    def _add(
        self,
        number: int,
        file: Path,
        key: str,
        parts: dict[str, tarfile.TarInfo],
        content: IO[bytes],
        label: str | None,
    ) -> None:
        pictures = [ending for ending in parts if f".{ending}" in EXTENSIONS]
        form = _CLASS if label is None and _CLASS in parts else _FACTS
        if len(pictures) != 1 or form not in parts:
            raise DataError(
                f"expected one picture and a label for every example, such as {key}.jpg and "
                f"{key}.{_CLASS} (or {key}.{_FACTS} with {label or _LABEL!r}), got "
                f"{', '.join(f'{key}.{ending}' for ending in parts)} in {file}"
            )
        picture = parts[pictures[0]]
        self.keys.append(key)
        self.files.append(number)
        self.offsets.append(picture.offset_data)
        self.sizes.append(picture.size)
        self.labels.append(_label(content, parts[form], form, label or _LABEL, file))
        self.label_form = self.label_form or form


def _check_end(content: IO[bytes], at: int, file: Path) -> None:
    """Raise ``DataError`` if a file does not end after its last member.

    tarfile stops silently at a damaged header, as if the file ended there.
    """
    content.seek(at)
    if any(content.read(tarfile.BLOCKSIZE)):
        raise DataError(
            f"{file} is damaged at byte {at:,}: there is neither another file nor the end; copy or "
            "write it again"
        )


def _grouped(
    archive: tarfile.TarFile, content: IO[bytes], file: Path
) -> Iterator[tuple[str, dict[str, tarfile.TarInfo]]]:
    """Yield each name up to the first dot, with its regular files by what follows the dot."""
    key, parts = "", dict[str, tarfile.TarInfo]()
    while (member := archive.next()) is not None:
        # tarfile would keep every header, which takes much memory in a file of gigabytes
        archive.members = []  # type: ignore[attr-defined]
        folder, slash, name = member.name.rpartition("/")
        stem, dot, ending = name.partition(".")
        if not member.isreg() or member.issparse() or not stem or not dot:
            continue
        if folder + slash + stem != key:
            if parts:
                yield key, parts
            key, parts = folder + slash + stem, {}
        parts[ending.lower()] = member
    _check_end(content, archive.offset, file)
    if parts:
        yield key, parts


def _label(content: IO[bytes], member: tarfile.TarInfo, form: str, name: str, file: Path) -> Any:
    """Return the label in a small file of a tar file, and restore the reading position."""
    here = content.tell()
    # the archive is being iterated over the same file object
    content.seek(member.offset_data)
    text = content.read(min(member.size, _MOST_BYTES)).decode("utf-8", "replace").strip()
    content.seek(here)
    if form == _CLASS:
        return text or None
    try:
        return json.loads(text)[name]
    except (ValueError, KeyError, TypeError) as err:
        raise DataError(
            f"expected {member.name} in {file} to hold the label as {name!r}, got {text[:80]!r}; "
            f"name its key by label_column (--label-column), or add files .{_CLASS}"
        ) from err


def _unique(found: _Headers, files: Sequence[Path], spec: str) -> pa.Array:
    """Return the names of the examples, made unique."""
    keys = [printable(key.encode("utf-8", "surrogateescape")) for key in found.keys]
    if len(set(keys)) < len(keys):
        keys = [f"{files[at].name}/{key}" for at, key in zip(found.files, keys, strict=True)]
    if len(set(keys)) < len(keys):
        again, count = Counter(keys).most_common(1)[0]
        raise DataError(f"expected every example of {spec} once, got {again} {count} times")
    # an arrow array instead of a list, because loader workers share it without copying
    return pa.array(keys, pa.large_string())
