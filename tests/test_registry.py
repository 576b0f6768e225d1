import dataclasses
import typing

import pytest

from hardsight import scores
from hardsight.errors import HardsightError, UnknownNameError
from hardsight.registry import (
    SCORES,
    ColumnFacts,
    Registry,
    ScoreFacts,
    ScoreSpec,
    SummarySpec,
    unknown_name,
)


def spec(name="avh", **changes):
    return ScoreSpec(
        **(
            {"name": name, "function": len, "inputs": ("logits",), "low": 0.0, "high": 1.0,
             "higher_is_harder": True, "version": 1, "meaning": "A number.", "reads": "logits",
             "formula": len}
            | changes
        )
    )  # fmt: skip


def registry(*names):
    made = Registry("score")
    for name in names:
        made.add(spec(name))
    return made


def test_a_registry_is_a_mapping_in_the_order_of_registration():
    made = registry("entropy", "avh", "el2n")
    assert list(made) == ["entropy", "avh", "el2n"]
    assert len(made) == 3
    assert made["avh"].name == "avh"
    assert "avh" in made
    assert dict(made.items())["el2n"] is made["el2n"]


def test_an_unknown_name_comes_with_the_nearest_one():
    with pytest.raises(
        UnknownNameError,
        match=r"unknown score 'avhh'\. Did you mean 'avh'\? Known: avh, el2n, entropy",
    ):
        registry("entropy", "avh", "el2n")["avhh"]


def test_a_name_like_no_other_gets_no_suggestion():
    message = unknown_name("score", "zzz", ["entropy", "avh"])
    assert message == "unknown score 'zzz'. Known: avh, entropy"


def test_membership_and_get_answer_for_unknown_names():
    made = registry("avh")
    assert issubclass(UnknownNameError, HardsightError)
    assert str(UnknownNameError("a plain sentence")) == "a plain sentence"
    assert "avhh" not in made
    assert made.get("avhh") is None


def test_a_name_is_given_once():
    made = registry("avh")
    with pytest.raises(ValueError, match="score 'avh' is registered twice"):
        made.add(spec("avh"))
    assert len(made) == 1


def test_a_spec_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec().low = 3.0


def test_the_decorator_returns_the_function_it_registers():
    assert SCORES["avh"].function is scores.angular_visual_hardness
    assert scores.SCORES is SCORES
    assert (SCORES["avh"].low, SCORES["avh"].high) == (0.0, 1.0)
    assert SCORES["avc"].per_class
    assert SCORES["class_normalized_feature_norm"].over_dataset


@pytest.mark.parametrize(
    ("facts", "kind"),
    [(ColumnFacts, SummarySpec), (ScoreFacts, ScoreSpec)],
    ids=["summary", "score"],
)
def test_an_editor_shows_every_fact_that_a_decorator_takes(facts, kind):
    by_the_decorator = {"name", "function", "inputs", "low", "high"}
    fields = {field.name: field for field in dataclasses.fields(kind)}
    stated = typing.get_type_hints(facts, include_extras=True)
    assert stated.keys() == fields.keys() - by_the_decorator
    for name, hint in stated.items():
        may_be_left_out = typing.get_origin(hint) is typing.NotRequired
        assert may_be_left_out == (fields[name].default is not dataclasses.MISSING), name
