"""Rules of single settings: which values one may have, and beside which others it plays a part."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hardsight.errors import ConfigError
from hardsight.registry import unknown_name

_CHOICES, _CALLED, _ONLY_WITH, _OFF = "choices", "called", "only_with", "off"


def setting(
    default: Any,
    *,
    choices: Sequence[str] = (),
    called: str = "",
    only_with: Mapping[str, Sequence[Any]] | None = None,
    off: Any = dataclasses.MISSING,
) -> Any:
    """A field of a table with rules of its own, which :func:`check_settings` enforces.

    Args:
        default: of the field.
        choices: the values it may have; any by default.
        called: what a message calls it, where that is not its name.
        only_with: by another key of the table, the values beside which this field plays a part.
            To state it beside another value is refused: who writes ``momentum`` next to ``adam``
            expects something that would not happen.
        off: a value that may be stated all the same, because it says what happens anyway.
    """
    rules = {_CHOICES: tuple(choices), _CALLED: called, _ONLY_WITH: only_with or {}, _OFF: off}
    return dataclasses.field(default=default, metadata=rules)


def check_settings(table: Any, *, where: str, stated: Collection[str] = ()) -> None:
    """Raise if a field has a value it may not have, or one that would play no part.

    Args:
        table: a dataclass whose fields may be made by :func:`setting`.
        where: the table, in words.
        stated: keys that somebody wrote down; those with another value than their default count
            in any case.

    Raises:
        ConfigError: names the key, and what it needs.
    """
    fields = dataclasses.fields(table)
    for field in fields:
        value, rules = getattr(table, field.name), field.metadata
        if rules.get(_CHOICES) and value not in rules[_CHOICES]:
            called = rules[_CALLED] or field.name
            raise ConfigError(f"in {where}: {unknown_name(called, value, list(rules[_CHOICES]))}")
    for field in fields:
        value, rules = getattr(table, field.name), field.metadata
        is_stated = field.name in stated or value != default_of(field)
        if not is_stated or value == rules.get(_OFF, dataclasses.MISSING):
            continue
        for other, values in rules.get(_ONLY_WITH, {}).items():
            if getattr(table, other) not in values:
                raise ConfigError(f"in {where}: {_without_part(table, field.name, other, values)}")


def _without_part(table: Any, key: str, other: str, values: Sequence[Any]) -> str:
    said = f"{key} plays no part with {other} = {getattr(table, other)!r}"
    if None in values:
        return f"{said}; leave one of them out"
    return f"{said}, only with {' or '.join(map(repr, values))}; leave it out"


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field; ``MISSING`` if it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
