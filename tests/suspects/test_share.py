"""The estimated share of wrong labels at a rank: near the truth, never rising, or not given."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression

from hardsight.suspects import LEAST_ROWS, never_rising, suspects_of
from tests.suspects import made


def estimated(table):
    found = suspects_of(table)
    return found, found.error_share[found.order[: found.ranked]]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2])
def test_the_estimate_is_near_the_share_that_was_planted(share):
    table, wrong = made.noisy_pass(6000, share, seed=3)
    found, at_rank = estimated(table)
    # some of what looks like an error is taken for a sure mistake of the model: never too many
    assert -0.035 < at_rank.mean() - wrong.mean() < 0.02
    for low, high in ((0, 100), (100, 400), (400, 1000), (1000, 3000)):
        truth = wrong[found.order[low:high]].mean()
        assert abs(at_rank[low:high].mean() - truth) < 0.2


def test_errors_between_two_classes_are_told_from_the_mistakes_of_the_model():
    table, _ = made.noisy_pass(6000, 0.0, seed=1)
    rng = np.random.default_rng(0)
    labels = table.column("label").copy()
    wrong = (labels == 0) & (rng.uniform(size=len(labels)) < 0.3)  # ants become bees
    labels[wrong] = 1
    probs, _ = made.noisy_probs(6000, seed=1)
    table = made.one_pass(probs, labels, sample="out-of-sample")
    found, at_rank = estimated(table)
    by_margin = suspects_of(table, by="logit_margin")
    first = int(wrong.sum())
    assert wrong[found.order[:first]].mean() > wrong[by_margin.order[:first]].mean() + 0.05
    assert abs(at_rank.mean() - wrong.mean()) < 0.03


@settings(max_examples=20)
@given(st.integers(0, 2**16), st.sampled_from([0.0, 0.1, 0.4]), st.integers(200, 500))
def test_shares_are_between_0_and_1_and_never_rise_along_the_ranking(seed, share, n):
    table, _ = made.noisy_pass(n, share, seed=seed)
    _, at_rank = estimated(table)
    assert ((at_rank >= 0) & (at_rank <= 1)).all()
    assert (np.diff(at_rank) <= 1e-6).all()


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 3)), min_size=1, max_size=40))
def test_pooling_is_isotonic_regression(points):
    values, weights = np.array(points).T
    expected = isotonic_regression(values, sample_weight=weights, increasing=False)
    np.testing.assert_allclose(never_rising(values, weights), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("sample", "n", "why"),
    [
        ("in-sample", 500, "may have been trained on these examples; .*--sample out-of-sample"),
        ("unknown", 500, "may have been trained on these examples"),
        ("out-of-sample", LEAST_ROWS - 1, "only 199 examples have a label and a score"),
    ],
)
def test_without_an_estimate_there_is_no_number_and_a_reason(sample, n, why):
    table, _ = made.noisy_pass(n, 0.1)
    table.metadata["sample"] = sample
    found = suspects_of(table)
    assert found.error_share is None
    assert re.search(why, found.share_note)
    assert table.suspects(3)["error_share"].isna().all()


def test_tracked_training_gives_no_estimate_also_if_examples_were_held_out():
    held_out = np.arange(1000) % 2 == 0
    table = made.tracked(np.linspace(0, 1, 1000), np.zeros(1000, int), held_out=held_out)
    assert suspects_of(table).error_share is None
    assert "an average over training is not a probability" in suspects_of(table).share_note


def test_probabilities_that_are_too_small_or_too_large_for_a_number_are_estimated_all_the_same():
    table, wrong = made.noisy_pass(2000, 0.1, seed=2, sharp=400.0)
    _, at_rank = estimated(table)
    assert np.isfinite(at_rank).all()
    assert abs(at_rank.mean() - wrong.mean()) < 0.03
