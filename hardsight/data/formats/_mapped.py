"""Arrays that are read in parts: in memory, or in place in a file."""

from __future__ import annotations

import math
import mmap
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hardsight.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.data.source import Fingerprint

_RELEASE_BYTES = 64 * 1024**2
_MAP_NORESERVE = 0x4000  # Linux: a private mapping may be larger than the memory


class StoredArray(Protocol):
    """An array that can be read in parts.

    Attributes:
        shape: of the whole array.
        dtype: of what ``read`` returns.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what ``read`` returns."""
        ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows ``start`` to ``stop``: a view where possible."""
        ...

    def add_to(self, mark: Fingerprint) -> None:
        """Take a sample of the content into a fingerprint."""
        ...


class MemoryArray:
    """An array already in memory."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what ``read`` returns."""
        return self.array.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """A view of the rows."""
        return self.array[start:stop]

    def whole(self) -> NDArray[Any]:
        """The array itself."""
        return self.array

    def add_to(self, mark: Fingerprint) -> None:
        """Evenly spaced rows."""
        mark.add_rows(self.array)


class MappedArray:
    """An array inside a file, mapped on first use; pickles as its place, not its content.

    Args:
        file: where it lies.
        offset: its first byte.
        shape: of the array.
        stored: dtype in the file.
        fortran: column-major.
        bfloat16: ``stored`` is the upper half of float32; ``read`` widens it.
        end: behind the last byte that may belong to it; ``None`` for the end of the file.

    Raises:
        DataError: the array does not fit there.
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
        self.file, self.offset, self._shape = file, offset, shape
        self._stored, self._fortran, self._bfloat16 = stored, fortran, bfloat16
        self._released = 0  # first byte of the mapping that may be in memory
        if any(length < 0 for length in shape):
            raise DataError(f"{file} is damaged: it declares an array of shape {list(shape)}")
        needed = offset + stored.itemsize * math.prod(shape)
        end = file.stat().st_size if end is None else min(end, file.stat().st_size)
        if end < needed:
            raise DataError(
                f"{file} is truncated: an array {list(shape)} of {stored} ends at byte {needed:,}, "
                f"the file's at {end:,}; copy or write it again"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what ``read`` returns."""
        return np.dtype(np.float32) if self._bfloat16 else self._stored.newbyteorder("=")

    @cached_property
    def _mapping(self) -> mmap.mmap:
        return _mapped(self.file)

    @cached_property
    def _array(self) -> NDArray[Any]:
        if 0 in self._shape:
            return np.empty(self._shape, dtype=self._stored)
        order: Any = "F" if self._fortran else "C"
        return np.ndarray(self._shape, self._stored, self._mapping, self.offset, order=order)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """A view of the rows; bfloat16 is widened to float32, for these rows only.

        Not to be written to: pages behind the reader are given back, and with them changes.
        """
        rows = self._array[start:stop]
        self._release_before(start)
        if self._bfloat16:
            return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return rows.astype(self.dtype, copy=False)  # torch knows native byte order only

    def _release_before(self, row: int) -> None:
        """Give back the pages of rows already read, so that they do not count as ours.

        A view that is still in use finds its content again in the system's cache.
        """
        if self._fortran or 0 in self._shape or not hasattr(mmap, "MADV_DONTNEED"):
            return
        row_bytes = self._array.nbytes // self._shape[0]
        place = self.offset + min(row, self._shape[0]) * row_bytes
        place -= place % mmap.PAGESIZE
        step_back = place < self._released
        until = len(self._mapping) if step_back else place
        if step_back or until - self._released >= _RELEASE_BYTES:
            self._mapping.madvise(mmap.MADV_DONTNEED, self._released, until - self._released)
            self._released = place

    def whole(self) -> NDArray[Any]:
        """Everything, for small arrays such as labels and class weights."""
        return self.read(0, self._shape[0]) if self._shape else self._array

    def add_to(self, mark: Fingerprint) -> None:
        """Evenly spaced rows, as an array in memory gives them."""
        mark.add_rows(self)

    def __getstate__(self) -> dict[str, Any]:
        open_here = ("_mapping", "_array")
        kept = {name: value for name, value in self.__dict__.items() if name not in open_here}
        return {**kept, "_released": 0}


def _mapped(file: Path) -> mmap.mmap:
    """The file as private memory: torch warns of read-only memory, and nothing is written back."""
    with file.open("rb") as source:
        if sys.platform != "linux":
            return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY)
        return mmap.mmap(
            source.fileno(),
            0,
            flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )


FileArray = MemoryArray | MappedArray
