"""A corrected copy of idx files: pictures in one, labels in another."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from hardsight.data.formats import idx_array
from hardsight.exchange.copies._arrays import kept_rows
from hardsight.exchange.copies._values import changed_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.data import ExampleSource
    from hardsight.data.formats import StoredArray
    from hardsight.data.source import FixedLabels
    from hardsight.exchange.copies._links import Links

_CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def write_idx(source: ExampleSource, fixed: FixedLabels, target: Path, links: Links) -> list[str]:
    """Write both files under their names into a folder, and its other files as they are."""
    place = source.label_place
    assert place is not None
    (labels_file,), (images,) = place.files, place.beside
    target.mkdir(exist_ok=True)
    stored = idx_array(labels_file)
    raw = stored.whole()
    labels = changed_array(raw, source.labels, fixed, where=labels_file.name)
    _write(target / labels_file.name, labels, labels.shape, [labels])
    if fixed.kept.all():
        links.place(images, target / images.name)
    else:
        pictures = idx_array(images)
        shape = (int(fixed.kept.sum()), *pictures.shape[1:])
        _write(target / images.name, pictures, shape, kept_rows(pictures, fixed.kept))
    if place.root.is_dir():
        # if labels are there both packed and unpacked, the old ones must not be read by mistake
        written = {_unpacked(file) for file in (labels_file, images)}
        for file in sorted(place.root.iterdir()):
            is_plain = file.is_file() and not file.name.startswith(".")
            if is_plain and _unpacked(file) not in written:
                links.place(file, target / file.name)
    return links.notes()


def _unpacked(file: Path) -> str:
    return file.name.removesuffix(".gz")


def _write(
    file: Path, array: StoredArray | NDArray[Any], shape: tuple[int, ...], parts: Any
) -> None:
    dtype = array.dtype
    # numpy's code without its byte order, which is always big-endian in idx
    code = _CODES[dtype.str[1:]]
    with _sink(file) as sink:
        sink.write(bytes([0, 0, code, len(shape)]))
        # big-endian, as the format has it
        sink.write(np.array(shape, ">u4").tobytes())
        for part in parts:
            sink.write(part.astype(dtype.newbyteorder(">")).tobytes())


def _sink(file: Path) -> Any:
    if file.suffix.lower() == ".gz":
        return gzip.GzipFile(file, "wb", mtime=0)  # the same bytes every time
    sink: IO[bytes] = file.open("wb")
    return sink
