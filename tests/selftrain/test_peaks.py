import numpy as np
import pytest

from hardsight.selftrain._peaks import peaks_of_probabilities
from hardsight.selftrain._rows import probabilities


@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("sharpness", [0.5, 2.0, 6.0])
def test_bounds_are_at_least_what_they_bound_whatever_the_thresholds(sharpness, alpha):
    draw = np.random.default_rng(0)
    odds = np.exp(sharpness * draw.standard_normal((3000, 50), dtype=np.float32))
    probs = odds / odds.sum(axis=1, keepdims=True)
    peaks = peaks_of_probabilities(probabilities(probs), 0.2, alpha)
    exact = np.sort(probs.astype(np.float64), axis=1)
    assert (peaks.others >= exact[:, -2] * (1 - 1e-6)).all()
    assert peaks.squares is not None
    assert (peaks.squares >= (exact[:, :-1] ** 2).sum(axis=1) * (1 - 1e-6)).all()
    even = np.full(50, 0.3, dtype=np.float32)  # then the sum of largest powers is tight
    for thresholds in (even, draw.uniform(0.1, 1, 50).astype(np.float32)):
        sums = ((probs.astype(np.float64) / thresholds) ** (1 / alpha)).sum(axis=1)
        assert (peaks.largest_sums(thresholds, 1 / alpha) >= 0.999 * sums).all()


def test_a_bound_on_a_sum_worked_by_hand():
    probs = np.array([[0.4, 0.4, 0.2]], dtype=np.float32)
    peaks = peaks_of_probabilities(probabilities(probs), 1.0, 0.25)
    thresholds = np.full(3, 0.4, dtype=np.float32)
    # 1 + 1 + 1/16 exactly; the bound takes the second as the largest of the others: 1 + 1.25
    np.testing.assert_allclose(peaks.largest_sums(thresholds, 4.0), [2.25], rtol=1e-3)
