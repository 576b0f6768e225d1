"""Fill templates, write pages to disk, and write numbers as text."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from hardsight import __version__
from hardsight.errors import DataError, MissingDataError, OutputError, RunExistsError
from hardsight.run_folder import place_of, write_text

NONE = "\N{EN DASH}"  # in place of a number that does not exist
MINUS = "\N{MINUS SIGN}"


def filled(template: str, *, styles: Sequence[str], scripts: Sequence[str], **values: Any) -> str:
    """Fill a template, with its styles and scripts inside the page.

    Args:
        template: file name of the template.
        styles: file names of the styles, in their order.
        scripts: file names of the scripts; the page can run no others.
        values: the variables of the template.
    """
    style, script = ("".join(map(_asset, names)) for names in (styles, scripts))
    return (
        _environment()
        .get_template(template)
        .render(
            **values,
            style=Markup(style),
            script=Markup(script),
            policy=_content_policy(script),
            version=__version__,
        )
    )


@cache
def _environment() -> Environment:
    """The Jinja environment; values are escaped, since names in data may hold markup."""
    made = Environment(
        autoescape=True,
        loader=FunctionLoader(_asset),
        undefined=StrictUndefined,  # a misspelt name in a template is an error, not an empty text
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(count=count, number=number, percent=percent)
    made.globals.update(plural=plural)
    return made


def _asset(name: str) -> str:
    """The text of a template, style or script."""
    return (resources.files("hardsight.report") / "assets" / name).read_text("utf-8")


def _content_policy(script: str) -> str:
    """The content security policy: the page loads nothing, and runs no script but its own."""
    # the script is allowed by its hash, so a script in somebody's data could not run even if it
    # were ever inserted without escaping
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def page_file(
    out: str | os.PathLike[str] | None, *, run: Path | None, name: str, overwrite: bool
) -> Path:
    """The file that a page is written to.

    The page in the folder of its own run may be replaced without asking, because it can always be
    made from the run again. Any other file may not.

    Args:
        out: the file, or an existing folder; by default the folder of the run.
        run: the folder of the run; ``None`` if the page is not about a run.
        name: the name of the page in a folder.
        overwrite: whether any file may be replaced.

    Raises:
        RunExistsError: the file exists and must not be replaced.
    """
    place = place_of(out if out is not None else run or "")
    file = place / name if place.is_dir() else place
    if file.exists() and not overwrite:
        is_page_of_run = run is not None and file.name == name and file.parent.samefile(run)
        if not is_page_of_run:
            raise RunExistsError(
                f"{file} already exists; choose another --out, or replace it with --overwrite "
                "(overwrite=True)"
            )
    return file


def replace_page(file: Path, text: str) -> None:
    """Write a page, and replace an older one only once the new one is complete.

    Raises:
        OutputError: the page cannot be written.
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
    """One kind of JSON file that a run leaves and a page is made from.

    Attributes:
        what: what error messages call it, with its article: "an evaluation card".
        command: the command that makes it.
        needed: keys that tell it from all other kinds of files.
        format: the format that this version reads.
    """

    what: str
    command: str
    needed: tuple[str, ...]
    format: int = 1

    def read(self, file: Path) -> dict[str, Any]:
        """Read and check a file.

        Raises:
            MissingDataError: there is no such file.
            DataError: the file is of another kind, or has another format.
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
        """Check values that were read from a file or are in memory.

        Raises:
            DataError: they are of another kind, or have another format.
        """
        if not isinstance(values, Mapping) or not all(key in values for key in self.needed):
            raise DataError(f"{where} is not {self.what}; make one with {self.command}")
        if values.get("format") != self.format:
            raise DataError(
                f"{where} has format {values.get('format')!r}, but this version reads "
                f"{self.format}; make {self.what} again with {self.command}"
            )
        return dict(values)


def number(value: float | None, *, digits: int = 4, trim: bool = True) -> str:
    r"""A number with ``digits`` significant digits and a real minus sign, or :data:`NONE`.

    Args:
        value: the number.
        digits: significant digits, fewer if ``trim`` removes zeros.
        trim: whether to drop zeros at the end.

    Example:
        >>> print(*[ascii(number(x)) for x in (0.123456, 0.05, 1234.5, 1.5e-7, -2.0, None)])
        '0.1235' '0.05' '1,234' '1.5e\u22127' '\u22122' '\u2013'
        >>> number(0.09, digits=3, trim=False)
        '0.0900'
    """
    if value is None or not math.isfinite(value):
        return NONE
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{_trim(mantissa)}e{int(exponent)}"
    else:
        before = int(f"{value:.{digits - 1}e}".split("e")[1]) + 1  # digits before the point
        text = f"{value:,.{max(0, digits - before)}f}"
        text = _trim(text) if trim else text
    return text.replace("-", MINUS)


def count(value: float) -> str:
    """A whole number with thousands separators.

    Example:
        >>> count(60000)
        '60,000'
    """
    return f"{int(value):,}"


def percent(share: float | None) -> str:
    """A share as a percentage, or :data:`NONE`; only exactly 1 is 100%, and only exactly 0 is 0%.

    Example:
        >>> [percent(x) for x in (0.9432, 1.0, 0.99999, 0.00001, 0.0)]
        ['94.3%', '100%', '>99.9%', '<0.1%', '0%']
    """
    if share is None or not math.isfinite(share):
        return NONE
    if share in (0, 1):
        return f"{100 * share:.0f}%"
    if share > 0.9995:
        return ">99.9%"
    return f"{100 * share:.1f}%" if share >= 0.0005 else "<0.1%"


def plural(n: float, noun: str) -> str:
    """A count with its noun.

    Example:
        >>> plural(1, "class"), plural(1200, "example")
        ('1 class', '1,200 examples')
    """
    if int(n) == 1:
        return f"1 {noun}"
    return f"{count(n)} {noun}{'es' if noun.endswith('s') else 's'}"


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
