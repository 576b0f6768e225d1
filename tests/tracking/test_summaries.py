import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hardsight.errors import OptionError, ShapeError
from hardsight.tracking import (
    SUMMARIES,
    angle_velocity,
    area_under_margin,
    early_el2n,
    final_avh,
    first_learned_epoch,
    forgetting_events,
    map_confidence,
    map_correctness,
    map_variability,
    mean_avh,
    strongest_rival,
    suspicion,
)

NAN = math.nan


def test_mean_avh_is_the_mean_over_the_epochs_an_example_was_seen_in():
    got = mean_avh([[0.1, 0.2, NAN], [0.3, NAN, NAN], [0.8, 0.4, NAN]])
    np.testing.assert_allclose(got, [0.4, 0.3, NAN])


def test_final_avh_is_that_of_the_last_epoch_seen():
    got = final_avh([[0.1, 0.2, NAN], [0.3, NAN, NAN], [0.8, NAN, NAN]])
    np.testing.assert_array_equal(got, [0.8, 0.2, NAN])


def test_aum_is_the_mean_margin():
    # Pleiss et al., Eq. 1 and 2: margins 3, -1, 1 give 1; a constant margin gives itself
    got = area_under_margin([[3.0, -2.0], [-1.0, -2.0], [1.0, -2.0]])
    np.testing.assert_allclose(got, [1.0, -2.0])


def test_forgetting_events_count_turns_from_right_to_wrong():
    # columns: right wrong right wrong (2), learned late and kept (0), forgotten once (1)
    correct = [[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 1, 0]]
    np.testing.assert_array_equal(forgetting_events(correct), [2, 0, 1])


def test_forgetting_skips_epochs_in_which_the_example_did_not_come():
    np.testing.assert_array_equal(forgetting_events([[1], [NAN], [0]]), [1])


def test_an_example_never_learned_has_more_forgetting_events_than_any_other_can():
    correct = np.array([[1, 0], [0, 0], [1, 0], [0, 0], [1, 0]])
    np.testing.assert_array_equal(forgetting_events(correct), [2, 5])


def test_early_el2n_ignores_epochs_after_the_window():
    got = early_el2n([[1.2, NAN, NAN], [0.8, 0.5, NAN], [9.0, 9.0, 9.0]], window_epochs=2)
    np.testing.assert_allclose(got, [1.0, 0.5, NAN])


def test_early_el2n_asks_for_a_window_of_at_least_one_epoch():
    with pytest.raises(OptionError, match="window_epochs to be at least 1, got 0"):
        early_el2n([[0.1]], window_epochs=0)


def test_map_confidence_is_the_mean_probability_of_the_label():
    np.testing.assert_allclose(map_confidence([[0.2, 0.9], [0.6, 0.9], [0.7, 0.9]]), [0.5, 0.9])


def test_map_variability_is_the_population_standard_deviation():
    # 0.2, 0.6, 0.7: mean 0.5, squares 0.09 + 0.01 + 0.04, over 3
    got = map_variability([[0.2, 0.9, 0.3], [0.6, 0.9, NAN], [0.7, 0.9, NAN]])
    np.testing.assert_allclose(got, [math.sqrt(0.14 / 3), 0.0, 0.0], atol=1e-15)


def test_map_correctness_is_the_share_of_right_epochs():
    got = map_correctness([[1, 0, NAN], [0, 0, 1], [1, 0, 1], [1, 0, NAN]])
    np.testing.assert_allclose(got, [0.75, 0.0, 1.0])


def test_first_learned_epoch_counts_from_one_and_puts_the_never_learned_last():
    correct = [[1, 0, 0, NAN], [0, 0, 0, NAN], [1, 1, 0, NAN]]
    np.testing.assert_array_equal(first_learned_epoch(correct), [1, 3, 4, NAN])


def test_angle_velocity_is_the_slope_of_a_line_through_the_angles():
    # 1.0, 0.4, 0.7: slope (0.7 - 1.0) / 2; gaps keep their time: 1.0 at 0 and 0.4 at 2
    got = angle_velocity([[1.0, 1.0, 0.3], [0.4, NAN, NAN], [0.7, 0.4, NAN]])
    np.testing.assert_allclose(got, [-0.15, -0.3, NAN])


def test_angle_velocity_agrees_with_a_fitted_line():
    angles = np.random.default_rng(0).uniform(0, math.pi, (7, 5))
    expected = np.polyfit(np.arange(7), angles, 1)[0]
    np.testing.assert_allclose(angle_velocity(angles), expected)


def test_suspicion_is_the_chance_to_lose_a_duel_with_weights_that_rise():
    rng = np.random.default_rng(0)
    logits, labels = 4 * rng.standard_normal((6, 50, 5)), rng.integers(0, 5, 50)
    probs = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    own, rows = probs[:, np.arange(50), labels], np.arange(50)
    probs[:, rows, labels] = 0
    rival = probs.max(axis=2)
    weights = np.array([1, 4, 9, 16, 16, 16])
    expected = weights @ (rival / (own + rival)) / 62
    others = logits.copy()
    others[:, rows, labels] = -np.inf
    margin = logits[:, rows, labels] - others.max(axis=2)
    np.testing.assert_allclose(suspicion(margin, ramp_epochs=4), expected, rtol=1e-12)


def test_suspicion_of_a_sure_model_reaches_its_ends_and_never_overflows():
    got = suspicion(np.array([[1e5, -1e5, 0.0]] * 3, np.float32))
    np.testing.assert_allclose(got, [0.0, 1.0, 0.5], atol=1e-15)


def test_suspicion_skips_epochs_in_which_the_example_did_not_come():
    # weights 1 and 9 are left: (1 * 0 + 9 * 1/2) / 10
    got = suspicion([[1e5, NAN], [NAN, NAN], [0.0, NAN]])
    np.testing.assert_allclose(got, [0.45, NAN])


def test_suspicion_remembers_what_aum_forgets_when_a_wrong_label_is_memorised():
    # first column: believed another class for eight epochs, then memorised with large logits;
    # second: never quite sure
    margin = np.array([[-4.0, 0.5]] * 8 + [[40.0, 0.5]] * 4)
    assert area_under_margin(margin)[0] > area_under_margin(margin)[1]  # looks easier
    # weights 1 + 4 + ... + 64 = 204 of 204 + 81 + 300
    assert suspicion(margin)[0] == pytest.approx(204 / 585 / (1 + np.exp(-4)), rel=1e-6)
    assert suspicion(margin[:10])[0] > 0.5 > suspicion(margin)[1]


def test_the_strongest_rival_is_the_class_that_the_weighted_epochs_voted_for():
    rng = np.random.default_rng(0)
    predictions, labels = rng.integers(0, 4, (14, 200)), rng.integers(0, 4, 200)
    seen = rng.uniform(size=(14, 200)) < 0.8
    histories = np.where(seen, labels, -1)
    predictions[:, :20] = labels[:20]  # the label led throughout
    got = strongest_rival(predictions, histories)
    for example in range(200):
        votes = np.zeros(4)
        for epoch in range(14):
            if seen[epoch, example] and predictions[epoch, example] != labels[example]:
                votes[predictions[epoch, example]] += min(epoch + 1, 10) ** 2
        assert got[example] == (votes.argmax() if votes.any() else -1)
    assert (got[:20] == -1).all()


def test_suspicion_asks_for_a_ramp_of_at_least_one_epoch():
    with pytest.raises(OptionError, match="ramp_epochs to be at least 1, got 0"):
        suspicion([[0.1]], ramp_epochs=0)


def test_a_history_must_be_a_matrix():
    with pytest.raises(ShapeError, match=r"avh to have a row per epoch .*, got \[3\]"):
        mean_avh([0.1, 0.2, 0.3])


@pytest.mark.parametrize("name", sorted(SUMMARIES))
@settings(derandomize=True, max_examples=40, deadline=None)
@given(data=st.data())
def test_every_summary_stays_in_its_range_and_is_nan_only_where_it_must_be(name, data):
    spec = SUMMARIES[name]
    size = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 4)))
    limit = {"target_angle": math.pi, "el2n": math.sqrt(2)}.get(spec.inputs[0], 1.0)
    whole = spec.inputs == ("correct",)
    entry = st.sampled_from([0.0, 1.0]) if whole else st.floats(0, limit)
    history = data.draw(arrays(np.float64, size, elements=st.one_of(entry, st.just(NAN))))
    got = spec.function(history)
    assert got.shape == (size[1],)
    assert got.dtype == np.float64
    needed = 2 if name == "angle_velocity" else 1
    np.testing.assert_array_equal(np.isnan(got), (~np.isnan(history)).sum(axis=0) < needed)
    known = got[~np.isnan(got)]
    assert ((known >= spec.low - 1e-12) & (known <= spec.high + 1e-12)).all()


@pytest.mark.parametrize("name", sorted(SUMMARIES))
def test_every_summary_of_an_example_is_blind_to_the_other_examples(name):
    spec = SUMMARIES[name]
    history = np.random.default_rng(1).integers(0, 2, (5, 6)).astype(float)
    alone = np.concatenate([spec.function(history[:, [place]]) for place in range(6)])
    np.testing.assert_array_equal(spec.function(history), alone)
