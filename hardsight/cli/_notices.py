"""What has to be said about a result, on a terminal."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hardsight.errors import HardsightWarning

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def noted() -> Iterator[list[str]]:
    """The warnings of ours in this block, to be printed as notes; those of others are shown."""
    notes: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", HardsightWarning)
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if issubclass(category, HardsightWarning):
                notes.append(str(message))
            else:
                shown(message, category, *place)

        warnings.showwarning = show  # type: ignore[assignment]
        yield notes


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print each note once, its headline in yellow; markup in it is printed as it is."""
    from rich.markup import escape

    for note in dict.fromkeys(notes):
        headline, colon, rest = note.partition(": ")
        console.print(f"[yellow]{escape(headline)}[/]{colon}{escape(rest)}", soft_wrap=True)
