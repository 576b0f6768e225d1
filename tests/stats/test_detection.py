import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from hardsight.errors import NonFiniteError, OptionError, ShapeError, StatisticError
from hardsight.stats import auroc, average_precision, compare_auroc, precision_at_k
from hardsight.stats._bootstrap import replicates

tied_scores = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=4, max_size=40)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(tied_scores)
def test_areas_are_those_of_sklearn_with_any_ties(rows):
    scores, positive = np.array([r[0] for r in rows], float), np.array([r[1] for r in rows])
    if not 2 <= positive.sum() <= len(rows) - 2:
        return
    wanted = metrics.roc_auc_score(positive, scores)
    assert auroc(scores, positive).value == pytest.approx(wanted, abs=1e-12)
    found = auroc(scores, positive, interval="percentile", resamples=20)
    assert found.value == pytest.approx(wanted, abs=1e-12)
    got = average_precision(scores, positive, resamples=20).value
    assert got == pytest.approx(metrics.average_precision_score(positive, scores), abs=1e-12)


@pytest.fixture
def detection():
    generator = np.random.default_rng(0)
    positive = generator.random(150) < 0.3
    return np.round(positive + generator.normal(size=150), 1), positive


def placements(scores, positive):
    """DeLong's structural components by comparing every positive with every negative."""
    a, b = scores[positive][:, None], scores[~positive]
    wins = (a > b) + 0.5 * (a == b)
    return wins.mean(), wins.mean(axis=1), wins.mean(axis=0)


def test_delong_interval_equals_all_pairs_compared_one_by_one(detection):
    value, rows, columns = placements(*detection)
    variance = rows.var(ddof=1) / len(rows) + columns.var(ddof=1) / len(columns)
    got = auroc(*detection)
    reach = 1.959963984540054 * np.sqrt(variance)
    assert (got.value, got.low, got.high) == pytest.approx((value, value - reach, value + reach))
    assert (got.interval, got.n) == ("delong", 150)


def test_bootstrap_interval_is_near_delongs(detection):
    delong = auroc(*detection)
    for kind in ("percentile", "bca"):
        got = auroc(*detection, interval=kind)
        assert (got.low, got.high) == pytest.approx((delong.low, delong.high), abs=0.02)
        assert got == auroc(*detection, interval=kind)


def test_average_precision_interval_is_made_of_sklearns_values_of_the_resamples(detection):
    scores, positive = (column[:40] for column in detection)
    drawn = np.random.default_rng(0).integers(40, size=(200, 40))
    drawn = [rows for rows in drawn if positive[rows].any()]  # else there is nothing to find
    values = [metrics.average_precision_score(positive[rows], scores[rows]) for rows in drawn]
    got = average_precision(scores, positive, resamples=200)
    assert (got.low, got.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


def test_resamples_without_a_positive_are_left_out():
    scores, positive = np.arange(20.0), np.arange(20) == 17
    got = average_precision(scores, positive, resamples=400)
    assert got.value == pytest.approx(1 / 3)
    assert 0 < got.low <= got.value <= got.high <= 1
    assert len(replicates(lambda c: np.where(c[:, 17] > 0, 1.0, np.nan), 20, resamples=400,
                          seed=0)) < 400  # fmt: skip


def test_comparing_two_areas_equals_delong_by_all_pairs(detection):
    scores, positive = detection
    other = np.round(0.5 * scores + np.random.default_rng(1).normal(size=150), 1)
    value1, rows1, columns1 = placements(scores, positive)
    value2, rows2, columns2 = placements(other, positive)
    variance = (rows1 - rows2).var(ddof=1) / len(rows1)
    variance += (columns1 - columns2).var(ddof=1) / len(columns1)
    got = compare_auroc(scores, other, positive)
    assert got.difference == pytest.approx(value1 - value2)
    assert got.z == pytest.approx((value1 - value2) / np.sqrt(variance))
    assert compare_auroc(scores, scores, positive).p == 1.0


def test_perfect_and_useless_scores_and_infinities():
    positive = np.array([0, 0, 1, 1], bool)
    assert auroc([1, 2, 3, np.inf], positive).value == 1.0
    assert auroc([-np.inf, 2, 3, 4], ~positive).value == 0.0
    assert auroc([5, 5, 5, 5], positive).value == 0.5
    assert average_precision([5, 5, 5, 5], positive, resamples=50).value == 0.5
    perfect = compare_auroc([1, 2, 3, 4], [4, 3, 2, 1], positive)
    assert (perfect.z, perfect.p) == (np.inf, 0.0)


def test_precision_at_k_averages_over_ties_at_the_border():
    scores, positive = [0.9, 0.5, 0.5, 0.5, 0.1], [0, 1, 1, 0, 1]
    assert precision_at_k(scores, positive, 1).value == 0.0
    assert precision_at_k(scores, positive, 2).value == pytest.approx((0 + 2 / 3) / 2)
    assert precision_at_k(scores, positive, 4).value == 0.5
    assert precision_at_k(scores, positive, 5).value == pytest.approx(3 / 5)


def test_precision_at_k_is_the_mean_over_all_orders_of_tied_examples():
    generator = np.random.default_rng(0)
    scores, positive = generator.integers(3, size=30), generator.random(30) < 0.4
    shuffled = []
    for _ in range(4000):
        order = np.lexsort((generator.random(30), -scores))[:12]
        shuffled.append(positive[order].mean())
    assert precision_at_k(scores, positive, 12).value == pytest.approx(np.mean(shuffled), abs=0.01)


def test_detection_refuses_what_it_cannot_answer():
    with pytest.raises(StatisticError, match="got 0 positives among 3 examples"):
        auroc([1, 2, 3], [0, 0, 0])
    with pytest.raises(StatisticError, match=r"at least 2 positives and 2 negatives .* 1 and 2"):
        auroc([1, 2, 3], [1, 0, 0])
    with pytest.raises(ShapeError, match=r"scores \[3\], positive \[2\]"):
        average_precision([1, 2, 3], [1, 0])
    with pytest.raises(NonFiniteError, match="scores holds 1 NaN"):
        auroc([1, np.nan, 3], [1, 0, 1])
    with pytest.raises(OptionError, match="booleans, or 0 and 1, got"):
        auroc([1, 2, 3], [1, 2, 0])
    with pytest.raises(ShapeError, match=r"positive to have 1 dimension, got \[2, 1\]"):
        auroc([1, 2], [[1], [0]])
    with pytest.raises(OptionError, match=r"k in \[1, 2\], got k=3"):
        precision_at_k([1, 2], [1, 0], 3)
    with pytest.raises(OptionError, match="unknown interval 'delong'"):
        average_precision([1, 2], [1, 0], interval="delong")
