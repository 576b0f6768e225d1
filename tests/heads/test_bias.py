import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardsight.errors import ShapeError
from hardsight.heads import Head, decided_by_bias


def test_an_example_that_only_the_bias_decides_is_counted():
    # products (1, 3) and (4, 1); the bias (5, 0) turns only the first one round
    head = Head(name="fc", weight=torch.eye(2), bias=torch.tensor([5.0, 0.0]))
    logits = torch.tensor([[6.0, 3.0], [9.0, 1.0]])
    assert decided_by_bias(logits, head).tolist() == [True, False]


@pytest.mark.parametrize("bias", [None, torch.full((3,), 7.0)])
def test_no_bias_and_the_same_bias_for_all_decide_nothing(bias):
    head = Head(name="fc", weight=torch.eye(3), bias=bias)
    assert not decided_by_bias(torch.randn(20, 3), head).any()


@settings(derandomize=True, max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), spread=st.floats(0, 5))
def test_it_agrees_with_the_two_decisions_in_numpy(seed, spread):
    random = np.random.default_rng(seed)
    x, w, b = random.normal(size=(9, 4)), random.normal(size=(5, 4)), random.normal(size=5) * spread
    head = Head(name="fc", weight=torch.tensor(w), bias=torch.tensor(b))
    want = (x @ w.T + b).argmax(axis=1) != (x @ w.T).argmax(axis=1)
    np.testing.assert_array_equal(decided_by_bias(torch.tensor(x @ w.T + b), head).numpy(), want)


def test_logits_of_another_head_are_refused():
    head = Head(name="fc", weight=torch.eye(3))
    with pytest.raises(ShapeError, match=r"for 3 classes, got \[2, 4\]"):
        decided_by_bias(torch.zeros(2, 4), head)
