"""Make the settings of a function from its signature and its docstring."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hardsight.config._load import FromFile
from hardsight.config._stated import MISSING, Stated, in_order, stated_in


class Settings(FromFile):
    """Base of a frozen dataclass whose fields are the keywords of a function.

    A subclass names the function, ``of="run/score/_score.py:score"``, and keywords that a file
    cannot have, ``without=("preprocessing",)``. The types are those of the signature that TOML can
    express, and the class documents each field as the function does. The subclass can redefine
    fields. Fields are in the order of the signature, except for those in ``first`` and ``last``.
    """

    if TYPE_CHECKING:  # the fields are made below

        def __init__(self, **values: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(
        cls, *, of: str, without: Sequence[str] = (), first: Sequence[str] = (),
        last: Sequence[str] = (),
    ) -> None:  # fmt: skip
        # ``cls.__annotations__`` would return those of the base if the class has none
        own = inspect.get_annotations(cls)
        keywords = {name: each for name, each in stated_in(of).items() if name not in without}
        fields = {name: _field(each) for name, each in keywords.items() if name not in own}
        for name in own:
            fields[name] = (own[name], cls.__dict__.get(name, MISSING))
        ordered = {name: fields[name] for name in in_order(fields, first, last)}
        cls.__annotations__ = {name: kind for name, (kind, _) in ordered.items()}
        for name, (_, default) in ordered.items():
            if default is not MISSING:
                setattr(cls, name, default)
        cls.__doc__ = _documented(cls.__doc__ or "", [keywords[n] for n in ordered if n not in own])
        dataclasses.dataclass(frozen=True)(cls)

    def keywords(self) -> dict[str, Any]:
        """The settings by name, as the function takes them."""
        return {name: getattr(self, name) for name in type(self).__annotations__}


def _field(stated: Stated) -> tuple[Any, Any]:
    """The type and the default of a field."""
    kinds = stated.kinds
    if not any(kind is not None for kind in kinds):
        raise TypeError(f"{stated.name}: {stated.annotation} is not a type that a file can hold")
    default = stated.default
    # a positional parameter that may be None has no default in Python, and need not be in a file
    if default is MISSING and None in kinds:
        default = None
    if default is None and None not in kinds:  # the annotation is ``Any``
        kinds = (*kinds, None)
    return functools.reduce(operator.or_, kinds), default


def _documented(docstring: str, settings: Sequence[Stated]) -> str:
    """The docstring of a class with the function's texts about its fields added."""
    lines = [inspect.cleandoc(docstring)]
    lines += [] if "Attributes:" in docstring else ["", "Attributes:"]
    for each in settings:
        text = textwrap.fill(f"{each.name}: {each.said}", 92, subsequent_indent="    ")
        lines.append(textwrap.indent(text, "    "))
    return "\n".join(lines) + "\n"
