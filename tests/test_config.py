import dataclasses
from dataclasses import dataclass

import pytest

from hardsight.config import config_from, load_config
from hardsight.errors import ConfigError, MissingDataError


@dataclass(frozen=True)
class Settings:
    data: str
    rate: float = 0.1
    epochs: int = 3
    strict: bool = False
    size: tuple[int, int] | None = None
    scores: tuple[str, ...] | None = None
    mean: tuple[float, ...] = (0.0,)
    limit: int | str | None = None


def file_with(tmp_path, text):
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_then_overrides_then_given_values_win(tmp_path):
    file = file_with(tmp_path, 'data = "a"\nepochs = 5\nrate = 0.5\nstrict = true\n')
    got = load_config(Settings, file, ["epochs=7", "rate=0.7"], {"rate": 0.9})
    assert got == Settings(data="a", rate=0.9, epochs=7, strict=True)


def test_defaults_stand_where_nothing_is_said():
    assert load_config(Settings, None, ["data=x"]) == Settings(data="x")


def test_overrides_are_toml_and_a_bare_word_is_text():
    got = load_config(
        Settings,
        None,
        ["data=builtin:digits", "size=[32, 48]", 'scores=["avh", "el2n"]', " rate = 1 "],
    )
    assert got == Settings(data="builtin:digits", rate=1.0, size=(32, 48), scores=("avh", "el2n"))
    assert isinstance(got.rate, float)


def test_an_override_may_hold_an_equals_sign_and_may_be_empty():
    assert load_config(Settings, None, ["data=a=b"]).data == "a=b"
    assert load_config(Settings, None, ["data="]).data == ""


def test_lists_become_tuples_and_whole_numbers_floats_inside_them(tmp_path):
    got = load_config(Settings, file_with(tmp_path, 'data = "a"\nmean = [1, 0.5]\n'))
    assert got.mean == (1.0, 0.5)
    assert [type(value) for value in got.mean] == [float, float]


def test_a_union_takes_each_of_its_types():
    assert load_config(Settings, None, ["data=x", "limit=3"]).limit == 3
    assert load_config(Settings, None, ["data=x", "limit=all"]).limit == "all"
    assert load_config(Settings, None, ["data=x"], {"limit": None}).limit is None


def test_the_result_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_config(Settings, None, ["data=x"]).data = "y"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=x", "epocs=3"], r"unknown key 'epocs'\. Did you mean 'epochs'\? Known: data,"),
        (["epochs=3"], "in the settings: the key 'data' is missing"),
        (["data=x", "epochs"], "expected KEY=VALUE, got 'epochs'"),
        (["data=x", "epochs=many"], "expected epochs to be int, got 'many'"),
        (["data=x", "epochs=1.5"], "expected epochs to be int, got 1.5"),
        (["data=x", "epochs=true"], "expected epochs to be int, got True"),
        (["data=x", "strict=1"], "expected strict to be bool, got 1"),
        (["data=x", "rate=true"], "expected rate to be float, got True"),
        (["data=3"], "expected data to be str, got 3"),
        (["data=x", "size=[1, 2, 3]"], r"expected size to have 2 values, got \[1, 2, 3\]"),
        (["data=x", 'size=["a", 2]'], "expected size to be int, got 'a'"),
        (["data=x", "scores=avh"], "expected scores to be list, got 'avh'"),
        (["data=x", "limit=1.5"], "expected limit to be int or str, got 1.5"),
    ],
)
def test_a_wrong_setting_is_named(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(Settings, None, overrides)


def test_a_wrong_setting_in_a_file_names_the_file(tmp_path):
    file = file_with(tmp_path, 'data = "a"\nrat = 3\n')
    with pytest.raises(ConfigError, match=r"config\.toml: unknown key 'rat'. Did you mean 'rate'"):
        load_config(Settings, file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"no config file at .*gone\.toml"):
        load_config(Settings, tmp_path / "gone.toml")


def test_a_folder_is_no_config_file(tmp_path):
    with pytest.raises(MissingDataError, match="no config file at"):
        load_config(Settings, tmp_path)


def test_a_file_that_is_no_toml_is_named_with_the_place(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.toml is not valid TOML: .*line 1"):
        load_config(Settings, file_with(tmp_path, "data = = 3"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.toml is not valid TOML"):
        load_config(Settings, tmp_path / "binary.toml")


def test_a_value_of_another_type_is_told_what_the_key_is_for():
    @dataclass(frozen=True)
    class Split:
        """Where examples come from.

        Attributes:
            held_out: name of a split,
                such as ``val``.
        """

        held_out: str | None = None

    expected = r"held_out to be str, got 0\.2 \(held_out: name of a split, such as val\)$"
    with pytest.raises(ConfigError, match=expected):
        config_from(Split, {"held_out": 0.2}, where="here")


def test_plain_values_are_checked_in_the_same_way():
    assert config_from(Settings, {"data": "x", "size": [1, 2]}, where="here").size == (1, 2)
    with pytest.raises(ConfigError, match="in here: expected epochs to be int, got None"):
        config_from(Settings, {"data": "x", "epochs": None}, where="here")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs=100000000000000000000", "epochs to be a number of at most 9.22e.18"),
        ("rate=1e300", "rate to be a number of at most 3.4e.38 in size, got 1e.300"),
        ("rate=-1e300", "rate .* got -1e.300"),
        (f"rate={10**400}", "rate .* got one of 401 digits"),
        ("mean=[0.5, 1e39]", "mean .* got 1e.39"),
        ("limit=-100000000000000000000", "limit .* got -1e.20"),
    ],
)
def test_a_number_that_no_tensor_can_hold_is_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(Settings, None, ["data=x", override])


def test_the_largest_numbers_and_infinity_are_left_to_the_checks_of_each_setting():
    got = load_config(Settings, None, ["data=x", f"epochs={2**63 - 1}", "rate=inf"])
    assert (got.epochs, got.rate) == (2**63 - 1, float("inf"))
