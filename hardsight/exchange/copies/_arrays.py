"""A corrected copy of arrays: ``.npz``, ``.npy`` and ``.safetensors``, of labels or of all data."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from hardsight.data.formats import stored_arrays
from hardsight.errors import PatchError
from hardsight.exchange.copies._values import changed_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.data import EmbeddingSource, ExampleSource
    from hardsight.data.formats import StoredArray
    from hardsight.data.source import FixedLabels

_ROWS = 4096  # of an array that are held in memory


def write_arrays(
    source: ExampleSource | EmbeddingSource, fixed: FixedLabels, target: Path
) -> list[str]:
    """Write the same arrays with corrected labels, and without the rows of dropped examples.

    Raises:
        PatchError: rows would have to be removed from unknown arrays, or from labels that are
            stored apart from their examples.
    """
    place = source.label_place
    assert place is not None
    file = place.files[0]
    arrays = stored_arrays(file)
    where = f"{place.name or 'the array'} of {file.name}"
    raw = np.asarray(arrays[place.name].whole())
    # [N, 1], as some tools store labels
    is_column = raw.ndim == 2 and raw.shape[1] == 1
    labels = changed_array(raw[:, 0] if is_column else raw, source.labels, fixed, where=where)
    labels = labels[:, None] if is_column else labels
    if not fixed.kept.all():
        _check_droppable(source, arrays)
    cut = set() if fixed.kept.all() else {*place.per_example}
    suffix = file.suffix.lower()
    if suffix == ".npy":
        with target.open("wb") as sink:
            np.lib.format.write_array(sink, labels, allow_pickle=False)
    elif suffix == ".npz":
        _write_npz(file, target, place.name, labels, {name: arrays[name] for name in cut}, fixed)
    elif suffix == ".safetensors":
        _write_safetensors(file, target, place.name, labels, cut, fixed.kept)
    else:
        raise PatchError(
            f"{file.name} cannot be written again; store its arrays as .npz or .safetensors"
        )
    return []


def _check_droppable(source: Any, arrays: dict[str, StoredArray]) -> None:
    place, length = source.label_place, len(source)
    if place.is_apart:
        raise PatchError(
            f"examples cannot be left out of {place.files[0].name} alone, because they are stored "
            f"in {source.spec}; keep them with --cannot-tell keep, or store labels and examples "
            "together"
        )
    # a head has as many rows as there are classes, which may be as many as examples
    known = {place.name, *place.per_example, "class_weights", "bias"}
    unsure = [
        name for name, array in arrays.items()
        if name not in known and array.shape[:1] == (length,)
    ]  # fmt: skip
    if unsure:
        raise PatchError(
            f"cannot tell whether {unsure[0]!r} of {place.files[0].name} has a row per example, "
            "some of which would have to be left out; keep them with --cannot-tell keep, or store "
            "this array elsewhere"
        )


def kept_rows(array: StoredArray, kept: NDArray[np.bool_]) -> Iterator[NDArray[Any]]:
    """The rows that are kept, a few at a time."""
    for start in range(0, array.shape[0], _ROWS):
        stop = min(start + _ROWS, array.shape[0])
        yield np.ascontiguousarray(array.read(start, stop)[kept[start:stop]])


def _write_npz(
    file: Path,
    target: Path,
    name: str,
    labels: NDArray[Any],
    cut: dict[str, StoredArray],
    fixed: FixedLabels,
) -> None:
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(target, "w") as copy:
        for member in archive.infolist():
            plain = zipfile.ZipInfo(member.filename)  # of a fixed date, as numpy writes it
            plain.compress_type = member.compress_type
            array = member.filename.removesuffix(".npy")
            with copy.open(plain, "w", force_zip64=True) as sink:
                if array == name:
                    np.lib.format.write_array(sink, labels, allow_pickle=False)
                elif array in cut:
                    _write_npy(sink, cut[array], fixed.kept)
                else:
                    with archive.open(member) as content:
                        shutil.copyfileobj(content, sink, 1 << 20)


def _write_npy(sink: IO[bytes], array: StoredArray, kept: NDArray[np.bool_]) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": False,
        "shape": (int(kept.sum()), *array.shape[1:]),
    }
    np.lib.format.write_array_header_1_0(sink, header)
    for rows in kept_rows(array, kept):
        sink.write(rows.tobytes())


def _write_safetensors(
    file: Path, target: Path, name: str, labels: NDArray[Any], cut: set[str],
    kept: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Copy bytes without decoding them, since numpy does not know all types, such as bfloat16."""
    with file.open("rb") as source, target.open("wb") as sink:
        length = int.from_bytes(source.read(8), "little")
        header = json.loads(source.read(length))
        about = header.pop("__metadata__", None)
        new, parts, end = ({} if about is None else {"__metadata__": about}), [], 0
        # in the order of the file, so that it is read once from start to end
        for tensor, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
            begin, stop = entry["data_offsets"]
            shape = list(entry["shape"])
            is_cut = tensor in cut or (tensor == name and not kept.all())
            size = stop - begin
            if is_cut:
                shape[0] = int(kept.sum())
                # whole rows only: the size of a row follows from the old number
                size = size // len(kept) * shape[0]
            new[tensor] = {**entry, "shape": shape, "data_offsets": [end, end + size]}
            parts.append((tensor, 8 + length + begin, stop - begin, is_cut))
            end += size
        text = json.dumps(new, separators=(",", ":")).encode()
        # tensors begin at multiples of 8 bytes, as the format wants it
        text += b" " * (-len(text) % 8)
        sink.write(len(text).to_bytes(8, "little") + text)
        for tensor, offset, size, is_cut in parts:
            if tensor == name:
                sink.write(labels.astype(labels.dtype.newbyteorder("<")).tobytes())
            elif is_cut:
                _copy_rows(source, sink, offset, size // len(kept), kept)
            else:
                source.seek(offset)
                _copy_bytes(source, sink, size)


def _copy_rows(
    source: IO[bytes], sink: IO[bytes], offset: int, row_bytes: int, kept: NDArray[np.bool_]
) -> None:
    source.seek(offset)
    for start in range(0, len(kept), _ROWS):
        part = kept[start : start + _ROWS]
        rows = np.frombuffer(source.read(row_bytes * len(part)), np.uint8).reshape(len(part), -1)
        sink.write(rows[part].tobytes())


def _copy_bytes(source: IO[bytes], sink: IO[bytes], size: int) -> None:
    while size:
        part = source.read(min(size, 1 << 20))
        sink.write(part)
        size -= len(part)
