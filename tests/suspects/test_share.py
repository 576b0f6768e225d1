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


# ranks, the most suspect first
PARTS = [slice(0, 100), slice(100, 400), slice(400, 1000), slice(1000, 3000)]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2])
def test_the_estimate_is_near_the_share_that_was_planted(share):
    off = []
    for seed in range(4):
        table, wrong = made.noisy_pass(6000, share, seed=seed)
        found, at_rank = estimated(table)
        really = wrong[found.order]
        off.append([
            at_rank.mean() - wrong.mean(),
            *(at_rank[part].mean() - really[part].mean() for part in PARTS),
        ])  # fmt: skip
    # some of what looks like an error is taken for a sure mistake of the model: never too many
    assert -0.06 < np.mean(off, axis=0)[0] < 0.02
    assert np.abs(np.mean(off, axis=0)).max() < 0.2
    assert np.max(off) < 0.15


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


def noisy_pairs(per_class, seed, *, num_classes=10, share=0.4):
    """A pass over few examples of each class; one class of ten loses ``share`` to another one."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(num_classes), per_class)
    noisy = truth < 4  # two pairs of classes are mistaken for each other, the other six are not
    wrong = noisy & (rng.uniform(size=len(truth)) < share)
    labels = np.where(wrong, truth ^ 1, truth)
    # the model has learned how unsure labels of these classes are, and is surer of the others
    logits = rng.normal(size=(len(truth), num_classes))
    logits[np.arange(len(truth)), truth] += np.where(noisy, 5.0, 9.0) + rng.normal(size=len(truth))
    logits[np.arange(len(truth)), truth ^ 1] += np.where(noisy, 4.0, 0.0)
    return made.one_pass(made.softmax(logits), labels, sample="out-of-sample"), wrong


def test_errors_of_a_few_classes_are_seen_if_there_are_few_examples_of_each():
    # one curve for all classes takes the disagreements of unsure classes for the model's mistakes
    off = []
    for seed in range(10):
        table, wrong = noisy_pairs(40, seed)
        _, at_rank = estimated(table)
        off.append(at_rank.mean() / wrong.mean())
    assert 0.4 < np.mean(off) < 1.3


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


def held_out_training(n=4000, share=0.2, *, every=2, seed=5, **more):
    """A tracked training of which one in ``every`` examples was held out, and the wrong labels."""
    judged, wrong = made.noisy_pass(n, share, seed=seed)
    margin = judged.column("logit_margin").astype(float)
    held_out = np.arange(n) % every == 0
    # what was learned is all but memorised; the order of its margins is left
    suspicion = 1 / (1 + np.exp(np.where(held_out, margin, 0.2 * margin + 2)))
    columns = {
        "prediction": judged.column("prediction"),
        "held_out": held_out,
        "last_margin": np.where(held_out, margin, 9.0),
        "last_confidence": np.where(held_out, judged.column("model_confidence"), 0.99),
    }
    table = made.tracked(suspicion, judged.column("label"), **{**columns, **more})
    return table, wrong


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_held_out_examples_tell_the_share_of_wrong_labels_among_all_of_a_tracked_training(share):
    off = []
    for seed in range(8):
        table, wrong = held_out_training(share=share, seed=seed)
        found, at_rank = estimated(table)
        assert found.kind == "training dynamics"
        really, learned = wrong[found.order], ~table.column("held_out")
        off.append([
            at_rank.mean() - wrong.mean(),
            found.error_share[learned].mean() - wrong[learned].mean(),
            *(at_rank[part].mean() - really[part].mean() for part in PARTS),
        ])  # fmt: skip
    assert np.abs(np.mean(off, axis=0))[:2].max() < 0.08
    # a single estimate may be far too low for the first ranks, and none is much too high
    assert np.abs(np.mean(off, axis=0)).max() < 0.35
    assert np.max(off) < 0.15


def test_held_out_examples_do_not_change_the_order_or_the_groups_of_a_tracked_training():
    table, _ = held_out_training()
    with_estimate = suspects_of(table)
    without = suspects_of(made.tracked(
        table.column("suspicion"), table.column("label"), prediction=table.column("prediction"),
        held_out=table.column("held_out"),
    ))  # fmt: skip
    assert without.error_share is None
    np.testing.assert_array_equal(with_estimate.order, without.order)
    np.testing.assert_array_equal(with_estimate.group, without.group)


def test_a_tracked_training_that_held_out_nothing_or_little_says_why_there_is_no_estimate():
    table, _ = held_out_training(held_out=np.zeros(4000, bool))
    assert suspects_of(table).error_share is None
    assert "hold examples out of training (validation = 0.2)" in suspects_of(table).share_note
    table, _ = held_out_training(every=16)
    why = r"250 examples were held out of training, and 500 are needed, 50 of each class and 500 in"
    assert suspects_of(table).error_share is None
    assert re.search(why, suspects_of(table).share_note)


def test_the_share_of_a_model_that_contradicts_most_labels_is_said_to_be_a_bound():
    table, _ = made.noisy_pass(2000, 0.1, seed=3)
    assert suspects_of(table).share_note == ""
    weak, _ = made.noisy_pass(2000, 0.1, seed=3, sharp=0.5)
    found = suspects_of(weak)
    assert found.error_share is not None
    assert re.match(r"the model contradicts [5-9]\d% of all labels", found.share_note)


def test_with_two_classes_rounding_is_not_taken_for_evidence():
    # surer than it should be: of its surest disagreements 3 in 10 are its own mistakes
    rng = np.random.default_rng(0)
    strength = rng.normal(size=8000) * 4
    truth = (rng.uniform(size=8000) < 1 / (1 + np.exp(-0.3 * strength))).astype(int)
    wrong = rng.uniform(size=8000) < 0.2
    second = 1 / (1 + np.exp(-strength))
    probs = np.stack([1 / (1 + np.exp(strength)), second], axis=1)
    table = made.one_pass(probs, np.where(wrong, 1 - truth, truth), sample="out-of-sample")
    found, at_rank = estimated(table)
    for low, high in ((0, 200), (200, 800), (800, 2000)):
        assert at_rank[low:high].mean() - wrong[found.order[low:high]].mean() < 0.15


def test_probabilities_that_are_too_small_or_too_large_for_a_number_are_estimated_all_the_same():
    table, wrong = made.noisy_pass(2000, 0.1, seed=2, sharp=400.0)
    _, at_rank = estimated(table)
    assert np.isfinite(at_rank).all()
    assert abs(at_rank.mean() - wrong.mean()) < 0.03
