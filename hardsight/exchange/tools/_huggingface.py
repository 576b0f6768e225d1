"""Export a run as a dataset of Hugging Face: parquet with pictures and corrected labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hardsight.exchange.tools._rows import HERE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.exchange.tools._rows import Pictures, RunRows

_ROWS = 500  # per group of rows, whose pictures are all in memory at once
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_huggingface(
    run: RunRows, rows: NDArray[np.int64], target: Path, pictures: Pictures
) -> list[str]:
    """Write ``data/train-00000-of-00001.parquet``, which ``datasets.load_dataset(OUT)`` reads.

    ``label`` is the class after all decisions and ``label_before`` the old one, both with the names
    of the classes. ``image`` has the bytes of pictures and ``text`` the texts, if there are any.
    """
    file = target / "data" / "train-00000-of-00001.parquet"
    file.parent.mkdir(parents=True)
    # the first row is enough to know: either all examples of a source are pictures, or none is
    shown = ""
    if pictures.are_texts:
        shown = "text"
    elif len(rows) > 0 and pictures.bytes_of(int(rows[0])) is not None:
        shown = "image"
    schema = _schema(run, shown)
    # an open file: pyarrow takes names as UTF-8 in every locale
    with file.open("wb") as sink, pq.ParquetWriter(sink, schema) as writer:
        for part in _parts(run, rows, pictures, schema):
            writer.write_table(part)
    notes = [f'in Python: datasets.load_dataset("{HERE}", split="train")']
    if pictures.missing:
        notes.append(f"{pictures.missing:,} pictures cannot be read and are empty")
    return notes


def _schema(run: RunRows, shown: str) -> pa.Schema:
    """The columns, with the metadata that `datasets` needs about them."""
    names = [run.name_of(label) for label in range(len(run.classes))]
    kind: dict[str, Any] = {"names": names, "_type": "ClassLabel"}
    columns: list[tuple[str, pa.DataType, dict[str, Any]]] = [
        ("index", pa.int64(), {"dtype": "int64", "_type": "Value"}),
        ("id", pa.string(), {"dtype": "string", "_type": "Value"}),
        ("label", pa.int64(), kind),
        ("label_before", pa.int64(), kind),
        ("prediction", pa.int64(), kind),
        ("verdict", pa.string(), {"dtype": "string", "_type": "Value"}),
    ]
    columns += [(name, pa.float32(), {"dtype": "float32", "_type": "Value"})
                for name in run.table.scores]  # fmt: skip
    if shown == "image":
        columns.insert(0, (shown, _IMAGE, {"_type": "Image"}))
    elif shown == "text":
        columns.insert(0, (shown, pa.string(), {"dtype": "string", "_type": "Value"}))
    features = {name: feature for name, _, feature in columns}
    # in the format of `datasets` itself, which otherwise forgets the names of classes
    about = json.dumps({"info": {"features": features}}).encode()
    return pa.schema([(n, t) for n, t, _ in columns], metadata={b"huggingface": about})


def _parts(
    run: RunRows, rows: NDArray[np.int64], pictures: Pictures, schema: pa.Schema
) -> Iterator[pa.Table]:
    scores = {name: run.table.column(name) for name in run.table.scores}
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        columns: dict[str, Any] = {
            "index": run.index[part],
            "id": [run.ids[row] for row in part.tolist()],
            "label": _classes(run.fixed[part]),
            "label_before": _classes(run.label[part]),
            "prediction": _classes(run.prediction[part]),
            "verdict": [run.verdict[row] for row in part.tolist()],
            **{name: values[part].astype(np.float32) for name, values in scores.items()},
        }
        if "image" in schema.names:
            columns["image"] = [
                {"bytes": pictures.bytes_of(row), "path": run.ids[row].rpartition("/")[2]}
                for row in part.tolist()
            ]
        if "text" in schema.names:
            columns["text"] = [pictures.text_of(row) for row in part.tolist()]
        yield pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _classes(labels: NDArray[np.int64]) -> list[int | None]:
    return [None if label < 0 else label for label in labels.tolist()]
