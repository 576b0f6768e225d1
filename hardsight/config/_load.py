"""Load settings from TOML and ``KEY=VALUE`` into frozen dataclasses, and check them."""

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
# keys of the metadata of a dataclass field, which hold the rules of a setting
_CHOICES, _CALLED, _ONLY_WITH, _OFF = "choices", "called", "only_with", "off"
_ONE_FOR_ALL = "one_for_all"
# the largest values of int64 and float32, which tensors have
_LARGEST_INT, _LARGEST_FLOAT = 2**63 - 1, 3.4028234e38
# cached, because annotations are text and evaluating them takes longer than everything else here
_types_of: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)


class FromFile:
    """Base of settings that are read from a file: a dataclass with the keys as its fields."""

    @classmethod
    def load(
        cls, file: str | os.PathLike[str] | None, overrides: Sequence[str] = (), **given: Any
    ) -> Self:
        """Load settings from a TOML file, ``KEY=VALUE`` overrides and keywords; the last wins."""
        return load_config(cls, file, overrides, given)


def load_config(
    kind: type[Config],
    file: str | os.PathLike[str] | None,
    overrides: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
) -> Config:
    """Load a ``kind`` from a TOML file, ``KEY=VALUE`` overrides and Python values, in this order.

    Args:
        kind: a frozen dataclass; its fields are the valid keys.
        file: TOML with those keys at top level; ``None`` for overrides alone.
        overrides: values in TOML syntax; a bare word is a string. ``optimizer.lr=0.1`` sets a key
            inside the table ``optimizer``.
        given: Python values, such as those of flags.

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
    # ``model = "resnet18"`` becomes a table first, so that an override such as ``model.head=fc``
    # can add a key to it
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
    """Make a ``kind`` from plain values, each checked against its field.

    Args:
        kind: a dataclass; its fields are the valid keys.
        values: the values by key.
        where: where the values were written, for error messages.
        base: where to take the values of missing keys from; by default from their own defaults.

    A field whose type is a dataclass takes a table. If that dataclass has ``SHORTHAND``, the name
    of one of its fields, a plain value stands for a table with only this field.

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
    # a base has every key, so with a base none can be missing
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
    """The defaults of all fields that have one, with tables as nested dictionaries.

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
        # a default of the whole table overrides the defaults of its keys
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = _plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = _plain(field.default_factory())
    return defaults


def _plain(value: Any) -> Any:
    """A value with dataclasses turned into dictionaries, also inside a tuple."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def toml_value(text: str) -> Any:
    """Parse a value in TOML syntax; a bare word is a string.

    Example:
        >>> toml_value("0.5"), toml_value("[1, 2]"), toml_value("cosine")
        (0.5, [1, 2], 'cosine')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _with_tables(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The values with each shorthand written out as its table, which overrides can then change."""
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
                f"cannot apply {override!r}: {name} is {inner!r}, not a table; write it as a table "
                "first"
            )
        values = inner
    values[last] = value


def _spread(value: Any, expected: Any, field: dataclasses.Field[Any]) -> Any:
    """Turn one number into a list of equal numbers, if the field accepts one for all."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and field.metadata.get(_ONE_FOR_ALL)):
        return value
    kinds = (expected, *typing.get_args(expected))
    items = next(typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is tuple)
    return [value] * sum(item is not Ellipsis for item in items)


def fitted(
    value: Any, expected: Any, key: str, where: str, default: Any = None, *, of: type | None = None
) -> Any:
    """Convert ``value`` to a type: lists become tuples, and whole numbers become floats.

    Args:
        value: the value as the user wrote it.
        expected: the type of the field or parameter, resolved.
        key: the name of the key, for error messages.
        where: where the value was written, for error messages.
        default: the default of the field; a table takes its missing keys from there.
        of: the class that has the key; an error message quotes its text about the key.

    Raises:
        ConfigError: the value is of another type.
    """
    options = (
        typing.get_args(expected)
        if typing.get_origin(expected) in (typing.Union, types.UnionType)
        else (expected,)
    )
    # options are tried in the order of the annotation, so that ``int | float`` keeps 3 an int
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
        # in Python a bool is an int, but ``epochs = true`` is a mistake
        if isinstance(value, origin) and isinstance(value, bool) == (origin is bool):
            return _computable(value, origin, key, where)
    names = [getattr(option, "__name__", str(option)) for option in options]
    wanted = " or ".join("list" if n == "tuple" else n for n in names if n != "NoneType")
    text = described_in(of.__doc__ or "", "Attributes").get(key) if of else None
    about = f" ({key}: {text.rstrip('.')})".replace("``", "") if text else ""
    raise ConfigError(f"in {where}: expected {key} to be {wanted}, got {value!r}{about}")


def _computable(value: Any, kind: Any, key: str, where: str) -> Any:
    """Return ``value``, or raise if it is a number too large for a tensor.

    Python and TOML have no largest integer, but torch does and would fail in the middle of a run.
    Infinity and NaN are left to the check of each setting, which knows what they would mean.
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
    """A nested table, made from a mapping or from the plain value that stands for it.

    Missing keys keep the value they have in the field's default, so ``retrain.epochs = 3`` leaves
    the learning rate of ``retrain`` alone. A table with another name, such as ``adam`` in place of
    ``sgd``, has defaults of its own.
    """
    if isinstance(value, kind):
        return value
    shorthand = getattr(kind, "SHORTHAND", None)
    if not isinstance(value, Mapping):
        if shorthand is None:
            raise ConfigError(f"in {where}: expected {key} to be a table, got {value!r}")
        value = {shorthand: value}
    # a table that does not name its kind has the kind of the default
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
    """A dataclass field with rules of its own, which :func:`check_settings` enforces.

    Args:
        default: the default of the field.
        choices: the allowed values; any value by default.
        called: what error messages call the field, if not by its name.
        only_with: the values of another key that this field needs to have an effect, by the name
            of that key. Next to other values it is an error: somebody who writes ``momentum`` next
            to ``adam`` expects something that would not happen.
        off: a value that is allowed anyway, because it says what happens without the field.
        one_for_all: whether one number may stand for a list of equal numbers.
    """
    rules = {
        _CHOICES: tuple(choices), _CALLED: called, _ONLY_WITH: only_with or {}, _OFF: off,
        _ONE_FOR_ALL: one_for_all,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=rules)


def check_settings(table: Any, *, where: str, stated: Collection[str] = ()) -> None:
    """Raise if a field has a value that is not allowed, or one that would have no effect.

    Args:
        table: a dataclass with fields made by :func:`setting`.
        where: where the table was written, for error messages.
        stated: keys that the user wrote down; a key whose value differs from its default counts
            as written down as well.

    Raises:
        ConfigError: a rule is broken; the message names the key and what it needs.
    """
    fields = dataclasses.fields(table)
    for field in fields:
        value, rules = getattr(table, field.name), field.metadata
        if rules.get(_CHOICES) and value not in rules[_CHOICES]:
            called = rules[_CALLED] or field.name
            raise ConfigError(f"in {where}: {unknown_name(called, value, list(rules[_CHOICES]))}")
    # after all choices: a misspelt ``name = "sdg"`` is reported itself, not as a wrong ``momentum``
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
    """The default of a field, or ``MISSING`` if it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
