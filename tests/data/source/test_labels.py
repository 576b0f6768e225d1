import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardsight.data.source import class_indices, single_class_index
from hardsight.errors import DataError, LabelError, OptionError


def nested(*rows):
    """Rows as a parquet column of lists gives them."""
    array = np.empty(len(rows), dtype=object)
    array[:] = [None if row is None else np.array(row) for row in rows]
    return array


@pytest.mark.parametrize(
    "values",
    [
        [2, 0, 1],
        np.array([2, 0, 1], dtype=np.uint8),
        np.array([2.0, 0.0, 1.0], dtype=np.float32),
        np.array([[2], [0], [1]]),
        ["2", "0", "1"],
        np.array([b"2", b"0", b"1"]),
        np.array([2, 0, 1], dtype=object),
        [[0, 0, 1], [1, 0, 0], [0, 1, 0]],
        np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype=np.float32),
        np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype=bool),
        nested([0, 0, 1], [1, 0, 0], [0, 1, 0]),
        nested([2], [0], [1]),
    ],
    ids=[
        "ints",
        "uint8",
        "whole floats",
        "column",
        "digits",
        "bytes",
        "objects",
        "one-hot lists",
        "one-hot floats",
        "one-hot bools",
        "one-hot objects",
        "lists of one",
    ],
)
def test_labels_that_mean_the_same_numbers_give_the_same_indices(values):
    indices, names = class_indices(values, where="a test")
    assert indices.dtype == np.int64
    assert indices.tolist() == [2, 0, 1]
    assert names == ("0", "1", "2")


def test_strings_of_numbers_are_indices_and_not_sorted_as_text():
    indices, names = class_indices(["10", "2", "0"], where="a test")
    assert indices.tolist() == [10, 2, 0]
    assert len(names) == 11


def test_names_are_numbered_in_sorted_order():
    indices, names = class_indices(["zebra", "ant", "zebra"], where="a test")
    assert (indices.tolist(), names) == ([1, 0, 1], ("ant", "zebra"))


def test_given_classes_decide_the_order_of_names():
    indices, names = class_indices(["a", "b"], classes=["b", "x", "a"], where="a test")
    assert (indices.tolist(), names) == ([2, 0], ("b", "x", "a"))


def test_names_that_look_like_numbers_follow_given_classes():
    indices, _ = class_indices(["7", "3"], classes=["7", "3"], where="a test")
    assert indices.tolist() == [0, 1]


@given(
    st.lists(st.sampled_from(["ant", "bee", "cow", "äöü"]), min_size=2).filter(
        lambda names: len(set(names)) > 1
    )
)
@settings(derandomize=True, max_examples=30, deadline=None)
def test_indices_of_names_point_back_at_the_names(values):
    indices, names = class_indices(values, where="a test")
    assert [names[index] for index in indices] == values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, -1], r"expected labels in \[0, 1\), got -1 at position 1 of a test; negative"),
        ([0.0, 0.5], r"whole numbers, got 0\.5; store class indices"),
        ([0.0, float("nan")], r"1 of 2 labels in a test are missing"),
        ([0.0, float("inf")], r"whole numbers, got inf"),
        (["a", None], r"1 of 2 labels in a test are missing"),
        (np.zeros((4, 3)), r"got \[0\.0, 0\.0, 0\.0\] at position 0; soft .*argmax\(axis=1\)"),
        ([[1, 0], [1, 1]], r"one label per example in a test, got \[1, 1\] at position 1"),
        (np.zeros((4, 3, 2)), r"got shape \[4, 3, 2\]"),
        (nested([0, 1], [1, 0, 0]), r"one label per example in a test, got lists of 2 and 3"),
        (nested([0, 1], None), r"1 of 2 labels in a test are missing"),
        (["1", "01", "0"], r"labels '01' and '1' in a test would both be class 1"),
        ([0, 1, 49_999_999], r"got 49999999, which looks like an identifier"),
        (np.array([1 + 2j]), r"integers, got complex128"),
        ([0, 10**12], r"got 1000000000000, which looks like an identifier"),
        ([{}, {}], r"integers or names, got dict"),
    ],
)  # fmt: skip
def test_labels_that_are_no_classes_are_refused_with_a_reason(values, message):
    with pytest.raises(LabelError, match=message):
        class_indices(values, where="a test")


def test_a_label_beyond_the_last_class_is_named_with_its_position():
    with pytest.raises(LabelError, match=r"in \[0, 2\), got 5 at position 2 of a test; correct"):
        class_indices([0, 1, 5], classes=["a", "b"], where="a test")


def test_a_name_that_is_no_class_is_named():
    with pytest.raises(LabelError, match=r"label 'c' in a test is none of the 2 classes \(a, b\)"):
        class_indices(["a", "c"], classes=["a", "b"], where="a test")


def test_one_hot_labels_name_as_many_classes_as_they_are_wide():
    indices, names = class_indices([[0, 1, 0, 0], [1, 0, 0, 0]], where="a test")
    assert (indices.tolist(), names) == ([1, 0], ("0", "1", "2", "3"))
    _, names = class_indices([[0, 1], [1, 0]], classes=["a", "b"], where="a test")
    assert names == ("a", "b")
    with pytest.raises(LabelError, match="one-hot labels of 2 values for 3 classes in a test"):
        class_indices([[0, 1], [1, 0]], classes=["a", "b", "c"], where="a test")


def test_strings_that_are_the_same_number_stay_apart_as_names():
    indices, names = class_indices(["1", "01"], classes=["01", "1"], where="a test")
    assert (indices.tolist(), names) == ([1, 0], ("01", "1"))
    indices, names = class_indices(["1", "01", "x"], where="a test")
    assert (indices.tolist(), names) == ([1, 0, 2], ("01", "1", "x"))


def test_labels_as_sparse_as_identifiers_are_refused_before_anything_is_made_of_them():
    import tracemalloc

    tracemalloc.start()
    try:
        with pytest.raises(LabelError, match="looks like an identifier"):
            class_indices([0, 1, 40_000_000], where="a test")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**20


def test_a_part_of_many_classes_is_not_taken_for_identifiers():
    _, names = class_indices([0, 21_840], where="a test")
    assert len(names) == 21_841


def test_one_class_only_is_refused():
    with pytest.raises(DataError, match=r"two classes, got only '0' in a test.*classes="):
        class_indices([0, 0], where="a test")


def test_no_labels_at_all_are_refused():
    with pytest.raises(DataError, match="no examples in a test"):
        class_indices([], where="a test")


def test_repeated_class_names_are_refused():
    with pytest.raises(OptionError, match="every class name once, got a repeatedly"):
        class_indices([0, 1], classes=["a", "a"], where="a test")


def test_a_string_is_no_list_of_class_names():
    with pytest.raises(OptionError, match="list of names, got the string 'ab'"):
        class_indices([0, 1], classes="ab", where="a test")


def test_a_single_label_is_checked_like_many():
    assert single_class_index(np.array([2.0]), (), where="x") == 2
    assert single_class_index("b", ("a", "b"), where="x") == 1
    with pytest.raises(LabelError, match=r"of x is the string 'b'; pass classes="):
        single_class_index("b", (), where="x")
    with pytest.raises(LabelError, match=r"one label for x, got 3 values"):
        single_class_index(np.zeros(3), (), where="x")
    with pytest.raises(LabelError, match=r"of x is the string '01'; pass classes="):
        single_class_index("01", (), where="x")
    assert single_class_index("7", (), where="x") == 7
    with pytest.raises(LabelError, match=r"in \[0, 2\), got 2"):
        single_class_index(2, ("a", "b"), where="x")
    with pytest.raises(LabelError, match="0 or above, got -1"):
        single_class_index(-1, (), where="x")


def test_a_number_that_is_too_large_for_a_label_is_shown_as_it_is():
    labels = np.array([0, 2**63 + 5], dtype=np.uint64)
    with pytest.raises(LabelError, match="class indices, got 9223372036854775813; number"):
        class_indices(labels, where="y.npy")
    indices, _ = class_indices(np.array([0, 1], dtype=np.uint64), where="y.npy")
    assert indices.tolist() == [0, 1]
