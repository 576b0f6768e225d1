"""The fuzzer sees what it is there to see: each test plants a fault, and the fuzzer finds it."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hardsight.errors import DataError
from tests.fuzz.cases import Step, run_case, shrunk, told
from tests.fuzz.draw import Draw
from tests.fuzz.grammar import maker_of
from tests.fuzz.judge import complaint_about_table
from tests.fuzz.oracle import Expected, Outputs, expected_scores
from tests.fuzz.scoring import score_examples

CLASSES = ["ant", "bee", "cat"]


@pytest.fixture
def expected():
    draw = Draw(0, 0)
    features, weights = draw.weights("x", 12, 4), draw.weights("w", 3, 4) + 1 / 32
    outputs = Outputs(features @ weights.T, features, weights, np.linalg.norm(features, axis=1))
    return Expected(list(range(12)), [f"{at}.png" for at in range(12)], np.arange(12) % 3,
                    CLASSES, outputs)  # fmt: skip


@pytest.fixture
def table(expected, tmp_path):
    """Write the table that is right, with some of its columns changed."""

    def write(**changed):
        logits = expected.outputs.logits
        columns = {
            "index": expected.index,
            "id": expected.ids,
            "label": expected.labels,
            "prediction": logits.argmax(axis=1),
            "finite": np.ones(12, bool),
        }
        scores = expected_scores(expected.outputs, expected.labels)
        columns |= {name: values for name, (values, _) in scores.items()}
        columns = {name: value for name, value in (columns | changed).items() if value is not None}
        about = b'{"classes": ["ant", "bee", "cat"], "counts": {"errors": 0}}'
        rows = pa.table(columns).replace_schema_metadata({b"hardsight": about})
        pq.write_table(rows, tmp_path / "table.parquet")
        return tmp_path / "table.parquet"

    return write


def test_a_table_that_is_right_passes(table, expected):
    assert complaint_about_table(table(), expected, None) == ""


@pytest.mark.parametrize("name", ["avh", "model_confidence", "logit_margin", "feature_norm"])
def test_one_number_that_is_off_by_a_hundredth_is_found(table, expected, name):
    values = expected_scores(expected.outputs, expected.labels)[name][0].copy()
    values[7] += 0.01
    assert f"{name}: row 7" in complaint_about_table(table(**{name: values}), expected, None)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", [f"{at}.png" for at in (1, 0, *range(2, 12))]),
        ("label", [0] * 12),
        ("index", list(range(1, 13))),
        ("prediction", [2] * 12),
        ("finite", [False] * 12),
    ],
)
def test_a_wrong_column_is_found(table, expected, column, value):
    assert complaint_about_table(table(**{column: value}), expected, None).startswith(column)


@pytest.mark.parametrize("name", ["entropy", "avh"])
def test_a_column_that_is_missing_is_found(table, expected, name):
    assert name in complaint_about_table(table(**{name: None}), expected, None)
    assert name in complaint_about_table(table(**{name: None}), expected, None, may_lack=True)


def test_angles_of_a_model_without_a_head_are_found(table, expected):
    headless = replace(expected, outputs=replace(expected.outputs, features=None))
    assert "no layer makes the logits" in complaint_about_table(table(), headless, None)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (lambda: {}["nothing"], "traceback"),
        (lambda: time.sleep(60), "hang"),
        (lambda: click.get_current_context().exit(3), "exit code 3"),
        (lambda: click.get_current_context().exit(1), "refusal without a reason"),
    ],
)
def test_an_answer_that_is_none_is_found(monkeypatch, tmp_path, fault, kind):
    monkeypatch.setattr("hardsight.cli._doctor.doctor.callback", fault)
    failure = run_case(one_step, Draw(0, 0), tmp_path / "case", limit=0.3)
    assert failure is not None
    assert failure.kind == kind
    assert (tmp_path / "case" / "command.txt").read_text() == "hardsight doctor\n"


def of_kind(kind):
    """Numbers of cases whose network depends on something, or on nothing but the example."""
    for number in range(2000):
        draw = Draw(0, number)
        if maker_of(draw) is score_examples and draw.pick(*DEPENDS, plain=0.96) == kind:
            yield number


DEPENDS = ("net.depends on", ("", "batch", "draw"))


@pytest.mark.parametrize("kind", ["batch", "draw"])
def test_a_model_that_depends_on_more_than_the_example_is_missed_if_nothing_is_said(
    monkeypatch, tmp_path, kind
):
    monkeypatch.setattr("hardsight.run.loop._model._rows_depend_on", lambda *parts: None)
    failures = [
        run_case(score_examples, Draw(0, number), tmp_path / str(number))
        for number in itertools.islice(of_kind(kind), 6)
    ]
    said = [failure.complaint for failure in failures if failure is not None]
    assert f"accepted without a word: its rows depend on the {kind}" in said


def test_telling_of_a_model_that_is_as_it_should_be_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr("hardsight.run.loop._model._rows_depend_on", lambda *parts: "batch")
    failures = [
        run_case(score_examples, Draw(0, number), tmp_path / str(number))
        for number in itertools.islice(of_kind(""), 8)
    ]
    assert "told without need" in {failure.kind for failure in failures if failure is not None}


def test_a_refusal_in_words_is_an_answer(monkeypatch, tmp_path):
    def refuse():
        raise DataError("there are no pictures in the folder; name another")

    monkeypatch.setattr("hardsight.cli._doctor.doctor.callback", refuse)
    assert run_case(one_step, Draw(0, 0), tmp_path / "case") is None


def one_step(draw, folder):
    yield Step(["doctor"], lambda answer: "")


def test_a_failing_case_shrinks_to_the_choice_that_makes_it_fail(tmp_path):
    def make(draw, folder):
        taken = {name: draw.pick(name, (0, 1), plain=0.0) for name in "abcd"}
        yield Step(["--version"], lambda answer: "wrong: c" if taken["c"] else "")

    draw = Draw(0, 0)
    failure = run_case(make, draw, tmp_path / "case")
    assert failure is not None
    assert set(failure.taken) == set("abcd")
    small = shrunk(make, draw, failure, tmp_path / "smaller")
    assert small.taken == {"c": "1"}
    text = told(small, seed=0)
    assert "python -m tests.fuzz --seed 0 --case 0" in text
    assert f"files:   {small.folder}" in text


def test_a_choice_depends_on_no_other():
    whole, less = Draw(3, 5), Draw(3, 5, frozenset({"b"}))
    options = list(range(100))
    assert [whole.pick(name, options, plain=0) for name in "ac"] == [
        less.pick(name, options, plain=0) for name in "ac"
    ]
    assert less.pick("b", options, plain=0) == 0


@pytest.mark.parametrize("number", range(0, 40, 5))
def test_a_case_is_the_same_each_time(tmp_path, number):
    seen = []
    for name in ("first", "second"):
        draw = Draw(1, number)
        folder = tmp_path / name
        folder.mkdir()
        step = next(maker_of(draw)(draw, folder))
        files = {str(file.relative_to(folder)) for file in folder.rglob("*")}
        seen.append((step.words, files, draw.taken))
    assert seen[0] == seen[1]
