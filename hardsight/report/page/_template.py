"""Templates, styles and scripts of our own, and what a page may load."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined

from hardsight.report.page._format import count, number, percent, plural


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
