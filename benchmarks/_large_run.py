"""A synthetic run of a million rows with a picture each, and photographs in folders, to review."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from hardsight.run_folder import SCORE, RunFolder
from hardsight.scores import SCORES
from hardsight.table import error_rows, with_metadata

CLASSES, SIDE, PATTERNS = 100, 28, 2_000
_SCORES = tuple(SCORES)
_WRONG = 0.03


def large_run(folder: Path, rows: int, *, seed: int = 0) -> Path:
    """A finished run over idx files of ``rows`` grey pictures; made once per folder."""
    run = folder / f"run-{rows}"
    if (run / "table.parquet").exists():
        return run
    data = folder / f"pictures-{rows}"
    data.mkdir(parents=True, exist_ok=True)
    columns = _columns(rows, np.random.default_rng(seed))
    _write_idx(data / "train-images-idx3-ubyte", _pictures(columns["prediction"]))
    _write_idx(data / "train-labels-idx1-ubyte", [columns["label"].astype(np.uint8)[:, None]],
               shape=(rows,))  # fmt: skip
    _write_run(run, columns, classes=[f"class {c:02d}" for c in range(CLASSES)],
               spec=str(data), split="train")  # fmt: skip
    return run


def photo_run(folder: Path, count: int, *, seed: int = 0) -> Path:
    """A finished run over ``count`` JPEG photographs of 1600 by 1200 pixels in class folders."""
    run, data = folder / f"photos-run-{count}", folder / f"photos-{count}"
    if (run / "table.parquet").exists():
        return run
    rng = np.random.default_rng(seed)
    columns = _columns(count, rng)
    columns["label"], columns["prediction"] = columns["label"] % 4, (columns["label"] + 1) % 4
    order = np.argsort(columns["label"], kind="stable")
    columns = {name: np.asarray(values)[order] for name, values in columns.items()}
    columns["index"] = np.arange(count)
    ids = []
    for at, label in enumerate(columns["label"].tolist()):
        file = data / f"class-{label}" / f"{at:05d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8))
        coarse.resize((1600, 1200), Image.Resampling.BICUBIC).save(file, quality=90)
        ids.append(file.relative_to(data).as_posix())
    columns["id"] = np.array(ids)
    _write_run(run, columns, classes=[f"class-{c}" for c in range(4)], spec=str(data))
    return run


def _columns(rows: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    label = rng.integers(0, CLASSES, rows)
    is_wrong = rng.random(rows) < _WRONG
    prediction = np.where(is_wrong, (label + rng.integers(1, 6, rows)) % CLASSES, label)
    margin = np.where(is_wrong, -1.0, 1.0) * rng.gamma(2.0, 2.0, rows)
    columns: dict[str, NDArray[Any]] = {
        "index": np.arange(rows),
        "id": np.arange(rows).astype(np.str_),
        "label": label,
        "prediction": prediction,
        "finite": np.ones(rows, np.bool_),
    }
    for name in _SCORES:
        columns[name] = (rng.gamma(2.0, 1.0, rows) - 0.2 * margin).astype(np.float32)
    # a filter by this one holds exactly the wanted number of rows
    columns["avh"] = ((rng.permutation(rows) + 0.5) / rows).astype(np.float32)
    columns["logit_margin"] = margin.astype(np.float32)
    columns["target_angle"] = np.clip(0.9 - 0.05 * margin, 0.05, 3).astype(np.float32)
    return columns


def _pictures(kinds: NDArray[np.int64], part: int = 50_000) -> Any:
    """Blurred blobs, alike within a class, each with its own noise."""
    rng = np.random.default_rng(1)
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    centres = rng.uniform(6, SIDE - 6, (CLASSES, 3, 2, 1, 1))
    distance = (y - centres[:, :, 0]) ** 2 + (x - centres[:, :, 1]) ** 2
    patterns = np.exp(-distance / 18).max(axis=1) * 200
    noise = rng.integers(0, 56, (PATTERNS, SIDE, SIDE))
    for start in range(0, len(kinds), part):
        chosen = kinds[start : start + part]
        own = noise[rng.integers(0, PATTERNS, len(chosen))]
        yield (patterns[chosen] + own).astype(np.uint8)


def _write_idx(file: Path, parts: Any, *, shape: tuple[int, ...] | None = None) -> None:
    with file.open("wb") as sink:
        length, first = 0, b""
        for part in parts:
            if not first:
                dims = shape or (0, *part.shape[1:])
                first = bytes([0, 0, 8, len(dims)])
                sink.write(first + b"".join(d.to_bytes(4, "big") for d in dims))
            sink.write(part.tobytes())
            length += len(part)
        sink.seek(4)
        sink.write(length.to_bytes(4, "big"))


def _write_run(
    run: Path,
    columns: dict[str, NDArray[Any]],
    *,
    classes: list[str],
    spec: str,
    split: str | None = None,
) -> None:
    about = {
        "classes": classes,
        "scores": {name: SCORES[name].facts() for name in _SCORES},
        "columns": {name: SCORES[name].shown() for name in _SCORES},
        "data": {"spec": spec, "split": split, "fingerprint": "made"},
        "sample": "out-of-sample",
    }
    rows = with_metadata(pa.table(columns), json.loads(json.dumps(about)))
    with RunFolder(run).claimed(SCORE) as folder:
        folder.describe({}, fingerprints={}, versions={})
        folder.begin()
        folder.write_shard(0, rows, error_rows([]))
        with folder.new_table([rows], rows.schema):
            pass
        folder.finish()
