import math

import pytest
import torch
import torch.nn.functional as F

from hardsight.errors import OptionError, ShapeError
from hardsight.losses import encouraging_loss, lrent, mrkld


def test_mrkld_is_the_divergence_of_uniform_from_the_prediction():
    logits = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = logits.softmax(dim=1)
    expected = ((1 / 5) * (torch.tensor(1 / 5).double().log() - p.log())).sum(dim=1)
    torch.testing.assert_close(mrkld(logits, reduction="none"), expected)
    torch.testing.assert_close(mrkld(logits), expected.mean())
    torch.testing.assert_close(mrkld(logits.T[None].expand(2, -1, -1)), expected.mean())
    assert torch.autograd.gradcheck(mrkld, (logits.requires_grad_(),))


def test_mrkld_is_0_for_a_uniform_prediction_and_finite_for_a_certain_one():
    torch.testing.assert_close(mrkld(torch.full((2, 4), 3.0)), torch.tensor(0.0))
    torch.testing.assert_close(mrkld(torch.tensor([[1e4, 0.0]])), torch.tensor(5e3 - math.log(2)))


def test_lrent_is_the_power_of_the_scaled_probability():
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    thresholds = torch.tensor([0.9, 0.5, 0.2], dtype=torch.float64)
    powered = (logits.softmax(dim=1) / thresholds) ** (1 / 0.25)
    expected = powered / powered.sum(dim=1, keepdim=True)
    torch.testing.assert_close(lrent(logits, thresholds), expected)
    torch.testing.assert_close(lrent(logits, alpha=1.0), logits.softmax(dim=1))


def test_lrent_gives_soft_labels_without_gradient_for_the_losses():
    logits = torch.randn(6, 3, requires_grad=True)
    labels = lrent(logits)
    assert not labels.requires_grad
    torch.testing.assert_close(labels.sum(dim=1), torch.ones(6))
    assert torch.isfinite(encouraging_loss(logits, labels))
    assert torch.isfinite(F.cross_entropy(logits, labels))
    pixels = torch.randn(2, 3, 4)
    torch.testing.assert_close(lrent(pixels)[1, :, 2], lrent(pixels[1:2, :, 2])[0])


def test_bad_input_raises():
    logits = torch.zeros(2, 3)
    with pytest.raises(OptionError, match="alpha to be positive, got 0"):
        lrent(logits, alpha=0.0)
    with pytest.raises(ShapeError, match=r"one threshold per class, \[3\], got \[2\]"):
        lrent(logits, torch.ones(2))
    with pytest.raises(OptionError, match=r"positive thresholds, got 0.0 as the smallest"):
        lrent(logits, torch.tensor([1.0, 0.0, 1.0]))
    with pytest.raises(ShapeError, match="expected floating-point logits"):
        mrkld(logits.long())


@pytest.mark.parametrize("function", [mrkld, lrent])
@pytest.mark.parametrize("shape", [(2, 0), (0,), (2, 0, 3)])
def test_logits_without_a_class_raise(function, shape):
    with pytest.raises(ShapeError, match="at least one class"):
        function(torch.zeros(shape))
