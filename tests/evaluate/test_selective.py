import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hardsight.errors import NonFiniteError, OptionError, ShapeError
from hardsight.evaluate import accepted_risk, rejection_threshold, risk_coverage


def test_aurc_is_the_mean_risk_over_all_coverages():
    right = np.array([1, 1, 0, 1, 0], bool)
    uncertainty = np.array([0.1, 0.4, 0.2, 0.3, 0.9])  # order: 0, 2, 3, 1, 4
    risks = [0 / 1, 1 / 2, 1 / 3, 1 / 4, 2 / 5]
    curve = risk_coverage(uncertainty, right)
    assert curve.aurc == pytest.approx(np.mean(risks))
    np.testing.assert_allclose(curve.risk, risks)
    np.testing.assert_allclose(curve.coverage, [0.2, 0.4, 0.6, 0.8, 1.0])
    assert curve.best == pytest.approx(np.mean([0, 0, 0, 1 / 4, 2 / 5]))


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=30))
def test_equal_uncertainties_count_as_the_mean_over_their_orders(pairs):
    values, right = np.array(pairs).T
    draw = np.random.default_rng(0)
    curve = risk_coverage(values, right)
    shuffled = draw.permutation(len(values))
    assert risk_coverage(values[shuffled], right[shuffled]).aurc == pytest.approx(curve.aurc)
    assert curve.best <= curve.aurc + 1e-12
    assert curve.risk[-1] == pytest.approx(1 - right.mean())
    if len(set(values.tolist())) == 1:  # no order at all: the error rate everywhere
        assert curve.aurc == pytest.approx(1 - right.mean())


def test_the_threshold_keeps_its_promise_in_at_least_as_many_worlds_as_it_says():
    # errors grow with uncertainty: of those accepted below t the true error rate is t / 2
    wanted, broken, found = 0.15, 0, 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        uncertainty = draw.random(2000)
        right = draw.random(2000) >= uncertainty
        threshold = rejection_threshold(uncertainty, right, wanted=wanted, level=0.9).threshold
        found += threshold is not None
        broken += threshold is not None and threshold / 2 > wanted
    assert found > 100  # it does not keep it by refusing everything
    assert broken <= 33  # of 200 at most a tenth; 34 would have a chance of 1 in 1,000


def test_the_bound_is_clopper_and_pearsons_corrected_for_twenty_thresholds():
    right = np.ones(200, bool)
    right[:3] = False
    found = rejection_threshold(np.zeros(200), right, wanted=0.5)
    assert found.coverage == 1.0
    # so few errors, were the rate at its bound, would come with a chance of 0.05 / 20
    assert stats.binom.cdf(3, 200, found.bound) == pytest.approx(0.05 / 20)


def test_a_rate_that_nothing_can_promise_has_no_threshold():
    found = rejection_threshold([0.1, 0.2, 0.3], [1, 1, 1], wanted=0.01)
    assert (found.threshold, found.bound, found.coverage) == (None, None, 0.0)
    all_wrong = rejection_threshold(np.arange(100), np.zeros(100), wanted=0.5)
    assert all_wrong.threshold is None


def test_what_a_threshold_accepts_is_judged_on_other_examples():
    coverage, risk = accepted_risk([0.1, 0.2, 0.3, 0.9], [1, 0, 1, 0], 0.3)
    assert (coverage.value, coverage.n, risk.n) == (0.75, 4, 3)
    assert risk.value == pytest.approx(1 / 3)
    assert risk.low < 1 / 3 < risk.high
    assert accepted_risk([0.5], [1], 0.1)[1] is None


def test_bad_columns_and_rates_are_refused():
    with pytest.raises(ShapeError, match=r"got \[2\] and \[3\]"):
        risk_coverage([0.1, 0.2], [1, 0, 1])
    with pytest.raises(ShapeError, match="N >= 1"):
        risk_coverage([], [])
    with pytest.raises(NonFiniteError, match="without NaN"):
        risk_coverage([math.nan], [1])
    for wanted in (0.0, 1.0, -1.0):
        with pytest.raises(OptionError, match=r"wanted in \(0, 1\)"):
            rejection_threshold([0.1], [1], wanted=wanted)
