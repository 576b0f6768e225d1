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
_EPILOG = f"""Pictures of the same size in parquet files and folders are decoded once, by score,
train, adapt, evaluate or study, and every later run over the same data maps them
into memory. The thumbnails that the review app makes of photographs are stored
next to them, up to 256 MiB for each dataset. The cache is in $HARDSIGHT_CACHE, by
default the folder hardsight in $XDG_CACHE_HOME or ~/.cache. It takes at most
$HARDSIGHT_CACHE_BYTES (8 GiB); the entries unused for longest are deleted first.
HARDSIGHT_CACHE=off turns it off.

{_EXAMPLES}"""


@click.group(cls=Group, epilog=_EPILOG)
def cache() -> None:
    """List the decoded pictures on disk, or delete them."""


@cache.command("list", epilog=_EXAMPLES)
@json_option
def list_() -> None:
    """List what is in the cache, most recently used first."""
    from hardsight.data import PictureCache

    cache = PictureCache.here()
    entries = [] if cache is None else cache.entries()
    facts = {
        "folder": None if cache is None else cache.folder,
        "most_bytes": None if cache is None else cache.most_bytes,
        "entries": [dataclasses.asdict(entry) for entry in entries],
    }
    tell(facts, lambda: _print(cache, entries))


def _print(cache: PictureCache | None, entries: list[CacheEntry]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if cache is None:
        console.print("the cache is off: HARDSIGHT_CACHE says so")
        return
    where = f"{cache.folder}: {_size(sum(entry.bytes for entry in entries))} of at most "
    console.print(f"{where}{_size(cache.most_bytes)}", soft_wrap=True, markup=False)
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
    """Delete everything in the cache. Runs that are reading from it are not disturbed."""
    from hardsight.data import PictureCache

    cache = PictureCache.here()
    freed = 0 if cache is None else cache.clear()
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
