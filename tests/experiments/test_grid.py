"""The grid of runs: selections, cells, tables and files, by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from hardsight.experiments import Spread
from hardsight.experiments.lab import Grid, plain

ROWS = [
    {"data": data, "loss": loss, "seed": seed, "test": base + seed, "validation": base}
    for data, loss, base in (("a", "CE", 80.0), ("a", "EL", 90.0), ("b", "CE", 10.0))
    for seed in (3, 5)
]
GRID = Grid.of(ROWS, "data", "loss")
LOSSY = Grid.of(
    [
        {"loss": "steady", "seed": 0, "test": 90.0},
        {"loss": "steady", "seed": 1, "test": 90.0},
        {"loss": "lucky", "seed": 0, "test": 99.0},
        {"loss": "lucky", "seed": 1},
        {"loss": "gone", "seed": 0},
        {"loss": "gone", "seed": 1, "test": None},
    ],
    "loss",
)


def test_a_setting_gives_its_values_in_the_order_of_the_seeds():
    assert GRID.values("test", data="a", loss="EL") == [93.0, 95.0]
    assert GRID.at(data="a").values("test", loss="CE") == [83.0, 85.0]
    assert (GRID.names("loss"), GRID.measures) == (["CE", "EL"], ["test", "validation"])
    with pytest.raises(KeyError):
        GRID.at(data="b", loss="EL")
    with pytest.raises(AssertionError, match="expected one setting, got several of loss"):
        GRID.values("test", data="a")


def test_a_cell_is_the_spread_over_seeds_and_says_what_was_lost():
    cell = GRID.cell("test", data="a", loss="CE")
    assert isinstance(cell, Spread)
    assert (cell.mean, cell.std) == (84.0, pytest.approx(math.sqrt(2)))
    assert GRID.cell("test", data="b", loss="EL") is None
    assert str(LOSSY.cell("test", loss="lucky")) == "99.00 (1 of 2)"
    assert LOSSY.cell("test", loss="gone") == "none of 2 ended"
    assert LOSSY.lost("test") == {"steady": 0, "lucky": 1, "gone": 2}
    assert GRID.lost("test")["a", "EL"] == 0


def test_what_loses_runs_is_not_chosen_for_the_runs_it_does_not_lose():
    assert LOSSY.best("loss", "test") == "steady"
    assert LOSSY.only(loss=["lucky", "gone"]).best("loss", "test") == "lucky"
    assert LOSSY.only(loss=["gone"]).best("loss", "test") == "gone"
    even = Grid.of([{"k": k, "seed": 0, "x": 1.0} for k in "ab"], "k")
    assert even.best("k", "x") == "a"


def test_means_over_a_key_are_taken_seed_by_seed_and_miss_nothing():
    rows = [
        {"domain": domain, "loss": "CE", "seed": seed, "test": value}
        for domain, values in (("x", (10.0, 20.0)), ("y", (30.0, None)))
        for seed, value in enumerate(values)
    ]
    means = Grid.of(rows, "domain", "loss").mean_over("domain")
    np.testing.assert_equal(means.values("test", loss="CE"), [20.0, math.nan])


def test_data_comes_back_from_a_file_as_it_was():
    data = json.loads(json.dumps(plain(LOSSY.data(lost="test"))))
    assert data["lucky"] == {"test": [99.0, None], "lost": 1}
    again = Grid.read(data, (0, 1), "loss")
    assert again.measures == ["test"]  # a count is not one of the numbers per seed
    for loss in ("steady", "lucky", "gone"):
        np.testing.assert_equal(again.values("test", loss=loss), LOSSY.values("test", loss=loss))
    nested = Grid.read(GRID.data(), (3, 5), "data", "loss")
    assert nested.values("test", data="b", loss="CE") == [13.0, 15.0]


def test_a_table_has_a_row_per_setting_and_leaves_out_what_is_not_there():
    table = GRID.table(
        "Accuracy",
        {"loss": "Loss"},
        {
            **GRID.across("data", "test", {"a": "on a", "b": "on b"}),
            "worst": lambda runs, loss: f"{loss} {runs.frame['test'].min():g}",
            "unknown": ("precision", {"data": "a"}),
        },
        note="n",
    )
    assert table.columns == ("Loss", "on a", "on b", "worst", "unknown")
    assert [str(cell) for cell in table.rows[0]] == [
        "CE", "84.00 ± 1.41", "14.00 ± 1.41", "CE 13", "None",
    ]  # fmt: skip
    assert table.rows[1][2] is None
    assert table.paper is None


def test_a_series_has_mean_and_spread_and_no_point_of_what_was_lost():
    points = LOSSY.series("test", "loss")
    assert list(points) == ["steady", "lucky"]
    assert (points["lucky"].mean, points["lucky"].std) == (99.0, 0.0)


def test_a_question_compares_two_settings():
    question = GRID.question(
        "EL is better", "T1", "test", {"data": "a", "loss": "EL"}, {"data": "a", "loss": "CE"}
    )
    assert (question.first, question.second) == ([93.0, 95.0], [83.0, 85.0])


def test_measures_that_no_run_has_are_there_and_empty():
    grid = Grid.of([{"loss": "CE", "seed": 0}], "loss", measures=["test"])
    assert grid.cell("test", loss="CE") == "none of 1 ended"
    assert len(GRID.joined(GRID).frame) == 2 * len(ROWS)
