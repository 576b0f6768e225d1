import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hardsight.errors import OptionError
from hardsight.losses import mirror_mse_loss


def reference(logits, y, activation):
    z = np.asarray(logits, dtype=np.float64)
    if activation == "softmax":
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    else:
        p = 1 / (1 + np.exp(-z))
    y = np.asarray(y, dtype=np.float64)
    return ((y - p) ** 2 - (y * p) ** 2 - ((1 - y) * (1 - p)) ** 2).mean(axis=1)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, 4, (8,), generator=generator)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_mirror_mse_matches_its_equation(batch, activation):
    logits, labels = batch
    got = mirror_mse_loss(logits, labels, activation=activation, reduction="none")
    torch.testing.assert_close(
        got, torch.from_numpy(reference(logits, F.one_hot(labels, 4), activation))
    )
    soft = torch.rand(8, 4, generator=torch.Generator().manual_seed(1)).double()
    got = mirror_mse_loss(logits, soft, activation=activation, reduction="none")
    torch.testing.assert_close(got, torch.from_numpy(reference(logits, soft, activation)))
    leaf = logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: mirror_mse_loss(z, labels, activation=activation), (leaf,)
    )


def test_mirror_mse_averages_over_examples_and_pixels_that_are_not_ignored(batch):
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2))
    labels = torch.tensor([[0, 1, 2, -100], [2, -100, 1, 0]])
    values = mirror_mse_loss(logits, labels, reduction="none")
    flat = mirror_mse_loss(
        logits.movedim(1, -1).reshape(8, 3), labels.clamp(min=0).flatten(), reduction="none"
    )
    kept = (labels != -100).flatten()
    torch.testing.assert_close(values.flatten(), flat * kept)
    torch.testing.assert_close(mirror_mse_loss(logits, labels), flat[kept].mean())


def test_the_pull_on_a_sigmoid_probability_does_not_fade():
    # hard labels: 1 - 2p and 2p - 1, so dL/dp = -2 / C and +2 / C at every p
    logits = torch.tensor([[3.0, -3.0]], requires_grad=True)
    loss = mirror_mse_loss(logits, torch.tensor([0]), activation="sigmoid")
    (grad,) = torch.autograd.grad(loss, logits)
    slope = torch.sigmoid(logits) * (1 - torch.sigmoid(logits))
    torch.testing.assert_close(grad / slope, torch.tensor([[-1.0, 1.0]]))


def test_unknown_activation_raises(batch):
    with pytest.raises(
        OptionError, match="activation to be one of 'softmax', 'sigmoid', got 'tanh'"
    ):
        mirror_mse_loss(*batch, activation="tanh")


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_without_its_bonus_it_is_the_mean_squared_error(batch, activation):
    logits, labels = batch
    p = logits.softmax(1) if activation == "softmax" else logits.sigmoid()
    got = mirror_mse_loss(logits, labels, activation=activation, bonus_weight=0.0)
    torch.testing.assert_close(got, F.mse_loss(p, F.one_hot(labels, 4).double()))
