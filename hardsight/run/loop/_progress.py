"""A progress bar with rate and remaining time, on a terminal only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _RateColumn(ProgressColumn):
    """Units per second, over the last moments."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "", style="cyan")


class Advance(Protocol):
    """Moves a bar forward."""

    def __call__(self, units: int, *, title: str | None = None) -> None:
        """``units`` were just done; ``title`` replaces the bar's, where given."""


@contextmanager
def progress(
    title: str, *, total: int | None, done: int = 0, show: bool | None = None
) -> Iterator[Advance]:
    """Show progress on stderr while the block runs.

    Args:
        title: what is being done.
        total: how many units there are; ``None`` if nobody knows.
        done: units an earlier run has done.
        show: force the bar on or off; by default it is shown on a terminal.

    Yields:
        a function that takes the number of units just done.
    """
    console = Console(stderr=True)
    if not (console.is_terminal if show is None else show):
        yield lambda units, *, title=None: None
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),  # a path may have brackets
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        task = bar.add_task(title, total=total, completed=done)
        yield lambda units, *, title=None: bar.update(task, advance=units, description=title)
