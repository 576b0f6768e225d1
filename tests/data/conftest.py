"""Small data in every form the package reads."""

import gzip
import io
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image


@pytest.fixture
def png_bytes():
    """Encoded bytes of a plain image of one value, or of an array."""

    def encode(value=0, *, size=(6, 4), mode="RGB", format="PNG", **options):
        image = (
            Image.fromarray(value)
            if isinstance(value, np.ndarray)
            else Image.new(mode, size, value)
        )
        buffer = io.BytesIO()
        image.save(buffer, format=format, **options)
        return buffer.getvalue()

    return encode


@pytest.fixture
def class_folders(tmp_path, png_bytes):
    """A folder with the classes cat (2 images) and dog (3 images)."""
    root = tmp_path / "photos"
    for label, (name, count) in enumerate((("cat", 2), ("dog", 3))):
        (root / name).mkdir(parents=True)
        for number in range(count):
            value = (label * 100 + number, 0, 255)
            (root / name / f"{number}.png").write_bytes(png_bytes(value))
    return root


@pytest.fixture
def write_parquet():
    """Write rows as parquet, a few per row group."""

    def write(file: Path, columns, *, rows_per_group=3, metadata=None):
        table = pa.table(columns)
        if metadata:
            table = table.replace_schema_metadata(metadata)
        pq.write_table(table, file, row_group_size=rows_per_group)
        return file

    return write


def encoded(array):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def write_idx():
    """Write idx files of a split: ``write_idx(folder, "train", images, labels)``."""

    def write(folder, prefix, images, labels):
        folder.mkdir(parents=True, exist_ok=True)
        for kind, array in (("images", images), ("labels", labels)):
            header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(
                f">{array.ndim}I", *array.shape
            )
            name = f"{prefix}-{kind}-idx{array.ndim}-ubyte.gz"
            with gzip.open(folder / name, "wb") as file:
                file.write(header + array.astype(np.uint8).tobytes())

    return write


@pytest.fixture
def write_pictures():
    """Write images, labels and other columns to a parquet file."""

    def write(path, images, labels, *, label="label", **columns):
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        rows = pa.array([{"bytes": encoded(image), "path": None} for image in images], type=kind)
        table = pa.table({"image": rows, label: list(labels), **columns})
        pq.write_table(table, path)

    return write


@pytest.fixture
def pictures():
    """Six small coloured pictures."""
    return np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
