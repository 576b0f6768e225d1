from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from hardsight.cli._command import Group, json_option, tell

if TYPE_CHECKING:
    from hardsight.data import CacheEntry, PictureCache

_EXAMPLES = """\b
Examples:
  hardsight cache list
  hardsight cache list --json
  hardsight cache clear
"""
_EPILOG = f"""Pictures of one size in parquet files and folders are decoded once, by score, train,
adapt, evaluate or study, and mapped into memory by every later run over the same
data. Thumbnails that the review app has made of photographs are kept beside them,
256 MiB for each dataset. All lie in $HARDSIGHT_CACHE, by default in hardsight below
$XDG_CACHE_HOME or ~/.cache, and take at most $HARDSIGHT_CACHE_BYTES (8 GiB); the
longest unused go first. HARDSIGHT_CACHE=off turns it off.

{_EXAMPLES}"""


@click.group(cls=Group, epilog=_EPILOG)
def cache() -> None:
    """Decoded pictures on disk: list them, or clear them."""


@cache.command("list", epilog=_EXAMPLES)
@json_option
def list_() -> None:
    """What is kept, the last used first."""
    from hardsight.data import PictureCache

    kept = PictureCache.here()
    entries = [] if kept is None else kept.entries()
    facts = {
        "folder": None if kept is None else kept.folder,
        "most_bytes": None if kept is None else kept.most_bytes,
        "entries": [dataclasses.asdict(entry) for entry in entries],
    }
    tell(facts, lambda: _print(kept, entries))


def _print(kept: PictureCache | None, entries: list[CacheEntry]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if kept is None:
        console.print("the cache is off: HARDSIGHT_CACHE says so")
        return
    where = f"{kept.folder}: {_size(sum(entry.bytes for entry in entries))} of at most "
    console.print(f"{where}{_size(kept.most_bytes)}", soft_wrap=True, markup=False)
    if not entries:
        return
    table = Table("data", "pictures", "shape", "size", "last used")
    for entry in entries:
        shape = " x ".join(map(str, entry.shape)) or "thumbnails"
        table.add_row(
            entry.spec, f"{entry.pictures:,}", shape, _size(entry.bytes), _when(entry.used)
        )
    console.print(table)


@cache.command(epilog=_EXAMPLES)
@json_option
def clear() -> None:
    """Remove all of it; runs that read from it now are not disturbed."""
    from hardsight.data import PictureCache

    kept = PictureCache.here()
    freed = 0 if kept is None else kept.clear()
    tell({"freed_bytes": freed}, lambda: click.echo(f"{_size(freed)} freed"))


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _when(seconds: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "minutes")[:16]
