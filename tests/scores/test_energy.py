import math

import numpy as np
import pytest
import torch

from hardsight.errors import LabelError, ShapeError
from hardsight.scores import conditional_energy, free_energy, min_energy


def test_energies_worked_by_hand():
    logits = torch.tensor([[2.0, -1.0, 0.5], [-4.0, -3.0, -5.0]])
    assert conditional_energy(logits, torch.tensor([1, 0])).tolist() == [1.0, 4.0]
    assert min_energy(logits).tolist() == [-2.0, 3.0]
    expected = [
        -math.log(math.exp(2) + math.exp(-1) + math.exp(0.5)),
        -math.log(math.exp(-4) + math.exp(-3) + math.exp(-5)),
    ]
    torch.testing.assert_close(free_energy(logits), torch.tensor(expected))


def test_free_energy_matches_numpy_in_float64():
    logits = 20 * torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    expected = -np.logaddexp.reduce(logits.double().numpy(), axis=1)
    np.testing.assert_allclose(free_energy(logits).numpy(), expected, rtol=1e-6)


def test_free_energy_neither_overflows_nor_vanishes_at_extreme_logits():
    logits = torch.tensor([[1e4, -1e4], [-1e4, -1e4], [1e4, 1e4], [3e38, -3e38]])
    expected = torch.tensor([-1e4, 1e4 - math.log(2), -1e4 - math.log(2), -3e38])
    torch.testing.assert_close(free_energy(logits), expected, rtol=1e-7, atol=0)


def test_energies_of_masked_classes():
    logits = torch.tensor([[-math.inf, 1.0], [-math.inf, -math.inf]])
    assert free_energy(logits).tolist() == [-1.0, math.inf]
    assert min_energy(logits).tolist() == [-1.0, math.inf]
    assert conditional_energy(logits, torch.tensor([0, 1])).tolist() == [math.inf, math.inf]


def test_free_energy_lies_within_log_of_the_classes_under_the_smallest_energy():
    logits = 5 * torch.randn(50, 9, generator=torch.Generator().manual_seed(1))
    gap = min_energy(logits) - free_energy(logits)
    assert (gap >= 0).all()
    assert (gap <= math.log(9)).all()


def test_energies_of_one_class_are_its_negative_logit():
    logits = torch.tensor([[3.0], [-2.0]])
    for got in (conditional_energy(logits, torch.tensor([0, 0])), min_energy(logits),
                free_energy(logits)):  # fmt: skip
        assert got.tolist() == [-3.0, 2.0]


def test_energy_gradients_are_minus_the_one_hot_and_minus_the_softmax():
    logits = torch.tensor([[2.0, -1.0, 0.5]], requires_grad=True)
    probs = np.exp([2.0, -1.0, 0.5]) / np.exp([2.0, -1.0, 0.5]).sum()
    for energy, expected in [
        (conditional_energy(logits, torch.tensor([1])), [0.0, -1.0, 0.0]),
        (min_energy(logits), [-1.0, 0.0, 0.0]),
        (free_energy(logits), -probs),
    ]:
        (slope,) = torch.autograd.grad(energy.sum(), logits)
        np.testing.assert_allclose(slope.numpy()[0], expected, rtol=1e-6)


def test_energies_name_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"one row per example.*logits \[2, 3\], labels \[1\]"):
        conditional_energy(torch.zeros(2, 3), torch.tensor([0]))
    with pytest.raises(LabelError, match=r"labels in \[0, 3\), got values from 3 to 3"):
        conditional_energy(torch.zeros(1, 3), torch.tensor([3]))
    for energy in (min_energy, free_energy):
        with pytest.raises(ShapeError, match=r"logits to have 2 dimensions, got \[3\]"):
            energy(torch.zeros(3))
