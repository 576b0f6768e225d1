"""Under autocast the linear losses take the kernels of its dtype, beside float32 weights too."""

from __future__ import annotations

import pytest
import torch

from hardsight.errors import HardsightWarning
from hardsight.losses import linear_avh_loss, linear_encouraging_loss

pytestmark = pytest.mark.gpu

LOSSES = {
    "avh": lambda x, labels, w: linear_avh_loss(x, labels, w, scale=16.0),
    "encouraging": lambda x, labels, w: linear_encouraging_loss(x, labels, w),
}


@pytest.fixture
def head():
    draw = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(512, 256, device="cuda", generator=draw).bfloat16()
    w = torch.randn(5000, 256, device="cuda", generator=draw)
    return x, torch.randint(5000, (512,), device="cuda", generator=draw), w


def gradients(loss, x, labels, w):
    x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    value = loss(x, labels, w)
    return value.detach(), *torch.autograd.grad(value, (x, w))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_master_weights_give_what_rounded_ones_give(head, loss):
    x, labels, w = head
    rounded = gradients(loss, x, labels, w.bfloat16())
    with torch.autocast("cuda", torch.bfloat16):
        value, of_x, of_w = gradients(loss, x, labels, w)
    assert of_x.dtype == torch.bfloat16
    assert of_w.dtype == torch.float32
    torch.testing.assert_close((value, of_x, of_w), (*rounded[:2], rounded[2].float()))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_a_compiled_step_under_autocast_gives_the_same(head, loss):
    x, labels, w = head
    with torch.autocast("cuda", torch.bfloat16):
        expected = gradients(loss, x, labels, w)
        found = gradients(torch.compile(loss), x, labels, w)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-4)


def test_mixed_dtypes_outside_of_autocast_are_told_of_once(head):
    x, labels, w = head
    with pytest.warns(HardsightWarning, match=r"ten times as long.*inside torch\.autocast"):
        linear_avh_loss(x.half(), labels, w, scale=16.0)
    linear_avh_loss(x.half(), labels, w, scale=16.0)  # a second warning would be an error
