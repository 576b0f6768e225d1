"""A cache of decoded pictures on disk, so that later runs over the same data need not decode them.

An entry is an array of bytes ``[N, H, W]`` or ``[N, H, W, 3]`` in a ``.npy`` file, which is mapped
into memory, with a ``.json`` file beside it that describes it. It is written under another name and
renamed when it is complete, by one process at a time. It is found by a mark of the stored pictures
and by the version of the decoder. Datasets with pictures of several sizes are not cached, because
they would need an entry for every size that a model takes. The thumbnails that the review app makes
are stored here as well, in one file per dataset.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hardsight._checks import warn
from hardsight.data.source import (
    Example,
    ExampleSource,
    SourceView,
    evenly_spaced,
)
from hardsight.errors import ConfigError, HardsightError
from hardsight.run_folder import (
    CACHE,
    KeptBytes,
    cache_folder,
    held,
    kept_count,
    remove,
    replacing,
    write_text,
)

BYTES = "HARDSIGHT_CACHE_BYTES"
_MOST_BYTES = 8 * 2**30  # of all entries together; one may take half of it
WORTH_KEEPING = 2048
"""Number of pictures from which on a dataset is cached; fewer are decoded fast enough."""
_DECODER = 1  # version of hardsight.data.pixels, to be increased if it decodes differently
_COMPARED = 16  # pictures that are decoded to check whether an entry still fits
_AT_ONCE = 256  # pictures that a loader process returns at a time
_ENTRY, _SMALL, _LOCK = "pictures-", "thumbnails-", ".lock"
_SMALL_BYTES = 256 * 2**20  # of the thumbnails of one dataset
Rows = Iterator[NDArray[np.uint8] | None]
Fill = Callable[[], Rows]


@dataclass(frozen=True)
class CacheEntry:
    """One entry: the decoded pictures of a dataset, or thumbnails made by the review app.

    Attributes:
        file: the file with the pictures.
        spec: the data as the user named it.
        pictures: number of pictures.
        shape: shape of one picture; empty for thumbnails, which have different shapes.
        bytes: size on the disk.
        used: time of the last use, in seconds since 1970.
    """

    file: Path
    spec: str
    pictures: int
    shape: tuple[int, ...]
    bytes: int
    used: float


class PictureCache:
    """A folder of decoded pictures with a limited size.

    Args:
        folder: the folder.
        most_bytes: size limit of all entries; those unused for longest are removed first.
    """

    def __init__(self, folder: Path, *, most_bytes: int = _MOST_BYTES) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    @classmethod
    def here(cls) -> PictureCache | None:
        """The cache of this user; ``None`` if it is turned off.

        ``HARDSIGHT_CACHE`` names the folder, or is ``off``; by default it is ``hardsight`` in
        ``XDG_CACHE_HOME``, which is ``~/.cache``. ``HARDSIGHT_CACHE_BYTES`` is the bound.

        Raises:
            ConfigError: the bound is not a number of bytes.
        """
        folder = cache_folder()
        if folder is None:
            return None
        bound = os.environ.get(BYTES, "").strip() or str(_MOST_BYTES)
        if not bound.isdigit():
            raise ConfigError(f"expected {BYTES} to be a number of bytes, got {bound!r}")
        return cls(folder, most_bytes=int(bound))

    def entries(self) -> list[CacheEntry]:
        """All entries, most recently used first."""
        entries = []
        for file in (*self.folder.glob(f"{_ENTRY}*.npy"), *self.folder.glob(f"{_SMALL}*.sqlite")):
            with suppress(OSError, ValueError, KeyError):  # another process may be removing it
                about = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
                shape = tuple(about.get("shape") or (kept_count(file),))
                size, used = file.stat().st_size, file.with_suffix(".json").stat().st_mtime
                entries.append(CacheEntry(file, about["spec"], shape[0], shape[1:], size, used))
        return sorted(entries, key=lambda entry: -entry.used)

    def clear(self) -> int:
        """Remove everything; the number of bytes that are free again.

        A run that is reading an entry keeps what it has mapped.
        """
        freed = 0
        for file in self.folder.glob("*"):
            if _is_ours(file):
                freed += file.stat().st_size
                remove(file)
        with suppress(OSError):
            self.folder.rmdir()
        return freed

    def read(self, mark: str) -> NDArray[np.uint8] | None:
        """The pictures of a mark, mapped into memory; ``None`` if there are none."""
        file = self._file(mark)
        try:
            pictures = np.load(file, mmap_mode="r", allow_pickle=False)
            os.utime(file.with_suffix(".json"))
        except (OSError, ValueError, EOFError):
            return None
        return pictures if isinstance(pictures, np.ndarray) else None

    def drop(self, mark: str) -> None:
        """Forget an entry that is not right."""
        for suffix in (".npy", ".json"):
            with suppress(OSError):
                remove(self._file(mark).with_suffix(suffix))

    def filled(
        self, mark: str, spec: str, shape: tuple[int, ...], rows: Iterator[NDArray[np.uint8]]
    ) -> NDArray[np.uint8] | None:
        """Write an entry, and give it back; ``None`` if a picture has another shape.

        Args:
            mark: of the stored pictures.
            spec: what the data is called.
            shape: of all of them.
            rows: the pictures, in their order, some at a time; ends early if one does not fit.
        """
        file = self._file(mark)
        about = {"spec": spec, "shape": list(shape), "made": time.time(), "decoder": decoder()}
        # before it is written: the disk must not hold both at any time
        self._make_room(math.prod(shape))
        with replacing(file) as part:
            whole = np.lib.format.open_memmap(part, "w+", dtype=np.uint8, shape=shape)
            done = 0
            for some in rows:
                whole[done : done + len(some)] = some
                done += len(some)
            whole.flush()
            # a picture of another size came up; the file is not put in place
            if done < shape[0]:
                raise _DoesNotFitError
            with replacing(file.with_suffix(".json")) as text:
                text.write_text(json.dumps(about), encoding="utf-8")
        return self.read(mark)

    def thumbnails(self, mark: str, spec: str) -> KeptBytes:
        """Thumbnails of a dataset that were made before, at most 256 MiB of them.

        Args:
            mark: of the stored pictures, see ``pictures_mark`` of a source.
            spec: what the data is called.

        Raises:
            OSError: the folder cannot be written.
        """
        file = self.folder / f"{_SMALL}{mark[:24]}.sqlite"
        bound = min(_SMALL_BYTES, self.most_bytes // 4)
        if not file.exists():
            self._make_room(bound)
        write_text(file.with_suffix(".json"), json.dumps({"spec": spec}))  # used just now
        return KeptBytes(file, about=f"{mark} {decoder()}", most_bytes=bound)

    def lock(self, mark: str) -> Any:
        """Held by the process that fills an entry; the others wait and find it."""
        return held(self._file(mark).with_suffix(_LOCK), wait=True)

    def has_room(self, size: int) -> bool:
        """Whether pictures of so many bytes may be kept: within the bound, and on the disk."""
        above = next(place for place in (self.folder, *self.folder.parents) if place.exists())
        return 2 * size <= self.most_bytes and size * 1.1 <= shutil.disk_usage(above).free

    def _make_room(self, size: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = self.entries()
        while kept and size + sum(entry.bytes for entry in kept) > self.most_bytes:
            last = kept.pop()
            for file in (last.file, last.file.with_suffix(".json")):
                with suppress(OSError):
                    remove(file)

    def _file(self, mark: str) -> Path:
        return self.folder / f"{_ENTRY}{mark[:24]}.npy"


class _DoesNotFitError(Exception):
    """A picture has another size than the first ones, or cannot be read."""


def _is_ours(file: Path) -> bool:
    name = file.name
    return file.is_file() and any(
        name.startswith(begin) or (name.startswith(".tmp-") and begin in name)
        for begin in (_ENTRY, _SMALL)
    )


def decoder() -> str:
    """What decodes a picture; another version may give other pixels."""
    return f"{_DECODER}, pillow {importlib.metadata.version('pillow')}"


class KeptPictures(SourceView):
    """A source whose pictures lie decoded on the disk; all else is as it was.

    Args:
        source: the examples.
        cache: that holds their pictures.
        mark: of the entry.
    """

    def __init__(self, source: ExampleSource, cache: PictureCache, mark: str) -> None:
        super().__init__([source], spec=source.spec)
        self._cache, self._mark = cache, mark
        self.images = self._pictures

    @cached_property
    def _pictures(self) -> NDArray[np.uint8] | None:
        return self._cache.read(self._mark)

    def __getstate__(self) -> dict[str, Any]:
        # a loader process that is not forked maps the file again, rather than being sent all of it
        return {**self.__dict__, "images": None, "_pictures": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        del self.__dict__["_pictures"]
        self.images = self._pictures

    def __getitem__(self, index: int) -> Example:
        if self.images is None:  # somebody cleared the cache before a process could map it
            return super().__getitem__(index)
        if not 0 <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        content = Image.fromarray(self.images[index])
        return Example(self.id_of(index), self.label_of(index), content)

    def fingerprint(self) -> str:
        """That of the source: where its pictures are decoded changes nothing about them."""
        return self.parts[0].fingerprint()


Bar = Callable[[ExampleSource], AbstractContextManager[Callable[[int], None]]]


def kept_pictures(source: ExampleSource, bar: Bar, *, workers: int = 0) -> ExampleSource:
    """The same examples, their pictures decoded on disk if they can be; written there if need be.

    Args:
        source: any examples; those whose pictures are not stored, of several sizes, too few, too
            many, or not readable are given back as they are.
        bar: shows how many pictures are decoded.
        workers: loader processes that decode.
    """
    if type(source) is SourceView:
        return _kept_parts(source, bar, workers)
    is_worth_it = not source.is_stream and len(source) >= WORTH_KEEPING
    mark = source.pictures_mark() if is_worth_it else None
    cache = None if mark is None else PictureCache.here()
    if mark is None or cache is None:
        return source
    mark = hashlib.sha256(f"{mark} {decoder()}".encode()).hexdigest()
    try:
        return _kept(source, cache, mark, lambda: _decoded(source, bar, workers))
    except (OSError, HardsightError) as err:  # a disk that is full, a folder that is not ours
        warn(
            f"decoded pictures of {source.spec} are not kept in {cache.folder}: {err}; set "
            f"{CACHE} to another folder, or to off"
        )
        return source


def _kept(source: ExampleSource, cache: PictureCache, mark: str, fill: Fill) -> ExampleSource:
    pictures = cache.read(mark)
    if pictures is not None and _agrees(source, pictures):
        return KeptPictures(source, cache, mark)
    shape = _common_shape(source)
    if shape is None or not cache.has_room(math.prod(shape)):
        return source
    with cache.lock(mark):
        if pictures is not None:  # of other pictures, or damaged
            cache.drop(mark)
        if cache.read(mark) is None:  # else another process was quicker
            try:
                cache.filled(mark, source.spec, shape, _fitting(fill(), shape))
            except _DoesNotFitError:
                return source
    pictures = cache.read(mark)
    is_right = pictures is not None and _agrees(source, pictures)
    return KeptPictures(source, cache, mark) if is_right else source


def _fitting(rows: Rows, shape: tuple[int, ...]) -> Iterator[NDArray[np.uint8]]:
    for some in rows:
        if some is None or some.shape[1:] != shape[1:]:
            return
        yield some


def _kept_parts(view: SourceView, bar: Bar, workers: int) -> ExampleSource:
    parts = [kept_pictures(part, bar, workers=workers) for part in view.parts]
    if all(new is old for new, old in zip(parts, view.parts, strict=True)):
        return view
    other = copy.copy(view)
    other.use_parts(parts)
    return other


class _Pictures:
    """The decoded pictures of a source, as a DataLoader wants them."""

    def __init__(self, source: ExampleSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> NDArray[np.uint8] | None:
        return decoded_picture(self._source, index)


def _decoded(source: ExampleSource, bar: Bar, workers: int) -> Rows:
    """All pictures in their order, some at a time; ``None`` for some that do not stack."""
    import torch
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        _Pictures(source),  # type: ignore[arg-type]  # needs __len__ and __getitem__ only
        batch_size=_AT_ONCE,
        num_workers=workers,
        collate_fn=_stacked,
        generator=torch.Generator().manual_seed(0),  # leaves the user's random state alone
    )
    with bar(source) as advance:
        for batch in loader:
            advance(0 if batch is None else len(batch))
            yield None if batch is None else batch.numpy()


def _stacked(pictures: list[NDArray[np.uint8] | None]) -> Any:
    import torch

    decoded = [picture for picture in pictures if picture is not None]
    if len(decoded) < len(pictures) or len({picture.shape for picture in decoded}) > 1:
        return None
    return torch.from_numpy(np.stack(decoded))


def decoded_picture(source: ExampleSource, index: int) -> NDArray[np.uint8] | None:
    """The decoded picture of an example; ``None`` if it is not one, or cannot be read."""
    try:
        content = source[index].content
    except HardsightError:
        return None
    if not isinstance(content, Image.Image) or content.mode not in ("L", "RGB"):
        return None
    return np.asarray(content)


def _common_shape(source: ExampleSource) -> tuple[int, ...] | None:
    """The shape of all pictures, if some of them have the same."""
    shapes = set()
    for index in evenly_spaced(len(source), _COMPARED):
        picture = decoded_picture(source, index)
        if picture is None:
            return None
        shapes.add(picture.shape)
    return (len(source), *shapes.pop()) if len(shapes) == 1 else None


def _agrees(source: ExampleSource, pictures: NDArray[np.uint8]) -> bool:
    """Whether an entry holds what the source gives, as far as a few pictures tell.

    The mark tells that files were changed; this is for a clock that was set back, or an entry that
    was damaged.
    """
    if len(pictures) != len(source):
        return False
    for index in evenly_spaced(len(source), _COMPARED):
        picture = decoded_picture(source, index)
        if picture is None or not np.array_equal(picture, pictures[index]):
            return False
    return True
