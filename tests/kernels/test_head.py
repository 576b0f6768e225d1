import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardsight.kernels import head_statistics
from hardsight.scores import angular_visual_confidence

# float32 sums of products of the same inputs: the fused error does not depend on the input dtype
ANGLE = {"rtol": 2e-6, "atol": 2e-6}
LOGIT = {"rtol": 1e-5, "atol": 2e-5}


def check(head, found):
    """Every field against its definition in float64."""
    angles, logits = head.angles(), head.logits()
    probs = logits.softmax(dim=1)
    others = probs.masked_fill(head.own, 0)
    near = angles.masked_fill(head.own, math.inf).amin(dim=1)
    expected = {
        "target_angle": (angles[head.own], ANGLE),
        "other_angle_total": (angles.masked_fill(head.own, 0).sum(dim=1), ANGLE),
        "nearest_other": (near, ANGLE),
        "logsumexp": (logits.logsumexp(dim=1), LOGIT),
        "target_logit": (logits[head.own], LOGIT),
        "largest_logit": (logits.amax(dim=1), LOGIT),
        "largest_other_logit": (logits.masked_fill(head.own, -math.inf).amax(dim=1), LOGIT),
        "expected_logit": ((probs * logits).sum(dim=1), LOGIT),
        "entropy": (-(probs * probs.log()).sum(dim=1), LOGIT),
        "other_probability": (others.sum(dim=1), LOGIT),
        "other_probability_squares": (others.square().sum(dim=1), LOGIT),
    }
    for name, (value, tolerance) in expected.items():
        torch.testing.assert_close(getattr(found, name), value.float(), **tolerance, msg=name)
    assert torch.equal(found.prediction, logits.argmax(dim=1))
    nearest_class = angles.masked_fill(head.own, math.inf).argmin(dim=1)
    assert torch.equal(found.nearest_other_class, nearest_class)


def test_statistics_match_float64(make_head, rows, width, classes, dtype):
    head = make_head(rows, width, classes, dtype)
    found = head_statistics(
        head.embeddings, head.labels, head.class_weights, head.bias, nearest_class=True
    )
    check(head, found)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(rows=st.integers(1, 40), width=st.integers(1, 40), classes=st.integers(2, 140))
def test_statistics_match_float64_at_any_size(rows, width, classes):
    from hardsight.kernels import head_statistics

    generator = torch.Generator().manual_seed(rows * 10_007 + width * 101 + classes)
    embeddings = torch.randn(rows, width, generator=generator)
    class_weights = torch.randn(classes, width, generator=generator)
    labels = torch.randint(classes, (rows,), generator=generator)
    found = head_statistics(embeddings, labels, class_weights, nearest_class=True)
    logits = embeddings.double() @ class_weights.double().T
    torch.testing.assert_close(found.logsumexp, logits.logsumexp(dim=1).float(), **LOGIT)
    assert torch.equal(found.prediction, logits.argmax(dim=1))
    cosines = logits / class_weights.double().norm(dim=1)
    cosines.scatter_(1, labels[:, None], -math.inf)
    picked = cosines.gather(1, found.nearest_other_class[:, None]).squeeze(1)
    # with one value in an embedding whole sets of classes tie, up to rounding
    torch.testing.assert_close(picked, cosines.amax(dim=1), rtol=1e-6, atol=1e-6)


def test_angles_alone_equal_the_angles_of_all_statistics(make_head):
    head = make_head(20, 24, 70, torch.float32)
    inputs = head.embeddings, head.labels, head.class_weights
    alone = head_statistics(*inputs, logits=False, nearest_class=True)
    together = head_statistics(*inputs, nearest_class=True)
    assert alone.logsumexp is None
    for name in ("target_angle", "other_angle_total", "nearest_other", "nearest_other_class"):
        assert torch.equal(getattr(alone, name), getattr(together, name))


@pytest.mark.parametrize("logits", [True, False])
def test_the_nearest_class_is_found_only_if_asked_for(make_head, logits):
    head = make_head(20, 24, 70, torch.float32)
    inputs = head.embeddings, head.labels, head.class_weights
    without = head_statistics(*inputs, logits=logits)
    asked = head_statistics(*inputs, logits=logits, nearest_class=True)
    assert without.nearest_other_class is None
    assert asked.nearest_other_class is not None
    for name in set(without._fields) - {"nearest_other_class"}:
        first, second = getattr(without, name), getattr(asked, name)
        assert first is second is None or torch.equal(first, second), name


def test_angular_confidence_of_the_own_class_follows_from_two_fields(make_head):
    head = make_head(20, 24, 70, torch.float32)
    inputs = head.embeddings, head.labels, head.class_weights
    found = head_statistics(*inputs, logits=False)
    angles = found.target_angle + found.other_angle_total
    own = (math.pi - found.target_angle) / (70 * math.pi - angles)
    every = angular_visual_confidence(head.embeddings, head.class_weights)
    torch.testing.assert_close(own, every[head.own])


def test_a_single_class_has_no_other(make_head):
    head = make_head(4, 8, 1, torch.float32)
    found = head_statistics(
        head.embeddings, head.labels, head.class_weights, head.bias, nearest_class=True
    )
    assert torch.equal(found.nearest_other_class, torch.full((4,), -1))
    assert torch.equal(found.other_angle_total, torch.zeros(4))
    assert torch.equal(found.nearest_other, torch.full((4,), math.inf))
    assert torch.equal(found.largest_other_logit, torch.full((4,), -math.inf))
    assert torch.equal(found.other_probability, torch.zeros(4))
    assert torch.equal(found.entropy, torch.zeros(4))
    torch.testing.assert_close(found.logsumexp, found.target_logit)


def test_strided_inputs_give_what_contiguous_ones_give(make_head):
    head = make_head(20, 24, 40, torch.float32)
    x, w = head.embeddings, head.class_weights
    expected = head_statistics(x, head.labels, w, head.bias, nearest_class=True)
    wide = torch.zeros(20, 48)
    wide[:, ::2] = x
    found = head_statistics(
        wide[:, ::2], head.labels, w.T.contiguous().T, head.bias, nearest_class=True
    )
    for name, value in expected._asdict().items():
        assert torch.equal(getattr(found, name), value), name


def test_an_aligned_example_has_the_exact_angle():
    class_weights = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    embeddings = torch.tensor([[3.0, 0.0], [5.0, 5e-6], [-2.0, 0.0], [0.0, 0.0]])
    found = head_statistics(embeddings, torch.zeros(4, dtype=torch.long), class_weights)
    expected = torch.tensor([0.0, 1e-6, math.pi, math.pi / 2])
    torch.testing.assert_close(found.target_angle, expected, rtol=1e-5, atol=1e-12)


def test_zero_vectors_are_at_a_right_angle_to_everything():
    class_weights = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    embeddings = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    found = head_statistics(embeddings, torch.tensor([0, 0]), class_weights, logits=False)
    torch.testing.assert_close(found.other_angle_total, torch.tensor([1.0, 0.75]) * math.pi)
    torch.testing.assert_close(found.nearest_other, torch.tensor([0.5, 0.25]) * math.pi)


def test_equal_logits_are_predicted_as_their_first_class():
    class_weights = torch.ones(100, 4)  # over several tiles and shares
    labels = torch.tensor([0, 40, 99])
    found = head_statistics(torch.ones(3, 4), labels, class_weights)
    assert torch.equal(found.prediction, torch.zeros(3, dtype=torch.long))


def test_of_equal_angles_the_nearest_class_is_the_first_that_is_another():
    class_weights = torch.ones(100, 4) * 2.0 ** (torch.arange(100)[:, None] % 8)
    labels = torch.tensor([0, 40, 99])
    found = head_statistics(torch.full((3, 4), 2.0), labels, class_weights, nearest_class=True)
    assert torch.equal(found.nearest_other_class, torch.tensor([1, 0, 0]))


def test_the_probability_of_other_classes_does_not_cancel():
    class_weights = torch.tensor([[50.0], [0.0], [1.0]])
    found = head_statistics(torch.ones(1, 1), torch.tensor([0]), class_weights)
    expected = math.exp(-50) + math.exp(-49)
    torch.testing.assert_close(found.other_probability.item(), expected, rtol=1e-5, atol=0)
    entropy = expected + 50 * math.exp(-50) + 49 * math.exp(-49)
    torch.testing.assert_close(found.entropy.item(), entropy, rtol=1e-5, atol=0)


def test_large_and_small_embeddings_have_the_same_angles(make_head):
    head = make_head(6, 12, 30, torch.float32)
    expected = head_statistics(head.embeddings, head.labels, head.class_weights, logits=False)
    for factor in (2.0**60, 2.0**-60):
        scaled = head.embeddings * factor
        found = head_statistics(scaled, head.labels, head.class_weights, logits=False)
        torch.testing.assert_close(found.other_angle_total, expected.other_angle_total)
        torch.testing.assert_close(found.target_angle, expected.target_angle)


def test_a_certain_example_keeps_the_size_of_what_is_left():
    # logits 60, 0, 0: the others have e^-60 each, far below what 1 - p can hold
    found = head_statistics(
        torch.tensor([[60.0, 0.0]]),
        torch.tensor([0]),
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]),
    )
    left = 2 * math.exp(-60)
    torch.testing.assert_close(found.other_probability.item(), left, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.entropy.item(), left * 61, rtol=1e-5, atol=0)


def test_an_own_logit_far_below_the_others_does_not_round_their_sum():
    found = head_statistics(
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([0]),
        torch.tensor([[-1e4, 0.0], [1.25, 0.0], [1.25, 3.0]]),
    )
    torch.testing.assert_close(found.logsumexp.item(), 1.25 + math.log(2), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.other_probability.item(), 1.0)


def test_of_equal_logits_the_first_class_is_predicted():
    # whole numbers, whose products are exact in any order of their sum
    draw = np.random.default_rng(0)
    embeddings = draw.integers(-4, 5, size=(20, 16))
    class_weights = np.tile(draw.integers(-4, 5, size=(30, 16)), (4, 1))  # each in its own share
    first = (embeddings @ class_weights.T).argmax(axis=1)
    own = np.arange(20) % 2 == 0  # labelled with the last copy of the class that is predicted
    labels = np.where(own, first + 90, draw.integers(90, 120, size=20))
    found = head_statistics(
        torch.tensor(embeddings).float(), torch.tensor(labels), torch.tensor(class_weights).float()
    )
    np.testing.assert_array_equal(found.prediction, first)
