"""Out-of-distribution detection against scikit-learn and the formulas."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from hardsight.errors import NonFiniteError, OptionError, ShapeError, StatisticError
from hardsight.evaluate import detection, false_positive_rate, ood_indicators

VALUES = st.lists(st.integers(-5, 5), min_size=2, max_size=40)


@given(VALUES, VALUES)
def test_detection_is_that_of_scikit_learn_also_with_ties(own, foreign):
    if len(set(own + foreign)) == 1:
        return
    found = detection(own, foreign)
    values = np.array(own + foreign, float)
    is_foreign = np.array([0] * len(own) + [1] * len(foreign))
    assert found.auroc.value == pytest.approx(roc_auc_score(is_foreign, values))
    assert found.aupr_out == pytest.approx(average_precision_score(is_foreign, values))
    assert found.aupr_in == pytest.approx(average_precision_score(1 - is_foreign, -values))
    fpr, tpr, _ = roc_curve(1 - is_foreign, -values, drop_intermediate=False)
    assert found.fpr95 == pytest.approx(fpr[np.argmax(tpr >= 0.95)])
    assert (found.own, found.foreign) == (len(own), len(foreign))


def test_the_threshold_accepts_exactly_95_of_100():
    own = np.arange(100)
    assert false_positive_rate(own, [94]) == 1.0  # the 95th smallest is 94
    assert false_positive_rate(own, [94.5]) == 0.0


def test_detection_does_not_depend_on_the_order():
    draw = np.random.default_rng(0)
    own, foreign = draw.integers(0, 4, 50), draw.integers(1, 6, 60)
    assert detection(own, foreign) == detection(own[::-1], draw.permutation(foreign))


def test_indicators_match_their_formulas_in_float64():
    torch.manual_seed(0)
    embeddings, weights = torch.randn(20, 6).double(), torch.randn(5, 6).double()
    logits = embeddings @ weights.T
    found = ood_indicators(logits, embeddings, weights)
    z, x, w = logits.numpy(), embeddings.numpy(), weights.numpy()
    cosines = (x @ w.T) / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(w, axis=1)
    closeness = np.pi - np.arccos(cosines)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(found["min_energy"], -z.max(1))
    np.testing.assert_allclose(found["free_energy"], -np.log(np.exp(z).sum(1)))
    np.testing.assert_allclose(found["max_probability"], -np.log(p.max(1)), atol=1e-12)
    np.testing.assert_allclose(found["avc"], -(closeness / closeness.sum(1, keepdims=True)).max(1))


def test_max_probability_still_ranks_where_float32_probabilities_round_to_one():
    found = ood_indicators(torch.tensor([[40.0, 0.0], [30.0, 0.0]]))["max_probability"]
    assert 0 < found[0] < found[1]


def test_without_embeddings_there_is_no_angular_indicator():
    assert set(ood_indicators(torch.zeros(1, 2))) == {
        "min_energy",
        "free_energy",
        "max_probability",
    }


def test_bad_input_says_what_was_expected():
    with pytest.raises(StatisticError, match=r"all 4 values of the indicator are equal \(1\)"):
        detection([1, 1], [1, 1])
    with pytest.raises(NonFiniteError, match="NaN in foreign"):
        detection([1, 2], [1, np.nan])
    with pytest.raises(ShapeError, match=r"own to be \[N\] with N >= 1, got \[0\]"):
        detection([], [1, 2])
    with pytest.raises(OptionError, match=r"recall in \(0, 1\], got 0"):
        false_positive_rate([1], [1], recall=0)
    with pytest.raises(ShapeError, match="one row per example"):
        ood_indicators(torch.zeros(2, 3), torch.zeros(3, 4), torch.ones(3, 4))
