"""Small data in every form the package reads."""

import io
from pathlib import Path

import numpy as np
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
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(file: Path, columns, *, rows_per_group=3, metadata=None):
        table = pa.table(columns)
        if metadata:
            table = table.replace_schema_metadata(metadata)
        pq.write_table(table, file, row_group_size=rows_per_group)
        return file

    return write
