"""A setting is stated once: signature, settings class, TOML file, flag and help say the same."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import typing
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import hardsight
from hardsight.cli import main
from hardsight.config import EvaluateKeys, ScoreKeys, Settings, in_order, stated_in
from hardsight.errors import ConfigError
from hardsight.run.adapt import AdaptConfig, StageConfig, TargetConfig
from hardsight.run.evaluate import EvaluateConfig, evaluation_card
from hardsight.run.score import ScoreConfig, score
from hardsight.run.study import study_degradation, study_dynamics, study_human
from hardsight.run.train import (
    AdversarialConfig,
    AugmentConfig,
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    SamplingConfig,
    ScheduleConfig,
    TrainConfig,
)

FUNCTIONS = {
    "run/score/_score.py:score": score,
    "run/evaluate/_card.py:evaluation_card": evaluation_card,
    "run/study/_study.py:study_human": study_human,
    "run/study/_study.py:study_degradation": study_degradation,
    "run/study/_study.py:study_dynamics": study_dynamics,
}
TABLES = {
    "run/train/_config.py": (
        TrainConfig, ModelConfig, DataConfig, LossConfig, OptimizerConfig, ScheduleConfig,
        AugmentConfig, AdversarialConfig, SamplingConfig,
    ),
    "run/adapt/_config.py": (AdaptConfig, TargetConfig, StageConfig),
}  # fmt: skip
# settings class, function, keywords that a file cannot have, fields of its own
DERIVED = [
    (ScoreConfig, score, {"preprocessing", "show_progress"}, set()),
    (
        EvaluateConfig,
        evaluation_card,
        {"models", "preprocessing", "show_progress"},
        {"model", "compare", "ood", "weights"},
    ),
]
EDITOR_SHOWS = {ScoreConfig: ScoreKeys, EvaluateConfig: EvaluateKeys}
COMMANDS = {
    "score": ScoreConfig, "evaluate": EvaluateConfig, "train": TrainConfig, "adapt": AdaptConfig,
}  # fmt: skip
# flags that reach into a table, and keys that only a file or --set has
INSIDE = {
    "train": {"data_root"},
    "adapt": {
        "weights", "source_split", "target_split", "unlabelled", "source_epochs", "epochs",
        "data_root", "model_classes", "class_order", "trust_remote_code",
        "size", "crop", "squash", "channels", "mean", "std", "white",
    },
}  # fmt: skip
FROM_TEXT = {"overrides", "config", "recipe", "help", "runs", "table"}


@pytest.mark.parametrize(("made", "shown"), EDITOR_SHOWS.items())
def test_an_editor_shows_the_settings_there_are_with_their_types(made, shown):
    assert typing.get_type_hints(shown) == typing.get_type_hints(made)
    missing = dataclasses.MISSING
    required = {field.name for field in dataclasses.fields(made) if field.default is missing}
    assert shown.__required_keys__ == required


def test_the_arguments_of_score_have_the_types_of_its_signature():
    file = Path(hardsight.__file__).parent / "run/score/_arguments.py"
    classes = [
        node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.ClassDef)
    ]
    (arguments,) = (node for node in classes if node.name == "ScoreArguments")
    fields = [field for field in arguments.body if isinstance(field, ast.AnnAssign)]
    assert {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields} == {
        name: ast.unparse(ast.parse(parameter.annotation))
        for name, parameter in inspect.signature(score).parameters.items()
    }


def command(*words):
    found = main
    for word in words:
        found = found.get_command(click.Context(main), word)
    return found


def flags(*words):
    """Options of the work, by name; those that all commands share are of the program."""
    shared = ("as_json", "quiet", "verbose")
    return {option.name: option for option in command(*words).params if option.name not in shared}


def texts_of(docstring, heading):
    """The texts of a section such as ``Args``, by name, each as one line."""
    whole = inspect.cleandoc(docstring)
    section = re.search(rf"^{heading}:\n(.*?)(?=^\S|\Z)", whole, re.M | re.S)[1]
    entries = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", section, re.M | re.S)
    return {name: " ".join(text.split()) for name, text in entries}


@pytest.mark.parametrize("place", FUNCTIONS)
def test_what_is_read_from_the_source_is_what_python_has(place):
    function = FUNCTIONS[place]
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    stated = stated_in(place)
    assert list(stated) == list(parameters)
    for name, parameter in parameters.items():
        if stated[name].default is not dataclasses.MISSING:
            assert stated[name].default == parameter.default, name
        assert stated[name].annotation == str(parameter.annotation), name
    assert {name: each.text for name, each in stated.items()} == {
        name: text
        for name, text in texts_of(inspect.getdoc(function), "Args").items()
        if name in parameters
    }


@pytest.mark.parametrize(
    ("file", "table"), [(file, table) for file, tables in TABLES.items() for table in tables]
)
def test_every_key_of_a_table_has_a_text(file, table):
    stated = stated_in(f"{file}:{table.__name__}")  # raises without one
    fields = dataclasses.fields(table)
    assert list(stated) == [field.name for field in fields]
    for field in fields:
        if stated[field.name].default is not dataclasses.MISSING:
            assert stated[field.name].default == field.default, field.name


@pytest.mark.parametrize(("settings", "function", "absent", "own"), DERIVED)
def test_the_settings_of_a_verb_are_the_keywords_of_its_function(settings, function, absent, own):
    parameters = inspect.signature(function).parameters
    fields = {field.name: field for field in dataclasses.fields(settings)}
    assert set(fields) == set(parameters) - absent | own
    for name in set(fields) - own:
        default = parameters[name].default
        if default is inspect.Parameter.empty:
            assert fields[name].default in (dataclasses.MISSING, None), name
        else:
            assert fields[name].default == default, name
    texts = texts_of(settings.__doc__, "Attributes")
    assert set(texts) == set(fields)
    assert all(texts.values())
    required = {name: "x" for name, field in fields.items() if field.default is dataclasses.MISSING}
    made = settings(**required)
    assert made.keywords() == {name: getattr(made, name) for name in fields}
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.device = "cpu"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_is_a_key_of_the_settings(name):
    keys = {field.name for field in dataclasses.fields(COMMANDS[name])}
    own = set(flags(name)) - FROM_TEXT - INSIDE.get(name, set())
    assert own <= keys
    if name in ("score", "evaluate"):  # which have no tables: every key has its flag
        assert own == keys
    untyped = command(name).make_context(name, [], resilient_parsing=True).params
    assert set(untyped.values()) <= {None, ()}  # so nothing of it is given


@pytest.mark.parametrize("words", [("score",), ("evaluate",), ("adapt",), ("study", "degradation")])
def test_every_verb_with_a_model_takes_the_flags_of_models_and_of_pictures(words):
    wanted = {
        "weights", "model_classes", "class_order", "trust_remote_code",
        "size", "crop", "squash", "channels", "mean", "std", "white", "batch_size", "device",
    }  # fmt: skip
    assert wanted <= set(flags(*words))


def test_the_help_names_what_comes_first_and_last_in_the_order_of_use():
    names = list(flags("score"))
    assert names[:5] == ["config", "data", "model", "weights", "out"]
    assert names[-5:] == ["resume", "overwrite", "strict", "recipe", "overrides"]
    assert list(flags("evaluate"))[-2:] == ["resume", "overwrite"]
    assert [field.name for field in dataclasses.fields(ScoreConfig)][:2] == ["data", "model"]
    assert [field.name for field in dataclasses.fields(EvaluateConfig)][:2] == ["model", "data"]
    with pytest.raises(LookupError, match="no setting sead"):
        in_order(["seed", "data"], first=["sead"])


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("score",), "run/score/_score.py:score"),
        (("evaluate",), "run/evaluate/_card.py:evaluation_card"),
        (("train",), "run/train/_config.py:TrainConfig"),
        (("adapt",), "run/adapt/_config.py:AdaptConfig"),
        (("study", "human"), "run/study/_study.py:study_human"),
        (("study", "degradation"), "run/study/_study.py:study_degradation"),
        (("study", "dynamics"), "run/study/_study.py:study_dynamics"),
    ],
)
def test_the_help_of_a_flag_is_the_text_of_its_setting(words, place):
    done = CliRunner().invoke(main, [*words, "--help"])
    if "--help-all" in done.output:  # which a command with many options has for the whole of it
        done = CliRunner().invoke(main, [*words, "--help-all"])
    assert done.exit_code == 0, done.output
    said = plain(done.output)
    stated, found = stated_in(place), flags(*words)
    told = {name for name in stated if name in found and name not in FROM_TEXT}
    assert len(told) >= 5
    for name in told - {"out", "ood", "human"}:  # which the command line has its own words for
        text = re.sub(r":\w+:`[\w.]*?(\w+)`", r"\1", stated[name].said)
        for part in re.split(r"``.*?``", text.rstrip(".")):  # between names of other settings
            assert plain(part).lower() in said.lower(), (name, part)


def plain(text):
    """Text without line breaks, hyphens at them, and what depends on the width."""
    return re.sub(r"\s+|-", "", text)


@pytest.mark.parametrize("settings", [ScoreConfig, EvaluateConfig, TrainConfig, AdaptConfig])
def test_a_value_of_a_wrong_type_is_refused_by_the_name_of_its_key(settings):
    for field in dataclasses.fields(settings):
        with pytest.raises(ConfigError, match=rf"\b{field.name}\b"):
            settings.load(None, (), **{field.name: object()})


def test_flags_and_files_mean_the_same(tmp_path):
    (tmp_path / "s.toml").write_text(
        'data = "d"\nscores = ["avh"]\nsize = [8, 6]\nmean = [0.5]\nstrict = true\n'
    )
    given = {"data": "d", "scores": ("avh",), "size": (8, 6), "mean": (0.5,), "strict": True}
    assert ScoreConfig.load(tmp_path / "s.toml") == ScoreConfig.load(None, (), **given)
    one = ScoreConfig.load(None, ['data="d"', "scores=avh", "size=8"])
    assert (one.scores, one.size) == ("avh", 8)


def test_settings_cannot_be_derived_from_what_is_not_said(tmp_path, monkeypatch):
    source = (
        'def f(*, told: int = 1, untold: int = 2):\n    """F.\n\n    Args:\n        told: x."""\n'
    )
    (tmp_path / "m.py").write_text(source)
    monkeypatch.setattr("hardsight.config._stated._PACKAGE", tmp_path)
    with pytest.raises(LookupError, match="says nothing about untold under Args"):
        stated_in("m.py:f")
    with pytest.raises(LookupError, match="no function or class 'g'"):
        stated_in("m.py:g")
    (tmp_path / "n.py").write_text(
        'def f(*, net: nn.Module):\n    """F.\n\n    Args:\n        net: x."""\n'
    )
    with pytest.raises(TypeError, match=r"net: nn.Module is not a type that a file can hold"):

        class Made(Settings, of="n.py:f"):
            """No."""
