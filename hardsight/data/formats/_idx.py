"""Files of MNIST's form, idx: found in a folder by their names, and read as arrays."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from hardsight.data.formats._stored import (
    MAX_UNPACKED_BYTES,
    MappedArray,
    MemoryArray,
    read_exactly,
)
from hardsight.data.source import is_regular
from hardsight.errors import DataError, MissingDataError

IDX_NAME = re.compile(r"idx\d-ubyte(\.gz)?$", re.IGNORECASE)
# The type codes of the idx format; its numbers are big-endian.
_DTYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
# MNIST calls its test files "t10k".
_SPLIT_WORDS = {"train": ("train",), "test": ("t10k", "test"), "validation": ("val",)}


def is_idx(file: Path) -> bool:
    """Return whether a file is named the way idx files are.

    Example:
        >>> is_idx(Path("t10k-images-idx3-ubyte.gz")), is_idx(Path("notes.gz"))
        (True, False)
    """
    return IDX_NAME.search(file.name) is not None


def idx_images_in(folder: Path, split: str | None) -> Path | None:
    """Return the images file of a split in a folder of idx files, or ``None`` if there are none.

    Raises:
        DataError: there are several files, and ``split`` is not given or does not choose one.
    """
    named = (file for file in folder.iterdir() if is_idx(file) and "images" in file.name)
    images = sorted(file for file in named if is_regular(file))
    if not images:
        return None
    # A file that is there both packed and unpacked counts once. Later entries of the dict win, so
    # the list is reversed to keep the unpacked file, which sorts first.
    files = list({IDX_NAME.sub("", file.name): file for file in reversed(images)}.values())
    words = _SPLIT_WORDS.get(split or "", (split or "",))
    chosen = [file for file in files if any(word in file.name for word in words)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(sorted(file.name for file in files))
    raise DataError(
        f"{folder} holds the idx files {names}; pass split='train' or 'test', or name one file"
    )


def labels_beside(images: Path) -> Path:
    """Return the labels file that belongs to an images file.

    Raises:
        MissingDataError: there is no such file.
    """
    plain = re.sub(r"\.gz$", "", images.name).replace("images", "labels")
    plain = re.sub(r"idx\d", "idx1", plain)
    for name in (plain, plain + ".gz"):
        if name != images.name and (images.parent / name).is_file():
            return images.parent / name
    raise MissingDataError(
        f"no labels for {images}: expected {plain} or {plain}.gz beside it; pass labels=FILE"
    )


def idx_array(file: Path) -> MappedArray | MemoryArray:
    """Return the array in an idx file.

    Packed files are unpacked into memory; others are read in place.

    Raises:
        DataError: the file is damaged, truncated or longer than it declares, or unpacks to more
            than ``MAX_UNPACKED_BYTES``.
    """
    packed = file.suffix.lower() == ".gz"
    try:
        with gzip.open(file) if packed else file.open("rb") as source:
            dtype, shape = _header(source, file)
            size = dtype.itemsize * math.prod(shape)
            if not packed:
                array_in_file = MappedArray(file, offset=source.tell(), shape=shape, stored=dtype)
                _refuse_rest(file.stat().st_size - source.tell() - size, file)
                return array_in_file
            if size > MAX_UNPACKED_BYTES:
                raise DataError(
                    f"{file} unpacks to {size / 2**30:.1f} GiB; unpack it with gunzip, it is then "
                    "read in place"
                )
            content = read_exactly(source, size, str(file))
            _refuse_rest(len(source.read(1)), file)  # one more byte is enough to know
    except (OSError, EOFError, zlib.error) as err:
        raise DataError(f"{file} is not a readable idx file: {err}") from err
    array = np.frombuffer(content, dtype).astype(dtype.newbyteorder("="), copy=False)
    return MemoryArray(array.reshape(shape))


def _refuse_rest(size: int, file: Path) -> None:
    """Refuse bytes after the array: then the header may be wrong, and rows would be left out."""
    if size > 0:
        raise DataError(
            f"{file} is damaged: it holds more than the array that its header declares; download "
            "or write it again"
        )


def _header(source: Any, file: Path) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = source.read(4)
    # an idx file starts with two zero bytes, the type code and the number of dimensions
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _DTYPES or not magic[3]:
        raise DataError(f"{file} is not an idx file: it starts with {magic!r}")
    sizes = source.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{file} is truncated: its header is incomplete; download it again")
    shape = tuple(int(size) for size in np.frombuffer(sizes, dtype=">u4"))
    return np.dtype(_DTYPES[magic[2]]), shape
