"""Settings as frozen dataclasses, held to their rules: from TOML, then from ``KEY=VALUE``."""

from __future__ import annotations

import dataclasses
import math
import os
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

from hardsight.config._stated import described_in
from hardsight.errors import ConfigError, MissingDataError
from hardsight.registry import nearest_name, unknown_name

Config = TypeVar("Config")
# what the rules of a setting are called in the metadata of its field
_CHOICES, _CALLED, _ONLY_WITH, _OFF = "choices", "called", "only_with", "off"
_ONE_FOR_ALL = "one_for_all"
# the ends of the types that tensors have: int64 and float32
_LARGEST_INT, _LARGEST_FLOAT = 2**63 - 1, 3.4028234e38
# annotations are text, and evaluating them takes longer than all else here
_types_of: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)


class FromFile:
    """Base of settings that are read from a file: a dataclass with the keys as its fields."""

    @classmethod
    def load(
        cls, file: str | os.PathLike[str] | None, overrides: Sequence[str] = (), **given: Any
    ) -> Self:
        """Settings from a TOML file, ``KEY=VALUE`` overrides and keywords, the last one winning."""
        return load_config(cls, file, overrides, given)


def load_config(
    kind: type[Config],
    file: str | os.PathLike[str] | None,
    overrides: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
) -> Config:
    """A ``kind`` from a TOML file, then from ``KEY=VALUE`` overrides, then from given values.

    Args:
        kind: a frozen dataclass; its fields are the valid keys.
        file: TOML with those keys at top level; ``None`` for overrides alone.
        overrides: values in TOML syntax; a bare word is a string. ``optimizer.lr=0.1`` reaches
            into the table ``optimizer``.
        given: values as Python has them, such as those of flags.

    Raises:
        MissingDataError: there is no such file.
        ConfigError: a key is unknown, missing or has a value of the wrong type.
    """
    values: dict[str, Any] = {}
    if file is not None:
        path = Path(file)
        if not path.is_file():
            raise MissingDataError(f"no config file at {path}")
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
            raise ConfigError(f"{path} is not valid TOML: {err}") from err
    # overrides reach into tables, so a plain value that stands for one becomes it first
    values = _with_tables(kind, values)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"expected KEY=VALUE, got {override!r}")
        _put(values, key.strip(), toml_value(text.strip()), override)
    values.update(given or {})
    return config_from(kind, values, where=str(file) if file else "the settings")


def config_from(
    kind: type[Config], values: Mapping[str, Any], *, where: str, base: Config | None = None
) -> Config:
    """A ``kind`` from plain values, each checked against its field.

    Args:
        kind: a dataclass; its fields are the valid keys.
        values: by key.
        where: where they were written, in words.
        base: has the values of the keys that are left out; their own defaults by default.

    A field whose type is a dataclass takes a table. If that dataclass states ``SHORTHAND``, the
    name of one of its fields, a plain value stands for a table with this field alone.

    Raises:
        ConfigError: a key is unknown, missing or has a value of the wrong type.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> config_from(Point, {"x": 3}, where="here")
        Point(x=3, y=0)
        >>> config_from(Point, {"x": 3, "yy": 1}, where="here")
        Traceback (most recent call last):
        hardsight.errors.ConfigError: in here: unknown key 'yy'. Did you mean 'y'? Known: x, y
    """
    assert dataclasses.is_dataclass(kind)
    types_of = _types_of(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    checked = {}
    for key, value in values.items():
        if key not in fields:
            raise ConfigError(
                f"in {where}: {unknown_name('key', key, list(fields))}{_under_options(key, fields)}"
            )
        default = default_of(fields[key]) if base is None else getattr(base, key)
        value = _spread(value, types_of[key], fields[key])
        checked[key] = fitted(value, types_of[key], key, where, default, of=kind)
    # a base has every key: beside it none can be missing
    known = checked
    if base is not None:
        known = {**{name: getattr(base, name) for name in fields}, **checked}
    for name, field in fields.items():
        if default_of(field) is dataclasses.MISSING and name not in known:
            raise ConfigError(f"in {where}: the key {name!r} is missing")
    made = typing.cast(Config, kind(**known))
    check_settings(made, where=where, stated=checked)
    return made


def _under_options(key: str, known: Iterable[str]) -> str:
    """Where a key belongs that is not one of ours: a loss and a network have options of theirs."""
    if "options" not in known or nearest_name(key, list(known)) is not None:
        return ""
    return f". If it is an option of what is named there, write it as options = {{{key} = ...}}"


def defaults_of(kind: type[Any]) -> dict[str, Any]:
    """The values of all fields that have one by default, tables as nested dictionaries.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> defaults_of(Point)
        {'y': 0}
    """
    types_of = _types_of(kind)
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        table = types_of[field.name]
        if dataclasses.is_dataclass(table):
            defaults[field.name] = defaults_of(typing.cast(type[Any], table))
        # a default of the table as a whole goes over those of its keys
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = _plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = _plain(field.default_factory())
    return defaults


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries, also in a list of them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def toml_value(text: str) -> Any:
    """A value in TOML syntax; a bare word is a string.

    Example:
        >>> toml_value("0.5"), toml_value("[1, 2]"), toml_value("cosine")
        (0.5, [1, 2], 'cosine')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _with_tables(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Plain values that stand for a table as that table, so that overrides reach into it."""
    types_of = _types_of(kind)
    tables = dict(values)
    for key, value in values.items():
        shorthand = getattr(types_of.get(key), "SHORTHAND", None)
        if shorthand is not None and not isinstance(value, Mapping):
            tables[key] = {shorthand: value}
    return tables


def _put(values: dict[str, Any], key: str, value: Any, override: str) -> None:
    """Set ``a.b.c`` in nested tables, making those that are missing."""
    *above, last = key.split(".")
    for name in above:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"cannot apply {override!r}: {name} is {inner!r}, no table; write it as a table "
                "first"
            )
        values = inner
    values[last] = value


def _spread(value: Any, expected: Any, field: dataclasses.Field[Any]) -> Any:
    """A number as the list that it may stand for: of as many as there have to be, or of one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and field.metadata.get(_ONE_FOR_ALL)):
        return value
    kinds = (expected, *typing.get_args(expected))
    items = next(typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is tuple)
    return [value] * sum(item is not Ellipsis for item in items)


def fitted(
    value: Any, expected: Any, key: str, where: str, default: Any = None, *, of: type | None = None
) -> Any:
    """``value`` as a type wants it; lists become tuples, whole numbers may stand for floats.

    Args:
        value: as somebody wrote it.
        expected: the type of the field or the parameter, resolved.
        key: what it is called.
        where: where it was written, in words.
        default: of the field; a table that leaves keys out takes those of its default.
        of: the table whose key it is; a refusal quotes what that says about the key.

    Raises:
        ConfigError: the value is of another type.
    """
    options = (
        typing.get_args(expected)
        if typing.get_origin(expected) in (typing.Union, types.UnionType)
        else (expected,)
    )
    # the order is that of the annotation: ``int | float`` keeps 3 whole
    for option in options:
        origin = typing.get_origin(option) or option
        if dataclasses.is_dataclass(origin):
            return _fitted_table(value, origin, key, where, default)
        if origin is tuple and isinstance(value, list | tuple):
            return _fitted_tuple(value, typing.get_args(option), key, where)
        # a single table may stand for a list of one, as a single loss does
        if origin is tuple and dataclasses.is_dataclass(typing.get_args(option)[0]):
            return _fitted_tuple([value], typing.get_args(option), key, where)
        if origin is float and isinstance(value, int) and not isinstance(value, bool):
            return float(_computable(value, float, key, where))
        # to Python, true is the number 1; to somebody who writes it, it is not
        if isinstance(value, origin) and isinstance(value, bool) == (origin is bool):
            return _computable(value, origin, key, where)
    names = [getattr(option, "__name__", str(option)) for option in options]
    wanted = " or ".join("list" if n == "tuple" else n for n in names if n != "NoneType")
    text = described_in(of.__doc__ or "", "Attributes").get(key) if of else None
    about = f" ({key}: {text.rstrip('.')})".replace("``", "") if text else ""
    raise ConfigError(f"in {where}: expected {key} to be {wanted}, got {value!r}{about}")


def _computable(value: Any, kind: Any, key: str, where: str) -> Any:
    """``value``, unless it is a number that tensors cannot hold.

    Python and TOML know no largest number; torch does, and would stop at it in the middle of a run.
    Infinity and NaN are left to the checks of each setting, which know what they would mean.
    """
    largest = {int: _LARGEST_INT, float: _LARGEST_FLOAT}.get(kind)
    if largest is not None and largest < abs(value) < math.inf:
        raise ConfigError(
            f"in {where}: expected {key} to be a number of at most {largest:.3g} in size, "
            f"got {_short(value)}"
        )
    return value


def _short(number: float) -> str:
    try:
        return f"{number:.3g}"
    except OverflowError:  # a whole number beyond the largest float
        return f"one of {len(str(abs(number)))} digits"


def _fitted_table(value: Any, kind: Any, key: str, where: str, default: Any) -> Any:
    """A nested table, or the plain value that may stand for it.

    Keys that a table leaves out are those of the field's default: ``retrain.epochs = 3`` leaves the
    learning rate of ``retrain`` alone. A table of another name (``adam`` instead of ``sgd``) is
    another thing, and has defaults of its own.
    """
    if isinstance(value, kind):
        return value
    shorthand = getattr(kind, "SHORTHAND", None)
    if not isinstance(value, Mapping):
        if shorthand is None:
            raise ConfigError(f"in {where}: expected {key} to be a table, got {value!r}")
        value = {shorthand: value}
    # a table without a name is one of the default's kind
    named = getattr(default, "name", None)
    base = default if isinstance(default, kind) and value.get("name", named) == named else None
    return config_from(kind, value, where=f"{where}, [{key}]", base=base)


def _fitted_tuple(value: Sequence[Any], items: tuple[Any, ...], key: str, where: str) -> Any:
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(fitted(item, items[0], key, where) for item in value)
    if len(items) != len(value):
        raise ConfigError(
            f"in {where}: expected {key} to have {len(items)} values, got {list(value)}"
        )
    return tuple(fitted(item, kind, key, where) for item, kind in zip(value, items, strict=True))


def setting(
    default: Any,
    *,
    choices: Sequence[str] = (),
    called: str = "",
    only_with: Mapping[str, Sequence[Any]] | None = None,
    off: Any = dataclasses.MISSING,
    one_for_all: bool = False,
) -> Any:
    """A field of a table with rules of its own, which :func:`check_settings` enforces.

    Args:
        default: of the field.
        choices: the values it may have; any by default.
        called: what a message calls it, if that is not its name.
        only_with: by another key of the table, the values beside which this field plays a part.
            To state it beside another value is refused: who writes ``momentum`` next to ``adam``
            expects something that would not happen.
        off: a value that may be stated all the same, because it says what happens anyway.
        one_for_all: one number may be written in place of a list of equal ones.
    """
    rules = {
        _CHOICES: tuple(choices), _CALLED: called, _ONLY_WITH: only_with or {}, _OFF: off,
        _ONE_FOR_ALL: one_for_all,
    }  # fmt: skip
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
    # after all choices, so that a misspelt value is not blamed on the key beside it
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
