"""What all commands share: verbosity, results as JSON, and help texts in sections."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from hardsight._checks import NO_BARS, refuse_ranks
from hardsight.errors import HardsightWarning

# keys of click's ``Context.meta``, which a command shares with the group above it
_ALL = "hardsight.all"
_AS_JSON = "hardsight.json"
_TOLD = "hardsight.told"
_VERBOSE = "hardsight.verbose"
_LONG = 14  # from this many options on, the help is split into sections
_NARROW = 24  # columns of the flags in a short help, so that their texts take fewer lines
_NUMBER = re.compile(r"(INTEGER|FLOAT)( RANGE)?$")
# what --data takes, in short; the option's own text has the whole list
DATA_IN_SHORT = (
    "Folder of class folders, .csv, .parquet, arrays, hub:OWNER/NAME, or a name such as cifar10"
)
# heading -> settings, which have the same name and meaning in all commands; settings not listed
# here are what a command is about, and come first
_SECTIONS = {
    "Data": (
        "split", "source_split", "target_split", "ood_split", "train_split", "data_root", "labels",
        "class_weights", "bias", "classes", "text_column", "label_column", "image_column", "patch",
        "rows", "group", "limit", "unlabelled",
    ),
    "Attacks": (
        "epsilons", "epsilons_l2", "attack_steps", "attack_examples", "ensemble_steps",
    ),
    "Features and maps": ("explain_examples", "cam_layer", "feature_examples", "map_examples"),
    "Texts": ("tokenizer", "max_tokens", "tokens"),
    "Pictures": ("size", "crop", "squash", "channels", "mean", "std", "white"),
    "Classes and outputs": (
        "head", "output", "num_classes", "model_classes", "class_order", "trust_remote_code",
    ),
    "Device and speed": ("batch_size", "workers", "device", "precision", "shard_rows", "engine"),
    "Cluster": ("ray_address", "ray_actors", "ray_cpus", "ray_gpus"),
    "The run": (
        "seed", "resume", "overwrite", "strict", "overrides", "as_json", "quiet", "verbose", "help",
        "help_all",
    ),
}  # fmt: skip


class Command(click.Command):
    """A command with ``--quiet`` and ``--verbose``, whose long help has sections.

    Args:
        arguments: passed on to click.
        on_ranks: whether several processes started by a launcher such as torchrun may run the
            command together.
        rare: settings that belong to what the command is about but are seldom needed, with the
            section that lists them.
        brief: texts for the short help of settings whose first sentence is too long for it.
        named: passed on to click.
    """

    def __init__(
        self,
        *arguments: Any,
        on_ranks: bool = False,
        rare: Mapping[str, str] | None = None,
        brief: Mapping[str, str] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._on_ranks = on_ranks
        self._rare, self._brief = rare or {}, brief or {}
        self.params += [
            click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, callback=_quiet,
                         help="Print results and warnings, but no progress and no notes."),
            click.Option(["-v", "--verbose"], is_flag=True, expose_value=False, callback=_verbose,
                         help="Print more notes, and the traceback of an error."),
        ]  # fmt: skip

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options of the command; one with many of them also has ``--help-all``."""
        params = super().get_params(ctx)
        return [*params, _HELP_ALL] if len(params) >= _LONG else params

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; refuse if a launcher such as torchrun started it several times."""
        if not self._on_ranks:
            spread = any(option.name == "engine" for option in self.params)
            refuse_ranks(
                f"`hardsight {' '.join(ctx.command_path.split()[1:])}`",
                instead="spread the work by --engine ray" if spread else "",
            )
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, in sections if there are many.

        ``--help`` has to fit on a screen, so only the first section explains its options, in one
        sentence each; the other sections list names.
        """
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        if len(options) < _LONG:
            super().format_options(ctx, formatter)
            return
        heading_of = {name: heading for heading, names in _SECTIONS.items() for name in names}
        heading_of |= self._rare
        parts: dict[str, list[click.Option]] = {name: [] for name in ("Options", *_SECTIONS)}
        for option in options:
            if not option.hidden:
                parts[heading_of.get(option.name or "", "Options")].append(option)
        parts = {heading: listed for heading, listed in parts.items() if listed}
        if ctx.meta.get(_ALL):
            for heading, listed in parts.items():
                records = [option.get_help_record(ctx) for option in listed]
                with formatter.section(heading):
                    formatter.write_dl([record for record in records if record])
            return
        own = [self._in_short(option, ctx) for option in parts.pop("Options")]
        with formatter.section("Options"):
            formatter.write_dl(own, col_max=_NARROW)
        with formatter.section(f"More options, explained by {ctx.command_path} --help-all"):
            formatter.write_dl([
                (heading, " ".join(max(option.opts, key=len) for option in listed))
                for heading, listed in parts.items()
            ], col_max=_NARROW)  # fmt: skip

    def _in_short(self, option: click.Option, ctx: click.Context) -> tuple[str, str]:
        """A flag and a sentence; of a number only that it is one."""
        flag, text = option.get_help_record(ctx) or ("", "")
        return _NUMBER.sub("N", flag), self._brief.get(option.name or "", _first_sentence(text))


def _first_sentence(text: str) -> str:
    """The text up to the first full stop or semicolon outside brackets."""
    for end in re.finditer(r"[.;] ", text):
        if text.count("(", 0, end.start()) == text.count(")", 0, end.start()):
            return text[: end.start()]
    return text.rstrip(".")


def _whole_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:  # which is on while a shell completes a command
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_whole_help,
    help="Explain every option in full.",
)  # fmt: skip


class Group(click.Group):
    """A group of commands, each of which is a :class:`Command`."""

    command_class = Command


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--json``, which makes :func:`tell` print its result for programs."""
    return click.option(
        "--json", "as_json", is_flag=True, expose_value=False, callback=_json,
        help="Print the result as JSON and nothing else on standard output.",
    )(command)  # fmt: skip


def old_option(
    old: str, new: str, *, values: Mapping[str, str] | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Keep a renamed flag working: it is hidden from the help and warns with the new name.

    Args:
        old: the old flag.
        new: the new flag.
        values: old values and what they are called now, if they were renamed as well.
        options: passed on to click, such as ``type``.

    The new option must be eager: click then sets its default first, and this can replace it.
    """

    def renamed(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is None:
            return
        now = (values or {}).get(value, value)
        # a warning and not a note, because --quiet hides notes
        warnings.warn(f"{old} is now called {new}: {new} {now}", HardsightWarning, stacklevel=2)
        ctx.params[new.removeprefix("--").replace("-", "_")] = now

    return click.option(old, hidden=True, expose_value=False, callback=renamed, **options)


def tell(result: Mapping[str, Any] | list[Any], in_words: Callable[[], None]) -> None:
    """Print a result in words, or with ``--json`` as one object or array."""
    context = click.get_current_context()
    if context.meta.get(_AS_JSON):
        _print_json(result)
        context.meta[_TOLD] = True
    else:
        in_words()


def tell_failure(context: click.Context, words: Sequence[str], err: click.ClickException) -> None:
    """Print an error as JSON, if ``--json`` was typed and nothing has been printed yet.

    This looks at the words of the command line, because click has not parsed the flags of a
    command that was typed wrongly.
    """
    if "--json" in words and not context.meta.get(_TOLD):
        _print_json({"error": err.format_message(), "exit_code": err.exit_code})


def _print_json(result: Any) -> None:
    """Print JSON in ASCII, which every locale can write, whatever the names in it."""
    click.echo(json.dumps(_plain(result), indent=2, allow_nan=False))


def is_verbose(context: click.Context) -> bool:
    """Whether the command was given ``--verbose``."""
    return bool(context.meta.get(_VERBOSE))


def _plain(value: Any) -> Any:
    """A value that JSON can hold: numpy numbers as numbers, NaN as null, paths as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)


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
    """Set the level of the package's logger and its handlers while the command runs."""
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
    """Turn progress bars off, in an environment variable so that child processes see it."""
    before = os.environ.get(NO_BARS)
    os.environ[NO_BARS] = "off"
    try:
        yield
    finally:
        os.environ.pop(NO_BARS, None)
        if before is not None:
            os.environ[NO_BARS] = before
