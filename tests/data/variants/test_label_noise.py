"""Label errors planted on purpose: how many, where, and which."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hardsight.data import with_label_errors, with_transitions
from hardsight.errors import LabelError, OptionError

SWAPS = {0: 1, 1: 0, 2: 3}  # class 4 never goes wrong, class 3 neither


@st.composite
def labelled(draw, classes=5):
    values = draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=200))
    return np.array(values, np.int64)


@given(labels=labelled(), share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_symmetric_errors_are_as_many_as_asked_for_and_all_wrong(labels, share, seed):
    before = labels.copy()
    changed, wrong = with_label_errors(labels, num_classes=5, share=share, seed=seed)
    np.testing.assert_array_equal(labels, before)  # the given labels are left alone
    assert wrong.sum() == round(share * len(labels))
    np.testing.assert_array_equal(changed != labels, wrong)
    assert set(changed.tolist()) <= set(range(5))


@given(labels=labelled(), share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_paired_errors_go_to_the_partner_and_spare_other_classes(labels, share, seed):
    able = int(np.isin(labels, list(SWAPS)).sum())
    share = share * able / len(labels)
    if round(share * len(labels)) > able:  # rounding alone
        return
    changed, wrong = with_label_errors(labels, num_classes=5, share=share, seed=seed, towards=SWAPS)
    assert wrong.sum() == round(share * len(labels))
    np.testing.assert_array_equal(changed != labels, wrong)
    assert [SWAPS[int(label)] for label in labels[wrong]] == changed[wrong].tolist()


@given(labels=labelled(), seed=st.integers(0, 1000), data=st.data())
def test_a_matrix_never_draws_a_class_of_weight_zero(labels, seed, data):
    weights = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=25,
                                          max_size=25))).reshape(5, 5)  # fmt: skip
    np.fill_diagonal(weights, 0)
    able = weights.any(axis=1)[labels].mean()
    changed, wrong = with_label_errors(
        labels, num_classes=5, share=float(able), seed=seed, towards=weights
    )
    assert wrong.sum() == round(able * len(labels))
    assert (weights[labels[wrong], changed[wrong]] > 0).all()
    np.testing.assert_array_equal(changed != labels, wrong)


def test_wrong_labels_follow_the_weights_of_their_class():
    labels = np.repeat([0, 1], 20_000)
    weights = [[0, 1, 3], [1, 0, 0], [0, 0, 0]]
    changed, wrong = with_label_errors(labels, num_classes=3, share=0.5, seed=0, towards=weights)
    of_zero = changed[wrong & (labels == 0)]
    assert np.bincount(of_zero, minlength=3) / len(of_zero) == pytest.approx([0, 0.25, 0.75], 0.03)
    assert set(changed[wrong & (labels == 1)]) == {0}


def test_the_same_seed_gives_the_same_errors_and_another_seed_others():
    labels = np.arange(1000) % 10
    swaps = {i: (i + 1) % 10 for i in range(10)}
    for towards in (None, swaps):
        one, same, other = (
            with_label_errors(labels, num_classes=10, share=0.3, seed=seed, towards=towards)[0]
            for seed in (1, 1, 2)
        )
        np.testing.assert_array_equal(one, same)
        assert (one != other).any()


def test_transitions_are_drawn_at_the_rate_of_each_class():
    labels = np.repeat([0, 1, 2], 20_000)
    transitions = np.array([[0.9, 0.1, 0.0], [0.0, 0.6, 0.4], [0.0, 0.0, 1.0]])
    changed, wrong = with_transitions(labels, transitions, seed=3)
    seen = np.stack([np.bincount(changed[labels == c], minlength=3) / 20_000 for c in range(3)])
    np.testing.assert_allclose(seen, transitions, atol=0.01)
    assert (seen[transitions == 0] == 0).all()
    np.testing.assert_array_equal(wrong, changed != labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.5}, r"expected share in \[0, 1\] and at least 2 classes, got 1.5"),
        ({"towards": {0: 0}}, "got class 0 towards itself"),
        ({"towards": {0: 7}}, r"expected classes in \[0, 3\) in towards, got 0: 7"),
        ({"towards": [[0, 1], [1, 0]]}, r"expected towards to be a \[C, C\] matrix, got \[2, 2\]"),
        ({"towards": [[0, -1, 0]] * 3}, "expected towards to be 0 or more"),
        ({"towards": {2: 0}, "share": 0.5}, "classes that can go wrong, got 1 of 4; lower"),
    ],
)
def test_noise_that_cannot_be_is_refused(options, message):
    given = {"num_classes": 3, "share": 0.2, "seed": 0, **options}
    with pytest.raises(OptionError, match=message):
        with_label_errors(np.array([0, 0, 1, 2]), **given)


def test_transitions_that_are_no_chances_are_refused():
    with pytest.raises(OptionError, match=r"sum to 1, got 1.5 in row 1"):
        with_transitions(np.array([0]), [[1, 0], [0.5, 1]], seed=0)
    with pytest.raises(OptionError, match=r"expected transitions to be a \[C, C\] matrix"):
        with_transitions(np.array([0]), [1.0], seed=0)


def test_a_label_that_is_no_class_is_refused():
    with pytest.raises(LabelError, match=r"expected labels in \[0, 3\), got 3 at position 1"):
        with_label_errors(np.array([0, 3]), num_classes=3, share=0.5, seed=0)


def test_a_list_of_labels_serves_as_well_as_an_array():
    labels = [index % 10 for index in range(200)]
    for form in (labels, torch.tensor(labels), np.array(labels, dtype=np.uint8)):
        changed, wrong = with_label_errors(form, num_classes=10, share=0.1, seed=0)
        assert wrong.sum() == 20
        assert changed.max() < 10
        np.testing.assert_array_equal(changed != labels, wrong)
    changed, wrong = with_transitions([0, 1, 1], [[0.0, 1.0], [0.0, 1.0]], seed=0)
    assert changed.tolist() == [1, 1, 1]
    with pytest.raises(LabelError, match=r"class indices \[N\], got float64 \[2\]"):
        with_label_errors([0.5, 1.0], num_classes=2, share=0.5, seed=0)
