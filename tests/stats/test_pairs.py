import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hardsight.errors import NonFiniteError, OptionError, ShapeError, StatisticError
from hardsight.stats import (
    adjusted_p_values,
    mcnemar,
    paired_bootstrap,
    t_test,
    t_test_from_summary,
    wilson_interval,
)


def test_wilson_interval_matches_published_values():
    # Newcombe (1998), table I, method 3: the score method without continuity correction
    published = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605),
                 (0, 20): (0.0, 0.1611), (1, 29): (0.0061, 0.1718)}  # fmt: skip
    for (successes, trials), bounds in published.items():
        assert wilson_interval(successes, trials) == pytest.approx(bounds, abs=5e-5)


def test_wilson_interval_is_that_of_scipy_at_any_level():
    wanted = stats.binomtest(7, 30).proportion_ci(0.8, method="wilson")
    got = wilson_interval(7, 30, level=0.8)
    assert got == pytest.approx((wanted.low, wanted.high), rel=1e-12)


def test_wilson_interval_refuses_impossible_counts():
    with pytest.raises(StatisticError, match="trials=0"):
        wilson_interval(0, 0)
    with pytest.raises(OptionError, match=r"successes in \[0, 3\], got 4"):
        wilson_interval(4, 3)


def outcomes(both, first, second, neither):
    one = [1] * (both + first) + [0] * (second + neither)
    return one, [1] * both + [0] * first + [1] * second + [0] * neither


def test_mcnemar_is_the_binomial_test_of_the_disagreements():
    got = mcnemar(*outcomes(40, 9, 2, 5))
    assert (got.only_first, got.only_second, got.exact) == (9, 2, True)
    assert got.p == pytest.approx(stats.binomtest(2, 11).pvalue, rel=1e-12)
    assert got.difference == pytest.approx(7 / 56)


def test_mcnemar_of_many_disagreements_worked_by_hand():
    # 121 against 59: chi^2 = (62 - 1)^2 / 180 = 20.672
    got = mcnemar(*outcomes(101, 121, 59, 33))
    assert not got.exact
    assert got.p == pytest.approx(stats.chi2.sf(61**2 / 180, 1), rel=1e-10)
    exact = mcnemar(*outcomes(101, 121, 59, 33), exact=True).p
    assert exact == pytest.approx(stats.binomtest(59, 180).pvalue, rel=1e-9)


def test_mcnemar_of_equal_classifiers_finds_nothing():
    assert mcnemar([1, 0, 1], [1, 0, 1]).p == 1.0
    assert mcnemar([1, 0, 1], [1, 0, 1], exact=False).p == 1.0
    assert mcnemar([1, 0], [0, 1]).p == 1.0


def test_mcnemar_refuses_what_it_cannot_answer():
    with pytest.raises(ShapeError, match=r"first \[2\], second \[1\]"):
        mcnemar([1, 0], [1])
    with pytest.raises(OptionError, match="first to be booleans"):
        mcnemar([0.5, 1], [1, 0])
    with pytest.raises(StatisticError, match="at least 1 example"):
        mcnemar([], [])


def test_paired_bootstrap_resamples_examples_not_classifiers():
    generator = np.random.default_rng(0)
    first = generator.random(80)
    second = first - 0.1 + 0.01 * generator.normal(size=80)  # pairs differ by almost a constant
    got = paired_bootstrap(first, second, resamples=1000)
    apart = first - second
    drawn = np.random.default_rng(0).integers(80, size=(1000, 80))
    wanted = np.quantile(apart[drawn].mean(axis=1), [0.025, 0.975])
    assert (got.low, got.high) == pytest.approx(tuple(wanted), rel=1e-9)
    assert got.p == pytest.approx(2 / 1001)
    assert got.difference == pytest.approx(apart.mean())


def test_paired_bootstrap_finds_nothing_where_nothing_is():
    values = np.random.default_rng(1).integers(0, 2, 60)
    assert paired_bootstrap(values, values, resamples=50).p == 1.0
    assert paired_bootstrap(values, np.roll(values, 1), resamples=500).p > 0.3
    bca = paired_bootstrap(values, values, resamples=50, interval="bca")
    assert (bca.low, bca.high) == (0.0, 0.0)


def test_paired_bootstrap_refuses_what_it_cannot_answer():
    with pytest.raises(StatisticError, match="at least 2 values"):
        paired_bootstrap([1], [0])
    with pytest.raises(NonFiniteError, match="second holds 1 infinite"):
        paired_bootstrap([1, 2], [0, np.inf])


@pytest.mark.parametrize(
    ("data", "first", "second", "p"),
    [  # AMC-Loss, Table 1: mean and spread of 5 runs with the angular and the Euclidean loss
        ("mnist", (99.66, 0.01, 5), (99.65, 0.01, 5), 0.1525),
        ("cifar10", (82.97, 0.20, 5), (82.60, 0.21, 5), 0.0214),
        ("svhn", (95.52, 0.05, 5), (95.29, 0.06, 5), 0.0002),
        ("cifar100", (66.19, 0.22, 5), (65.57, 0.20, 5), 0.0016),
    ],
)
def test_welch_reproduces_the_p_values_printed_in_the_amc_paper(data, first, second, p):
    assert t_test_from_summary(first, second).p == pytest.approx(p, abs=6e-5)


def test_t_tests_are_those_of_scipy():
    first, second = np.random.default_rng(0).normal(size=(2, 9)) * [[1], [3]] + [[1], [0]]
    for paired, wanted in (
        (False, stats.ttest_ind(first, second[:7], equal_var=False)),
        (True, stats.ttest_rel(first, second)),
    ):
        got = t_test(first, second if paired else second[:7], paired=paired, level=0.9)
        interval = wanted.confidence_interval(0.9)
        assert (got.t, got.dof, got.p) == pytest.approx(
            (wanted.statistic, wanted.df, wanted.pvalue), rel=1e-10
        )
        assert (got.low, got.high) == pytest.approx((interval.low, interval.high), rel=1e-10)


def test_t_tests_refuse_what_they_cannot_answer():
    with pytest.raises(StatisticError, match="at least 2 values in first, got 1"):
        t_test([1], [1, 2])
    with pytest.raises(StatisticError, match="all runs have the same result"):
        t_test([1, 1], [1, 1])
    with pytest.raises(StatisticError, match="all runs have the same result"):
        t_test([2, 3], [1, 2], paired=True)
    with pytest.raises(ShapeError, match=r"first \[3\], second \[2\]"):
        t_test([1, 2, 3], [1, 2], paired=True)
    with pytest.raises(OptionError, match="standard deviations of 0 or more"):
        t_test_from_summary((1, -1, 5), (1, 1, 5))
    with pytest.raises(StatisticError, match="at least 2 values on each side, got 1 and 5"):
        t_test_from_summary((1, 1, 1), (1, 1, 5))
    with pytest.raises(OptionError, match="level=2"):
        t_test([1, 2], [3, 5], level=2)


def test_holm_worked_by_hand():
    # sorted .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, then never falling
    got = adjusted_p_values([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(got, [0.03, 0.06, 0.06, 0.02])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_benjamini_hochberg_is_that_of_scipy_and_never_above_holm(p_values):
    got = adjusted_p_values(p_values, method="bh")
    np.testing.assert_allclose(got, stats.false_discovery_control(p_values), rtol=1e-12)
    holm = adjusted_p_values(p_values)
    assert (holm >= got - 1e-12).all()
    assert (holm <= 1).all()
    assert (got >= np.array(p_values) * (1 - 1e-12)).all()


def test_adjusting_p_values_refuses_numbers_that_are_none():
    assert adjusted_p_values([]).tolist() == []
    with pytest.raises(OptionError, match=r"in \[0, 1\], got values from 0.5 to 1.5"):
        adjusted_p_values([0.5, 1.5])
    with pytest.raises(NonFiniteError, match=r"p_values holds 1 NaN .*; remove them$"):
        adjusted_p_values([0.5, math.nan])
    with pytest.raises(OptionError, match="unknown method 'bonferroni'"):
        adjusted_p_values([0.5], method="bonferroni")
