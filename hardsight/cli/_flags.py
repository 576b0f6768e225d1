"""Flags of a command, made from what the function or the settings behind it state."""

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
    """Give a command a flag for every setting that a place states, or for some of them.

    The type of a flag is that of the setting, its help the setting's own text. A flag that is left
    out is not given to the function, which has its own default.

    Args:
        place: as :func:`hardsight.config.stated_in` takes it.
        keys: the settings, in the order of the help; all of them by default.
        without: settings without a flag.
        first: those that the help names first; the others follow in their order.
        last: those that the help names last.
        names_of: other names for flags, by the setting's name.
        defaults: whether the help names the defaults; not if a file decides before them.
        options: by the name of a setting, what click cannot know, such as ``type`` or ``help``.

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
    """A flag whose help is a setting's own text, with the names of flags in place of settings'."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Flag and help, as click prints them."""
        told = self.help
        self.help = None if told is None else said_of_flags(told, _names_in(ctx.command))
        try:
            return super().get_help_record(ctx)
        finally:
            self.help = told


def help_text(stated: Stated, *, default: bool = True) -> str:
    """What a setting is, as a sentence with the default at its end; names of settings are marked.

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
    """A help with the names of flags, and without marks.

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
    """Options of click for the type of a setting, and for what its name means everywhere."""
    return _by_type(stated) | LOOKS.get(stated.name, {})


def _by_type(stated: Stated) -> dict[str, Any]:
    kinds = [kind for kind in stated.kinds if kind is not None]
    if tuple[int, int] in kinds:
        return {"callback": pair, "metavar": "H[xW]"}
    if tuple[float, ...] in kinds:
        return {"callback": floats, "metavar": "X[,X,X]"}
    if tuple[str, ...] in kinds:
        return {"multiple": True, "callback": names, "metavar": "NAME[,NAME]"}
    if bool in kinds and None in stated.kinds:  # yes, no, or as the model says
        return {"is_either": True, "default": None}
    if bool in kinds:
        return {"is_flag": True, "default": None}
    return {"type": next((kind for kind in (str, int, float) if kind in kinds), str)}
