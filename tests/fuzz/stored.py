"""A grammar of stored embeddings with the head they feed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save_file

from tests.fuzz.draw import Array, Draw
from tests.fuzz.labels import Labels, make_labels
from tests.fuzz.oracle import TOLERANCE, Expected, Outputs


@dataclass(frozen=True)
class Stored:
    """Embeddings on the disk.

    Attributes:
        flags: that name them on the command line.
        expected: the rows of the table.
        must_refuse: why no table could be right; empty if one can.
        may_refuse: whether a refusal is as good an answer.
    """

    flags: list[str]
    expected: Expected
    must_refuse: str
    may_refuse: bool


def make_stored(draw: Draw, folder: Path) -> Stored:
    """Draw embeddings, their labels and their head, and write them into ``folder``."""
    count, width = draw.whole("stored.count", 4, 40), draw.whole("stored.width", 2, 9)
    labels = make_labels(draw, count)
    embeddings, must = _embeddings(draw, count, width)
    classes = len(labels.classes) + draw.pick("stored.more classes", (0, 1, 5), plain=0.8)
    weights = draw.weights("stored.weights", max(classes, 2), width)
    weights[:, 0] += np.arange(len(weights)) / 8 + 1 / 32
    has_bias = draw.pick("stored.bias", (True, False))
    bias = draw.weights("stored.bias values", len(weights)) * has_bias
    file, head_flags, head_must = _written(draw, folder, embeddings, labels, weights,
                                                   bias if has_bias else None)  # fmt: skip
    with np.errstate(all="ignore"):
        logits = embeddings @ weights.T + bias
        sizes = np.abs(embeddings) @ np.abs(weights).T
    outputs = Outputs(
        logits,
        embeddings,
        weights,
        np.linalg.norm(embeddings, axis=1),
        TOLERANCE["float32"] * (1 + np.nan_to_num(sizes, posinf=0).max() / 100),
    )
    # names and one-hot rows say how many classes there are; if the head says another number, which
    # of its rows they mean is a guess
    tells_count = np.ndim(labels.stored) == 2 or labels.classes != [
        str(at) for at in range(len(labels.classes))
    ]
    return Stored(
        ["--data", file, *head_flags],
        Expected(
            list(range(count)),
            [str(at) for at in range(count)],
            labels.indices,
            labels.classes,
            outputs,
        ),
        must_refuse=must or head_must or labels.must_refuse,
        may_refuse=labels.may_refuse or (tells_count and len(weights) != len(labels.classes)),
    )


def _embeddings(draw: Draw, count: int, width: int) -> tuple[Array, str]:
    """``[N, D]``, and why they cannot be used."""
    values = draw.weights("stored.embeddings", count, width)
    values[:, 0] += 1 / 32  # not the zero vector, which has no direction
    kind = draw.pick(
        "stored.values", ("plain", "nan row", "infinite row", "tiny", "large", "aligned"), plain=0.7
    )
    if kind == "nan row":
        values[count // 2] = np.nan
    elif kind == "infinite row":
        values[count // 2, 0] = np.inf
    elif kind == "tiny":
        values = values * 2.0**-20
    elif kind == "large":
        values = values * 2.0**10
    elif kind == "aligned":
        values = np.ones_like(values)
    return values, ""


def _written(
    draw: Draw, folder: Path, embeddings: Array, labels: Labels, weights: Array, bias: Array | None
) -> tuple[str, list[str], str]:
    """The file of the embeddings, flags for what lies elsewhere, a reason to refuse."""
    dtype = draw.pick(
        "stored.dtype", ("float32", "float64", "float16"), faults=("int32",), plain=0.7
    )
    must = "embeddings are floats" if dtype == "int32" else ""
    if dtype == "float16" and float(np.nan_to_num(np.abs(embeddings), posinf=0).max()) > 1000:
        dtype = "float32"  # what a float16 holds exactly
    if float(np.nan_to_num(np.abs(embeddings), posinf=0).max()) < 1e-3:
        dtype = "float32" if dtype == "float16" else dtype
    with np.errstate(all="ignore"):
        rows = embeddings.astype(dtype)
    kind = draw.pick(
        "stored.file", ("npz", "npy", "safetensors", "parquet", "pt", "packed npz"), plain=0.3
    )
    arrays: dict[str, Any] = {"embeddings": rows, "labels": np.asarray(labels.stored)}
    tensors_only = kind in ("safetensors", "pt")
    if tensors_only and arrays["labels"].dtype.kind not in "biuf":
        kind = "npz"
    apart = kind in ("npy", "parquet") or draw.chance("stored.head apart", 0.4)
    flags, fault = _head_file(draw, folder, weights, bias) if apart else ([], "")
    if not apart:
        arrays["class_weights"] = weights.astype("float32")
        if bias is not None:
            arrays["bias"] = bias.astype("float32")
    file = f"e.{kind.split()[-1]}"
    if kind == "npy":
        np.save(folder / file, rows)
        np.save(folder / "y.npy", arrays["labels"])
        flags += ["--labels", "y.npy"]
    elif kind == "parquet":
        _write_parquet(draw, folder / file, rows, labels)
    elif kind == "pt":
        torch.save({name: torch.tensor(value) for name, value in arrays.items()}, folder / file)
    elif kind == "safetensors":
        contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        save_file(contiguous, folder / file)
    else:
        (np.savez_compressed if kind == "packed npz" else np.savez)(folder / file, **arrays)
    return file, flags, must or fault


def _write_parquet(draw: Draw, file: Path, rows: Array, labels: Labels) -> None:
    inner = pa.from_numpy_dtype(rows.dtype)
    kind = draw.pick("stored.lists", (pa.list_(inner), pa.list_(inner, rows.shape[1])))
    table = pa.table({"embedding": pa.array(list(rows), kind), "label": labels.as_column()})
    pq.write_table(table, file, row_group_size=draw.pick("stored.group", (None, 1, 7)))


def _head_file(
    draw: Draw, folder: Path, weights: Array, bias: Array | None
) -> tuple[list[str], str]:
    """Flags that name the head, and why it cannot be used."""
    stored = weights.astype(draw.pick("head.dtype", ("float32", "float64", "float16")))
    kind = draw.pick(
        "head.file",
        ("state dict", "npy", "safetensors", "convolution", "named"),
        faults=("other width", "too few", "two", "missing", "a folder"),
        plain=0.3,
    )  # fmt: skip
    state = {"fc.weight": stored, "stem.weight": np.ones((3, weights.shape[1] + 4), "float32")}
    if bias is not None:
        state["fc.bias"] = bias.astype(stored.dtype)
    fault = ""
    if kind == "npy":
        np.save(folder / "w.npy", stored)
        flags = ["--class-weights", "w.npy"]
        if bias is not None:
            np.save(folder / "b.npy", bias)
            flags += ["--bias", "b.npy"]
        return flags, ""
    if kind == "missing":
        return ["--class-weights", "nowhere.pt"], "there is no such file"
    if kind == "a folder":
        return ["--class-weights", "."], "a folder is not a file of weights"
    if kind == "convolution":
        state["fc.weight"] = stored[:, :, None, None]
    elif kind == "other width":
        state["fc.weight"], fault = stored[:, :-1].copy(), "the head has another width"
    elif kind == "too few":
        state["fc.weight"], fault = stored[:1].copy(), "a label has no row in the head"
        state.pop("fc.bias", None)
    elif kind == "two":
        state["aux.weight"], fault = stored + 1, "either could be the head"
    if kind == "safetensors":
        save_file(
            {name: np.ascontiguousarray(value) for name, value in state.items()},
            folder / "w.safetensors",
        )
        return ["--class-weights", "w.safetensors"], fault
    torch.save({name: torch.tensor(value) for name, value in state.items()}, folder / "w.pt")
    return ["--class-weights", "w.pt:fc.weight" if kind == "named" else "w.pt"], fault
