import math

import numpy as np
import pytest
import torch

from hardsight.errors import LabelError, ShapeError
from hardsight.scores import angular_margin, target_angle

AXES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])


def random_problem():
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(20, 16, generator=generator),
        torch.randint(0, 7, (20,), generator=generator),
        torch.randn(7, 16, generator=generator),
    )


def numpy_angles(x, w):
    x, w = x.double().numpy(), w.double().numpy()
    lengths = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(w, axis=1)
    return np.arccos((x @ w.T) / lengths)


def test_target_angle_matches_angles_worked_by_hand():
    got = target_angle(AXES[:1].expand(3, 2), torch.tensor([0, 1, 2]), AXES)
    torch.testing.assert_close(got, torch.tensor([0.0, math.pi / 2, math.pi]))


def test_target_angle_matches_the_arc_cosine_in_float64():
    x, y, w = random_problem()
    expected = numpy_angles(x, w)[np.arange(20), y]
    np.testing.assert_allclose(target_angle(x, y, w).numpy(), expected, rtol=1e-6)


def test_target_angle_resolves_an_angle_of_a_millionth():
    got = target_angle(torch.tensor([[1.0, 1e-6]]), torch.tensor([0]), AXES)
    assert got.item() == pytest.approx(1e-6, rel=1e-6)


def test_angular_margin_matches_angles_worked_by_hand():
    # at 0 degrees of class 0, 90 of class 1, 180 of class 2
    got = angular_margin(AXES[:1].expand(3, 2), torch.tensor([0, 1, 2]), AXES)
    torch.testing.assert_close(got, torch.tensor([math.pi / 2, -math.pi / 2, -math.pi]))


def test_angular_margin_matches_its_equation_in_float64():
    x, y, w = random_problem()
    angles = numpy_angles(x, w)
    own = angles[np.arange(20), y]
    angles[np.arange(20), y] = np.inf
    np.testing.assert_allclose(angular_margin(x, y, w).numpy(), angles.min(axis=1) - own, atol=2e-6)


def test_angular_margin_of_a_class_weight_that_occurs_twice_is_zero():
    got = angular_margin(AXES[:1], torch.tensor([0]), AXES[[0, 0, 1]])
    assert got.tolist() == [0.0]


def test_angular_margin_needs_another_class():
    with pytest.raises(ShapeError, match="at least 2 classes, got class_weights with 1 row"):
        angular_margin(AXES[:1], torch.tensor([0]), AXES[:1])


def test_angular_scores_name_labels_outside_the_classes():
    for score in (target_angle, angular_margin):
        with pytest.raises(LabelError, match=r"labels in \[0, 3\), got values from 3 to 3"):
            score(AXES[:1], torch.tensor([3]), AXES)
        with pytest.raises(ShapeError, match="one row per example"):
            score(AXES[:2], torch.tensor([1]), AXES)


@pytest.mark.parametrize("score", [target_angle, angular_margin])
def test_angular_gradients_match_finite_differences(score):
    x, y, w = random_problem()
    x, y, w = x[:3, :4].double().requires_grad_(), y[:3] % 3, w[:3, :4].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda e, c: score(e, y, c), (x, w))
