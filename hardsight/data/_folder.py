"""A folder of class folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from hardsight.data._example import Example, ExampleSource
from hardsight.data._files import Fingerprint, evenly_spaced
from hardsight.data._images import EXTENSIONS, decode_file
from hardsight.data._labels import class_names
from hardsight.errors import DataError

SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")
_SAMPLE_IMAGES = 64  # of which the fingerprint reads a part


class FolderSource(ExampleSource):
    """Images in a folder of class folders, ordered by class name, then path.

    Every visible folder is a class, with or without images, so that labels agree with a model
    trained on the same layout. Files below a class folder may be nested; hidden files are not
    looked at; links are followed, but never in a circle.

    Args:
        folder: holds the class folders.
        spec: as the user named it.
        classes: names, where they are not those of the folders; every folder must be among them.

    Raises:
        DataError: there are no images, or images but no class folders.
    """

    def __init__(
        self, folder: Path, *, spec: str | None = None, classes: Sequence[str] | None = None
    ) -> None:
        self.spec, self._root = spec or str(folder), os.fsencode(folder)
        found = [os.fsdecode(name) for name, is_folder in _entries(self._root) if is_folder]
        self.classes = _folder_classes(found, classes, self.spec)
        place = {name: label for label, name in enumerate(self.classes)}
        names: list[bytes] = []
        labels: list[int] = []
        for name in found:
            below = sorted(_images_below(self._root, os.fsencode(name), ()))
            names += below
            labels += [place[printable(os.fsencode(name))]] * len(below)
        if not names:
            raise DataError(_no_images(self._root, self.spec))
        if len(self.classes) < 2:
            raise DataError(
                f"expected at least two class folders in {self.spec}, got only "
                f"{self.classes[0]!r}; name the folder above it, or add the other classes"
            )
        # arrow and numpy instead of lists: loader workers share them without copying
        self._names = pa.array(names, type=pa.large_binary())
        self.labels = np.array(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        content = decode_file(self._path(index))
        return Example(self.id_of(index), self.label_of(index), content)

    def id_of(self, index: int) -> str:
        """Path relative to the folder, with forward slashes."""
        return printable(self._names[index].as_py()).replace(os.sep, "/")

    def fingerprint(self) -> str:
        """SHA-256 over names, sizes, labels, classes and evenly spaced images."""
        mark = Fingerprint("folder").add_names(self.classes).add_array(self.labels)
        return _with_images(mark, self).hexdigest()

    def _path(self, index: int) -> bytes:
        return os.path.join(self._root, bytes(self._names[index].as_py()))


class UnlabelledFolder(ExampleSource):
    """Images below a folder, in or out of class folders, whose label nobody knows.

    Args:
        folder: searched to any depth; hidden files are not looked at.
        spec: as the user named it.

    Raises:
        DataError: there are no images.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("L", (8, 8)).save(folder / "street.png")
        >>> loose = UnlabelledFolder(folder)
        >>> loose.id_of(0), loose.label_of(0), loose.classes
        ('street.png', -1, ())
    """

    def __init__(self, folder: Path, *, spec: str | None = None) -> None:
        self.spec, self._root = spec or str(folder), os.fsencode(folder)
        self.classes: tuple[str, ...] = ()
        self._names = pa.array(sorted(_images_below(self._root, b"", ())), type=pa.large_binary())
        if not len(self._names):
            raise DataError(f"no images below {self.spec} (.jpg, .png, .webp, ...)")
        self.labels = np.full(len(self._names), -1)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Example:
        return Example(self.id_of(index), -1, decode_file(self._path(index)))

    def id_of(self, index: int) -> str:
        """Path relative to the folder, with forward slashes."""
        return printable(self._names[index].as_py()).replace(os.sep, "/")

    def fingerprint(self) -> str:
        """SHA-256 over names, sizes and evenly spaced images."""
        return _with_images(Fingerprint("unlabelled folder"), self).hexdigest()

    def _path(self, index: int) -> bytes:
        return os.path.join(self._root, bytes(self._names[index].as_py()))


def _with_images(mark: Fingerprint, source: FolderSource | UnlabelledFolder) -> Fingerprint:
    """Take in the name and size of every image, and what is in some of them."""
    for index in range(len(source)):
        mark.add(source.id_of(index), file_size(source._path(index)))
    for index in evenly_spaced(len(source), _SAMPLE_IMAGES):
        path = Path(os.fsdecode(source._path(index)))
        with suppress(OSError):  # reading it is a bad example
            mark.add_file(path)
    return mark


def file_size(path: bytes) -> int:
    """Bytes of a file; -1 for a dangling link, reading which is a bad example."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def printable(name: bytes) -> str:
    r"""A file name as text; bytes that are no UTF-8 are written as ``\xNN``."""
    return name.decode("utf-8", "backslashreplace")


def split_folders(folder: Path) -> list[str]:
    """Names of the splits where a folder holds ``train/ val/ test/`` instead of classes."""
    folders = [os.fsdecode(name) for name, is_folder in _entries(os.fsencode(folder)) if is_folder]
    if not folders or not all(name.lower() in SPLITS for name in folders):
        return []
    inner = (_entries(os.fsencode(folder / name)) for name in folders)
    return folders if any(is_folder for entries in inner for _, is_folder in entries) else []


def _folder_classes(found: list[str], classes: Sequence[str] | None, spec: str) -> tuple[str, ...]:
    names = tuple(printable(os.fsencode(name)) for name in found)
    if classes is None:
        return names
    given = class_names(classes)
    unknown = [name for name in names if name not in set(given)]
    if unknown:
        raise DataError(
            f"class folder {unknown[0]!r} in {spec} is none of the {len(given)} given classes; "
            "add it to classes or move the folder away"
        )
    return given


def _entries(folder: bytes) -> list[tuple[bytes, bool]]:
    """Visible names in a folder, sorted as text, with whether each is a folder."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, _is_folder(entry)) for entry in entries]
    except OSError as err:
        raise DataError(f"cannot list {os.fsdecode(folder)}: {err.strerror or err}") from err
    visible = [pair for pair in found if not pair[0].startswith(b".") and pair[0] != b"__MACOSX"]
    return sorted(visible, key=lambda pair: os.fsdecode(pair[0]))


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _images_below(
    root: bytes, relative: bytes, above: tuple[tuple[int, int], ...]
) -> Iterator[bytes]:
    folder = os.path.join(root, relative)
    status = os.stat(folder)
    place = (status.st_dev, status.st_ino)
    if place in above:  # a link back to a folder we are in
        return
    for name, is_folder in _entries(folder):
        path = os.path.join(relative, name)
        if is_folder:
            yield from _images_below(root, path, (*above, place))
        elif os.path.splitext(os.fsdecode(name))[1].lower() in EXTENSIONS:
            yield path


def _no_images(root: bytes, spec: str) -> str:
    entries = _entries(root)
    loose = [name for name, is_folder in entries if not is_folder]
    endings = sorted({os.path.splitext(os.fsdecode(name))[1].lower() or "none" for name in loose})
    if EXTENSIONS & set(endings):
        return (
            f"images lie directly in {spec}, without class folders; move them into one folder per "
            "class, e.g. cat/1.jpg and dog/2.jpg"
        )
    if not entries:
        return f"{spec} is empty; expected one folder per class with images inside"
    seen = f" (files found end with: {', '.join(endings[:5])})" if loose else ""
    return (
        f"no images in {spec}{seen}; expected one folder per class with images inside "
        "(.jpg, .png, .webp, ...)"
    )
