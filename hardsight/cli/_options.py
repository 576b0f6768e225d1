"""Options that more than one command has, and what their values may look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def pair(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """``224`` or ``224x160`` as height and width."""
    if value is None:
        return None
    parts = value.lower().split("x")
    if not all(part.isdigit() for part in parts) or len(parts) > 2:
        raise click.BadParameter(f"expected 224 or 224x160 (height x width), got {value!r}")
    return int(parts[0]), int(parts[-1])


def floats(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[float, ...] | None:
    """``0.5`` or ``0.485,0.456,0.406``."""
    if value is None:
        return None
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"expected numbers such as 0.5,0.5,0.5, got {value!r}") from None


def names(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Repeated or comma-separated names."""
    return tuple(name for part in value for name in part.split(",") if name) or None


def key_or_position(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> int | str | None:
    """``1`` as a position, anything else as a name."""
    if value is None:
        return None
    return int(value) if value.removeprefix("-").isdigit() else value


output_option = click.option(
    "--output", callback=key_or_position, metavar="NAME|POSITION",
    help="The model's output that holds the logits, by key, attribute or position (from 0), if the "
    "classes of the data do not tell it.",
)  # fmt: skip


def pixel_options(command: Command) -> Command:
    """``--size``, ``--mean`` and ``--std``: how pictures become inputs."""
    for option in reversed((
        click.option("--size", callback=pair, metavar="H[xW]", help="Input size of the model."),
        click.option("--mean", callback=floats, metavar="M[,M,M]",
                     help="Mean to subtract, on the pixel scale 0..1. Three values make grey "
                     "images RGB, for a model of RGB images."),
        click.option("--std", callback=floats, metavar="S[,S,S]", help="Deviation to divide by."),
    )):  # fmt: skip
        command = option(command)
    return command


def work_options(command: Command) -> Command:
    """``--batch-size``, ``--workers`` and ``--device``."""
    for option in reversed((
        click.option("--batch-size", type=click.IntRange(min=1), help="Examples at once."),
        click.option("--workers", type=click.IntRange(min=0), help="Loader processes."),
        click.option("--device", help="auto (default), cpu, cuda, cuda:1, mps."),
    )):  # fmt: skip
        command = option(command)
    return command


def run_options(command: Command) -> Command:
    """``--resume`` and ``--overwrite``: what to do with a run that is in the folder already."""
    for option in reversed((
        click.option("--resume", is_flag=True, default=None,
                     help="Continue the unfinished run in --out, with the same settings."),
        click.option("--overwrite", is_flag=True, default=None,
                     help="Replace the run in --out; other files there stay."),
    )):  # fmt: skip
        command = option(command)
    return command
