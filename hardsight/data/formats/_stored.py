"""Named arrays in files, read in place if the format allows it and never by running code."""

from __future__ import annotations

import json
import math
import os
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from hardsight.data.formats._mapped import FileArray, MappedArray, MemoryArray
from hardsight.errors import DataError, UnsafeFileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A compressed array must be unpacked into memory; beyond this it has to be stored uncompressed.
MAX_UNPACKED_BYTES = 2 * 1024**3
ARRAY_SUFFIXES = (".npy", ".npz", ".safetensors", ".pt", ".pth", ".bin")

_SAFETENSORS_DTYPES = {
    **{f"F{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    "BF16": "<u2",
    "BOOL": "?",
}


def stored_arrays(file: Path) -> dict[str, FileArray]:
    """The arrays of a ``.npy`` (under the name ``""``), ``.npz``, ``.safetensors`` or torch file.

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


def _npz(file: Path) -> dict[str, FileArray]:
    arrays: dict[str, FileArray] = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            name = member.filename.removesuffix(".npy")
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
    """Where a stored member's bytes begin: behind its local header, whose lengths are its own."""
    source.seek(member.header_offset)
    header = source.read(30)
    if header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no local header for {member.filename}")
    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    return member.header_offset + 30 + name + extra


def _unpacked(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path, name: str
) -> NDArray[Any]:
    """A compressed member; sizes are looked at before anything is unpacked."""
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
        array = np.frombuffer(read_exactly(source, size, f"array {name!r} of {file}"), dtype)
        array = array.astype(dtype.newbyteorder("="), copy=False)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def read_exactly(source: Any, size: int, what: str) -> bytearray:
    """``size`` bytes, never more, in memory that may be written to.

    Raises:
        DataError: there are fewer.
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


def _safetensors(file: Path) -> dict[str, FileArray]:
    with file.open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        if length > min(file.stat().st_size, 100_000_000):
            raise DataError(f"{file} is not a readable .safetensors file: header too long")
        header = json.loads(source.read(length))
    arrays: dict[str, FileArray] = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in _SAFETENSORS_DTYPES:
            continue
        stored = np.dtype(_SAFETENSORS_DTYPES[entry["dtype"]])
        begin, end = entry["data_offsets"]
        shape = tuple(int(length) for length in entry["shape"])
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


def _torch_tensors(file: Path) -> dict[str, FileArray]:
    import pickle

    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd pickles, which are refused below
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as err:
        raise UnsafeFileError(
            f"{file} is not a file of plain tensors: it is damaged, or would run code when loaded; "
            "save a state dict with torch.save, or a .safetensors file"
        ) from err
    except RuntimeError as err:
        raise DataError(f"{file} is not a readable torch file: {err}") from err
    return _flattened(content, "")


def _flattened(content: Any, prefix: str) -> dict[str, FileArray]:
    """Tensors of nested dicts under dotted names."""
    import torch

    if isinstance(content, torch.Tensor):
        tensor = content.detach()
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        return {prefix: MemoryArray(wide.cpu().numpy())}
    arrays: dict[str, FileArray] = {}
    if isinstance(content, dict):
        for key, value in content.items():
            arrays.update(_flattened(value, f"{prefix}.{key}" if prefix else str(key)))
    return arrays


def split_member(text: str) -> tuple[str, str | None]:
    """``FILE:NAME`` into file and array name; the name is ``None`` if there is none.

    Example:
        >>> split_member("head.safetensors:fc.weight")
        ('head.safetensors', 'fc.weight')
    """
    file, colon, name = text.rpartition(":")
    if colon and file.lower().endswith(ARRAY_SUFFIXES) and not os.path.exists(text):
        return file, name
    return text, None
