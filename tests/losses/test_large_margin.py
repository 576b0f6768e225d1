import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hardsight.errors import LabelError, OptionError
from hardsight.losses import (
    encouraging_bonus,
    encouraging_loss,
    large_margin_logits,
    large_margin_softmax_loss,
)
from tests._tensors import head_batch


def psi(theta, margin):
    """Liu et al. 2016, Eq. (6)."""
    for k in range(margin):
        if k * math.pi / margin <= theta <= (k + 1) * math.pi / margin:
            return (-1) ** k * math.cos(margin * theta) - 2 * k
    raise AssertionError(theta)


def reference(x, labels, w, margin, blend):
    x, w = np.asarray(x), np.asarray(w)
    losses = []
    for row, label in zip(x, labels, strict=True):
        z = w @ row
        size = np.linalg.norm(row) * np.linalg.norm(w[label])
        theta = math.acos(z[label] / size)
        z[label] = size * (blend * math.cos(theta) + psi(theta, margin)) / (1 + blend)
        losses.append(np.log(np.exp(z).sum()) - z[label])
    return torch.tensor(losses)


@pytest.fixture
def batch():
    return head_batch(12, 3, 4)


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
@pytest.mark.parametrize("blend", [0.0, 5.0])
def test_large_margin_softmax_matches_its_equations(batch, margin, blend):
    x, labels, w = batch
    options = {"margin": margin, "blend": blend}
    got = large_margin_softmax_loss(x, labels, w, reduction="none", **options)
    torch.testing.assert_close(got, reference(x, labels, w, margin, blend).double())
    x, w = x.requires_grad_(), w.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, w: large_margin_softmax_loss(x, labels, w, **options), (x, w)
    )


def test_margin_1_is_cross_entropy(batch):
    x, labels, w = batch
    torch.testing.assert_close(
        large_margin_softmax_loss(x, labels, w, margin=1), F.cross_entropy(x @ w.T, labels)
    )


def test_own_logit_falls_all_the_way_from_aligned_to_opposite():
    angles = torch.linspace(0, math.pi, 200, dtype=torch.float64)
    x = torch.stack([angles.cos(), angles.sin()], dim=1)
    w = torch.eye(2, dtype=torch.float64)
    own = large_margin_logits(x, torch.zeros(200).long(), w, margin=4)[:, 0]
    assert (own.diff() < 0).all()
    torch.testing.assert_close(own[[0, -1]], torch.tensor([1.0, -7.0], dtype=torch.float64))


def test_bonus_adds_to_large_margin_softmax(batch):
    x, labels, w = batch
    logits = large_margin_logits(x, labels, w)
    added = large_margin_softmax_loss(x, labels, w) + encouraging_bonus(logits, labels)
    torch.testing.assert_close(added, encouraging_loss(logits, labels))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_are_finite_on_aligned_opposite_and_zero_rows(dtype):
    w = torch.eye(3, dtype=dtype).requires_grad_()
    rows = torch.tensor([[2.0, 0, 0], [-2.0, 0, 0], [0, 0, 0]], dtype=dtype).requires_grad_()
    loss = large_margin_softmax_loss(rows, torch.zeros(3).long(), w)
    for grad in torch.autograd.grad(loss, (rows, w)):
        assert torch.isfinite(grad).all()


def test_bad_options_and_labels_raise(batch):
    x, labels, w = batch
    with pytest.raises(OptionError, match="whole number of at least 1, got 0"):
        large_margin_softmax_loss(*batch, margin=0)
    with pytest.raises(OptionError, match=r"whole number of at least 1, got 1.5"):
        large_margin_softmax_loss(*batch, margin=1.5)
    with pytest.raises(OptionError, match="blend of at least 0, got -1"):
        large_margin_softmax_loss(*batch, blend=-1)
    with pytest.raises(LabelError, match="the margin needs exactly one class"):
        large_margin_softmax_loss(x, F.one_hot(labels, 4).double(), w)


@pytest.mark.parametrize("log_end", [0.5, 1.0])
def test_the_bonus_is_that_of_the_encouraging_loss_on_the_harder_logits(batch, log_end):
    x, labels, w = batch
    got = large_margin_softmax_loss(x, labels, w, margin=3, log_end=log_end)
    logits = large_margin_logits(x, labels, w, margin=3)
    torch.testing.assert_close(got, encouraging_loss(logits, labels, log_end=log_end))
    clamped = large_margin_softmax_loss(100 * x, labels, w, margin=3, log_end=log_end, clamp=1e-2)
    logits = large_margin_logits(100 * x, labels, w, margin=3)
    wanted = encouraging_loss(logits, labels, log_end=log_end, clamp=1e-2)
    torch.testing.assert_close(clamped, wanted)
