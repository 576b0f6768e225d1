"""A grammar of examples for a model: folders, lists, tables and arrays."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.numpy import save_file

from tests.fuzz.draw import Array, Draw
from tests.fuzz.examples import Examples, Shape, make_shape, planes
from tests.fuzz.folders import class_folders
from tests.fuzz.labels import NAMES, Labels, make_labels


def make_examples(draw: Draw, folder: Path) -> Examples:
    """Draw examples, and write them into ``folder``."""
    kind = draw.pick("data", list(_KINDS), plain=0.35)
    return _KINDS[kind](draw, folder)


def _stacked(draw: Draw, shape: Shape) -> Array:
    return np.stack([shape.pixels(draw, f"pixels.{at}") for at in range(shape.count)])


def _images_as(draw: Draw, pictures: Array) -> tuple[Array, Array, bool, str]:
    """An array of pictures in some type and layout: stored, planes, may refuse, must refuse."""
    stored = pictures
    seen = np.stack([planes(picture) for picture in pictures])
    if pictures.ndim == 4 and draw.chance("array.channels first", 0.3):
        stored = stored.transpose(0, 3, 1, 2)
    if pictures.ndim == 3 and draw.chance("array.one channel", 0.3):
        stored = stored[..., None]
    kind = draw.pick(
        "array.type",
        ("uint8", "uint16", "float32", "float64", "float 255", "int64", "big-endian", "float16"),
        plain=0.5,
    )
    may, must = False, ""
    if kind == "uint16":
        stored = stored.astype(np.uint16) * 257
    elif kind in ("float32", "float64", "float16"):
        stored, seen = (stored / 255).astype(kind), seen.astype(kind).astype(np.float64)
    elif kind == "big-endian":
        stored = (stored / 255).astype(">f4")
    elif kind == "float 255":
        stored, may = stored.astype(np.float32), True
    elif kind == "int64":
        stored, may = stored.astype(np.int64), True
    # 3 x 3 pixels of 3 channels: the layout cannot be told
    ambiguous = stored.ndim == 4 and {stored.shape[1], stored.shape[3]} <= {1, 3, 4}
    return stored, seen, may or ambiguous, must


def _array_file(write: Callable[[Path, dict[str, Any]], None], name: str) -> Any:
    def examples(draw: Draw, folder: Path) -> Examples:
        shape = make_shape(draw)
        labels = make_labels(draw, shape.count)
        stored, seen, may, must = _images_as(draw, _stacked(draw, shape))
        arrays = {"images": stored, "labels": np.asarray(labels.stored)}
        flags = ["--data", name]
        if name.endswith(".npy"):
            np.save(folder / "y.npy", arrays.pop("labels"))
            flags += ["--labels", "y.npy"]
        write(folder / name, arrays)
        # numpy stores what has no type by a pickle, which is never read
        return _with_labels(flags, seen, labels, may, must)

    return examples


def _with_labels(
    flags: list[str], seen: Array, labels: Labels, may: bool = False, must: str = ""
) -> Examples:
    return Examples(
        flags,
        ids=[str(at) for at in range(len(seen))],
        labels=labels.indices,
        classes=labels.classes,
        pixels=seen,
        must_refuse=must or labels.must_refuse,
        may_refuse=may or labels.may_refuse,
    )


def _write_npz(file: Path, arrays: dict[str, Any]) -> None:
    np.savez(file, **arrays)


def _write_packed(file: Path, arrays: dict[str, Any]) -> None:
    np.savez_compressed(file, **arrays)


def _write_npy(file: Path, arrays: dict[str, Any]) -> None:
    np.save(file, arrays["images"])


def _vectors(draw: Draw, folder: Path) -> Examples:
    count, width = draw.whole("data.count", 4, 24), draw.whole("data.width", 2, 7)
    kind = draw.pick("vectors.type", ("float32", "float64", "float16", "uint8", "int64"), plain=0.6)
    vectors = draw.weights("vectors", count, width)
    if kind in ("uint8", "int64"):
        vectors = np.abs(vectors * 16)
    labels = make_labels(draw, count)
    np.savez(folder / "v.npz", x=vectors.astype(kind), y=np.asarray(labels.stored))
    whole = kind in ("uint8", "int64")
    return _with_labels(["--data", "v.npz"], vectors, labels, may=whole)


def _tensors(draw: Draw, folder: Path) -> Examples:
    """Pictures in a file of tensors, 8 bits."""
    shape = make_shape(draw)
    labels = make_labels(draw, shape.count)
    pictures = _stacked(draw, shape)
    seen = np.stack([planes(picture) for picture in pictures])
    stored = pictures.transpose(0, 3, 1, 2) if pictures.ndim == 4 else pictures
    values = np.asarray(labels.stored)
    must = ""
    if values.dtype.kind not in "biuf" or values.dtype == np.uint64:
        values, must = labels.indices, ""
        labels = Labels(values, values, [str(label) for label in range(int(values.max()) + 1)])
    name = draw.pick("tensors.file", ("t.safetensors", "t.pt"), plain=0.5)
    if name == "t.pt":
        content = {"images": torch.tensor(stored), "labels": torch.tensor(values)}
        torch.save(content, folder / name)
    else:
        arrays = {"images": np.ascontiguousarray(stored), "labels": np.ascontiguousarray(values)}
        save_file(arrays, folder / name)
    ambiguous = stored.ndim == 4 and stored.shape[3] in (1, 3, 4)
    return _with_labels(["--data", name], seen, labels, may=ambiguous, must=must)


def _idx(draw: Draw, folder: Path) -> Examples:
    count, height, width = (draw.whole(f"idx.{name}", 3, 8) for name in ("count", "h", "w"))
    pictures = draw.bytes_of("idx.pixels", count, height, width).astype(np.uint8)
    labels = np.arange(count) % 2
    images = bytes([0, 0, 8, 3]) + np.array(pictures.shape, ">u4").tobytes() + pictures.tobytes()
    about = bytes([0, 0, 8, 1]) + np.array([count], ">u4").tobytes()
    marks = about + labels.astype(np.uint8).tobytes()
    fault = draw.pick(
        "idx.fault", ("none", "more"), faults=("cut off", "magic", "no labels"), plain=0.7
    )
    images = {"cut off": images[:-3], "more": images + b"xx", "magic": b"\1" + images}.get(
        fault, images
    )
    (folder / "idx").mkdir()
    packed = draw.chance("idx.packed", 0.4)
    for name, content in (("images-idx3", images), ("labels-idx1", marks)):
        if fault == "no labels" and "labels" in name:
            continue
        file = folder / "idx" / f"train-{name}-ubyte{'.gz' if packed else ''}"
        file.write_bytes(gzip.compress(content) if packed else content)
    ending = ".gz" if packed else ""
    flags = draw.pick(
        "idx.flags",
        (("--data", "idx"), ("--data", f"idx/train-images-idx3-ubyte{ending}"),
         ("--data", "idx", "--split", "train")),
        plain=0.4,
    )  # fmt: skip
    found = Labels(labels, labels, ["0", "1"])
    must = "" if fault in ("none", "more") else "the files are damaged"
    seen = np.stack([planes(picture) for picture in pictures])
    return _with_labels(list(flags), seen, found, may=fault == "more", must=must)


# --- tables of pictures


def _png(picture: Array) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return buffer.getvalue()


def _parquet(draw: Draw, folder: Path) -> Examples:
    shape = make_shape(draw)
    labels = make_labels(draw, shape.count)
    pictures = _stacked(draw, shape)
    kind = draw.pick("parquet.images", ("struct", "bytes", "paths", "missing one"), plain=0.5)
    content: list[Any] = [_png(picture) for picture in pictures]
    names = [f"p/{at}.png" for at in range(shape.count)]
    bad: list[int] = []
    if kind == "paths":
        (folder / "p").mkdir()
        for name, png in zip(names, content, strict=True):
            (folder / name).write_bytes(png)
        images = pa.array(names)
    else:
        if kind == "missing one":
            bad, content[1] = [1], None
        images = pa.array(content, pa.binary())
    if kind in ("struct", "missing one"):
        images = pa.StructArray.from_arrays([images, pa.array(names)], ["bytes", "path"])
    column = draw.pick("parquet.column", ("image", "img"), plain=0.8)
    table = pa.table({column: images, "label": labels.as_column()})
    rows = draw.pick("parquet.group", (None, 1, 3), plain=0.6)
    pq.write_table(table, folder / "d.parquet", row_group_size=rows)
    flags = draw.pick("parquet.flags", ("d.parquet", "*.parquet", "."), plain=0.6)
    good = [at for at in range(shape.count) if at not in bad]
    ids = [str(at) for at in range(shape.count)] if kind == "bytes" else names
    return Examples(
        ["--data", flags],
        ids=[ids[at] for at in good],
        index=good,
        labels=labels.indices[good],
        classes=labels.classes,
        pixels=np.stack([planes(pictures[at]) for at in good]),
        errors=[ids[at] for at in bad],
        must_refuse=labels.must_refuse,
        may_refuse=labels.may_refuse,
    )


def _list_of_paths(draw: Draw, folder: Path) -> Examples:
    """A CSV of paths and labels; relative paths start from its folder."""
    shape = make_shape(draw)
    names = sorted(("âne", *NAMES[1:])[: draw.whole("csv.classes", 2, 4)])
    pictures = _stacked(draw, shape)
    labels = np.arange(shape.count) % len(names)
    below = draw.pick("csv.folder", ("", "lists/"), plain=0.7)
    (folder / below / "p").mkdir(parents=True)
    files = [f"p/{at:02d}.png" for at in range(shape.count)]
    for file, picture in zip(files, pictures, strict=True):
        (folder / below / file).write_bytes(_png(picture))
    separator = draw.pick("csv.separator", (",", ";", "\t"), plain=0.7)
    columns = draw.pick(
        "csv.columns",
        (("path", "label"), ("label", "path"), ("Image Path", "class"), ("label", "no", "path")),
        plain=0.5,
    )
    rows = zip(files, labels, strict=True)
    cells = [{"path": f, "Image Path": f, "no": "7", "label": names[y], "class": names[y]}
             for f, y in rows]  # fmt: skip
    header = draw.pick("csv.header", (True, False), plain=0.9)
    lines = [separator.join(columns)] if header else []
    lines += [separator.join(cell[column] for column in columns) for cell in cells]
    encoding = draw.pick("csv.encoding", ("utf-8", "utf-8-sig", "utf-16", "latin-1"), plain=0.7)
    (folder / below / "list.csv").write_bytes(("\n".join(lines) + "\n").encode(encoding))
    seen = np.stack([planes(picture) for picture in pictures])
    odd = not header or encoding in ("utf-16", "latin-1")
    found = Labels(labels, labels, names, may_refuse=odd)
    examples = _with_labels(["--data", f"{below}list.csv"], seen, found)
    examples.ids = files
    return examples


def _tar(draw: Draw, folder: Path) -> Examples:
    """Shards of webdataset, with a picture and a label for every example, or nearly."""
    shape = make_shape(draw)
    names = sorted(NAMES[: draw.whole("tar.classes", 2, 4)])
    labels = np.arange(shape.count) % len(names)
    pictures = _stacked(draw, shape)
    fault = draw.pick("tar.fault", ("none", "no label", "cut off", "bad picture"), plain=0.8)
    form = draw.pick("tar.label", ("cls", "json"), plain=0.6)
    keys = [f"p/{at:02d}" for at in range(shape.count)]
    cut = draw.whole("tar.first", 1, shape.count - 1)
    for file, places in (("t-0.tar", range(cut)), ("t-1.tar", range(cut, shape.count))):
        with tarfile.open(folder / file, "w") as archive:
            for at in places:
                mark = names[labels[at]].encode()
                stored = b"no picture" if fault == "bad picture" and at == 1 else _png(pictures[at])
                parts = {"png": stored, form: mark}
                if form == "json":
                    parts[form] = json.dumps({"label": mark.decode()}).encode()
                if fault == "no label" and at == 1:
                    del parts[form]
                for ending, content in parts.items():
                    entry = tarfile.TarInfo(f"{keys[at]}.{ending}")
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
    if fault == "cut off":
        with (folder / "t-1.tar").open("r+b") as file:
            file.truncate(700)
    flags = draw.pick("tar.flags", ("t-{0..1}.tar", "*.tar", "."), plain=0.5)
    bad = [1] if fault == "bad picture" else []
    good = [at for at in range(shape.count) if at not in bad]
    return Examples(
        ["--data", flags],
        ids=[keys[at] for at in good],
        index=good,
        labels=labels[good],
        classes=names,
        pixels=np.stack([planes(pictures[at]) for at in good]),
        errors=[keys[at] for at in bad],
        must_refuse="the files are damaged" if fault in ("no label", "cut off") else "",
    )


_KINDS: dict[str, Callable[[Draw, Path], Examples]] = {
    "class folders": class_folders,
    "npz": _array_file(_write_npz, "images.npz"),
    "packed npz": _array_file(_write_packed, "images.npz"),
    "npy": _array_file(_write_npy, "images.npy"),
    "vectors": _vectors,
    "tensors": _tensors,
    "idx": _idx,
    "parquet": _parquet,
    "list of paths": _list_of_paths,
    "tar": _tar,
}
