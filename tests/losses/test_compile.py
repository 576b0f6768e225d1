"""torch.compile through the default backend, and what tracing must not lose."""

import pytest
import torch

from hardsight.losses import AVHLoss, avh_loss, encouraging_loss


# torch's own compiler still calls torch.jit
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_the_default_compiler_gives_the_values_and_gradients_of_eager():
    angular = AVHLoss(4, 3, scale=3.0)

    def loss(x, labels):
        logits = angular.logits(x)
        return angular(x, labels) + encouraging_loss(logits, labels)

    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.tensor([-100, 0, 1, 2, 3, 1])
    expected = loss(x, labels)
    got = torch.compile(loss, fullgraph=True)(x, labels)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(expected, x))


def test_compiling_keeps_the_exact_angle_to_the_own_class():
    torch.compiler.reset()
    criterion = AVHLoss(3, 4, scale=0.5)
    x = criterion.class_weights.detach().clone()
    x[1] += 1e-5 * torch.tensor([1.0, -1.0, 1.0, 1.0])  # far below the resolution of a cosine
    x[2] = 0
    x.requires_grad_()
    labels = torch.tensor([0, 1, 2])
    expected = criterion(x, labels)
    got = torch.compile(criterion, fullgraph=True, backend="aot_eager")(x, labels)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(expected, x))


def test_functional_gradients_keep_the_exact_angle_to_the_own_class():
    w = torch.eye(3)
    x = torch.tensor([[1.0, 1e-5, 0.0]])
    labels = torch.tensor([0])
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(avh_loss(leaf, labels, w, scale=0.5), leaf)
    got = torch.func.grad(lambda x: avh_loss(x, labels, w, scale=0.5))(x)
    torch.testing.assert_close(got, expected)
    assert got[0, 1] > 0.1


def test_vmap_takes_one_example_at_a_time():
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 3, 1, 2, 0])
    per_example = torch.func.vmap(torch.func.grad(encouraging_loss))(logits, labels)
    leaf = logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(encouraging_loss(leaf, labels, reduction="sum"), leaf)
    torch.testing.assert_close(per_example, expected)
