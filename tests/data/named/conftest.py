import gzip
import io
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image


def png(array):
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
def write_parquet():
    """Write images, labels and other columns to a parquet file."""

    def write(path, images, labels, *, label="label", **columns):
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        rows = pa.array([{"bytes": png(image), "path": None} for image in images], type=kind)
        table = pa.table({"image": rows, label: list(labels), **columns})
        pq.write_table(table, path)

    return write


@pytest.fixture
def pictures():
    """Six small coloured pictures."""
    return np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
