"""A grammar of class folders, with whatever else people keep in them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.fuzz.draw import Array, Draw
from tests.fuzz.examples import Examples, Shape, make_shape, planes
from tests.fuzz.labels import NAMES


@dataclass
class _Tree:
    """A folder that is being filled."""

    root: bytes
    found: list[tuple[bytes, str, Array]] = field(default_factory=list)  # path, class, planes
    bad: list[tuple[bytes, str]] = field(default_factory=list)  # path, class
    may_refuse: bool = False
    must_tell: str = ""
    remedy: tuple[str, ...] = ()

    def add(self, path: bytes, name: str, picture: Array) -> None:
        self.found.append((path, name, planes(picture)))


def class_folders(draw: Draw, folder: Path) -> Examples:
    shape, names = make_shape(draw), _folder_names(draw)
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


def _add_picture(draw: Draw, tree: _Tree, shape: Shape, at: int, name: str) -> None:
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


def _other_channels(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    """A grey picture among colours, or the other way round."""
    path = os.path.join(os.fsencode(name), b"zz other.png")
    picture = np.full((shape.height, shape.width, *(() if shape.rgb else (3,))), 90, np.uint8)
    _saved("PNG")(os.path.join(tree.root, path), picture)
    tree.add(path, name, picture)
    tree.may_refuse, tree.remedy = True, ("--channels", "3")


def _notes(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    for file in (b"notes.txt", b"Thumbs.db", b".DS_Store", b".hidden.png"):
        Path(os.fsdecode(os.path.join(tree.root, os.fsencode(name), file))).write_bytes(b"x")


def _unnamed_picture(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    """Pictures whose names do not end as one: counted, not read."""
    picture = shape.pixels(draw, "pixels.unnamed")
    for file in (b"IMG_0001", b"IMG_0002.heic"):
        _saved("PNG")(os.path.join(tree.root, os.fsencode(name), file), picture)
    tree.must_tell = "2 files were passed over: 1 without an ending, 1 .heic"


def _empty_folder(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    os.makedirs(os.path.join(tree.root, os.fsencode(name), b"empty.png"))


def _nested(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    below = os.path.join(os.fsencode(name), b"deep", b"er")
    os.makedirs(os.path.join(tree.root, below))
    picture = shape.pixels(draw, "pixels.nested")
    _saved("PNG")(os.path.join(tree.root, below, b"n.png"), picture)
    tree.add(os.path.join(below, b"n.png"), name, picture)


def _hidden_folder(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    for hidden in (b".git", b"__MACOSX"):
        os.makedirs(os.path.join(tree.root, hidden))
        _saved("PNG")(
            os.path.join(tree.root, hidden, b"h.png"), shape.pixels(draw, "pixels.hidden")
        )


def _loose_picture(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    """Beside the class folders, so in none of them: counted, not read."""
    _saved("PNG")(os.path.join(tree.root, b"loose.png"), shape.pixels(draw, "pixels.loose"))
    tree.must_tell = "1 file was passed over"


def _linked_folder(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    away = os.path.join(os.path.dirname(tree.root), b"away")
    os.makedirs(away)
    picture = shape.pixels(draw, "pixels.away")
    _saved("PNG")(os.path.join(away, b"l.png"), picture)
    os.symlink(away, os.path.join(tree.root, os.fsencode(name), b"linked"))
    tree.add(os.path.join(os.fsencode(name), b"linked", b"l.png"), name, picture)


def _link_to_above(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    """Not followed: no example may be counted twice, nor under another class."""
    os.symlink(tree.root, os.path.join(tree.root, os.fsencode(name), b"above"))
    tree.must_tell = "link to a folder above"


def _link_to_itself(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    path = os.path.join(tree.root, os.fsencode(name), b"loop")
    os.symlink(path, path)


def _pipe_without_ending(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    os.mkfifo(os.path.join(tree.root, os.fsencode(name), b"queue"))
    tree.must_tell = "passed over"


def _other_size(draw: Draw, tree: _Tree, shape: Shape, name: str) -> None:
    if shape.flat:  # so that the size can be brought to any other
        larger = Shape(1, shape.height + 2, shape.width + 1, shape.rgb, flat=True)
        path = os.path.join(os.fsencode(name), b"zz larger.png")
        picture = larger.pixels(draw, "pixels.larger")
        _saved("PNG")(os.path.join(tree.root, path), picture)
        tree.add(path, name, picture[: shape.height, : shape.width])
        tree.may_refuse, tree.remedy = True, ("--size", f"{shape.height}x{shape.width}")


_ODD_ENTRIES: dict[str, Callable[[Draw, _Tree, Shape, str], None]] = {
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


def _listed(draw: Draw, tree: _Tree, names: list[str], shape: Shape) -> Examples:
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
        must_tell=tree.must_tell,
        remedy=tree.remedy,
    )
