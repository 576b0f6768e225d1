"""Groups and slices: a planted failure is found, and a fair model is left alone."""

import math

import numpy as np
import pytest
from scipy import stats

from hardsight.errors import OptionError, ShapeError, StatisticError
from hardsight.stats import by_group, group_names, worst_slices

CLASSES, ROWS = 4, 2000
# classes differ in how often they are right, and groups in the classes they hold
RATES = np.array([0.02, 0.1, 0.2, 0.4])


def made(seed, *, planted=0.0):
    """Labels, predictions and two attributes; errors depend on the class, and on one slice."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, CLASSES, ROWS)
    camera = np.where(draw.random(ROWS) < 0.2 + 0.15 * labels, "old", "new")  # old: harder classes
    light = draw.choice(["day", "dusk", "night"], ROWS)
    rate = RATES[labels] + planted * ((camera == "old") & (light == "night"))
    wrong = draw.random(ROWS) < rate
    predictions = np.where(wrong, (labels + 1) % CLASSES, labels)
    return {"camera": camera, "light": light}, labels, predictions


def test_a_planted_slice_of_two_attributes_is_found_and_named():
    for seed in range(20):
        attributes, labels, predictions = made(seed, planted=0.35)
        first = worst_slices(attributes, labels, predictions)[0]
        assert first.where == (("camera", "old"), ("light", "night"))
        assert first.accuracy.high < first.expected_accuracy
        assert first.p < 0.05


def test_a_fair_model_has_no_slice_and_no_group_in_far_more_than_19_of_20_worlds():
    alarms = group_alarms = 0
    for seed in range(100):
        attributes, labels, predictions = made(1000 + seed)
        alarms += bool(worst_slices(attributes, labels, predictions))
        rows = by_group(attributes["camera"], labels, predictions)
        group_alarms += any(row.p_accuracy < 0.05 for row in rows)
    # of 100 worlds 5 may raise one; 13 would have a chance of 1 in 1,000 at that rate
    assert alarms <= 12
    assert group_alarms <= 12


def test_a_group_of_harder_classes_is_not_blamed_for_them():
    attributes, labels, predictions = made(3)
    rows = {row.name: row for row in by_group(attributes["camera"], labels, predictions)}
    old, new = rows["old"], rows["new"]
    assert old.accuracy.value < new.accuracy.value - 0.02  # it looks worse
    assert old.expected_accuracy < new.expected_accuracy - 0.02  # as its classes let expect
    assert old.p_accuracy > 0.05


@pytest.mark.parametrize(("groups", "rows"), [(3, 60), (2, 20)])
def test_the_bound_is_never_below_the_exact_chance(groups, rows):
    # one class: the number of errors in a group is hypergeometric
    draw = np.random.default_rng(groups)
    for _ in range(60):
        names = draw.integers(0, groups, rows)
        wrong = draw.random(rows) < draw.choice([0.05, 0.3, 0.7])
        found = by_group(names, np.zeros(rows, int), wrong.astype(int), least=2)
        exact = {
            str(name): stats.hypergeom(rows, int(wrong.sum()), int((names == name).sum()))
            for name in range(groups)
        }
        for row in found:
            if row.p_accuracy is None:
                continue
            errors = round(row.n * (1 - row.accuracy.value))
            upper, lower = exact[row.name].sf(errors - 1), exact[row.name].cdf(errors)
            assert row.p_accuracy >= min(1.0, 2 * min(upper, lower)) - 1e-9


def test_hardness_and_calibration_of_a_group_have_intervals_and_tests():
    draw = np.random.default_rng(0)
    groups = np.repeat(["a", "b"], 500)
    labels = draw.integers(0, 3, 1000)
    right = draw.random(1000) < 0.7
    predictions = np.where(right, labels, (labels + 1) % 3)
    hardness = draw.normal(size=1000) + labels + 0.5 * (groups == "b")
    confidence = np.where(groups == "b", 0.9, 0.7)
    rows = {
        row.name: row
        for row in by_group(groups, labels, predictions, hardness=hardness, confidence=confidence)
    }
    b = rows["b"]
    assert b.hardness.value == pytest.approx(hardness[500:].mean())
    assert b.hardness.low < b.hardness.value < b.hardness.high
    assert b.p_hardness < 0.05
    assert b.gap.value == pytest.approx(0.9 - right[500:].mean())
    assert b.p_gap < 0.05
    assert b.ece == pytest.approx(abs(b.gap.value))  # all in one bin
    label, guessed, count = b.confusions[0]
    taken = ((labels[500:] == label) & (predictions[500:] == guessed)).sum()
    assert (guessed, count) == ((label + 1) % 3, taken)


def test_p_values_are_corrected_over_groups_and_questions():
    draw = np.random.default_rng(4)
    groups = np.repeat(list("abcde"), 40)
    labels, predictions = np.zeros(200, int), (draw.random(200) < 0.3).astype(int)
    values = draw.random(200)
    alone = by_group(groups, labels, predictions)
    three = by_group(groups, labels, predictions, hardness=values, confidence=values)
    for one, other in zip(alone, three, strict=True):
        assert one.name == other.name
        assert other.p_accuracy >= one.p_accuracy


def test_a_group_of_three_is_shown_and_not_tested():
    groups = ["few"] * 3 + ["many"] * 97
    rows = by_group(groups, [0] * 100, [1] * 3 + [0] * 97)
    few = next(row for row in rows if row.name == "few")
    assert (few.n, few.accuracy.value, few.p_accuracy) == (3, 0.0, None)
    attributes = {"size": np.array(groups)}
    assert worst_slices(attributes, [0] * 100, [1] * 3 + [0] * 97) == []  # below 30 rows


def test_one_group_alone_has_nothing_to_be_compared_with():
    (row,) = by_group(["all"] * 40, [0] * 40, [0] * 30 + [1] * 10)
    assert row.p_accuracy is None
    assert worst_slices({"one": ["all"] * 40}, [0] * 40, [0] * 30 + [1] * 10) == []


def test_a_value_that_fails_everywhere_is_named_once_not_in_every_class():
    draw = np.random.default_rng(5)
    labels, light = draw.integers(0, 3, 3000), draw.choice(["day", "night"], 3000)
    wrong = draw.random(3000) < np.where(light == "night", 0.5, 0.1)
    found = worst_slices({"light": light}, labels, np.where(wrong, (labels + 1) % 3, labels))
    assert [one.where for one in found] == [(("light", "night"),)]


def test_a_value_that_fails_in_one_class_is_named_with_it():
    draw = np.random.default_rng(6)
    labels, light = draw.integers(0, 6, 3000), draw.choice(["day", "night"], 3000)
    wrong = draw.random(3000) < np.where((light == "night") & (labels == 2), 0.5, 0.1)
    found = worst_slices(
        {"light": light}, labels, np.where(wrong, (labels + 1) % 6, labels), classes=list("abcdef")
    )
    assert (("class", "c"), ("light", "night")) in [one.where for one in found]


def test_missing_values_and_numbers_become_groups():
    assert group_names(["x", " ", None, float("nan")]).tolist() == ["x"] + ["(none)"] * 3
    assert group_names(np.array([1.0, 2.0, np.nan])).tolist() == ["1", "2", "(none)"]
    assert group_names([True, False]).tolist() == ["True", "False"]
    ages = np.array([*range(40), None], dtype=object)
    names = group_names(ages)
    assert names[-1] == "(none)"
    assert sorted({str(name) for name in names[:-1]})[0] == "1: up to 9.75"
    assert len(set(names[:-1].tolist())) == 4
    written = group_names([str(age) for age in range(40)])  # as a CSV file has them
    assert written.tolist() == names[:-1].tolist()
    assert group_names(["01", "02"]).tolist() == ["01", "02"]


def test_bad_columns_are_named():
    with pytest.raises(ShapeError, match=r"groups \[3\], labels \[2\]"):
        by_group(["a", "b", "c"], [0, 1], [0, 1])
    with pytest.raises(StatisticError, match="at least 1 example"):
        by_group([], [], [])
    with pytest.raises(StatisticError, match="a label for every example"):
        by_group(["a"], [-1], [0])
    with pytest.raises(OptionError, match="at least one attribute"):
        worst_slices({}, [0], [0])
    with pytest.raises(OptionError, match="at least 2 examples, got least=1"):
        worst_slices({"a": ["x"]}, [0], [0], least=1)
    with pytest.raises(ShapeError, match="one value per example"):
        group_names([["a"]])
    assert math.isinf(by_group(["a"], [0], [0], hardness=[1.0])[0].hardness.high)
