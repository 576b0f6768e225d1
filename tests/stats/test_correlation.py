import inspect
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hardsight.errors import NonFiniteError, OptionError, ShapeError, StatisticError
from hardsight.stats import (
    correlation,
    correlation_interval,
    fisher_z,
    partial_correlation,
)

METHODS = ("spearman", "pearson", "kendall")
BY_SCIPY = {"spearman": stats.spearmanr, "pearson": stats.pearsonr, "kendall": stats.kendalltau}
SCIPY_SEED = "rng" if "rng" in inspect.signature(stats.bootstrap).parameters else "random_state"


@pytest.mark.parametrize("method", METHODS)
def test_value_and_p_are_those_of_scipy_also_with_ties(noisy_pair, method):
    got = correlation(*noisy_pair, method=method)
    wanted = BY_SCIPY[method](*noisy_pair)
    assert (got.value, got.p) == pytest.approx((wanted.statistic, wanted.pvalue), rel=1e-12)
    assert (got.n, got.method, got.interval, got.level) == (200, method, "fisher-z", 0.95)


def test_spearman_of_tied_values_worked_by_hand():
    # ranks of x: 1, 2.5, 2.5, 4, 5; of y: 1.5, 1.5, 3, 4.5, 4.5; products of deviations: 8.25
    got = correlation([1, 2, 2, 3, 4], [0, 0, 1, 2, 2]).value
    assert got == pytest.approx(8.25 / math.sqrt(9.5 * 9.0))


def test_pearson_interval_is_that_of_scipy(noisy_pair):
    got = correlation(*noisy_pair, method="pearson", level=0.9)
    wanted = stats.pearsonr(*noisy_pair).confidence_interval(0.9)
    assert (got.low, got.high) == pytest.approx((wanted.low, wanted.high), rel=1e-12)


@pytest.mark.parametrize(
    ("method", "variance"), [("spearman", (1 + 0.125) / 97), ("kendall", 0.437 / 96)]
)
def test_rank_intervals_use_the_variances_of_bonett_and_wright(method, variance):
    z, spread = 0.5 * math.log(1.5 / 0.5), 1.959963984540054 * math.sqrt(variance)
    got = correlation_interval(0.5, 100, method=method)
    assert got == pytest.approx((math.tanh(z - spread), math.tanh(z + spread)), rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_analytic_intervals_cover_the_truth_about_as_often_as_they_say(method):
    # normal pairs with r = 0.5: rho_s = 6/pi asin(r/2), tau = 2/pi asin(r)
    truth = {"pearson": 0.5, "spearman": 6 / math.pi * math.asin(0.25), "kendall": 1 / 3}[method]
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        x, noise = generator.normal(size=(2, 60))
        found = correlation(x, 0.5 * x + math.sqrt(0.75) * noise, method=method)
        hits += found.low <= truth <= found.high
    assert 0.91 <= hits / 300 <= 0.99  # 0.95 give or take three standard errors


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("level", [0.95, 0.8, 0.5, 0.2])
def test_bootstrap_intervals_are_quantiles_of_the_coefficients_of_the_drawn_pairs(
    noisy_pair, method, level
):
    x, y = (column[:30] for column in noisy_pair)
    drawn = np.random.default_rng(5).integers(30, size=(40, 30))
    values = [BY_SCIPY[method](x[rows], y[rows]).statistic for rows in drawn]
    wanted = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    got = correlation(x, y, method=method, interval="percentile", level=level, resamples=40, seed=5)
    np.testing.assert_allclose([got.low, got.high], wanted, rtol=1e-10)


@pytest.mark.parametrize("kind", ["percentile", "bca"])
@pytest.mark.parametrize("method", METHODS)
def test_bootstrap_intervals_agree_with_scipys(noisy_pair, method, kind):
    x, y = (column[:60] for column in noisy_pair)
    count = 300 if method == "kendall" else 4000
    got = correlation(x, y, method=method, interval=kind, resamples=count)
    wanted = stats.bootstrap(
        (x, y),
        lambda a, b: BY_SCIPY[method](a, b).statistic,
        paired=True,
        vectorized=False,
        method=kind,
        n_resamples=300 if method == "kendall" else 1500,
        **{SCIPY_SEED: np.random.default_rng(1)},
    ).confidence_interval
    tolerance = 0.08 if method == "kendall" else 0.035  # both are random
    assert (got.low, got.high) == pytest.approx((wanted.low, wanted.high), abs=tolerance)
    assert got.interval == kind


def test_bca_equals_a_second_writing_of_its_formula_on_the_same_resamples(noisy_pair):
    x, y = (column[:25] for column in noisy_pair)
    drawn = np.random.default_rng(2).integers(25, size=(500, 25))
    values = np.array([stats.spearmanr(x[rows], y[rows]).statistic for rows in drawn])
    estimate = stats.spearmanr(x, y).statistic
    left = np.array(
        [stats.spearmanr(np.delete(x, k), np.delete(y, k)).statistic for k in range(25)]
    )
    z0 = stats.norm.ppf(np.mean((values < estimate) + 0.5 * np.isclose(values, estimate)))
    apart = left.mean() - left
    a = (apart**3).sum() / (6 * (apart**2).sum() ** 1.5)
    moved = z0 + stats.norm.ppf([0.025, 0.975])
    wanted = np.quantile(values, stats.norm.cdf(z0 + moved / (1 - a * moved)))
    got = correlation(x, y, interval="bca", resamples=500, seed=2)
    assert (got.low, got.high) == pytest.approx(tuple(wanted), abs=1e-9)


def test_bootstrap_depends_on_the_seed_only_not_on_how_much_is_done_at_once(
    noisy_pair, monkeypatch
):
    first = correlation(*noisy_pair, interval="bca", resamples=300, seed=4)
    assert correlation(*noisy_pair, interval="bca", resamples=300, seed=4) == first
    assert correlation(*noisy_pair, interval="bca", resamples=300, seed=5) != first
    monkeypatch.setattr("hardsight.stats._bootstrap._ENTRIES_AT_ONCE", 1000)
    assert correlation(*noisy_pair, interval="bca", resamples=300, seed=4) == first


def test_acceleration_from_blocks_is_close_to_the_one_from_single_examples(noisy_pair, monkeypatch):
    fine = correlation(*noisy_pair, interval="bca", resamples=500)
    monkeypatch.setattr("hardsight.stats._bootstrap._MOST_LEFT_OUT_BLOCKS", 50)
    coarse = correlation(*noisy_pair, interval="bca", resamples=500)
    assert (coarse.low, coarse.high) == pytest.approx((fine.low, fine.high), abs=0.02)


def test_bootstrap_leaves_out_resamples_of_one_value_and_gives_up_when_most_are():
    x = [0.0, 0, 0, 0, 0, 1.3]
    y = [1.0, 2, 3, 4, 5, 6]
    found = correlation(x, y, method="pearson", interval="percentile", resamples=200)
    assert -1 <= found.low <= found.high <= 1
    rare = np.zeros(2000)
    rare[0] = 1.0
    with pytest.raises(StatisticError, match="undefined in"):
        # the rarest value is drawn by 63 % of the resamples; two of them at once by 40 %
        correlation(rare, np.roll(rare, 1), interval="percentile", resamples=1000)


def test_a_perfect_correlation_has_an_interval_of_no_width():
    found = correlation([1, 2, 3, 4, 5], [2, 4, 6, 8, 10])
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_nan_raises_and_is_left_out_on_request():
    x, y = [1, 2, np.nan, 4, 5, 6], [1, 3, 2, np.nan, 5, 4]
    with pytest.raises(NonFiniteError, match=r"x holds 1 NaN of 6 .*first at position 2; .* nan="):
        correlation(x, y)
    assert correlation(x, y, nan="omit") == correlation([1, 2, 5, 6], [1, 3, 5, 4])
    with pytest.raises(StatisticError, match="at least 4 values in x, y, got 3 without NaN"):
        correlation(x[:5], y[:5], nan="omit")


def test_infinities_are_ranked_but_have_no_pearson_correlation():
    x, y = [1, 2, 3, np.inf], [1, 2, 4, 3]
    assert correlation(x, y).value == pytest.approx(0.8)
    with pytest.raises(NonFiniteError, match='x holds 1 infinite values; use method="spearman"'):
        correlation(x, y, method="pearson")


def test_input_without_a_correlation_is_refused_with_its_reason():
    with pytest.raises(ShapeError, match=r"vectors of equal length, got x \[3\], y \[2\]"):
        correlation([1, 2, 3], [1, 2])
    with pytest.raises(ShapeError, match=r"x \[2, 2\]"):
        correlation([[1, 2], [3, 4]], [1, 2])
    with pytest.raises(StatisticError, match="at least 4 values in x, y, got 3"):
        correlation([1, 2, 3], [1, 2, 3])
    with pytest.raises(StatisticError, match="y is constant: all 4 values are 2"):
        correlation([1, 2, 3, 4], [2, 2, 2, 2])
    with pytest.raises(StatisticError, match="at least 5 values for the analytic interval"):
        correlation([1, 2, 3, 4], [1, 3, 2, 4], method="kendall")


def test_options_outside_their_range_name_the_nearest_word():
    with pytest.raises(OptionError, match=r"unknown method 'spearmen'. Did you mean 'spearman'"):
        correlation([1, 2, 3, 4], [1, 2, 3, 4], method="spearmen")
    with pytest.raises(OptionError, match=r"unknown interval 'bsa'. Did you mean 'bca'"):
        correlation([1, 2, 3, 4], [1, 2, 3, 4], interval="bsa")
    with pytest.raises(OptionError, match="level=95"):
        correlation([1, 2, 3, 4], [1, 2, 4, 3], level=95)
    with pytest.raises(OptionError, match="resamples=1"):
        correlation([1, 2, 3, 4], [1, 2, 4, 3], interval="percentile", resamples=1)
    with pytest.raises(OptionError, match="unknown nan 'skip'"):
        correlation([1, 2, 3, 4], [1, 2, 3, 4], nan="skip")
    with pytest.raises(OptionError, match=r"in \[-1, 1\], got 1.2"):
        fisher_z(1.2)


def test_fisher_z_is_infinite_at_the_ends():
    assert (fisher_z(1.0), fisher_z(-1.0)) == (math.inf, -math.inf)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=5, max_size=30))
def test_spearman_is_symmetric_and_blind_to_monotone_changes(pairs):
    x, y = np.array(pairs, dtype=float).T
    if len(set(x)) < 2 or len(set(y)) < 2:
        return
    value = correlation(x, y).value
    assert correlation(y, x).value == pytest.approx(value, abs=1e-12)
    assert correlation(np.exp(x), y**3).value == pytest.approx(value, abs=1e-12)
    assert correlation(-x, y).value == pytest.approx(-value, abs=1e-12)


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_partial_correlation_equals_regression_on_class_indicators(method):
    generator = np.random.default_rng(0)
    classes = generator.integers(4, size=120)
    x = classes + generator.normal(size=120)
    y = 2 * classes + 0.5 * x + generator.normal(size=120)
    columns = [stats.rankdata(c) if method == "spearman" else c for c in (x, y)]
    indicators = (classes[:, None] == np.arange(4)).astype(float)
    a, b = (c - indicators @ np.linalg.lstsq(indicators, c, rcond=None)[0] for c in columns)
    r = (a @ b) / math.sqrt((a @ a) * (b @ b))
    got = partial_correlation(x, y, classes, method=method)
    assert got.value == pytest.approx(r, rel=1e-10)
    t = r * math.sqrt((120 - 5) / (1 - r * r))
    assert got.p == pytest.approx(2 * stats.t.sf(abs(t), 115), rel=1e-9)
    variance = (1 + r * r / 2 if method == "spearman" else 1) / (120 - 3 - 3)
    low = math.tanh(math.atanh(r) - 1.959963984540054 * math.sqrt(variance))
    assert (got.low, got.controls, got.n) == (pytest.approx(low, rel=1e-9), 3, 120)


def test_partial_correlation_with_one_class_is_the_plain_one(noisy_pair):
    got, plain = partial_correlation(*noisy_pair, np.zeros(200)), correlation(*noisy_pair)
    assert (got.value, got.low, got.high) == pytest.approx((plain.value, plain.low, plain.high))
    assert got.p == pytest.approx(plain.p, rel=1e-6)


def test_partial_correlation_refuses_what_it_cannot_answer():
    with pytest.raises(OptionError, match=r'partial Kendall .* use method="spearman"'):
        partial_correlation([1, 2, 3, 4], [1, 2, 3, 4], [0, 0, 1, 1], method="kendall")
    with pytest.raises(StatisticError, match="at least 6 examples for 3 classes, got 5"):
        partial_correlation([1, 2, 3, 4, 5], [1, 2, 3, 5, 4], [0, 1, 2, 0, 1])
    with pytest.raises(StatisticError, match="y is constant within every class"):
        partial_correlation([1, 2, 3, 4, 5, 6], [1, 1, 1, 2, 2, 2], list("aaabbb"))
    with pytest.raises(ShapeError, match=r"classes \[2\]"):
        partial_correlation([1, 2, 3, 4], [1, 2, 3, 5], [0, 1])
