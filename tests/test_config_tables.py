from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from hardsight.config import config_from, load_config
from hardsight.errors import ConfigError


@dataclass(frozen=True)
class Engine:
    SHORTHAND: ClassVar[str] = "name"
    name: str
    power: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Wheel:
    size: int = 3


@dataclass(frozen=True)
class Car:
    engine: Engine
    wheels: tuple[Engine, ...] = ()
    spare: Wheel = Wheel()
    doors: int | None = None


def car(**values):
    return config_from(Car, values, where="car.toml")


def test_a_table_becomes_its_dataclass():
    got = car(engine={"name": "diesel", "power": 2, "options": {"turbo": True}}, spare={"size": 4})
    assert got.engine == Engine("diesel", 2.0, {"turbo": True})
    assert got.spare == Wheel(4)


def test_a_plain_value_may_stand_for_a_table():
    assert car(engine="steam").engine == Engine("steam")


def test_one_value_may_stand_for_a_list_of_tables():
    assert car(engine="x", wheels="a").wheels == (Engine("a"),)
    assert car(engine="x", wheels={"name": "a"}).wheels == (Engine("a"),)
    assert car(engine="x", wheels=["a", {"name": "b"}]).wheels == (Engine("a"), Engine("b"))


def test_a_dataclass_that_is_made_already_is_taken_as_it_is():
    assert car(engine=Engine("x"), wheels=(Engine("y"),)).wheels == (Engine("y"),)


def test_an_unknown_key_in_a_table_is_answered_with_the_nearest():
    with pytest.raises(
        ConfigError, match=r"in car.toml, \[engine\]: unknown key 'powr'. Did you mean 'power'\?"
    ):
        car(engine={"name": "x", "powr": 3})


def test_a_value_of_the_wrong_type_in_a_table_is_named():
    with pytest.raises(ConfigError, match=r"\[engine\]: expected power to be float, got 'much'"):
        car(engine={"name": "x", "power": "much"})
    with pytest.raises(ConfigError, match=r"expected spare to be a table, got 4"):
        car(engine="x", spare=4)
    with pytest.raises(ConfigError, match=r"\[engine\]: expected name to be str, got 4"):
        car(engine=4)
    with pytest.raises(ConfigError, match=r"\[engine\]: the key 'name' is missing"):
        car(engine={})


def test_an_override_reaches_into_a_table(tmp_path):
    file = tmp_path / "car.toml"
    file.write_text('doors = 3\n[engine]\nname = "x"\n')
    got = load_config(Car, file, ["engine.power=4", "engine.options.turbo=true", "doors=5"])
    assert got == Car(Engine("x", 4.0, {"turbo": True}), doors=5)


def test_an_override_reaches_into_a_table_that_was_written_as_a_plain_value(tmp_path):
    (tmp_path / "car.toml").write_text("engine = 'x'\ndoors = 4\n")
    assert load_config(Car, tmp_path / "car.toml", ["engine.power=4"]).engine == Engine("x", 4.0)
    with pytest.raises(ConfigError, match=r"cannot apply 'doors.left=1': doors is 4, not a table"):
        load_config(Car, tmp_path / "car.toml", ["doors.left=1"])
