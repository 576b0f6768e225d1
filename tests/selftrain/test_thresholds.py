import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardsight.errors import LabelError, NonFiniteError, OptionError, ShapeError
from hardsight.selftrain import class_thresholds


def test_threshold_is_the_confidence_at_the_rank_worked_by_hand():
    # class 0: .9 .8 .7 .6 .5, rank floor(5 * .4) = 2; class 1: .95 .55, rank floor(.8) = 0
    confidence = torch.tensor([0.6, 0.95, 0.9, 0.5, 0.8, 0.55, 0.7])
    predictions = torch.tensor([0, 1, 0, 0, 0, 1, 0])
    got = class_thresholds(confidence, predictions, 3, portion=0.4)
    torch.testing.assert_close(got, torch.tensor([0.8, 1.0, 1.0]))
    got = class_thresholds(confidence, predictions, 3, portion=0.4, empty="one")
    torch.testing.assert_close(got, torch.tensor([0.8, 0.95, 1.0]))  # class 2 is never predicted


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), min_size=1, max_size=60),
    st.integers(1, 100),
)
def test_thresholds_are_those_of_a_plain_sort(pairs, percent):
    confidence = torch.tensor([value / 20 for _, value in pairs])
    predictions = torch.tensor([c for c, _ in pairs])
    got = class_thresholds(confidence, predictions, 4, portion=percent / 100)
    for c in range(4):
        own = sorted((confidence[predictions == c]).tolist(), reverse=True)
        rank = len(own) * percent // 100  # in whole numbers: no rounding
        assert got[c].item() == (own[rank - 1] if rank else 1.0)


@pytest.mark.parametrize(("portion", "n", "rank"), [(0.29, 100, 29), (0.57, 100, 57)])
def test_a_rank_that_is_whole_on_paper_is_not_lost_to_rounding(portion, n, rank):
    assert math.floor(n * portion) == rank - 1  # what plain floor makes of it
    confidence = torch.arange(n, 0, -1.0)
    got = class_thresholds(confidence, torch.zeros(n, dtype=torch.long), 1, portion=portion)
    assert got.item() == n - rank + 1


def test_a_portion_that_grew_by_steps_keeps_its_rank():
    portion = 0.2 + 0.05 + 0.05  # 0.30000000000000004, and sums under their value exist as well
    for grown in (portion, 0.1 + 0.7 - 0.5):
        got = class_thresholds(
            torch.arange(10, 0, -1.0), torch.zeros(10, dtype=torch.long), 1, portion=grown
        )
        assert got.item() == 8.0


def test_portion_one_takes_the_least_confident_example():
    confidence, predictions = torch.tensor([0.5, 0.9, 0.4]), torch.tensor([0, 0, 1])
    got = class_thresholds(confidence, predictions, 2, portion=1)
    torch.testing.assert_close(got, torch.tensor([0.5, 0.4]))


def test_more_classes_than_16_bits_hold_give_the_same_thresholds():
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(5000, generator=generator)
    predictions = torch.randint(0, 50, (5000,), generator=generator)
    few = class_thresholds(confidence, predictions, 50, portion=0.3)
    many = class_thresholds(confidence, predictions + 40_000, 40_050, portion=0.3)
    assert torch.equal(many[40_000:], few)
    assert (many[:40_000] == 1).all()


def test_numpy_and_half_precision_are_accepted():
    confidence, predictions = np.array([0.5, 0.75]), np.array([0, 0], dtype=np.int32)
    assert class_thresholds(confidence, predictions, 1, portion=0.5).dtype == torch.float64
    half = torch.tensor([0.5, 0.75], dtype=torch.bfloat16)
    got = class_thresholds(half, torch.tensor([0, 0]), 1, portion=0.5)
    assert (got.dtype, got.item()) == (torch.float32, 0.75)


@pytest.mark.parametrize("portion", [0, -0.1, 1.01, math.nan, math.inf, "half", None])
def test_a_portion_outside_its_range_is_refused(portion):
    with pytest.raises(OptionError, match=r"portion in \(0, 1\]"):
        class_thresholds(torch.ones(2), torch.tensor([0, 0]), 1, portion=portion)


def test_thresholds_refuse_what_they_cannot_rank():
    ones, zeros = torch.ones(2), torch.tensor([0, 0])
    with pytest.raises(ShapeError, match=r"confidence \[2\], predictions \[1\]"):
        class_thresholds(ones, zeros[:1], 1, portion=0.5)
    with pytest.raises(ShapeError, match="at least 1 example"):
        class_thresholds(ones[:0], zeros[:0], 1, portion=0.5)
    with pytest.raises(LabelError, match=r"in \[0, 1\), got values from 0 to 1"):
        class_thresholds(ones, torch.tensor([0, 1]), 1, portion=0.5)
    with pytest.raises(LabelError, match=r"integers, got torch.float32"):
        class_thresholds(ones, ones, 2, portion=0.5)
    with pytest.raises(NonFiniteError, match="confidence holds NaN, first in row 1"):
        class_thresholds(torch.tensor([0.5, math.nan]), zeros, 1, portion=0.5)
    with pytest.raises(OptionError, match=r"unknown empty 'always'. Known: never, one"):
        class_thresholds(ones, zeros, 1, portion=0.5, empty="always")


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_a_portion_may_be_a_number_of_numpy(kind):
    confidence, predictions = torch.tensor([0.9, 0.8]), torch.tensor([0, 0])
    found = class_thresholds(confidence, predictions, 1, portion=kind(0.5))
    torch.testing.assert_close(found, torch.tensor([0.9]))


def test_lists_are_taken_as_well():
    found = class_thresholds([0.9, 0.8, 0.7], [0, 0, 1], 2, portion=0.5)
    torch.testing.assert_close(found, torch.tensor([0.9, 1.0], dtype=torch.float64))
