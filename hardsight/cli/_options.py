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


def whole(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A choice of numbers as one."""
    return None if value is None else int(value)


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


def model_options(command: Command) -> Command:
    """``--model-classes``, ``--class-order`` and ``--trust-remote-code``."""
    for option in reversed((
        click.option("--model-classes", multiple=True, callback=names, metavar="NAME[,NAME]|FILE",
                     help="Names of the model's outputs, in their order, or a text file with one "
                     "name per line; by default what the model itself says."),
        click.option("--class-order", type=click.Choice(["auto", "name", "position"]),
                     help="How classes of data and model are matched: auto (default) by name if "
                     "both have names, else by position; name refuses that, position forces it."),
        click.option("--trust-remote-code", is_flag=True, default=None,
                     help="Run Python files that an hf: model brings; they may do all that you may "
                     "do. Without it such a model is refused."),
    )):  # fmt: skip
        command = option(command)
    return command


def pixel_options(command: Command) -> Command:
    """``--size``, ``--mean`` and the like: how pictures become inputs."""
    for option in reversed((
        click.option("--size", callback=pair, metavar="H[xW]", help="Input size of the model. "
                     "Pictures are resized by their shorter side and cropped in the centre."),
        click.option("--crop", type=float, metavar="SHARE", help="Share of the resized picture "
                     "that the centre crop keeps (1, or as the model says)."),
        click.option("--squash/--no-squash", default=None, help="Resize to --size without keeping "
                     "the aspect ratio, so that nothing is cut off."),
        click.option("--channels", type=click.Choice(["1", "3"]), callback=whole,
                     help="Make all pictures grey (1) or RGB (3)."),
        click.option("--mean", callback=floats, metavar="M[,M,M]",
                     help="Mean to subtract, on the pixel scale 0..1. Three values make grey "
                     "images RGB, for a model of RGB images."),
        click.option("--std", callback=floats, metavar="S[,S,S]", help="Deviation to divide by."),
        click.option("--white", type=float, metavar="W",
                     help="Value of white, if it is not 255 in bytes and 1 in floats."),
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
