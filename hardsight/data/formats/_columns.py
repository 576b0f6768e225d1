"""Which column of a list holds what: the documented names, and the usual others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hardsight.errors import DataError

# the documented name first
PATHS = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image_path", "img_path",
    "image_file", "image", "img",
)  # fmt: skip
LABELS = (
    "label", "labels", "class", "class_name", "classname", "class_id", "category", "target",
    "targets", "y",
)  # fmt: skip
SPLIT = "split"
IMAGE_COLUMNS = ("image", "img")  # of the picture itself


def chosen_column(columns: Sequence[str], names: Sequence[str], role: str, where: str) -> str:
    """The column that one of ``names`` stands for, however it is written.

    Args:
        columns: there are.
        names: it may have, the documented one first; that one wins.
        role: what it holds, for messages.
        where: the header, for messages.

    Raises:
        DataError: no column has such a name, or several have.

    Example:
        >>> chosen_column(["File Name", "Label"], PATHS, "paths", "the header of x.csv")
        'File Name'
    """
    plain = [plain_name(column) for column in columns]
    twice = [name for name, count in Counter(plain).items() if count > 1 and name in names]
    if twice:
        raise DataError(f"column {twice[0]!r} is there twice in {where}; remove one")
    found = [column for column, name in zip(columns, plain, strict=True) if name in names]
    documented = [column for column in found if plain_name(column) == names[0]]
    if len(found) == 1 or documented:
        return (documented or found)[0]
    if found:
        raise DataError(
            f"columns {found[0]!r} and {found[1]!r} could both be the {role} in {where}; rename "
            f"the one that is meant to {names[0]}"
        )
    raise DataError(
        f"no column of {role} in {where}: expected one of {', '.join(names)}, got "
        f"{', '.join(columns) or 'none'}; write a header such as path,label"
    )


def plain_name(column: str) -> str:
    """A column's name in lower case, with underscores.

    Example:
        >>> plain_name(" Image-Path ")
        'image_path'
    """
    return column.strip().lower().replace(" ", "_").replace("-", "_")
