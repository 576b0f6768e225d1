"""A grammar of examples for a model: class folders, lists, tables and arrays of pictures."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.numpy import save_file

from tests.fuzz.draw import Array, Draw
from tests.fuzz.labels import NAMES, Labels, make_labels


@dataclass
class Examples:
    """Data on the disk, and what a model must be fed from it.

    Attributes:
        flags: that name it on the command line.
        ids: of the examples that can be read, in order.
        index: their positions, those that cannot be read counted too.
        labels: their classes.
        classes: names, position = label.
        pixels: what the files say: on the scale [0, 1] for pictures, ``[N, C, H, W]``, as they
            are for vectors, ``[N, D]``.
        errors: ids of the examples that cannot be read.
        must_refuse: why no table could be right; empty if one can.
        may_refuse: whether a refusal is as good an answer.
        any_order: positions and ids are not promised, only that every example is there.
    """

    flags: list[str]
    ids: list[str]
    labels: Array
    classes: list[str]
    pixels: Array
    index: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    must_refuse: str = ""
    may_refuse: bool = False
    any_order: bool = False

    def __post_init__(self) -> None:
        self.index = self.index or list(range(len(self.ids)))

    @property
    def is_flat(self) -> bool:
        """Whether every picture is of one colour, so that no resizing changes it."""
        return self.pixels.ndim == 4 and bool((self.pixels == self.pixels[:, :, :1, :1]).all())


def make_examples(draw: Draw, folder: Path) -> Examples:
    """Draw examples, and write them into ``folder``."""
    kind = draw.pick("data", list(_KINDS), plain=0.35)
    return _KINDS[kind](draw, folder)


@dataclass(frozen=True)
class _Shape:
    """Of the pictures of a case."""

    count: int
    height: int
    width: int
    rgb: bool
    flat: bool  # every picture is of one colour, so that no resizing changes it

    def pixels(self, draw: Draw, name: str) -> Array:
        """``[H, W]`` or ``[H, W, 3]``, 8 bits."""
        shape = (1, 1) if self.flat else (self.height, self.width)
        values = draw.bytes_of(name, *shape, *((3,) if self.rgb else ()))
        grown = np.ones((self.height, self.width, *((1,) if self.rgb else ())), np.int64)
        return (values * grown).astype(np.uint8)


def _shape(draw: Draw) -> _Shape:
    return _Shape(
        draw.whole("data.count", 4, 24),
        draw.whole("data.height", 3, 6),
        draw.whole("data.width", 3, 6),
        rgb=draw.pick("data.rgb", (True, False)),
        flat=draw.chance("data.flat", 0.25),
    )


def planes(picture: Array) -> Array:
    """``[C, H, W]`` on the scale [0, 1] from 8 bits."""
    values = picture / 255
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


# --- class folders


@dataclass
class _Tree:
    """A folder that is being filled."""

    root: bytes
    found: list[tuple[bytes, str, Array]] = field(default_factory=list)  # path, class, planes
    bad: list[tuple[bytes, str]] = field(default_factory=list)  # path, class
    may_refuse: bool = False
    any_order: bool = False

    def add(self, path: bytes, name: str, picture: Array) -> None:
        self.found.append((path, name, planes(picture)))


def _class_folders(draw: Draw, folder: Path) -> Examples:
    shape, names = _shape(draw), _folder_names(draw)
    tree = _Tree(os.fsencode(folder / "photos"))
    for at in range(shape.count):
        name = names[at % len(names)]
        _add_picture(draw, tree, shape, at, name)
    for at, kind in enumerate(draw.pick("folder.odd", _ODD_GROUPS, plain=0.5)):
        _ODD_ENTRIES[kind](draw, tree, shape, names[at % len(names)])
    return _listed(draw, tree, names, shape)


def _folder_names(draw: Draw) -> list[str]:
    kind = draw.pick("folder.names", ("plain", "odd", "digits", "raw bytes"), plain=0.6)
    names = {
        "plain": NAMES,
        "odd": ("[b]x", "a\nb", "é 名", "%s{}"),
        "digits": ("01", "1", "10", "2"),
        "raw bytes": ("ant", os.fsdecode(b"b\xff"), "cat", "dog"),
    }[kind]
    return sorted(names[: draw.whole("folder.classes", 2, 4)])


def _add_picture(draw: Draw, tree: _Tree, shape: _Shape, at: int, name: str) -> None:
    odd = draw.chance("folder.odd pictures", 0.4)
    kind = draw.pick(f"picture.{at}", list(_PICTURES), plain=0.7) if odd else "png"
    stem = draw.pick(f"picture.{at}.name", _STEMS, plain=0.9).format(at)
    picture = shape.pixels(draw, f"pixels.{at}")
    folder = os.path.join(tree.root, os.fsencode(name))
    os.makedirs(folder, exist_ok=True)
    suffix, write, seen = _PICTURES[kind]
    path = os.path.join(os.fsencode(name), os.fsencode(f"{stem}{suffix}"))
    write(os.path.join(tree.root, path), picture)
    shown = seen(picture)
    if shown is None:
        tree.bad.append((path, name))
    else:
        tree.add(path, name, shown)


_STEMS = ("{:02d}", "a b {}", "[red]{}", "é{}", "{}'\"", "-{}", "{}%20", "{}\n", "a=b,{}")


def _saved(format: str, **options: Any) -> Callable[[bytes, Array], None]:
    def write(path: bytes, picture: Array) -> None:
        with open(path, "wb") as file:
            Image.fromarray(picture).save(file, format=format, **options)

    return write


def _webp(path: bytes, picture: Array) -> None:
    # it knows no grey
    (_saved("WEBP", lossless=True) if picture.ndim == 3 else _saved("PNG"))(path, picture)


def _see_through(path: bytes, picture: Array) -> None:
    """With an alpha channel, which is dropped."""
    alpha = np.full((*picture.shape[:2], 1), 77, np.uint8)
    colours = picture[:, :, None] if picture.ndim == 2 else picture
    mode = "LA" if picture.ndim == 2 else "RGBA"
    image = Image.frombytes(
        mode, picture.shape[1::-1], np.concatenate([colours, alpha], 2).tobytes()
    )
    with open(path, "wb") as file:
        image.save(file, format="PNG")


def _sixteen_bits(path: bytes, picture: Array) -> None:
    if picture.ndim == 3:
        return _saved("PNG")(path, picture)
    with open(path, "wb") as file:
        Image.fromarray(picture.astype(np.uint16) * 257).save(file, format="PNG")
    return None


def _black_and_white(path: bytes, picture: Array) -> None:
    if picture.ndim == 3:
        return _saved("PNG")(path, picture)
    with open(path, "wb") as file:
        Image.fromarray(picture > 127).save(file, format="PNG")
    return None


def _black_and_white_seen(picture: Array) -> Array:
    return picture if picture.ndim == 3 else np.where(picture > 127, 255, 0).astype(np.uint8)


def _palette(path: bytes, picture: Array) -> None:
    if picture.ndim == 2:
        return _saved("PNG")(path, picture)
    colours = picture.reshape(-1, 3)
    image = Image.new("P", picture.shape[1::-1])
    image.putpalette(colours.flatten().tolist())
    image.putdata(list(range(len(colours))))
    with open(path, "wb") as file:
        image.save(file, format="PNG")
    return None


def _raw(content: Callable[[bytes], bytes]) -> Callable[[bytes, Array], None]:
    """A file with other bytes than those of the picture."""

    def write(path: bytes, picture: Array) -> None:
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, format="PNG")
        with open(path, "wb") as file:
            file.write(content(buffer.getvalue()))

    return write


def _pipe(path: bytes, picture: Array) -> None:
    os.mkfifo(path)


def _dangling(path: bytes, picture: Array) -> None:
    os.symlink(b"nowhere.png", path)


def _linked(path: bytes, picture: Array) -> None:
    target = os.path.join(
        os.path.dirname(path), b".%d.hidden" % len(os.listdir(os.path.dirname(path)))
    )
    _saved("PNG")(target, picture)
    os.symlink(os.path.basename(target), path)


def _same(picture: Array) -> Array | None:
    return picture


def _nothing(picture: Array) -> Array | None:
    return None


# kind -> ending, how it is written, what is seen in it
_PICTURES: dict[
    str, tuple[str, Callable[[bytes, Array], None], Callable[[Array], Array | None]]
] = {
    "png": (".png", _saved("PNG"), _same),
    "upper case": (".PNG", _saved("PNG"), _same),
    "bmp": (".bmp", _saved("BMP"), _same),
    "tiff": (".tif", _saved("TIFF"), _same),
    "portable": (".ppm", _saved("PPM"), _same),
    "webp": (".webp", _webp, _same),
    "wrong ending": (".jpg", _saved("PNG"), _same),
    "see-through": (".png", _see_through, _same),
    "16 bits": (".png", _sixteen_bits, _same),
    "black and white": (".png", _black_and_white, _black_and_white_seen),
    "palette": (".png", _palette, _same),
    "link": (".png", _linked, _same),
    "cut off": (".png", _raw(lambda png: png[: len(png) // 2]), _nothing),
    "empty": (".png", _raw(lambda png: b""), _nothing),
    "text": (".png", _raw(lambda png: b"not a picture"), _nothing),
    "dangling": (".png", _dangling, _nothing),
    "pipe": (".png", _pipe, _nothing),
}


def _other_channels(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    """A grey picture among colours, or the other way round."""
    path = os.path.join(os.fsencode(name), b"zz other.png")
    picture = np.full((shape.height, shape.width, *(() if shape.rgb else (3,))), 90, np.uint8)
    _saved("PNG")(os.path.join(tree.root, path), picture)
    tree.add(path, name, picture)
    tree.may_refuse = True


def _notes(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    for file in (b"notes.txt", b"Thumbs.db", b".DS_Store", b".hidden.png"):
        Path(os.fsdecode(os.path.join(tree.root, os.fsencode(name), file))).write_bytes(b"x")


def _unnamed_picture(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    """A picture whose name does not end as one: to be listed or counted, read or not."""
    picture = shape.pixels(draw, "pixels.unnamed")
    for file in (b"IMG_0001", b"IMG_0002.heic"):
        _saved("PNG")(os.path.join(tree.root, os.fsencode(name), file), picture)
    tree.any_order = True


def _empty_folder(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    os.makedirs(os.path.join(tree.root, os.fsencode(name), b"empty.png"))


def _nested(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    below = os.path.join(os.fsencode(name), b"deep", b"er")
    os.makedirs(os.path.join(tree.root, below))
    picture = shape.pixels(draw, "pixels.nested")
    _saved("PNG")(os.path.join(tree.root, below, b"n.png"), picture)
    tree.add(os.path.join(below, b"n.png"), name, picture)


def _hidden_folder(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    for hidden in (b".git", b"__MACOSX"):
        os.makedirs(os.path.join(tree.root, hidden))
        _saved("PNG")(
            os.path.join(tree.root, hidden, b"h.png"), shape.pixels(draw, "pixels.hidden")
        )


def _loose_picture(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    """Beside the class folders, so in none of them."""
    _saved("PNG")(os.path.join(tree.root, b"loose.png"), shape.pixels(draw, "pixels.loose"))
    tree.may_refuse = tree.any_order = True


def _linked_folder(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    away = os.path.join(os.path.dirname(tree.root), b"away")
    os.makedirs(away)
    picture = shape.pixels(draw, "pixels.away")
    _saved("PNG")(os.path.join(away, b"l.png"), picture)
    os.symlink(away, os.path.join(tree.root, os.fsencode(name), b"linked"))
    tree.add(os.path.join(os.fsencode(name), b"linked", b"l.png"), name, picture)


def _link_to_above(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    """No example may be counted twice, nor under another class."""
    os.symlink(tree.root, os.path.join(tree.root, os.fsencode(name), b"above"))
    tree.may_refuse = True


def _link_to_itself(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    path = os.path.join(tree.root, os.fsencode(name), b"loop")
    os.symlink(path, path)


def _pipe_without_ending(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    os.mkfifo(os.path.join(tree.root, os.fsencode(name), b"queue"))
    tree.any_order = True


def _other_size(draw: Draw, tree: _Tree, shape: _Shape, name: str) -> None:
    if shape.flat:  # so that the size can be brought to any other
        larger = _Shape(1, shape.height + 2, shape.width + 1, shape.rgb, flat=True)
        path = os.path.join(os.fsencode(name), b"zz larger.png")
        picture = larger.pixels(draw, "pixels.larger")
        _saved("PNG")(os.path.join(tree.root, path), picture)
        tree.add(path, name, picture[: shape.height, : shape.width])
        tree.may_refuse = True


_ODD_ENTRIES: dict[str, Callable[[Draw, _Tree, _Shape, str], None]] = {
    "other channels": _other_channels,
    "notes": _notes,
    "unnamed picture": _unnamed_picture,
    "empty folder": _empty_folder,
    "nested": _nested,
    "hidden folder": _hidden_folder,
    "loose picture": _loose_picture,
    "linked folder": _linked_folder,
    "link to above": _link_to_above,
    "link to itself": _link_to_itself,
    "pipe": _pipe_without_ending,
    "other size": _other_size,
}
_ODD_GROUPS: tuple[tuple[str, ...], ...] = (
    (),
    *((kind,) for kind in _ODD_ENTRIES),
    ("notes", "nested", "linked folder"),
    ("hidden folder", "empty folder", "nested"),
)


def _listed(draw: Draw, tree: _Tree, names: list[str], shape: _Shape) -> Examples:
    """The examples of a folder in their order: by class, then by path."""
    empty = draw.pick("folder.empty class", ("", "aardvark", "zebra"), plain=0.85)
    classes = sorted({*names, empty} - {""})
    if empty:
        os.makedirs(os.path.join(tree.root, os.fsencode(empty)))
    rows = [(classes.index(name), path, picture) for path, name, picture in tree.found]
    rows += [(classes.index(name), path, None) for path, name in tree.bad]
    rows.sort(key=lambda row: row[:2])
    good = [at for at, row in enumerate(rows) if row[2] is not None]
    ids = [row[1].decode("utf-8", "backslashreplace") for row in rows]
    channels = {len(rows[at][2]) for at in good}
    pixels = [rows[at][2] for at in good]
    if len(channels) > 1:  # brought to three channels, where that was asked for
        pixels = [np.repeat(one, 3, axis=0) if len(one) == 1 else one for one in pixels]
    return Examples(
        ["--data", "photos"],
        ids=[ids[at] for at in good],
        index=good,
        labels=np.array([rows[at][0] for at in good], np.int64),
        classes=[os.fsencode(name).decode("utf-8", "backslashreplace") for name in classes],
        pixels=np.stack(pixels) if good else np.zeros((0, 1, 1, 1)),
        errors=[ids[at] for at in range(len(rows)) if rows[at][2] is None],
        must_refuse="" if good else "no picture can be read",
        may_refuse=tree.may_refuse,
        any_order=tree.any_order,
    )


# --- arrays


def _stacked(draw: Draw, shape: _Shape) -> Array:
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
        shape = _shape(draw)
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
    shape = _shape(draw)
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
    shape = _shape(draw)
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
        may_refuse=labels.may_refuse or kind == "paths",
    )


def _list_of_paths(draw: Draw, folder: Path) -> Examples:
    """A CSV of path,label."""
    shape = _shape(draw)
    names = sorted(("âne", *NAMES[1:])[: draw.whole("csv.classes", 2, 4)])
    pictures = _stacked(draw, shape)
    labels = np.arange(shape.count) % len(names)
    (folder / "p").mkdir()
    files = [f"p/{at:02d}.png" for at in range(shape.count)]
    for file, picture in zip(files, pictures, strict=True):
        (folder / file).write_bytes(_png(picture))
    header = draw.pick("csv.header", ("path,label", "label,path", "file,label", ""), plain=0.6)
    rows = [(file, names[label]) for file, label in zip(files, labels, strict=True)]
    lines = [",".join(reversed(row) if header == "label,path" else row) for row in rows]
    text = "\n".join([header, *lines] if header else lines) + "\n"
    encoding = draw.pick("csv.encoding", ("utf-8", "utf-8-sig", "utf-16", "latin-1"), plain=0.7)
    (folder / "list.csv").write_bytes(text.encode(encoding))
    seen = np.stack([planes(picture) for picture in pictures])
    found = Labels(labels, labels, names, may_refuse=True)
    examples = _with_labels(["--data", "list.csv"], seen, found)
    examples.ids = files
    return examples


_KINDS: dict[str, Callable[[Draw, Path], Examples]] = {
    "class folders": _class_folders,
    "npz": _array_file(_write_npz, "images.npz"),
    "packed npz": _array_file(_write_packed, "images.npz"),
    "npy": _array_file(_write_npy, "images.npy"),
    "vectors": _vectors,
    "tensors": _tensors,
    "idx": _idx,
    "parquet": _parquet,
    "list of paths": _list_of_paths,
}
