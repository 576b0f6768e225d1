"""Accuracy: of all, of each class, of frequent and rare ones."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, recall_score

from hardsight.errors import LabelError, OptionError, ShapeError, StatisticError
from hardsight.evaluate import accuracy, class_accuracy, shot_accuracy

DRAW = np.random.default_rng(0)
LABELS = DRAW.integers(0, 5, 300)
PREDICTIONS = np.where(DRAW.random(300) < 0.7, LABELS, DRAW.integers(0, 5, 300))


def test_accuracy_is_that_of_scikit_learn_and_lies_in_its_interval():
    found = accuracy(PREDICTIONS, LABELS)
    assert found.value == accuracy_score(LABELS, PREDICTIONS)
    assert found.low < found.value < found.high
    assert found.n == 300


def test_an_example_without_a_prediction_is_not_right():
    assert accuracy([-1, 0], [0, 0]).value == 0.5


def test_class_accuracy_is_the_recall_of_each_class():
    found = [one.value for one in class_accuracy(PREDICTIONS, LABELS, 5)]
    np.testing.assert_allclose(found, recall_score(LABELS, PREDICTIONS, average=None))


def test_a_class_without_examples_has_no_accuracy():
    assert class_accuracy([0], [0], 2)[1] is None


def test_shots_split_at_more_than_100_and_fewer_than_20_training_examples():
    counts = [101, 100, 20, 19, 0]
    found = shot_accuracy([0, 1, 0, 3, 4], [0, 1, 2, 3, 4], counts)
    assert {name: (one.value, one.n) for name, one in found.items()} == {
        "many": (1.0, 1), "medium": (0.5, 2), "few": (1.0, 2),
    }  # fmt: skip
    assert shot_accuracy([0], [0], [500])["few"] is None


def test_bad_input_says_what_was_expected():
    with pytest.raises(ShapeError, match=r"predictions \[2\], labels \[1\]"):
        accuracy([0, 1], [0])
    with pytest.raises(StatisticError, match="at least 1 example, got none"):
        accuracy([], [])
    with pytest.raises(LabelError, match=r"labels in \[0, 2\), got values from 0 to 2"):
        class_accuracy([0, 1], [0, 2], 2)
    with pytest.raises(OptionError, match="few_below=50, many_above=10"):
        shot_accuracy([0], [0], [5], many_above=10, few_below=50)
