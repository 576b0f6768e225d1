"""A corrected copy of a folder of class folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hardsight.errors import PatchError
from hardsight.exchange.copies._links import Links

if TYPE_CHECKING:
    from hardsight.data.formats import FolderSource
    from hardsight.data.source import FixedLabels

RECORD = ".hardsight-patch.json"  # in a copy: what was done; it also marks a folder as ours
_SEP = os.fsencode(os.sep)


def write_folder(source: FolderSource, fixed: FixedLabels, target: Path, links: Links) -> list[str]:
    """Write every picture into the folder of its class, and other visible files as they are.

    A picture keeps its path below the class folder. If that path is taken, its old class is added
    to its name. Class folders without pictures are kept, because every folder is a class.

    Args:
        source: the folder to copy.
        fixed: its corrected labels.
        target: an empty folder.
        links: links or copies files.

    Returns:
        notes about the copy.

    Raises:
        PatchError: a class cannot be the name of a folder.
    """
    place = source.label_place
    assert place is not None
    root, inside = os.fsencode(place.root), os.fsencode(place.files[0])
    # a split is a folder below the one that is copied
    classes_at = os.path.normpath(os.path.join(os.fsencode(target), os.path.relpath(inside, root)))
    tops = _class_folders(source, fixed, inside)
    for top in tops.values():
        os.makedirs(os.path.join(classes_at, top), exist_ok=True)
    names = [source.name_of(index) for index in range(len(source))]
    own = {os.path.join(inside, name) for name in names}
    hidden, left_out = _other_files(root, own, os.fsencode(target), links)
    is_moved = np.zeros(len(source), np.bool_)
    is_moved[fixed.changed] = True
    # names of pictures that stay have priority over those that move in
    taken: set[bytes] = {_key(names[at]) for at in np.flatnonzero(fixed.kept & ~is_moved).tolist()}
    for at in np.flatnonzero(fixed.kept & ~is_moved).tolist():
        links.place(os.path.join(inside, names[at]), os.path.join(classes_at, names[at]))
    renamed = 0
    for at in fixed.changed.tolist():
        wanted = _moved(names[at], tops[int(fixed.labels[at])])
        # the old class in the name shows where the picture came from
        free = _free(wanted, names[at].split(_SEP)[0], taken, classes_at)
        renamed += free != wanted
        taken.add(_key(free))
        links.place(os.path.join(inside, names[at]), os.path.join(classes_at, free))
    notes = links.notes()
    if renamed:
        notes.append(
            f"{renamed:,} pictures had a name that was taken in their new folder, so their old "
            "class was added to it"
        )
    if hidden or left_out:
        notes.append(f"{hidden + left_out:,} hidden files and links were left out")
    return notes


def _class_folders(source: FolderSource, fixed: FixedLabels, inside: bytes) -> dict[int, bytes]:
    """The folder of every class: the existing one, or a new one with its name."""
    folders = {}
    with os.scandir(inside) as entries:
        for entry in entries:
            # decoded as in FolderSource, so that the names can be compared
            name = entry.name.decode("utf-8", "backslashreplace")
            if name in source.classes and entry.is_dir():
                folders[source.classes.index(name)] = entry.name
    for label in np.unique(fixed.labels[fixed.changed]).tolist():
        if label not in folders:
            folders[label] = _folder_name(fixed.classes[label])
    return folders


def _folder_name(name: str) -> bytes:
    """The name of a class as the name of a folder, which must be inside the copy.

    Raises:
        PatchError: the folder would be outside of the copy, or would not be read as a class.
    """
    is_hidden = name.startswith(".") or name == "__MACOSX"
    if not name or is_hidden or set(name) & set("/\\\0:") or not name.isprintable():
        raise PatchError(
            f"the class {name[:60]!r} cannot be the name of a folder; give it a plain name in the "
            "patch (new_name), or name the classes"
        )
    return os.fsencode(name)


def _other_files(root: bytes, own: set[bytes], target: bytes, links: Links) -> tuple[int, int]:
    """Place files that are not examples, and count the hidden files and links left out."""
    hidden = left_out = 0
    for folder, folders, files in os.walk(root):
        for name in list(folders):
            path = os.path.join(folder, name)
            # links would lead out of the copy, or back into the data
            if name.startswith(b".") or os.path.islink(path):
                folders.remove(name)
                hidden += name.startswith(b".")
        below = os.path.relpath(folder, root)
        os.makedirs(os.path.normpath(os.path.join(target, below)), exist_ok=True)
        for name in files:
            path = os.path.join(folder, name)
            if path in own or os.path.normpath(path) in own:
                continue
            if name.startswith(b".") or os.path.islink(path) or not os.path.isfile(path):
                left_out += 1
                continue
            links.place(path, os.path.normpath(os.path.join(target, below, name)))
    return hidden, left_out


def _moved(name: bytes, top: bytes) -> bytes:
    _, _, rest = name.partition(_SEP)
    return os.path.join(top, rest)


def _free(wanted: bytes, old: bytes, taken: set[bytes], classes_at: bytes) -> bytes:
    """The path itself, or a free one with the old class in its name."""
    stem, ending = os.path.splitext(wanted)
    free, number = wanted, 1
    # lexists: files that are not examples may have been placed there already
    while _key(free) in taken or os.path.lexists(os.path.join(classes_at, free)):
        more = b"" if number == 1 else b"-%d" % number
        free, number = stem + b"-from-" + old + more + ending, number + 1
    return free


def _key(name: bytes) -> bytes:
    """A key that is equal for names that differ only in case, as on macOS and Windows."""
    return os.fsencode(os.fsdecode(name).casefold())
