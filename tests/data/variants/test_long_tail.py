import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardsight.data import long_tailed_counts, long_tailed_rows
from hardsight.errors import DataError, LabelError, OptionError


def test_the_counts_are_those_of_long_tailed_cifar():
    # the published lists: 5,000 images per class, ratios 100 and 10
    wanted = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert long_tailed_counts([5000] * 10, ratio=100).tolist() == wanted
    assert long_tailed_counts([5000] * 10, ratio=10)[[0, 9]].tolist() == [5000, 500]


def test_a_class_that_is_small_already_makes_all_others_smaller():
    # the last of three classes has 10: the first may have 100, the middle one 31
    assert long_tailed_counts([500, 500, 10], ratio=100 / 10).tolist() == [100, 31, 10]


@settings(derandomize=True, max_examples=50)
@given(st.lists(st.integers(5, 400), min_size=2, max_size=8), st.floats(1, 5))
def test_no_class_is_asked_for_more_than_it_has(there, ratio):
    counts = long_tailed_counts(there, ratio=ratio)
    assert (counts <= there).all()
    assert (np.diff(counts) <= 0).all()
    assert abs(counts[-1] - counts[0] / ratio) <= 1


def test_the_seed_decides_which_examples_are_kept_and_the_counts_are_exact():
    labels = np.arange(1000) % 10
    rows = long_tailed_rows(labels, num_classes=10, ratio=20, seed=1)
    assert np.bincount(labels[rows]).tolist() == long_tailed_counts([100] * 10, ratio=20).tolist()
    assert len(np.unique(rows)) == len(rows)
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(rows, long_tailed_rows(labels, num_classes=10, ratio=20, seed=1))
    assert not np.array_equal(rows, long_tailed_rows(labels, num_classes=10, ratio=20, seed=2))
    milder = long_tailed_rows(labels, num_classes=10, ratio=5, seed=1)
    assert set(rows) <= set(milder)


def test_a_ratio_below_one_and_an_empty_class_are_refused():
    with pytest.raises(OptionError, match=r"expected ratio of at least 1, got 0\.5"):
        long_tailed_counts([10, 10], ratio=0.5)
    with pytest.raises(DataError, match="ratio 50 leaves class 1 without an example, of 10"):
        long_tailed_counts([10, 10], ratio=50)
    with pytest.raises(DataError, match="at least 2 classes for a long tail, got 1"):
        long_tailed_counts([10], ratio=2)


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_label_that_is_no_class_is_refused(wrong):
    with pytest.raises(LabelError, match=rf"expected labels in \[0, 2\), got {wrong}"):
        long_tailed_rows([0, 1, wrong], num_classes=2, ratio=1, seed=0)
