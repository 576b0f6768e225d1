"""Scores of the softmax against their equations in 60 digits, at extreme logits too."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hardsight.errors import LabelError, ShapeError
from hardsight.scores import el2n, entropy, logit_margin, model_confidence
from tests._tensors import assert_takes_a_matrix_alone


def exact_probs(row):
    with mpmath.workdps(60):
        weights = [mpmath.exp(mpmath.mpf(z)) if z > -math.inf else mpmath.mpf(0) for z in row]
        total = mpmath.fsum(weights)
        return [weight / total for weight in weights]


def exact_confidence(row, label):
    return float(exact_probs(row)[label])


def exact_entropy(row, label=None):
    with mpmath.workdps(60):
        return float(-mpmath.fsum(p * mpmath.log(p) for p in exact_probs(row) if p > 0))


def exact_el2n(row, label):
    with mpmath.workdps(60):
        errors = [p - (c == label) for c, p in enumerate(exact_probs(row))]
        return float(mpmath.sqrt(mpmath.fsum(error**2 for error in errors)))


def exact_margin(row, label):
    return row[label] - max(z for c, z in enumerate(row) if c != label)


EXACT = {
    model_confidence: exact_confidence,
    entropy: exact_entropy,
    el2n: exact_el2n,
    logit_margin: exact_margin,
}
ROWS = [
    [1.0, 2.0, -0.5],
    [0.0, 0.0, 0.0],
    [1e4, -1e4, 0.0],
    [-1e4, -1e4, -1e4 + 1],
    [1e4, 1e4, 1e4 - 1],
    [20.0, 0.0, 1.0],  # p_0 rounds to 1 in float32
    [30.0, 0.0, -5.0],
    [0.0, 40.0, 39.0],
    [-3.0, -1.0, -2.0],
    [-math.inf, 1.0, 2.0],
    [5.0, -math.inf, -math.inf],
    [-math.inf, 25.0, 3.0],
]


def scored(score, row, label, dtype=torch.float32):
    logits = torch.tensor([row], dtype=dtype)
    return score(logits) if score is entropy else score(logits, torch.tensor([label]))


@pytest.mark.parametrize("score", EXACT, ids=lambda score: score.__name__)
@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_softmax_scores_match_60_digits(score, row, label):
    got = scored(score, row, label).item()
    # relative: an entropy or a distance of 1e-13 is right, not just small
    assert got == pytest.approx(EXACT[score](row, label), rel=3e-6, abs=1e-37)


@pytest.mark.parametrize("score", EXACT, ids=lambda score: score.__name__)
def test_softmax_scores_are_exact_to_float64_in_float64(score):
    for label in range(3):
        got = scored(score, [1.0, 2.0, -0.5], label, torch.float64)
        assert got.dtype == torch.float64
        assert got.item() == pytest.approx(EXACT[score]([1.0, 2.0, -0.5], label), rel=1e-14)


@given(st.lists(st.floats(-60, 60, width=32), min_size=2, max_size=6), st.data())
def test_softmax_scores_match_60_digits_on_any_logits(row, data):
    label = data.draw(st.integers(0, len(row) - 1))
    for score, exact in EXACT.items():
        assert scored(score, row, label).item() == pytest.approx(
            exact(row, label), rel=3e-5, abs=1e-19
        )


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6), st.integers(-500, 500), st.data())
def test_softmax_scores_do_not_change_when_all_logits_move_together(row, shift, data):
    label = data.draw(st.integers(0, len(row) - 1))
    moved = [z + shift for z in row]
    for score in EXACT:
        torch.testing.assert_close(
            scored(score, moved, label), scored(score, row, label), rtol=1e-5, atol=1e-30
        )


def test_confidence_worked_by_hand():
    logits = torch.tensor([[math.log(3.0), 0.0], [math.log(3.0), 0.0]])
    labels = torch.tensor([0, 1])
    torch.testing.assert_close(model_confidence(logits, labels), torch.tensor([0.75, 0.25]))
    # distances sqrt(2) * 0.25 and sqrt(2) * 0.75
    expected = torch.tensor([0.25, 0.75]) * math.sqrt(2)
    torch.testing.assert_close(el2n(logits, labels), expected)
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    torch.testing.assert_close(entropy(logits), torch.full((2,), expected))
    torch.testing.assert_close(
        logit_margin(logits, labels), torch.tensor([1.0, -1.0]) * math.log(3.0)
    )


def test_margin_is_right_when_all_logits_are_negative():
    # a one-hot product instead of a mask would compare with 0, not with -2
    got = logit_margin(torch.tensor([[-1.0, -3.0, -2.0]] * 2), torch.tensor([0, 1]))
    assert got.tolist() == [1.0, -2.0]


def test_margin_against_classes_of_logit_minus_infinity_is_infinite():
    logits = torch.tensor([[1.0, -math.inf], [-math.inf, 1.0]])
    assert logit_margin(logits, torch.tensor([0, 0])).tolist() == [math.inf, -math.inf]


def test_margin_of_a_tie_is_zero():
    assert logit_margin(torch.tensor([[2.0, 2.0, 1.0]]), torch.tensor([1])).tolist() == [0.0]


def test_one_class_alone_is_certain():
    logits = torch.tensor([[-7.0], [1e4]])
    labels = torch.tensor([0, 0])
    assert model_confidence(logits, labels).tolist() == [1.0, 1.0]
    assert entropy(logits).tolist() == [0.0, 0.0]
    assert el2n(logits, labels).tolist() == [0.0, 0.0]


def test_margin_needs_another_class():
    with pytest.raises(ShapeError, match=r"a margin needs at least 2 classes, got logits \[2, 1\]"):
        logit_margin(torch.zeros(2, 1), torch.tensor([0, 0]))


@pytest.mark.parametrize("score", EXACT, ids=lambda score: score.__name__)
def test_softmax_gradients_match_finite_differences(score):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 5, dtype=torch.float64, generator=generator).requires_grad_()
    labels = torch.tensor([0, 4, 2, 2])
    arguments = () if score is entropy else (labels,)
    assert torch.autograd.gradcheck(lambda z: score(z, *arguments), (logits,))


@pytest.mark.parametrize("score", EXACT, ids=lambda score: score.__name__)
@pytest.mark.parametrize(
    "row", [[1e4, -1e4, 0.0], [30.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, -math.inf, 2.0]], ids=str
)
def test_softmax_gradients_are_finite_at_extreme_logits(score, row):
    logits = torch.tensor([row], requires_grad=True)
    arguments = () if score is entropy else (torch.tensor([0]),)
    score(logits, *arguments).sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("score", [model_confidence, el2n, logit_margin])
def test_softmax_scores_name_what_does_not_fit(score):
    with pytest.raises(ShapeError, match=r"one row per example.*logits \[2, 3\], labels \[3\]"):
        score(torch.zeros(2, 3), torch.tensor([0, 1, 2]))
    with pytest.raises(LabelError, match=r"labels in \[0, 3\), got values from 1 to 3"):
        score(torch.zeros(2, 3), torch.tensor([1, 3]))
    with pytest.raises(LabelError, match=r"labels to be integers, got torch\.float32"):
        score(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(ShapeError, match=r"logits to have 2 dimensions, got \[3\]"):
        score(torch.zeros(3), torch.zeros(3, dtype=torch.int64))


def test_entropy_names_what_is_no_matrix_of_logits():
    assert_takes_a_matrix_alone(entropy, "logits")
