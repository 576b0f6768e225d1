"""Pictures of a run's examples by index, always decoded and encoded again before they are sent."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.errors import HardsightError, OptionError
from hardsight.gallery import class_numbers
from hardsight.run_folder import RunFolder

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    from hardsight.run_folder import KeptBytes
    from hardsight.table import ScoreTable

SMALL, LARGE = 160, 1024
SIZES = {"small": SMALL, "large": LARGE}
MAP = "map"  # in place of a size: the Grad-CAM map
_TINY = 64  # pictures up to this many pixels a side become PNG, which keeps every pixel
_MOST_BYTES = 48 * 2**20  # of encoded pictures kept in memory
_MOST_TEXT = 20_000  # letters of a text that are sent
_LONG_PATIENCE_S = 20.0  # that a filter by text may wait for the data
_PATIENCE_S = 1.0  # then the browser is told to ask again, so that its few connections stay free
PNG, JPEG, TEXT, PENDING = "image/png", "image/jpeg", "text/plain", "pending"


@dataclass(frozen=True)
class Shown:
    """What can be shown of an example.

    Attributes:
        content: a picture encoded by this module, or a text; empty if there is nothing to show.
        kind: its media type.
        note: why there is nothing, or only a small version.
    """

    content: bytes
    kind: str = PNG
    note: str = ""


class Pictures:
    """Pictures of the examples of a run, from its data or, if that is gone, from its thumbnails.

    The data is opened in the background, because listing a large folder takes seconds and the first
    pictures of a queue are usually among the thumbnails. New thumbnails go into the user's cache,
    so that the same photographs need not be decoded again next time.

    Args:
        table: the table of the run.
        data: where the data is now, if it has moved since it was scored.

    Attributes:
        opening: the thread that opens the data.
    """

    def __init__(self, table: ScoreTable, data: str | os.PathLike[str] | None = None) -> None:
        about = table.metadata.get("data") or {}
        self._spec = str(about.get("spec") or "") if data is None else os.fspath(data)
        self._split = about.get("split")
        self._is_unlabelled = bool(about.get("unlabelled"))  # images in any folders
        columns = ("text_column", "label_column", "image_column")
        self._columns = {key: about[key] for key in columns if key in about}
        self._table = table
        self._run = None if table.path is None else table.path.absolute().parent
        self._thumbnails: dict[int, bytes] | None = None
        self._source: Any = None
        self._problem = ""
        self._is_open = threading.Event()
        self._reading = threading.Lock()
        self._cache: OrderedDict[tuple[int, int], Shown] = OrderedDict()
        self._held = 0
        self._caching = threading.Lock()
        self._kept: KeptBytes | None = None  # thumbnails on the disk, once its pictures are known
        self.opening = threading.Thread(target=self._open, name="hardsight-data", daemon=True)
        self.opening.start()

    def close(self) -> None:
        """Close all files."""
        if self._kept is not None:
            self._kept.close()

    @property
    def place(self) -> dict[str, Any]:
        """The data as ``open_source`` takes it; empty if the run does not say where it is."""
        if not self._spec or self._spec.startswith("hub:") or self._is_unlabelled:
            return {}
        return {"data": self._found(self._spec), "split": self._split, **self._columns}

    @property
    def problem(self) -> str:
        """Why the data cannot be read, in words; empty if it can, or is still being opened."""
        return self._problem

    def of(self, index: int, id: str, size: int) -> Shown:
        """The picture of one example.

        Args:
            index: position of the example in its data.
            id: its id in the table; if the data has another id there, the data has changed.
            size: largest width and height.
        """
        key = (index, size)
        with self._caching:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        shown = self._made(index, id, size)
        if shown.content and not shown.note:
            self._keep(key, shown)
        return shown

    def texts(self, indices: NDArray[np.int64], ids: Callable[[], list[str]]) -> pa.Array | None:
        """The texts of some examples; ``None`` if they are not texts, or cannot be read.

        Args:
            indices: positions of the examples in their data.
            ids: returns their ids in the table; if the data has another id there by now, the text
                is left empty.

        Raises:
            OptionError: the data is still being opened.
        """
        if not self._is_open.wait(_LONG_PATIENCE_S):
            raise OptionError("the texts are still being read; try again in a moment")
        stored = getattr(self._source, "texts", None)
        if stored is None:
            return None
        with self._reading:
            source, found = self._source, []
            for index, id in zip(indices.tolist(), ids(), strict=True):
                at = source.position_of(index)
                is_there = 0 <= at < len(stored) and source.id_of(at) == id
                found.append(stored[at] if is_there else "")
        return pa.array(found, pa.large_string())

    def _keep(self, key: tuple[int, int], shown: Shown) -> None:
        with self._caching:
            if key not in self._cache:
                self._cache[key] = shown
                self._held += len(shown.content)
            while self._held > _MOST_BYTES:
                self._held -= len(self._cache.popitem(last=False)[1].content)

    def _made(self, index: int, id: str, size: int) -> Shown:
        small = self._thumbnail(index)
        if small is not None and (size <= SMALL or not self._is_open.is_set()):
            encoded = _decoded_again(small, size)
            if encoded is not None:
                note = "" if size <= SMALL else "a small version, while the data is being opened"
                return Shown(*encoded, note)
        if not self._is_open.wait(_PATIENCE_S):
            return Shown(b"", PENDING, "the data is being opened")
        position, problem = self._position(index, id)
        kept = self._kept if size == SMALL and position >= 0 else None
        again = None if kept is None else kept.get(str(index))
        if again is not None:
            return Shown(again, JPEG)
        content, problem = (None, problem) if position < 0 else self._read(position)
        if isinstance(content, str):
            return Shown(content[:_MOST_TEXT].encode("utf-8", "replace"), TEXT)
        made = None if content is None else _encoded(content, size)
        if isinstance(content, bytes):  # already drawn as a picture, such as a graph
            made = _decoded_again(content, size)
        if made is not None:
            if kept is not None and made[1] == JPEG:  # a PNG is a tiny picture already
                kept.put(str(index), made[0])
            return Shown(*made)
        encoded = None if small is None else _decoded_again(small, size)
        if encoded is not None:
            return Shown(*encoded, f"a small version: {problem}" if problem else "")
        return Shown(b"", PNG, problem or "this example is not a picture")

    def _thumbnail(self, index: int) -> bytes | None:
        if self._thumbnails is None:
            try:
                found = {} if self._run is None else RunFolder(self._run).thumbnails()
            except (OSError, ValueError, KeyError):  # a damaged file has no pictures
                found = {}
            self._thumbnails = found
        return self._thumbnails.get(index)

    def _position(self, index: int, id: str) -> tuple[int, str]:
        """The position of an example in its source; -1 and a reason if it is not there."""
        if self._source is None:
            return -1, self._problem
        try:
            with self._reading:  # readers of archives and parquet files serve one thread
                position = int(self._source.position_of(index))
                if not 0 <= position < len(self._source):
                    return -1, f"the data has changed: it ends before example {index}"
                if self._source.id_of(position) != id:
                    return -1, f"the data has changed: example {index} is now a different one"
                return position, ""
        except HardsightError as err:
            return -1, str(err)
        except Exception as err:  # other people's datasets raise almost anything
            return -1, f"cannot be read: {type(err).__name__}"

    def _read(self, position: int) -> tuple[Any, str]:
        """The content of an example, or a reason why there is none."""
        try:
            with self._reading:
                content, kind = self._source[position].content, self._source.kind
                return content if kind is None else kind.large(content), ""
        except HardsightError as err:
            return None, str(err)
        except Exception as err:  # decoders and other people's datasets raise almost anything
            return None, f"cannot be read: {type(err).__name__}"

    def _open(self) -> None:
        try:
            self._source = self._opened()
        except HardsightError as err:
            self._problem = f"the data cannot be opened: {err}; say where it is with --data"
        except Exception as err:  # a dataset may raise anything
            self._problem = f"the data cannot be opened ({type(err).__name__}); name it with --data"
        finally:
            self._is_open.set()
        self._kept = self._thumbnails_on_disk()

    def _thumbnails_on_disk(self) -> KeptBytes | None:
        """The cached thumbnails of this data; ``None`` without a cache or a mark of the data."""
        from hardsight.data import PictureCache

        try:
            cache = None if self._source is None else PictureCache.here()
            mark = None if cache is None else self._source.pictures_mark()
            return None if cache is None or mark is None else cache.thumbnails(mark, self._spec)
        except Exception:  # it is only a cache, and a dataset may raise anything
            return None

    def _opened(self) -> Any:
        from hardsight.data import EmbeddingSource, reopened_source, unlabelled_source

        if not self._spec:
            self._problem = "the run does not say where its data is; name it with --data"
            return None
        if self._spec.startswith("hub:"):  # the app downloads nothing without being asked
            self._problem = f"{self._spec} is not downloaded again; name local data with --data"
            return None
        place = self._found(self._spec)
        if self._is_unlabelled:
            text_column = self._columns.get("text_column")
            source = unlabelled_source(place, split=self._split, text_column=text_column)
        else:
            labels = np.maximum(class_numbers(self._table, "label"), 0)
            source = reopened_source(place, labels, split=self._split, **self._columns)
        if isinstance(source, EmbeddingSource):
            self._problem = "stored embeddings have no pictures"
            return None
        if source.is_stream:
            self._problem = "a stream has no pictures by position; name stored data with --data"
            return None
        return source

    def _found(self, spec: str) -> str:
        """Find a relative path from the working folder, or else from the folders above the run."""
        if Path(spec).is_absolute() or Path(spec).exists() or self._run is None:
            return spec
        places = (folder / spec for folder in (self._run, *list(self._run.parents)[:3]))
        return next((str(place) for place in places if place.exists()), spec)


def shown_again(encoded: bytes, size: int) -> Shown:
    """An encoded picture, decoded and encoded again before it is sent to a browser."""
    made = _decoded_again(encoded, size) if encoded else None
    return (
        Shown(b"", note="no map" if not encoded else "cannot be read")
        if made is None
        else (Shown(*made))
    )


def _encoded(content: Any, size: int) -> tuple[bytes, str] | None:
    """Encode a picture, no larger than ``size``; ``None`` if the content is not a picture."""
    from PIL import Image

    from hardsight.data import thumbnail

    if not isinstance(content, Image.Image):
        small = thumbnail(content, size=size)
        return None if small is None else _decoded_again(small, size)
    image = content if content.mode in ("L", "RGB") else content.convert("RGB")
    return _written(image, size)


def _decoded_again(encoded: bytes, size: int) -> tuple[bytes, str] | None:
    """Decode bytes that may hold anything, and encode the picture again; ``None`` if it fails."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded), formats=["PNG", "JPEG"]) as image:
            if image.width * image.height > 4 * LARGE**2:  # before load(), against bombs
                return None
            image.load()
            return _written(image if image.mode in ("L", "RGB") else image.convert("RGB"), size)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _written(image: Image.Image, size: int) -> tuple[bytes, str]:
    from PIL import Image

    if (longest := max(image.size)) > size:
        width, height = (max(1, round(side * size / longest)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=2.0)
    sink = io.BytesIO()
    if max(image.size) <= _TINY:
        image.save(sink, "PNG", compress_level=1)
        return sink.getvalue(), PNG
    image.save(sink, "JPEG", quality=88)
    return sink.getvalue(), JPEG
