"""Calibration against hand-worked bins, numpy and scipy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss

from hardsight.errors import NonFiniteError, OptionError, ProbabilityError, ShapeError
from hardsight.evaluate import (
    brier_score,
    calibration_bins,
    calibration_error,
    fitted_temperature,
    negative_log_likelihood,
)


@pytest.fixture
def model():
    """Logits that are too sure by a factor of 3, and labels."""
    torch.manual_seed(0)
    honest = torch.randn(800, 4, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=honest).sample()
    return 3 * honest, labels


def test_a_confidence_of_one_is_in_the_last_bin():
    found = calibration_bins([0.95, 1.0, 1.0, 0.0], [1, 1, 0, 0], bins=10)
    assert [one.count for one in found] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 3]
    assert found[-1].high == 1.0
    assert found[-1].accuracy == pytest.approx(2 / 3)


def test_a_confidence_on_an_edge_is_in_the_bin_that_begins_there():
    # 0.29 * 100 rounds to 28.999...: a product would put it one bin too low
    (found,) = [one for one in calibration_bins([0.29], [1], bins=100) if one.count]
    assert found.low == 0.29


def test_calibration_error_matches_bins_worked_by_hand():
    # bins [0, .5) and [.5, 1]: one example of .4 that is right, three of .9 of which two are
    got = calibration_error([0.4, 0.9, 0.9, 0.9], [1, 1, 1, 0], bins=2)
    assert got == pytest.approx(1 / 4 * 0.6 + 3 / 4 * abs(0.9 - 2 / 3))


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=60),
       st.integers(1, 20), st.booleans())  # fmt: skip
def test_calibration_error_ignores_the_order_and_stays_between_0_and_1(rows, bins, adaptive):
    confidence, right = np.array([c / 20 for c, _ in rows]), np.array([r for _, r in rows])
    got = calibration_error(confidence, right, bins=bins, adaptive=adaptive)
    assert 0 <= got <= 1
    back = calibration_error(confidence[::-1], right[::-1], bins=bins, adaptive=adaptive)
    assert got == pytest.approx(back)
    # one bin less than or equal to all of them: merging bins never raises the error
    assert got >= abs(confidence.mean() - right.mean()) - 1e-12


def test_adaptive_bins_hold_equally_many_examples_and_keep_ties_together():
    confidence = np.linspace(0, 1, 100)
    found = calibration_bins(confidence, confidence > 0.5, bins=4, adaptive=True)
    assert [one.count for one in found] == [25, 25, 25, 25]
    tied = calibration_bins([0.5] * 7 + [0.9] * 3, [1] * 10, bins=5, adaptive=True)
    assert [(one.low, one.count) for one in tied] == [(0.5, 7), (0.9, 3)]


def test_brier_and_likelihood_match_numpy_in_float64(model):
    logits, labels = model
    probs = torch.softmax(logits, 1).numpy()
    onehot = np.eye(4)[labels.numpy()]
    np.testing.assert_allclose(brier_score(logits, labels), ((probs - onehot) ** 2).sum(1))
    got = float(negative_log_likelihood(logits, labels).mean())
    assert got == pytest.approx(log_loss(labels.numpy(), probs, labels=range(4)))


def test_the_temperature_is_the_one_scipy_finds(model):
    logits, labels = model

    def loss(log_t):
        return float(negative_log_likelihood(logits / np.exp(log_t), labels).mean())

    best = np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)
    assert fitted_temperature(logits, labels) == pytest.approx(best, rel=1e-3)
    assert fitted_temperature(logits, labels) == pytest.approx(3, rel=0.15)


def test_a_perfect_model_is_made_as_sure_as_allowed():
    logits, labels = torch.eye(3), torch.arange(3)
    assert fitted_temperature(logits, labels, low=0.05) == pytest.approx(0.05)


def test_bad_input_says_what_was_expected():
    with pytest.raises(ProbabilityError, match=r"confidences in \[0, 1\], got values from 0.2 to"):
        calibration_error([0.2, 1.2], [1, 1])
    with pytest.raises(ShapeError, match=r"confidence \[2\], right \[1\]"):
        calibration_error([0.2, 0.3], [1])
    with pytest.raises(OptionError, match="at least 1 bin, got bins=0"):
        calibration_bins([0.2], [1], bins=0)
    with pytest.raises(ShapeError, match="at least 1 example to fit a temperature"):
        fitted_temperature(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(NonFiniteError, match="finite logits to fit a temperature"):
        fitted_temperature(torch.tensor([[torch.inf, 0.0]]), torch.tensor([0]))
