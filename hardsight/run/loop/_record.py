"""What a run tells: progress, warnings, pictures for its report, and where numbers come from."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import pyarrow as pa
import torch
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
from torch import Tensor, nn

from hardsight._checks import versions_of
from hardsight.data import ExampleSource, thumbnail
from hardsight.errors import BadExampleError, HardsightWarning
from hardsight.gallery import gallery_rows
from hardsight.table import THUMBNAIL_SCHEMA, ScoreTable

Options = ParamSpec("Options")
Result = TypeVar("Result")
_PACKAGE = str(Path(__file__).parents[2])


class _RateColumn(ProgressColumn):
    """Units per second, over the last moments."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "", style="cyan")


class Advance(Protocol):
    """Moves a bar forward."""

    def __call__(self, units: int, *, title: str | None = None) -> None:
        """``units`` were just done; ``title`` replaces the bar's, if given."""


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


def warns_of(
    notes: Callable[[Any], Iterable[str]],
) -> Callable[[Callable[Options, Result]], Callable[Options, Result]]:
    """A function that warns of what its result has to be read with.

    Args:
        notes: what there is to say about a result; each is a headline, a colon and the rest.
    """

    def around(function: Callable[Options, Result]) -> Callable[Options, Result]:
        @functools.wraps(function)
        def warning(*args: Options.args, **options: Options.kwargs) -> Result:
            result = function(*args, **options)
            for note in notes(result):
                warn(note)
            return result

        return warning

    return around


def warn(text: str) -> None:
    """Warn of something, at the line of the user's own code: Python shows it once for each line."""
    warnings.warn(text, HardsightWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """How many frames up the user's own code is."""
    level, frame = 1, sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level


def pictures(source: ExampleSource, table: ScoreTable, *, most: int, show: bool | None) -> pa.Table:
    """Small pictures of the examples a report shows; what is not an image has none."""
    indices = gallery_rows(table, budget=most).indices().tolist()
    kept: dict[int, bytes] = {}
    with progress("thumbnails", total=len(indices), show=show) as advance:
        for index in indices:
            try:
                picture = thumbnail(source[source.position_of(index)].content)
            except BadExampleError:
                picture = None  # the file is gone meanwhile; its row stays
            if picture is not None:
                kept[index] = picture
            advance(1)
    return pa.table([list(kept), list(kept.values())], schema=THUMBNAIL_SCHEMA)


def versions(*more: str) -> dict[str, str]:
    """Versions of everything that can change a score, and of ``more`` packages."""
    return versions_of("torch", "numpy", "pyarrow", "pillow", *more)


def values_digest(values: Any) -> str:
    """SHA-256 over plain values, such as the names of classes."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def state_digest(model: nn.Module) -> str:
    """SHA-256 over the names and values of all parameters and buffers."""
    return tensors_digest(**model.state_dict())


def tensors_digest(*tensors: Any, **named: Any) -> str:
    """SHA-256 over tensors, their names, shapes and dtypes."""
    digest = hashlib.sha256()
    entries = [*enumerate(tensors), *named.items()]
    for name, tensor in entries:
        if not isinstance(tensor, Tensor):  # extra state of a module
            continue
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {list(plain.shape)} {plain.dtype}".encode())
        if plain.numel():
            digest.update(plain.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
