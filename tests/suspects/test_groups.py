"""What kind of doubt there is about a label: each rule, and what holds for all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardsight.suspects import FINE, GROUPS, HARD, UNKNOWN, WRONG, suspects_of
from tests.suspects import made

# 30 plain examples of each class, which make 0.8 the usual probability of a class
PLAIN = [[0.8 if at == label else 0.2 / 3 for at in range(4)] for label in range(4)] * 30
LABELS = [0, 1, 2, 3] * 30


def group_of(probs, label, **more):
    table = made.one_pass([*PLAIN, probs], [*LABELS, label], **more)
    found = suspects_of(table)
    return found.groups[found.group[-1]], found.reason(len(PLAIN))


@pytest.mark.parametrize(
    ("probs", "label", "group", "why"),
    [
        ([0.02, 0.05, 0.03, 0.9], 2, "likely wrong label",
         "The model is as sure of dog as it usually is of examples of that class"),
        ([0.02, 0.15, 0.11, 0.72], 2, "likely wrong label",
         "To the model, dog is more than twice as likely as cat."),
        ([0.3, 0.2, 0.02, 0.48], 2, "likely wrong label", "more than twice as likely"),
        ([0.33, 0.3, 0.02, 0.35], 2, "unlike all classes", "No class fits even half as well"),
        ([0.02, 0.5, 0.45, 0.03], 2, "ambiguous between two classes", "between cat and bee."),
        ([0.02, 0.45, 0.5, 0.03], 2, "ambiguous between two classes", "cat and another class"),
        ([0.3, 0.2, 0.24, 0.26], 1, "unlike all classes", "No class fits even half as well"),
        ([0.13, 0.37, 0.36, 0.14], 2, "ambiguous between two classes", "between cat and bee."),
        ([0.08, 0.08, 0.7, 0.14], 2, "hard but right", "less probable than is usual for cat"),
        ([0.1, 0.05, 0.75, 0.1], 2, "hard but right", "less probable than is usual for cat"),
        ([0.01, 0.01, 0.97, 0.01], 2, "no doubt", "agrees with the label cat"),
    ],
)  # fmt: skip
def test_each_group_is_what_its_rule_says(probs, label, group, why):
    found, reason = group_of(probs, label)
    assert found == group
    assert why in reason


def test_of_training_a_label_that_leads_is_not_called_a_mistake_of_the_model():
    # nothing is estimated of a tracked training, so that nothing can be said of most such cases
    table = made.tracked([0.05] * 120 + [0.3], [*LABELS, 2], rival=[-1] * 120 + [3])
    found = suspects_of(table)
    assert found.group[-1] == HARD
    why = "The label led on average, but was less probable than is usual for cat."
    assert why in found.reason(120)


def test_a_sure_disagreement_is_hard_but_right_where_labels_are_seldom_wrong():
    table, wrong = made.noisy_pass(6000, 0.0, seed=4)
    found = suspects_of(table)
    assert (found.group == WRONG).sum() < 0.002 * len(wrong)
    assert ((found.group == HARD) & found.is_suspect).sum() > 100
    sure = int(np.flatnonzero((found.group == HARD) & found.is_suspect)[0])
    assert "Most such disagreements in this data are the model's mistakes." in found.reason(sure)


def test_likely_wrong_labels_are_mostly_wrong_where_errors_were_planted():
    table, wrong = made.noisy_pass(6000, 0.15, seed=4)
    group = suspects_of(table).group
    assert wrong[group == WRONG].mean() > 0.8
    assert wrong[group == FINE].mean() < 0.015


@given(
    st.lists(
        st.tuples(st.lists(st.floats(0.001, 1), min_size=4, max_size=4), st.integers(-1, 3)),
        min_size=1, max_size=30,
    )
)  # fmt: skip
def test_every_row_has_one_group_that_agrees_with_its_numbers(rows):
    probs = np.array([values for values, _ in rows])
    probs /= probs.sum(axis=1, keepdims=True)
    labels = np.array([label for _, label in rows])
    found = suspects_of(made.one_pass(probs, labels))
    assert ((found.group >= 0) & (found.group < len(GROUPS))).all()
    np.testing.assert_array_equal(found.group == UNKNOWN, labels < 0)
    wrong = found.group == WRONG
    assert (found.suggestion[wrong] >= 0).all()
    assert (found.suspicion[wrong] >= 0.5).all()
    assert (found.suspicion[np.isin(found.group, [FINE])] <= 1 / 3 + 1e-6).all()


def test_groups_do_not_depend_on_the_order_of_the_rows():
    table, _ = made.noisy_pass(800, 0.1)
    mixed = np.random.default_rng(0).permutation(800)
    shuffled = made.ScoreTable(table.to_arrow().take(mixed))
    np.testing.assert_array_equal(suspects_of(shuffled).group, suspects_of(table).group[mixed])


@pytest.mark.parametrize(
    ("suspicion", "confidence", "rival_confidence", "group"),
    [
        (0.65, 0.17, 0.51, "likely wrong label"),  # three times as probable, whatever the margin
        (0.45, 0.23, 0.52, "ambiguous between two classes"),  # memorised late
        (0.24, 0.41, 0.36, "ambiguous between two classes"),
    ],
)
def test_of_training_mean_probabilities_tell_the_group(
    suspicion, confidence, rival_confidence, group
):
    n = 40
    columns = {
        "map_confidence": np.where(np.arange(n) > 0, 0.8, confidence),
        "rival_confidence": np.where(np.arange(n) > 0, 0.1, rival_confidence),
        "rival": np.where(np.arange(n) > 0, -1, 1),
    }
    doubt = np.where(np.arange(n) > 0, 0.02, suspicion)
    found = suspects_of(made.tracked(doubt, np.repeat([0, 1], n // 2), **columns))
    assert found.groups[found.group[0]] == group


def test_the_probability_of_the_rival_through_training_decides_not_odds_of_averages():
    """Half of the epochs for the rival and half for the label: averages alone would lose it."""
    n = 40
    labels = np.repeat([0, 1], n // 2)
    suspicion = np.full(n, 0.02)
    confidence, rival_confidence = np.full(n, 0.9), np.full(n, 0.05)
    suspicion[0], confidence[0], rival_confidence[0] = 0.75, 0.02, 0.93
    rival = np.full(n, -1)
    rival[0] = 1
    columns = {"map_confidence": confidence, "rival": rival}
    before = suspects_of(made.tracked(suspicion, labels, **columns))
    assert before.groups[before.group[0]] == "unlike all classes"
    columns["rival_confidence"] = rival_confidence
    found = suspects_of(made.tracked(suspicion, labels, **columns))
    assert found.groups[found.group[0]] == "likely wrong label"
    # the trained model itself may have memorised the label by now
    assert "Averaged over the epochs, the model was as sure of bee as it usually is" in (
        found.reason(0)
    )
