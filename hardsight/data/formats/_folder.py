"""Image files in a folder of class folders, or in a folder without classes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from hardsight._checks import warn
from hardsight.data.pixels import EXTENSIONS, decode_file
from hardsight.data.source import (
    Example,
    ExampleSource,
    Fingerprint,
    class_names,
    evenly_spaced,
    is_regular,
)
from hardsight.errors import DataError, NoClassFoldersError

_SAMPLE_IMAGES = 64  # images whose content the fingerprint samples
SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")
_NO_ENDING, _LINK_UP = "without an ending", "link to a folder above"
_LINK_ACROSS = "link to another folder of the data"
_OUTSIDE = "picture outside of the class folders"


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

    stored_form = "files"
    has_files = True

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

    def name_of(self, index: int) -> bytes:
        """Path relative to the folder, as the file system has it."""
        return bytes(self._names[index].as_py())

    def file_of(self, index: int) -> Path:
        """The file itself."""
        return Path(os.fsdecode(self._path(index)))

    def fingerprint(self) -> str:
        """SHA-256 over names, sizes, labels, classes and evenly spaced images."""
        mark = Fingerprint(self._kind).add_names(self.classes).add_array(self.labels)
        for index in range(len(self)):
            # sizes of all files and contents of a few: reading everything would take too long, and
            # an edited picture almost always changes its size
            mark.add(self.id_of(index), _file_size(self._path(index)))
        for index in evenly_spaced(len(self), _SAMPLE_IMAGES):
            path = self.file_of(index)
            with suppress(OSError):  # it is reported when the example is read
                if is_regular(path):  # a pipe would block, and a device might never end
                    mark.add_file(path)
        return mark.hexdigest()

    def pictures_mark(self) -> str | None:
        """Names, sizes and times of all files; ``None`` if one of them is not there."""
        mark = Fingerprint("picture files")
        try:
            for index in range(len(self)):
                mark.add(self.id_of(index)).add_stamp(self._path(index))
        except OSError:
            return None
        return mark.hexdigest()

    def stored_marks(self) -> NDArray[np.int64]:
        """Sizes of the files, ``[N]``; -1 of a link that leads nowhere."""
        sizes = (_file_size(self._path(index)) for index in range(len(self)))
        return np.fromiter(sizes, dtype=np.int64, count=len(self))

    def stored_bytes(self, index: int) -> bytes:
        """The bytes of the file."""
        path = self.file_of(index)
        if not is_regular(path):  # a pipe would block, and a device might never end
            raise OSError(f"{path} is not a plain file")
        return path.read_bytes()

    def _path(self, index: int) -> bytes:
        return os.path.join(self._root, self.name_of(index))


def printable(name: bytes) -> str:
    r"""A file name as text; bytes that are not UTF-8 are written as ``\xNN``."""
    return name.decode("utf-8", "backslashreplace")


def _file_size(path: bytes) -> int:
    """The size of a file in bytes; -1 for a broken link."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


class FolderSource(ImageFiles):
    """Images in a folder of class folders, ordered by class name, then path.

    Every visible folder is a class, with or without images, so that labels agree with a model
    trained on the same layout. Files may be nested below a class folder. Hidden files are ignored.
    Links are followed, except to a folder above or to another folder of the data. Files without the
    suffix of a picture are counted in ``passed_over``, with a warning.

    Args:
        folder: the folder of class folders.
        spec: the folder as the user named it.
        classes: names, if they are not those of the folders; every folder must be among them.

    Raises:
        DataError: there are no images, or a folder cannot be listed.
        NoClassFoldersError: there are images but no class folders.
    """

    def __init__(
        self, folder: Path, *, spec: str | None = None, classes: Sequence[str] | None = None
    ) -> None:
        spec, root = spec or str(folder), os.fsencode(folder)
        entries = _entries(root)
        folders = [name for name, is_folder in entries if is_folder]
        numbered = _folder_classes([printable(name) for name in folders], classes, spec)
        # by name, because the user may have named the classes in another order
        place = {name: label for label, name in enumerate(numbered)}
        scan = _Scan(root)
        labels: list[int] = []
        for name in folders:
            scan.below(name)
            # one label for each name that this folder has added
            labels += [place[printable(name)]] * (len(scan.names) - len(labels))
        if not scan.names:
            raise _no_images(entries, scan.passed_over, spec)
        if len(numbered) < 2:
            raise DataError(
                f"expected at least two class folders in {spec}, got only {numbered[0]!r}; name "
                "the folder above it, or add the other classes"
            )
        super().__init__(folder, scan.names, labels, classes=numbered, spec=spec, kind="folder")
        # only a warning: a cover picture beside the class folders is common
        scan.passed_over[_OUTSIDE] = sum(
            _ending(name) in EXTENSIONS for name, is_folder in entries if not is_folder
        )
        self.passed_over = _said(scan.passed_over, spec)


class UnlabelledFolder(ImageFiles):
    """Images anywhere below a folder, without labels.

    Args:
        folder: searched to any depth; hidden files are not looked at.
        spec: as the user named it.

    Raises:
        DataError: there are no images, or a folder cannot be listed.

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
        spec, scan = spec or str(folder), _Scan(os.fsencode(folder))
        scan.below(b"")
        if not scan.names:
            raise DataError(f"no images below {spec} (.jpg, .png, .webp, ...)")
        unknown = [-1] * len(scan.names)
        super().__init__(
            folder, scan.names, unknown, classes=(), spec=spec, kind="unlabelled folder"
        )
        self.passed_over = _said(scan.passed_over, spec)


class _Scan:
    """Collects the images below folders, and counts other files.

    Args:
        root: the folder that the names are relative to.

    Attributes:
        names: paths of images, sorted within each call of :meth:`below`.
        passed_over: number of files that are not images, by suffix.
    """

    def __init__(self, root: bytes) -> None:
        self._root = root
        self.names: list[bytes] = []
        self.passed_over: Counter[str] = Counter()
        whole = Path(os.fsdecode(root)).resolve()
        # a link to one of these would bring in every class, or the whole disk, under one label
        self._above = frozenset(_identity(folder) for folder in (whole, *whole.parents))
        self._whole = whole

    def below(self, relative: bytes) -> None:
        """Add everything below a folder."""
        start = len(self.names)
        # the root counts as above every class folder, but not as above itself
        above = self._above - {_identity(self._root)} if not relative else self._above
        self._walk(relative, above)
        # sorted by name, because the order of the file system differs between machines
        self.names[start:] = sorted(self.names[start:])

    def _walk(self, relative: bytes, above: frozenset[tuple[int, int]]) -> None:
        folder = os.path.join(self._root, relative)
        place = _identity(folder)
        if place in above:
            self.passed_over[_LINK_UP] += 1
            return
        # otherwise the same pictures would have two labels
        if os.path.islink(folder) and self._is_read_anyway(folder):
            self.passed_over[_LINK_ACROSS] += 1
            return
        for name, is_folder in _entries(folder):
            path = os.path.join(relative, name)
            if is_folder:
                self._walk(path, above | {place})
            elif _ending(name) in EXTENSIONS:
                self.names.append(path)
            else:
                self.passed_over[_ending(name) or _NO_ENDING] += 1

    def _is_read_anyway(self, link: bytes) -> bool:
        """Whether a link leads to another folder of the data, which is read under its own label."""
        leads_to = Path(os.fsdecode(os.path.realpath(link)))
        if self._whole not in leads_to.parents:
            return False
        inside = leads_to.relative_to(self._whole)
        return not any(part.startswith(".") for part in inside.parts)


def split_folders(folder: Path) -> list[str]:
    """Names of the splits if a folder holds ``train/ val/ test/`` instead of classes."""
    folders = [os.fsdecode(name) for name, is_folder in _entries(os.fsencode(folder)) if is_folder]
    # only if all folders are splits, because a class may be called "test"
    if not folders or not all(name.lower() in SPLITS for name in folders):
        return []
    inner = (_entries(os.fsencode(folder / name)) for name in folders)
    return folders if any(is_folder for entries in inner for _, is_folder in entries) else []


def _folder_classes(names: list[str], classes: Sequence[str] | None, spec: str) -> tuple[str, ...]:
    if classes is None:
        return tuple(names)
    given = class_names(classes)
    unknown = [name for name in names if name not in set(given)]
    if unknown:
        raise DataError(
            f"class folder {unknown[0]!r} in {spec} is not one of the {len(given)} given classes; "
            "add it to classes or move the folder away"
        )
    return given


def _entries(folder: bytes) -> list[tuple[bytes, bool]]:
    """The visible names in a folder, sorted, and whether each is a folder."""
    try:
        with os.scandir(folder) as entries:
            listed = [(entry.name, _is_folder(entry)) for entry in entries]
    except OSError as err:
        raise DataError(_not_listed(folder, err)) from err
    # without hidden files, and without the folder that macOS adds to archives
    visible = [pair for pair in listed if not pair[0].startswith(b".") and pair[0] != b"__MACOSX"]
    return sorted(visible, key=lambda pair: os.fsdecode(pair[0]))


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _identity(folder: bytes | Path) -> tuple[int, int]:
    try:
        status = os.stat(folder)
    except OSError as err:
        raise DataError(_not_listed(folder, err)) from err
    return status.st_dev, status.st_ino


def _not_listed(folder: bytes | Path, err: OSError) -> str:
    return f"cannot list {os.fsdecode(folder)}: {err.strerror or err}; check its permissions"


def _ending(name: bytes) -> str:
    return os.path.splitext(os.fsdecode(name))[1].lower()


def _said(passed_over: Counter[str], spec: str) -> Mapping[str, int]:
    """The counts of files that were passed over, with a warning if there are any."""
    kinds = {kind: count for kind, count in passed_over.items() if count}
    total = sum(kinds.values())
    if total:
        shown = [f"{count} {_plural(kind, count)}" for kind, count in list(kinds.items())[:8]]
        more = ", ..." if len(kinds) > 8 else ""
        files = "1 file was" if total == 1 else f"{total:,} files were"
        warn(
            f"in {spec} {files} passed over: {', '.join(shown)}{more}; a picture must have the "
            "suffix of one (.jpg, .png, .webp, ...) and be in a class folder"
        )
    return kinds


def _plural(kind: str, count: int) -> str:
    if count == 1 or kind not in (_LINK_UP, _LINK_ACROSS, _OUTSIDE):
        return kind
    noun, _, rest = kind.partition(" ")
    return f"{noun}s {rest}"


def _no_images(
    entries: list[tuple[bytes, bool]], passed_over: Counter[str], spec: str
) -> DataError:
    """The error for a folder without any images in class folders."""
    loose = [_ending(name) for name, is_folder in entries if not is_folder]
    if EXTENSIONS & set(loose):
        return NoClassFoldersError(
            f"images lie directly in {spec}, without class folders; move them into one folder per "
            "class, e.g. cat/1.jpg and dog/2.jpg"
        )
    if not entries:
        return DataError(f"{spec} is empty; expected one folder per class with images inside")
    endings = sorted({ending or "none" for ending in loose} | set(passed_over))
    seen = f" (files found end with: {', '.join(endings[:5])})" if endings else ""
    return DataError(
        f"no images in {spec}{seen}; expected one folder per class with images inside "
        "(.jpg, .png, .webp, ...)"
    )
