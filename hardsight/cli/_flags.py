"""Make the flags of a command from the function or the settings class behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import click

from hardsight.cli._options import LOOKS, floats, names, pair
from hardsight.config import Stated, in_order, stated_in

Command = TypeVar("Command", bound=Callable[..., Any])


def flags_of(
    place: str,
    *keys: str,
    without: Sequence[str] = (),
    first: Sequence[str] = (),
    last: Sequence[str] = (),
    names_of: Mapping[str, str] | None = None,
    defaults: bool = True,
    **options: Mapping[str, Any],
) -> Callable[[Command], Command]:
    """Give a command a flag for each setting of a function or class, or for some of them.

    A flag has the type of its setting, and the setting's text as its help. A flag that is not
    given on the command line is not passed to the function, which has its own default.

    Args:
        place: the function or class, as :func:`hardsight.config.stated_in` takes it.
        keys: the settings, in the order of the help; all of them by default.
        without: settings without a flag.
        first: settings that come first in the help; the others follow in their order.
        last: settings that come last in the help.
        names_of: by the name of a setting, another name for its flag.
        defaults: whether the help shows the defaults; turn it off if a file overrides them.
        options: by the name of a setting, options of click such as ``type`` or ``help``, which
            replace those made from the setting.

    Example:
        >>> @flags_of("run/score/_score.py:score", "split", "batch_size")
        ... def command(**flags): ...
        >>> [option.opts for option in reversed(command.__click_params__)]
        [['--split'], ['--batch-size']]
    """
    stated = stated_in(place)
    chosen = keys or in_order((key for key in stated if key not in without), first, last)
    called = names_of or {}

    def decorated(command: Command) -> Command:
        for key in reversed(chosen):
            made = {"help": help_text(stated[key], default=defaults), **_look_of(stated[key])}
            command = _flag(called.get(key, key), made | dict(options.get(key, {})))(command)
        return command

    return decorated


class StatedOption(click.Option):
    """A flag whose help is the text of a setting, with names of settings turned into flags."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The flag and its help, as click prints them."""
        text = self.help
        # only here is the command known, and with it which words in the text are its flags
        self.help = None if text is None else said_of_flags(text, _names_in(ctx.command))
        try:
            return super().get_help_record(ctx)
        finally:
            self.help = text


def help_text(stated: Stated, *, default: bool = True) -> str:
    """The text of a setting as a sentence that ends with the default; names stay in backquotes.

    Example:
        >>> help_text(Stated("n", "int", 7, "pictures in ``out``; 0 for none."))
        'Pictures in ``out``; 0 for none (7).'
    """
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", stated.said)  # :func:`hardsight.score`
    if not text.startswith("``"):  # a value is written as it is
        text = text[:1].upper() + text[1:]
    text, value = text.rstrip("."), stated.default if default else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        text += f" ({value})"
    elif isinstance(value, str):
        text = text.replace(f"``{value}``", f"``{value}`` (default)", 1)
    return f"{text}."


def said_of_flags(text: str, names: Collection[str]) -> str:
    """A help text with settings written as flags, and without backquotes.

    Example:
        >>> said_of_flags("Pictures in ``out``; ``all`` for all.", ["out"])
        'Pictures in --out; all for all.'
    """
    for name in names:
        text = text.replace(f"``{name}``", "--" + name.replace("_", "-"))
    return re.sub(r'``"?(.*?)"?``', r"\1", text)


def _names_in(command: click.Command) -> list[str]:
    return [option.name or "" for option in command.params if isinstance(option, click.Option)]


def _flag(name: str, options: dict[str, Any]) -> Callable[[Command], Command]:
    flag = "--" + name.replace("_", "-")
    if options.pop("is_either", False):
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    return click.option(flag, name, cls=StatedOption, **options)


def _look_of(stated: Stated) -> dict[str, Any]:
    """Options of click for a setting, by its type and by its name; the name has the last word."""
    return _by_type(stated) | LOOKS.get(stated.name, {})


def _by_type(stated: Stated) -> dict[str, Any]:
    kinds = [kind for kind in stated.kinds if kind is not None]
    if tuple[int, int] in kinds:
        return {"callback": pair, "metavar": "H[xW]"}
    if tuple[float, ...] in kinds:
        return {"callback": floats, "metavar": "X[,X,X]"}
    if tuple[str, ...] in kinds:
        return {"multiple": True, "callback": names, "metavar": "NAME[,NAME]"}
    if bool in kinds and None in stated.kinds:  # --squash, --no-squash, or neither
        return {"is_either": True, "default": None}
    if bool in kinds:
        return {"is_flag": True, "default": None}
    return {"type": next((kind for kind in (str, int, float) if kind in kinds), str)}
