"""What all commands share: how loud they are, results as JSON, and a help in sections."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from hardsight._checks import NO_BARS, refuse_ranks
from hardsight.errors import HardsightWarning

_AS_JSON = "hardsight.json"
_VERBOSE = "hardsight.verbose"
_LONG = 16  # options from which on a help has sections
# heading -> settings, which have the same name and meaning in all commands; what is not named here
# is what a command is about, and comes first
_SECTIONS = {
    "Data": (
        "split", "source_split", "target_split", "ood_split", "train_split", "data_root", "labels",
        "class_weights", "bias", "classes", "text_column", "label_column", "image_column", "patch",
        "rows", "group", "limit", "unlabelled",
    ),
    "Texts": ("tokenizer", "max_tokens", "tokens"),
    "Pictures": ("size", "crop", "squash", "channels", "mean", "std", "white"),
    "The model's classes and outputs": (
        "head", "output", "num_classes", "model_classes", "class_order", "trust_remote_code",
    ),
    "Device and speed": ("batch_size", "workers", "device", "precision", "shard_rows", "engine"),
    "Cluster": ("ray_address", "ray_actors", "ray_cpus", "ray_gpus"),
    "The run": (
        "seed", "resume", "overwrite", "strict", "overrides", "as_json", "quiet", "verbose", "help",
    ),
}  # fmt: skip


class Command(click.Command):
    """A command with ``--quiet`` and ``--verbose``, whose long help has sections.

    Args:
        arguments: of click.
        on_ranks: whether several processes that a launcher starts may run it together.
        named: of click.
    """

    def __init__(self, *arguments: Any, on_ranks: bool = False, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._on_ranks = on_ranks
        self.params += [
            click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, callback=_quiet,
                         help="No progress bars and no notes; results and warnings stay."),
            click.Option(["-v", "--verbose"], is_flag=True, expose_value=False, callback=_verbose,
                         help="More notes, and where in the code an error came from."),
        ]  # fmt: skip

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless a launcher runs it several times."""
        if not self._on_ranks:
            spread = any(option.name == "engine" for option in self.params)
            refuse_ranks(
                f"`hardsight {' '.join(ctx.command_path.split()[1:])}`",
                instead="spread the work by --engine ray" if spread else "",
            )
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, of which many are in sections."""
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        if len(options) < _LONG:
            super().format_options(ctx, formatter)
            return
        heading_of = {name: heading for heading, names in _SECTIONS.items() for name in names}
        parts: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Options", *_SECTIONS)}
        for option in options:
            record = option.get_help_record(ctx)
            if record is not None:
                parts[heading_of.get(option.name or "", "Options")].append(record)
        for heading, records in parts.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class Group(click.Group):
    """A command of commands, each of which is a :class:`Command`."""

    command_class = Command


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--json``, by which :func:`tell` prints its result for programs."""
    return click.option(
        "--json", "as_json", is_flag=True, expose_value=False, callback=_json,
        help="Print the result as JSON, for programs; nothing else is on standard output.",
    )(command)  # fmt: skip


def old_option(
    old: str, new: str, *, values: Mapping[str, str] | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A flag by its earlier name: it works, is not in the help, and says what it is called now.

    Args:
        old: the earlier flag.
        new: the present one.
        values: what values are called now, if that has changed, too.
        options: of click, such as ``type``.

    The present option must be eager, so that its default is there before this replaces it.
    """

    def renamed(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is None:
            return
        now = (values or {}).get(value, value)
        # beside the notes, so that it is seen with --quiet as well
        warnings.warn(f"{old} is called {new} now: {new} {now}", HardsightWarning, stacklevel=2)
        ctx.params[new.removeprefix("--").replace("-", "_")] = now

    return click.option(old, hidden=True, expose_value=False, callback=renamed, **options)


def tell(result: Mapping[str, Any] | list[Any], in_words: Callable[[], None]) -> None:
    """Print a result: in words, or with ``--json`` as one object or array."""
    context = click.get_current_context()
    if context.meta.get(_AS_JSON):
        click.echo(json.dumps(result, indent=2, ensure_ascii=False, default=_plain))
    else:
        in_words()


def is_verbose(context: click.Context) -> bool:
    """Whether a command was asked for more."""
    return bool(context.meta.get(_VERBOSE))


def _plain(value: Any) -> Any:
    """Paths as text, numbers of numpy as numbers; what has no such form is text, too."""
    return value.item() if hasattr(value, "item") else str(value)


def _json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_AS_JSON] = True


def _verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_VERBOSE] = True
        ctx.with_resource(_level(logging.DEBUG))


def _quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.with_resource(_level(logging.WARNING))
        ctx.with_resource(_without_bars())


@contextlib.contextmanager
def _level(level: int) -> Iterator[None]:
    """What the package logs on the way from here, for as long as the command runs."""
    log = logging.getLogger("hardsight")
    before = log.level
    log.setLevel(level)
    handlers = [(handler, handler.level) for handler in log.handlers]
    for handler in log.handlers:
        handler.setLevel(level)
    try:
        yield
    finally:
        log.setLevel(before)
        for handler, usual in handlers:
            handler.setLevel(usual)


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Loops in other processes must know it as well, so that it is in the environment."""
    before = os.environ.get(NO_BARS)
    os.environ[NO_BARS] = "off"
    try:
        yield
    finally:
        os.environ.pop(NO_BARS, None)
        if before is not None:
            os.environ[NO_BARS] = before
