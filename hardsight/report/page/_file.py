"""A page on disk, whole or not at all, and never in the place of somebody else's file."""

from __future__ import annotations

import os
from pathlib import Path

from hardsight.errors import OutputError, RunExistsError
from hardsight.run_folder import write_text


def page_file(
    out: str | os.PathLike[str] | None, *, run: Path | None, name: str, overwrite: bool
) -> Path:
    """Where a page goes.

    The page in the folder of its own run may be replaced unasked: it is made from the run and can
    be made from it again. Any other file may not.

    Args:
        out: the file, or an existing folder; that of the run by default.
        run: folder of the run; ``None`` if the page is of something else.
        name: of the page in a folder.
        overwrite: whether any file may be replaced.

    Raises:
        RunExistsError: a file is there.
    """
    place = Path(out if out is not None else run or "")
    file = place / name if place.is_dir() else place
    if file.exists() and not overwrite:
        is_page_of_run = run is not None and file.name == name and file.parent.samefile(run)
        if not is_page_of_run:
            raise RunExistsError(
                f"{file} is there already; choose another --out, or replace it with --overwrite "
                "(overwrite=True)"
            )
    return file


def replace_page(file: Path, text: str) -> None:
    """Write a page; an older one stays whole until the end.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    except OSError as err:
        raise OutputError(
            f"cannot write the report to {file}: {err.strerror or err}; choose another file "
            "with --out"
        ) from err
