"""The public linear losses with ``impl="triton"``: values and gradients are the plain ones."""

import math

import pytest
import torch
import torch.distributed as dist

from hardsight.errors import OptionError
from hardsight.losses import avh_loss, encouraging_loss, linear_avh_loss, linear_encouraging_loss

ENCOURAGING = [(1.0, None), (0.75, None), (0.2, None), (0.0, None), (0.75, 0.5)]


def gradients(loss, *inputs):
    return torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_avh_loss_and_its_gradients_equal_the_plain_ones(make_head, reduction):
    head = make_head(33, 12, 40, torch.float32)
    x, w = head.embeddings.requires_grad_(), head.class_weights.requires_grad_()
    options = {"scale": 6.0, "reduction": reduction}
    plain = avh_loss(x, head.labels, w, **options)
    fused = linear_avh_loss(x, head.labels, w, impl="triton", **options)
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(fused.sum(), x, w), gradients(plain.sum(), x, w), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_avh_loss_matches_a_softmax_over_angles_worked_by_hand():
    # one embedding at 0, 90 and 180 degrees from the three class weights
    axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    found = linear_avh_loss(
        axes[:1].expand(3, 2), torch.tensor([0, 1, 2]), axes,
        scale=2 / math.pi, reduction="none", impl="triton",
    )  # fmt: skip
    terms = torch.tensor([2.0, 1.0, 0.0])  # s (pi - angle)
    torch.testing.assert_close(found, terms.exp().sum().log() - terms)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_margin_is_added_to_the_angle_of_the_own_class(make_head, impl):
    head = make_head(8, 10, 15, torch.float32)
    angles = head.angles() + 0.3 * head.own
    expected = torch.nn.functional.cross_entropy(-6 * angles, head.labels)
    found = linear_avh_loss(
        head.embeddings, head.labels, head.class_weights, scale=6, margin_rad=0.3, impl=impl
    )
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("log_end", "bonus_start"), ENCOURAGING)
def test_encouraging_loss_and_its_gradients_equal_the_plain_ones(make_head, log_end, bonus_start):
    head = make_head(30, 6, 4, torch.float32)
    labels = head.labels.clone()
    labels[::7] = -100  # take no part
    inputs = [t.requires_grad_() for t in (head.embeddings, head.class_weights, head.bias)]
    options = {"log_end": log_end, "bonus_start": bonus_start, "weight": torch.rand(4) + 0.5}
    x, w, b = inputs
    plain = encouraging_loss(x @ w.T + b, labels, **options)
    fused = linear_encouraging_loss(x, labels, w, b, impl="triton", **options)
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    pairs = zip(gradients(fused, *inputs), gradients(plain, *inputs), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert torch.equal(gradients(linear_encouraging_loss(x, labels, w, b), x)[0][0], x.new_zeros(6))


def test_the_best_classified_examples_still_have_a_gradient():
    w = torch.tensor([[60.0], [0.0]])
    x = torch.ones(1, 1, requires_grad=True)
    linear_encouraging_loss(x, torch.tensor([0]), w, log_end=1.0, impl="triton").backward()
    torch.testing.assert_close(x.grad, torch.tensor([[-60.0]]))


def test_mixed_dtypes_are_widened_and_not_rounded(make_head):
    head = make_head(9, 8, 20, torch.float32)
    x = head.embeddings.bfloat16()
    fused = linear_avh_loss(x, head.labels, head.class_weights, scale=4, impl="triton")
    plain = avh_loss(x, head.labels, head.class_weights, scale=4)
    torch.testing.assert_close(fused, plain, rtol=1e-6, atol=1e-6)


def test_auto_takes_the_plain_version_on_a_cpu(make_head):
    head = make_head(9, 8, 20, torch.float32)
    inputs = (head.embeddings, head.labels, head.class_weights)
    auto = linear_avh_loss(*inputs, scale=4, reduction="none")
    assert torch.equal(auto, linear_avh_loss(*inputs, scale=4, reduction="none", impl="torch"))


def test_an_unknown_impl_is_refused(make_head):
    head = make_head(2, 3, 4, torch.float32)
    with pytest.raises(OptionError, match="expected impl to be one of 'auto', 'torch', 'triton'"):
        linear_avh_loss(head.embeddings, head.labels, head.class_weights, scale=1, impl="cuda")


@pytest.fixture
def alone():
    """A group of one rank, which has all classes."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_classes_of_a_rank_go_through_the_fused_kernels(make_head, alone):
    head = make_head(33, 12, 40, torch.float32)
    x, w = head.embeddings.requires_grad_(), head.class_weights.requires_grad_()
    plain = avh_loss(x, head.labels, w, scale=6.0)
    fused = linear_avh_loss(x, head.labels, w, scale=6.0, impl="triton", process_group=alone)
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(fused, x, w), gradients(plain, x, w), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
