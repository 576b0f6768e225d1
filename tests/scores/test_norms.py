import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hardsight.errors import LabelError, ShapeError
from hardsight.scores import class_normalized_feature_norm, feature_norm
from tests._tensors import assert_takes_a_matrix_alone


def lengths(*values):
    """Embeddings of the given lengths, in two dimensions."""
    return torch.tensor([[0.6, -0.8]]) * torch.tensor(values)[:, None]


def test_feature_norm_worked_by_hand():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-5.0, 12.0], [3e-30, 4e-30], [3e30, 4e30]])
    torch.testing.assert_close(
        feature_norm(x), torch.tensor([5.0, 0.0, 13.0, 5e-30, 5e30]), rtol=1e-6, atol=0
    )


def test_feature_norm_matches_numpy_in_float64():
    x = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    expected = np.sqrt((x.double().numpy() ** 2).sum(axis=1))
    np.testing.assert_allclose(feature_norm(x).numpy(), expected, rtol=1e-6)


def test_class_normalized_norm_worked_by_hand():
    # class 0: 1, 3, 2 -> 0, 1, 1/2; class 5: 10, 30, 15 -> 0, 1, 1/4
    x = lengths(1.0, 10.0, 3.0, 30.0, 2.0, 15.0)
    got = class_normalized_feature_norm(x, torch.tensor([0, 5, 0, 5, 0, 5]))
    torch.testing.assert_close(got, torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5, 0.25]))


def test_class_normalized_norm_is_a_half_where_a_class_has_one_length():
    got = class_normalized_feature_norm(lengths(7.0, 2.0, 2.0), torch.tensor([0, 1, 1]))
    assert got.tolist() == [0.5, 0.5, 0.5]


def test_class_normalized_norm_of_a_class_with_a_zero_vector_starts_there():
    got = class_normalized_feature_norm(lengths(0.0, 4.0, 1.0), torch.tensor([3, 3, 3]))
    torch.testing.assert_close(got, torch.tensor([0.0, 1.0, 0.25]))


def test_class_normalized_norm_leaves_rows_out_that_are_not_finite():
    x = lengths(1.0, 3.0, 2.0, 1.0, 1.0)
    x[1], x[4] = math.nan, math.inf
    got = class_normalized_feature_norm(x, torch.tensor([0, 0, 0, 1, 1]))
    expected = torch.tensor([0.0, math.nan, 1.0, 0.5, math.nan])
    torch.testing.assert_close(got, expected, equal_nan=True)


def test_class_normalized_norm_never_leaves_its_range_when_a_length_overflows():
    x = torch.tensor([[3e38, 3e38], [1.0, 1.0], [2.0, 2.0]])  # the first length is infinite
    got = class_normalized_feature_norm(x, torch.tensor([0, 0, 0]))
    torch.testing.assert_close(got, torch.tensor([math.nan, 0.0, 1.0]), equal_nan=True)


def test_class_normalized_norm_of_a_class_without_finite_rows_is_nan():
    x = torch.full((2, 2), math.nan)
    assert class_normalized_feature_norm(x, torch.tensor([0, 0])).isnan().all()


def test_class_normalized_norm_of_no_examples_is_empty():
    none = torch.zeros(0, dtype=torch.int64)
    assert class_normalized_feature_norm(torch.zeros(0, 2), none).shape == (0,)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=12))
def test_class_normalized_norm_matches_a_loop_over_classes(rows):
    labels, sizes = zip(*rows, strict=True)
    expected = []
    for label, size in rows:
        own = [s for k, s in rows if k == label]
        low, high = min(own), max(own)
        expected.append((size - low) / (high - low) if high > low else 0.5)
    x = torch.tensor(sizes, dtype=torch.float64)[:, None]
    got = class_normalized_feature_norm(x, torch.tensor(labels))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


def test_class_normalized_norm_gradient_is_finite():
    x = lengths(1.0, 3.0, 2.0, 0.0, 5.0).requires_grad_()
    class_normalized_feature_norm(x, torch.tensor([0, 0, 0, 0, 1])).sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad.any()


def test_norms_name_what_does_not_fit():
    assert_takes_a_matrix_alone(feature_norm, "embeddings")
    with pytest.raises(ShapeError, match=r"one row per example.*labels \[1\]"):
        class_normalized_feature_norm(torch.ones(2, 2), torch.tensor([0]))
    with pytest.raises(LabelError, match="got values from -1 to 0"):
        class_normalized_feature_norm(torch.ones(2, 2), torch.tensor([0, -1]))
