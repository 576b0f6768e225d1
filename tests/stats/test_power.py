"""How many runs a difference needs: against another package's power, and by drawing runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hardsight.errors import OptionError
from hardsight.stats import pairs_needed


def power_by_hand(n, effect, alpha):
    """Of a two-sided paired t test, by the distribution itself."""
    law, bound = stats.nct(n - 1, effect * math.sqrt(n)), stats.t.ppf(1 - alpha / 2, n - 1)
    return law.sf(bound) + law.cdf(-bound)


@pytest.mark.parametrize("effect", [0.2, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("alpha", [0.05, 0.005])
def test_the_number_is_the_smallest_with_the_wanted_power(effect, alpha):
    n = pairs_needed(3 * effect, 3.0, alpha=alpha)
    assert power_by_hand(n, effect, alpha) >= 0.8 > power_by_hand(n - 1, effect, alpha)
    assert pairs_needed(-3 * effect, 3.0, alpha=alpha) == n  # the sign does not matter


def test_numbers_of_the_textbooks():
    # Cohen 1988, Table 2.4.1: a medium effect needs 34 pairs, a large one 15
    assert (pairs_needed(0.5, 1.0), pairs_needed(0.8, 1.0)) == (34, 15)


def test_so_many_runs_show_the_difference_in_four_of_five_cases():
    n = pairs_needed(1.0, 1.5)
    draws = np.random.default_rng(0).normal(1.0, 1.5, size=(4000, n))
    shown = (stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05).mean()
    assert 0.77 < shown < 0.86


def test_a_tiny_difference_needs_many_and_one_that_never_varies_two():
    assert pairs_needed(0.01, 1.0) == pytest.approx(7.85e4, rel=0.01)  # (1.96 + 0.842)² / 0.01²
    assert pairs_needed(5.0, 0.0) == 2
    assert pairs_needed(500.0, 1.0) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"difference": 0.0, "std": 1.0}, "a difference other than 0, got 0.0"),
        ({"difference": math.nan, "std": 1.0}, "a difference other than 0, got nan"),
        ({"difference": 1.0, "std": -1.0}, "standard deviation of 0 or more, got -1.0"),
        ({"difference": 1.0, "std": 1.0, "power": 1.0}, r"power in \(0, 1\), got 1.0"),
        ({"difference": 1.0, "std": 1.0, "alpha": 0.0}, r"alpha in \(0, 1\), got 0.0"),
    ],
)
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(OptionError, match=message):
        pairs_needed(**given)
