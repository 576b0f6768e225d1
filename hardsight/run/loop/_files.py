"""Files that appear when they are complete, and an answer to a disk that is full."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hardsight.errors import OutputError

AGAIN = "make room and run again with --resume (resume=True)"


@contextmanager
def writing(place: Path, *, step: str) -> Iterator[None]:
    """Say what to do where a disk is full or a folder cannot be written to.

    Args:
        place: file or folder that is written.
        step: what to do, in words.

    Raises:
        OutputError: with the reason of the system; safetensors has an error of its own for it.
    """
    try:
        yield
    except OutputError:
        raise
    except (OSError, SafetensorError) as err:
        reason = getattr(err, "strerror", None) or err
        raise OutputError(f"cannot write {place}: {reason}; {step}") from err


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write a file that is there as a whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    part.replace(file)
