"""A page: its templates and what it may load, what it is made of, and its file on disk."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from hardsight.errors import DataError, MissingDataError, OutputError, RunExistsError
from hardsight.report.page._format import count, number, percent, plural
from hardsight.run_folder import write_text


@cache
def environment() -> Environment:
    """Templates from our own files, everything filled in escaped."""
    made = Environment(
        autoescape=True,
        loader=FunctionLoader(asset),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(count=count, number=number, percent=percent)
    made.globals.update(plural=plural)
    return made


def asset(name: str) -> str:
    """The text of a template, style or script."""
    return (resources.files("hardsight.report") / "assets" / name).read_text("utf-8")


def content_policy(script: str) -> str:
    """What the page may load: nothing from anywhere, and no script but ours."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


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


@dataclass(frozen=True)
class Record:
    """One kind of record.

    Attributes:
        what: a record of this kind, with its article: "an evaluation card".
        command: the command that makes one.
        needed: keys that no other file has together.
        format: the one that this version reads.
    """

    what: str
    command: str
    needed: tuple[str, ...]
    format: int = 1

    def read(self, file: Path) -> dict[str, Any]:
        """The values in a file.

        Raises:
            MissingDataError: there is no such file.
            DataError: the file is not such a record, or has another format.
        """
        if not file.is_file():
            raise MissingDataError(
                f"expected {self.what} at {file}, but there is no such file; make one with "
                f"{self.command}"
            )
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as err:
            raise DataError(f"{file} is not {self.what}: {err}") from err
        return self.checked(values, str(file))

    def checked(self, values: Any, where: str) -> dict[str, Any]:
        """The values, if they are such a record.

        Raises:
            DataError: they are not, or they have another format.
        """
        if not isinstance(values, Mapping) or not all(key in values for key in self.needed):
            raise DataError(f"{where} is not {self.what}; make one with {self.command}")
        if values.get("format") != self.format:
            raise DataError(
                f"{where} has format {values.get('format')!r}, this version reads {self.format}; "
                f"make {self.what} of this version with {self.command}"
            )
        return dict(values)
