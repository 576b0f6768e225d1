"""Arrays stored in files: ``.npy``, ``.npz``, ``.safetensors`` and torch files.

No reader runs code from a file. If the format allows it, an array is read in parts and in place, so
a file may be larger than memory.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
import warnings
import zipfile
import zlib
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hardsight.data.source import Fingerprint
from hardsight.errors import DataError, UnsafeFileError

_RELEASE_BYTES = 64 * 1024**2  # pages already read are given back in steps of this size
_MAP_NORESERVE = 0x4000  # Linux: a private mapping may be larger than the memory
# A compressed array has to be unpacked into memory. Larger ones must be stored uncompressed, so
# that they can be mapped.
MAX_UNPACKED_BYTES = 2 * 1024**3
ARRAY_SUFFIXES = (".npy", ".npz", ".safetensors", ".pt", ".pth", ".bin")
_SAFETENSORS_DTYPES = {
    **{f"F{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    "BF16": "<u2",
    "BOOL": "?",
}


class StoredArray(ABC):
    """An array that can be read in parts.

    Attributes:
        shape: shape of the whole array.
        dtype: dtype of the arrays that ``read`` returns.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows ``start`` to ``stop``, as a view if possible."""

    def whole(self) -> NDArray[Any]:
        """Return the whole array; meant for small ones such as labels and class weights."""
        return self.read(0, self.shape[0])

    def add_to(self, mark: Fingerprint) -> None:
        """Add a sample of the content, evenly spaced rows, to a fingerprint."""
        mark.add_rows(self)


class MemoryArray(StoredArray):
    """An array already in memory."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a view of the rows."""
        return self.array[start:stop]

    def whole(self) -> NDArray[Any]:
        """Return the array itself."""
        return self.array


class ChosenRows(StoredArray):
    """Some rows of a stored array, in ascending order.

    Args:
        array: the array that the rows are taken from.
        rows: their positions in it.
    """

    def __init__(self, array: StoredArray, rows: NDArray[np.int64]) -> None:
        self._array, self._rows = array, rows
        self.shape, self.dtype = (len(rows), *array.shape[1:]), array.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the chosen rows; rows between them are read too and dropped."""
        at = self._rows[start:stop]
        if not len(at):
            return self._array.read(0, 0)
        first = int(at[0])
        # One block from first to last is read. This is cheap enough: rows chosen from all over the
        # array are read in batches anyway.
        return self._array.read(first, int(at[-1]) + 1)[at - first]


class MappedArray(StoredArray):
    """An array inside a file, mapped on first use.

    Pickling stores the position in the file, not the content.

    Args:
        file: the file that holds the array.
        offset: position of the array's first byte.
        shape: shape of the array.
        stored: dtype in the file.
        fortran: whether the array is stored column by column.
        bfloat16: whether ``stored`` is the upper half of a float32, which ``read`` widens.
        end: position after the last byte that may belong to the array; ``None`` means the end of
            the file.

    Raises:
        DataError: the array does not fit into the file at this position.
    """

    def __init__(
        self,
        file: Path,
        *,
        offset: int,
        shape: tuple[int, ...],
        stored: np.dtype[Any],
        fortran: bool = False,
        bfloat16: bool = False,
        end: int | None = None,
    ) -> None:
        self.file, self.offset, self.shape = file, offset, shape
        # numpy has no bfloat16, so it is read as integers and widened when rows are read
        self.dtype = np.dtype(np.float32) if bfloat16 else stored.newbyteorder("=")
        self._stored, self._fortran, self._bfloat16 = stored, fortran, bfloat16
        self._released = 0  # first byte of the mapping that may be in memory
        if any(length < 0 for length in shape):
            raise DataError(f"{file} is damaged: it declares an array of shape {list(shape)}")
        # Checked before anything is mapped: reading past the end of the file would kill the process
        # with a bus error.
        needed = offset + stored.itemsize * math.prod(shape)
        end = file.stat().st_size if end is None else min(end, file.stat().st_size)
        if end < needed:
            raise DataError(
                f"{file} is truncated: an array {list(shape)} of {stored} ends at byte {needed:,}, "
                f"the file's at {end:,}; copy or write it again"
            )

    @cached_property
    def _mapping(self) -> mmap.mmap:
        return _mapped(self.file)

    @cached_property
    def _array(self) -> NDArray[Any]:
        if 0 in self.shape:
            return np.empty(self.shape, dtype=self._stored)
        order: Any = "F" if self._fortran else "C"
        return np.ndarray(self.shape, self._stored, self._mapping, self.offset, order=order)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a view of the rows; bfloat16 rows are widened to float32.

        Do not write to the view: pages that were read are given back, and changes are lost with
        them.
        """
        rows = self._array[start:stop]
        self._release_before(start)
        if self._bfloat16:
            # bfloat16 is the upper half of a float32, so shifting it up by 16 bits is exact
            return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return rows.astype(self.dtype, copy=False)  # torch only knows native byte order

    def _release_before(self, row: int) -> None:
        """Give back the pages of rows already read, so that they do not count as our memory.

        A view that is still in use is read from the system's cache again.
        """
        if self._fortran or 0 in self.shape or not hasattr(mmap, "MADV_DONTNEED"):
            return
        row_bytes = self._array.nbytes // self.shape[0]
        place = self.offset + min(row, self.shape[0]) * row_bytes
        # madvise takes whole pages only
        place -= place % mmap.PAGESIZE
        step_back = place < self._released
        until = len(self._mapping) if step_back else place
        # A step back means that another pass has begun: give everything back.
        if step_back or until - self._released >= _RELEASE_BYTES:
            self._mapping.madvise(mmap.MADV_DONTNEED, self._released, until - self._released)
            self._released = place

    def whole(self) -> NDArray[Any]:
        """Return the whole array; a single number has no rows to read."""
        return super().whole() if self.shape else self._array

    def __getstate__(self) -> dict[str, Any]:
        # a mapping cannot be pickled; the copy maps the file again
        open_here = ("_mapping", "_array")
        kept = {name: value for name, value in self.__dict__.items() if name not in open_here}
        return {**kept, "_released": 0}


def _mapped(file: Path) -> mmap.mmap:
    """Map the file as private, writable memory.

    torch warns if it is given read-only memory. Nothing is ever written back to the file.
    """
    with file.open("rb") as source:
        if sys.platform != "linux":
            return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY)
        return mmap.mmap(
            source.fileno(),
            0,
            # not reserved, since the file may be larger than memory and swap together
            flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )


def stored_arrays(file: Path) -> dict[str, StoredArray]:
    """Return the arrays in a ``.npy``, ``.npz``, ``.safetensors`` or torch file, by name.

    The array in a ``.npy`` file has the name ``""``.

    Raises:
        DataError: the file is damaged, or unpacks to more than ``MAX_UNPACKED_BYTES``.
        UnsafeFileError: reading it would run code stored in it.
    """
    suffix = file.suffix.lower()
    try:
        if suffix == ".npy":
            with file.open("rb") as source:
                return {"": _npy_in_place(file, source)}
        if suffix == ".npz":
            return _npz(file)
        if suffix == ".safetensors":
            return _safetensors(file)
        return _torch_tensors(file)
    except (DataError, UnsafeFileError):
        raise
    except (
        # everything that readers raise on a damaged file
        *(OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, RuntimeError),
        *(zipfile.BadZipFile, zlib.error),
    ) as err:
        raise DataError(
            f"{file} is not a readable {suffix} file: {str(err) or type(err).__name__}"
        ) from err


def _npy_header(source: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(source)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(source)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(source)
    return shape, fortran, dtype


def _npy_in_place(
    file: Path, source: IO[bytes], name: str = "", *, end: int | None = None
) -> MappedArray:
    shape, fortran, dtype = _npy_header(source)
    _refuse_objects(dtype, file, name)
    return MappedArray(
        file, offset=source.tell(), shape=shape, stored=dtype, fortran=fortran, end=end
    )


def _refuse_objects(dtype: np.dtype[Any], file: Path, name: str = "") -> None:
    if dtype.hasobject:
        part = f"{file}, array {name!r}," if name else f"{file}"
        raise UnsafeFileError(
            f"{part} holds pickled Python objects, which can run code; save plain numbers or "
            "strings, e.g. array.astype(float) or array.astype(str)"
        )


def _npz(file: Path) -> dict[str, StoredArray]:
    arrays: dict[str, StoredArray] = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            name = member.filename.removesuffix(".npy")
            # members stored without compression or encryption can be mapped where they are
            if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 0x1:
                with file.open("rb") as source:
                    begin = _content_offset(source, member)
                    source.seek(begin)
                    end = begin + member.file_size
                    arrays[name] = _npy_in_place(file, source, name, end=end)
            else:
                arrays[name] = MemoryArray(_unpacked(archive, member, file, name))
    return arrays


def _content_offset(source: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Return the position of a stored member's first byte, which follows its local header.

    The local header states its own lengths, which may differ from those in the zip directory.
    """
    source.seek(member.header_offset)
    header = source.read(30)
    if header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no local header for {member.filename}")
    # offsets that the zip format defines for the lengths of the name and the extra field
    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    return member.header_offset + 30 + name + extra


def _unpacked(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path, name: str
) -> NDArray[Any]:
    """Unpack a compressed member, after checking that its size is within the limit."""
    with archive.open(member) as source:
        shape, fortran, dtype = _npy_header(source)
        _refuse_objects(dtype, file, name)
        size = dtype.itemsize * math.prod(shape)
        if max(size, member.file_size) > MAX_UNPACKED_BYTES:
            raise DataError(
                f"array {name!r} of {file} unpacks to {max(size, member.file_size) / 2**30:.1f} "
                f"GiB, more than {MAX_UNPACKED_BYTES / 2**30:.0f}; store it with np.savez, which "
                "is read in place"
            )
        # Reads exactly the size that the header states, so a zip bomb is not unpacked further.
        array = np.frombuffer(read_exactly(source, size, f"array {name!r} of {file}"), dtype)
        array = array.astype(dtype.newbyteorder("="), copy=False)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def read_exactly(source: Any, size: int, what: str) -> bytearray:
    """Return exactly ``size`` bytes in writable memory.

    Raises:
        DataError: there are fewer bytes.
    """
    content = bytearray(size)
    view, filled = memoryview(content), 0
    while filled < size:
        count: int = source.readinto(view[filled : filled + 2**24])
        if not count:
            raise DataError(
                f"{what} is truncated: {size:,} bytes expected, {filled:,} found; write or "
                "download it again"
            )
        filled += count
    return content


def _safetensors(file: Path) -> dict[str, StoredArray]:
    with file.open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        # 100 MB is the limit that the format itself sets
        if length > min(file.stat().st_size, 100_000_000):
            raise DataError(f"{file} is not a readable .safetensors file: header too long")
        header = json.loads(source.read(length))
    arrays: dict[str, StoredArray] = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in _SAFETENSORS_DTYPES:
            continue
        stored = np.dtype(_SAFETENSORS_DTYPES[entry["dtype"]])
        begin, end = entry["data_offsets"]
        shape = tuple(int(length) for length in entry["shape"])
        # A tensor of another size than its place could overlap others or read outside its data.
        if end - begin != stored.itemsize * math.prod(shape) or begin < 0:
            raise DataError(f"{file} is damaged: tensor {name!r} does not fit its own place")
        arrays[name] = MappedArray(
            file,
            offset=8 + length + begin,
            shape=shape,
            stored=stored,
            bfloat16=entry["dtype"] == "BF16",
        )
    return arrays


def _torch_tensors(file: Path) -> dict[str, StoredArray]:
    import pickle

    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about odd pickles, which we refuse below
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as err:
        raise UnsafeFileError(
            f"{file} is not a file of plain tensors: it is damaged, or would run code when loaded; "
            "save a state dict with torch.save, or a .safetensors file"
        ) from err
    except RuntimeError as err:
        raise DataError(f"{file} is not a readable torch file: {err}") from err
    return _flattened(content, "")


def _flattened(content: Any, prefix: str) -> dict[str, StoredArray]:
    """Return the tensors of nested dicts under dotted names."""
    import torch

    if isinstance(content, torch.Tensor):
        tensor = content.detach()
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        return {prefix: MemoryArray(wide.cpu().numpy())}
    arrays: dict[str, StoredArray] = {}
    if isinstance(content, dict):
        for key, value in content.items():
            arrays.update(_flattened(value, f"{prefix}.{key}" if prefix else str(key)))
    return arrays


def split_member(text: str) -> tuple[str, str | None]:
    """Split ``FILE:NAME`` into file and array name; the name is ``None`` if there is none.

    Example:
        >>> split_member("head.safetensors:fc.weight")
        ('head.safetensors', 'fc.weight')
    """
    file, colon, name = text.rpartition(":")
    if colon and file.lower().endswith(ARRAY_SUFFIXES) and not os.path.exists(text):
        return file, name
    return text, None
