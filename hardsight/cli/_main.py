from __future__ import annotations

import errno
import importlib
import sys
import traceback
from typing import Any

import click

import hardsight
from hardsight.cli._command import is_verbose, tell_failure
from hardsight.errors import (
    ConfigError,
    HardsightError,
    MissingDataError,
    OptionError,
    UnknownNameError,
)

_WORDS = "hardsight.words"  # the words of the command line

# errors in what the user typed exit with 2, as click does for a wrong flag; other failures with 1
_USAGE = (ConfigError, MissingDataError, OptionError, UnknownNameError)

_OF_THE_SYSTEM = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)

# command -> its module, imported only when the command runs or shows its help, and its summary,
# which `hardsight --help` can then show without importing fifteen modules
_COMMANDS = {
    "demo": ("hardsight.cli._demo", "train, score and report on built-in data, offline"),
    "score": ("hardsight.cli._score", "any model + any labelled data -> one table"),
    "train": ("hardsight.cli._train", "a recipe (TOML) -> a trained model that can be scored"),
    "adapt": ("hardsight.cli._adapt", "self-training to a domain without labels"),
    "report": ("hardsight.cli._report", "a table -> one self-contained HTML file"),
    "review": ("hardsight.cli._review", "look at the suspects and fix labels in the browser"),
    "patch": ("hardsight.cli._patch", "decisions -> a patch; a patch -> a corrected copy"),
    "export": ("hardsight.cli._export", "a run -> Hugging Face, Label Studio, FiftyOne, cleanlab"),
    "queue": ("hardsight.cli._queue", "a model + a pool without labels -> what to label next"),
    "select": ("hardsight.cli._select", "a table -> the rows worth keeping"),
    "evaluate": ("hardsight.cli._evaluate", "one card: accuracy, OOD, calibration, attacks, maps"),
    "study": ("hardsight.cli._study", "scores against people, degradation levels and epochs"),
    "experiment": ("hardsight.cli._experiment", "the papers' tables and figures, reproduced"),
    "cache": ("hardsight.cli._cache", "decoded pictures on disk: list them or delete them"),
    "doctor": ("hardsight.cli._doctor", "versions, devices, optional parts and what is missing"),
}


class _WrongUsage(click.ClickException):
    exit_code = 2


class _Lazy(click.Group):
    """A group that imports a command when it is used, and prints errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_COMMANDS[name][0]), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from hardsight.registry import unknown_name

        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            ctx.fail(unknown_name("command", args[0], list(_COMMANDS)))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return self._in_words(ctx)
        except click.ClickException as err:
            told = _pointed_to_recipe(err) if ctx.invoked_subcommand == "train" else err
            tell_failure(ctx, ctx.meta[_WORDS], told)
            raise told from err.__cause__

    def _in_words(self, ctx: click.Context) -> Any:
        """Run the command, and turn our errors into those that click prints in one line."""
        from hardsight.cli._notices import spoken

        try:
            with spoken():
                return super().invoke(ctx)
        except SystemExit as err:
            if err.code:  # already a failure
                raise
            # click ends a successful command without SystemExit, so this came from users' code;
            # left alone, it would look like success to a script
            raise click.ClickException(
                "the model or the data called sys.exit (SystemExit), so the work was not finished; "
                "remove the call"
            ) from err
        except UnicodeError as err:
            # file names that the locale cannot read as UTF-8 cannot be written into tables
            if sys.getfilesystemencoding().lower().replace("-", "") == "utf8":
                raise
            raise click.ClickException(
                f"a name cannot be read or written as UTF-8, because this locale encodes names as "
                f"{sys.getfilesystemencoding()}; run it again with PYTHONUTF8=1"
            ) from err
        except HardsightError as err:
            if is_verbose(ctx):
                click.echo(traceback.format_exc(), err=True)
            raise (_WrongUsage if isinstance(err, _USAGE) else click.ClickException)(
                str(err)
            ) from err
        except OSError as err:
            # what this user may not read or write, and full disks, are not faults of ours
            if err.errno not in _OF_THE_SYSTEM:
                raise
            if is_verbose(ctx):
                click.echo(traceback.format_exc(), err=True)
            raise click.ClickException(_denied(err)) from err


def _pointed_to_recipe(err: click.ClickException) -> click.ClickException:
    """The error, which says where a recipe has what others take as ``--data`` or ``--model``."""
    if not isinstance(err, click.NoSuchOption):
        return err
    key = {"--data": "data.name", "--model": "model.name"}.get(err.option_name)
    if key is None:
        return err
    said = f"the recipe says it, as {key}; --set '{key}=\"...\"' changes it"
    return click.UsageError(f"No such option {err.option_name!r}: {said}", ctx=err.ctx)


def _denied(err: OSError) -> str:
    place = err.filename or "a file"
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write {place}: {err.strerror}; free some space and run again"
    return (
        f"cannot read or write {place}: {err.strerror}; ask for the rights to it, or work in a "
        "copy of your own"
    )


_HELP = "Which examples does your classifier find hard, and why?"
# the \b keeps click from rewrapping the lines below it
_EPILOG = """\b
Start here:
  hardsight demo        # see it all, offline, in a minute
  hardsight train recipe.toml
  hardsight score --model net.py:make --weights w.safetensors --data photos/ \\
                  --out run
  hardsight review run  # look at the suspects, fix their labels
  hardsight report run  # then open run/report.html
"""


# help as wide as the terminal, up to 100 columns; click's own limit of 80 makes it much longer
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_Lazy, help=_HELP, epilog=_EPILOG, context_settings=_SETTINGS)
@click.version_option(hardsight.__version__, prog_name="hardsight")
def main() -> None:
    """Show ``_HELP``; click takes the help from there."""
