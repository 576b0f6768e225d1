import numpy as np
import pytest
import torch

from hardsight.errors import LabelError, ShapeError
from hardsight.scores import angular_visual_confidence, angular_visual_hardness

AXES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])


def numpy_angles(embeddings, class_weights):
    """Angles by the arc cosine in float64, far from 0 and pi."""
    x, w = embeddings.double().numpy(), class_weights.double().numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    w = w / np.linalg.norm(w, axis=1, keepdims=True)
    return np.arccos(x @ w.T)


def random_problem(n=20, dim=16, num_classes=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, dim, generator=generator),
        torch.randint(0, num_classes, (n,), generator=generator),
        torch.randn(num_classes, dim, generator=generator),
    )


def test_avh_matches_angles_worked_by_hand():
    # one embedding at 0, 90 and 180 degrees from the three class weights: AVH = angle / 270
    got = angular_visual_hardness(AXES[:1].expand(3, 2), torch.tensor([0, 1, 2]), AXES)
    torch.testing.assert_close(got, torch.tensor([0.0, 1 / 3, 2 / 3]))


def test_avh_matches_its_equation_in_float64():
    x, y, w = random_problem()
    angles = numpy_angles(x, w)
    expected = angles[np.arange(len(y)), y.numpy()] / angles.sum(axis=1)
    got = angular_visual_hardness(x, y, w)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), expected, rtol=2e-6)


def test_avh_ignores_the_length_of_embeddings_and_class_weights():
    x, y, w = random_problem()
    got = angular_visual_hardness(x * 1e-20, y, w * torch.logspace(-10, 10, len(w))[:, None])
    torch.testing.assert_close(got, angular_visual_hardness(x, y, w), rtol=1e-5, atol=1e-7)


def test_avh_of_all_classes_sums_to_one():
    x, _, w = random_problem()
    every = torch.stack([angular_visual_hardness(x, torch.full((20,), c), w) for c in range(7)])
    torch.testing.assert_close(every.sum(dim=0), torch.ones(20))


def test_avh_of_an_example_aligned_with_every_class_is_its_equal_share():
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    w = torch.stack([x.detach()[0] * k for k in (1, 2, 4, 8)])
    got = angular_visual_hardness(x, torch.tensor([3]), w)
    torch.testing.assert_close(got.detach(), torch.tensor([0.25]))
    got.sum().backward()
    assert x.grad.isfinite().all()


def test_avh_of_a_zero_embedding_is_its_equal_share():
    got = angular_visual_hardness(torch.zeros(1, 2), torch.tensor([1]), AXES)
    torch.testing.assert_close(got, torch.tensor([1 / 3]))


def test_avh_of_one_class_alone_is_one():
    got = angular_visual_hardness(AXES[1:], torch.tensor([0, 0]), AXES[:1])
    torch.testing.assert_close(got, torch.ones(2))


def test_avh_gradient_is_finite_when_embedding_equals_its_class_weight():
    x, w = AXES.clone().requires_grad_(), AXES.clone().requires_grad_()
    angular_visual_hardness(x, torch.tensor([0, 1, 2]), w).sum().backward()
    assert x.grad.isfinite().all()
    assert w.grad.isfinite().all()


def test_avh_gradient_matches_finite_differences():
    x, y, w = random_problem(n=3, dim=4, num_classes=3)
    x, w = x.double().requires_grad_(), w.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda e, c: angular_visual_hardness(e, y, c), (x, w))


def test_avc_matches_closeness_worked_by_hand():
    # closeness 180, 90 and 0 degrees of 270
    got = angular_visual_confidence(AXES[:1], AXES)
    torch.testing.assert_close(got, torch.tensor([[2 / 3, 1 / 3, 0.0]]))


def test_avc_matches_its_equation_in_float64():
    x, _, w = random_problem(seed=1)
    closeness = np.pi - numpy_angles(x, w)
    expected = closeness / closeness.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(angular_visual_confidence(x, w).numpy(), expected, rtol=3e-6)


def test_avc_rows_sum_to_one_also_opposite_to_every_class():
    w = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    x = torch.tensor([[-2.0, 0.0], [0.0, 0.0], [1.0, 1.0]], requires_grad=True)
    got = angular_visual_confidence(x, w)
    torch.testing.assert_close(got.detach(), torch.full((3, 2), 0.5))
    got.square().sum().backward()
    assert x.grad.isfinite().all()


def test_avh_names_tensors_that_do_not_fit():
    with pytest.raises(ShapeError, match=r"one row per example.*embeddings \[3, 2\], labels \[2\]"):
        angular_visual_hardness(AXES, torch.tensor([0, 1]), AXES)
    with pytest.raises(ShapeError, match=r"same width D.*\[3, 2\].*\[3, 5\]"):
        angular_visual_hardness(AXES, torch.tensor([0, 1, 2]), torch.ones(3, 5))
    with pytest.raises(ShapeError, match="at least one class, got class_weights with no rows"):
        angular_visual_hardness(AXES, torch.tensor([0, 1, 2]), torch.ones(0, 2))
    with pytest.raises(ShapeError, match=r"embeddings to be floating point, got torch\.int64"):
        angular_visual_hardness(AXES.long(), torch.tensor([0, 1, 2]), AXES)


def test_avh_names_labels_outside_the_classes():
    with pytest.raises(LabelError, match=r"labels in \[0, 3\), got values from 0 to 3"):
        angular_visual_hardness(AXES, torch.tensor([0, 1, 3]), AXES)
    with pytest.raises(LabelError, match=r"labels in \[0, 3\), got values from -1 to 1"):
        angular_visual_hardness(AXES, torch.tensor([0, 1, -1]), AXES)
    with pytest.raises(LabelError, match=r"labels to be integers, got torch\.float32"):
        angular_visual_hardness(AXES, torch.tensor([0.0, 1.0, 2.0]), AXES)
    with pytest.raises(ShapeError, match=r"labels to have 1 dimension, got \[3, 1\]"):
        angular_visual_hardness(AXES, torch.tensor([[0], [1], [2]]), AXES)


def test_avh_reaches_one_when_the_other_class_is_met_exactly():
    # 0 degrees from the other class, 180 from the own: all of the angle is the own one
    got = angular_visual_hardness(AXES[:1], torch.tensor([1]), AXES[[0, 2]])
    assert got.tolist() == [1.0]
