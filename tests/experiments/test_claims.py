"""The one rule for claims: numbers worked by another package, and verdicts that turn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hardsight.experiments.lab import (
    Question,
    all_of,
    compared_in_pairs,
    in_every_run,
    judged,
    weakness,
)

FIRST, SECOND = [91.2, 92.0, 91.7], [90.1, 91.1, 90.4]
MORE = [90.0, 91.5, 90.3]
LOST = math.nan


def verdict(first, second, **more):
    return judged([Question("says", "paper", first, second, **more)])[0].holds


def test_differences_are_paired_and_their_p_values_raised_by_holm():
    found = compared_in_pairs({"a": (FIRST, SECOND), "b": (MORE, SECOND), "c": ([1.0], [0.5])})
    wanted = {"a": stats.ttest_rel(FIRST, SECOND).pvalue, "b": stats.ttest_rel(MORE, SECOND).pvalue}
    assert wanted["a"] < wanted["b"]
    assert found["a"].p == pytest.approx(2 * wanted["a"])  # two tests; one seed is none
    assert found["b"].p == pytest.approx(max(2 * wanted["a"], wanted["b"]))
    assert math.isnan(found["c"].p)
    assert str(found["c"]) == "+0.50 (one seed)"
    interval = stats.ttest_rel(FIRST, SECOND).confidence_interval()
    assert (found["a"].low, found["a"].high) == pytest.approx(tuple(interval))


def test_runs_that_never_vary_are_equal_or_differ_for_certain():
    pairs = {"same": ([5.0, 5.0], [5.0, 5.0]), "apart": ([6.0, 7.0], [5.0, 6.0])}
    found = compared_in_pairs(pairs)
    assert (found["same"].p, found["same"].is_above) == (1.0, None)
    assert (found["apart"].p, found["apart"].is_above) == (0.0, True)


@pytest.mark.parametrize(
    ("first", "second", "larger", "holds"),
    [
        (FIRST, SECOND, True, True),
        (SECOND, FIRST, True, False),
        (SECOND, FIRST, False, True),
        (FIRST, SECOND, False, False),
        (MORE, SECOND, True, None),
        ([1.0], [0.0], True, None),
    ],
)
def test_a_claim_turns_with_the_data(first, second, larger, holds):
    assert verdict(first, second, larger=larger) is holds


def test_pairs_are_compared_only_over_seeds_at_which_both_ended():
    first, second = [*FIRST, LOST, 99.0], [*SECOND, 10.0, LOST]
    found = compared_in_pairs({"x": (first, second)})["x"]
    assert found.p == pytest.approx(stats.ttest_rel(FIRST, SECOND).pvalue)
    assert found.difference == pytest.approx(np.mean(FIRST) - np.mean(SECOND))
    assert str(found).endswith("(3 of 5 seeds)")


@pytest.mark.parametrize(
    ("first", "seen"),
    [
        ([99.0, LOST, LOST], "+8.90 (1 of 3 seeds)"),
        ([LOST, LOST, LOST], "nothing to compare: both ended at 0 of 3 seeds"),
    ],
)
def test_a_claim_is_undecided_if_too_few_runs_ended(first, seen):
    (claim,) = judged([Question("says", "paper", first, SECOND)])
    assert (claim.holds, claim.seen) == (None, seen)


def test_one_correction_covers_all_questions_of_an_experiment():
    alone = judged([Question("a", "", FIRST, SECOND)])[0]
    three = judged([Question(str(at), "", FIRST, SECOND) for at in range(3)])
    p = [float(claim.seen.rpartition("p = ")[2]) for claim in (alone, three[0])]
    assert p[1] == pytest.approx(3 * p[0], abs=0.002)
    # one that cannot be judged takes no part in the correction, and says why
    weak = Question("w", "", FIRST, SECOND, weak=weakness([80.0, 81.0], 99.0))
    with_weak = judged([Question("a", "", FIRST, SECOND), weak])
    assert with_weak[0] == alone
    assert (with_weak[1].holds, with_weak[1].verdict) == (None, "network too weak to judge")
    assert with_weak[1].seen.startswith("80.5 % reached, and at least 97.0 % are needed")


def test_the_best_of_several_is_above_each_and_not_the_best_if_below_one():
    low, high = [1.0, 1.1, 1.2], [9.0, 9.1, 9.3]
    middle = [5.0, 5.2, 5.1]
    assert verdict(high, {"a": low, "b": middle}) is True
    assert verdict(middle, {"a": low, "b": high}) is False
    assert verdict(middle, {"a": low, "b": [5.0, 5.1, 5.2]}) is None
    assert verdict(middle, {}) is None
    # each of the rivals is a test of its own
    single = judged([Question("", "", FIRST, SECOND, told="{}")])[0].seen
    both = judged([Question("", "", FIRST, {"a": SECOND, "b": SECOND}, told="{}")])[0].seen
    assert both.startswith("a: ")
    p = [float(seen.rpartition("p = ")[2]) for seen in (single, both)]
    assert p[1] == pytest.approx(2 * p[0], abs=0.002)


@pytest.mark.parametrize(
    ("first", "second", "holds"),
    [
        ([0.800, 0.801, 0.803], [0.801, 0.800, 0.802], True),
        ([0.800, 0.801, 0.803], [0.701, 0.700, 0.702], False),
        ([0.80, 0.90, 0.70], [0.82, 0.75, 0.88], None),
    ],
)
def test_two_are_alike_different_or_neither_by_a_bound(first, second, holds):
    assert verdict(first, second, within=0.02) is holds


def test_the_p_value_of_alikeness_is_that_of_the_nearest_bound():
    first, second = [0.815, 0.812, 0.818], [0.80, 0.80, 0.80]
    (claim,) = judged([Question("", "", first, second, within=0.02)])
    wanted = stats.ttest_1samp(np.subtract(first, second), 0.02).pvalue
    assert claim.seen.endswith(f"p = {wanted:.3f}")


def test_small_differences_have_digits_enough():
    close = compared_in_pairs({"x": ([0.451, 0.462, 0.455], [0.41, 0.42, 0.414])})["x"]
    assert str(close).startswith("+0.0413 [+0.0")
    assert str(compared_in_pairs({"x": ([0.0, 0.0], [0.0, 0.0])})["x"]).startswith("+0.00 [")


def test_what_holds_within_runs_is_said_only_if_all_agree():
    assert in_every_run([True] * 3) is True
    assert in_every_run([False] * 3) is False
    assert in_every_run([True, False]) is None
    assert in_every_run([]) is None
    assert all_of([True, None, False]) is False
    assert all_of([]) is None
