"""A page on disk, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from hardsight.errors import OutputError


def replace_page(file: Path, text: str) -> None:
    """Write the page under another name first, so an older page stays whole until the end."""
    partial = file.with_name(f".tmp-{file.name}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as sink:
                # a name from a broken file system may hold half a surrogate pair
                sink.write(text.encode("utf-8", "replace"))
                sink.flush()
                os.fsync(sink.fileno())
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as err:
        raise OutputError(
            f"cannot write the report to {file}: {err.strerror or err}; choose another file "
            "with --out"
        ) from err
