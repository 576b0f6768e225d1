"""What lies at the edges of the fused path: autocast, torch.func, masked classes, devices."""

import math

import pytest
import torch

from hardsight.errors import GradientError, OptionError
from hardsight.kernels import _log_odds, angular_log_odds, head_statistics, linear_log_odds
from hardsight.losses import linear_avh_loss, linear_encouraging_loss
from hardsight.scores import head_summaries

LOSSES = {
    "avh": lambda *inputs, impl: linear_avh_loss(*inputs, scale=8.0, impl=impl),
    "encouraging": lambda *inputs, impl: linear_encouraging_loss(*inputs, impl=impl),
}
losses = pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))


impls = pytest.mark.parametrize("impl", ["torch", "triton"])
MIXED = [(torch.bfloat16, torch.float32), (torch.float32, torch.float32)]


def gradients(loss, x, labels, w, impl):
    """The loss and its gradients, for copies of the tensors."""
    x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    value = loss(x, labels, w, impl=impl)
    return value.detach(), *torch.autograd.grad(value, (x, w))


@losses
@impls
@pytest.mark.parametrize(("of_rows", "of_weights"), MIXED)
def test_under_autocast_a_linear_loss_does_what_a_linear_layer_does(
    make_head, loss, impl, of_rows, of_weights
):
    head = make_head(10, 16, 30, torch.float32)
    x, w = head.embeddings.to(of_rows), head.class_weights.to(of_weights)
    rounded = gradients(loss, x.bfloat16(), head.labels, w.bfloat16(), impl)
    with torch.autocast("cpu", torch.bfloat16):
        value, of_x, of_w = gradients(loss, x, head.labels, w, impl)
    layer = torch.nn.functional.linear  # whose gradients have the dtype of their own tensors, too
    x, w = x.requires_grad_(), w.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        theirs = torch.autograd.grad(layer(x, w).float().sum(), (x, w))
    assert [of_x.dtype, of_w.dtype] == [each.dtype for each in theirs]
    assert torch.equal(value, rounded[0])
    assert torch.equal(of_x, rounded[1].to(of_rows))
    assert torch.equal(of_w, rounded[2].to(of_weights))


@losses
@impls
def test_a_backward_pass_inside_autocast_rounds_no_gradient_once_more(make_head, loss, impl):
    head = make_head(10, 16, 30, torch.float32)
    x, w = head.embeddings.requires_grad_(), head.class_weights.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(x, head.labels, w, impl=impl)
        inside = torch.autograd.grad(value, (x, w), retain_graph=True)
    outside = torch.autograd.grad(value, (x, w))
    for one, other in zip(inside, outside, strict=True):
        assert torch.equal(one, other)


@losses
def test_autocast_leaves_float64_alone(make_head, loss):
    head = make_head(10, 16, 30, torch.float64)
    expected = gradients(loss, head.embeddings, head.labels, head.class_weights, "torch")
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(loss, head.embeddings, head.labels, head.class_weights, "torch")
    torch.testing.assert_close(found, expected)


@impls
def test_scores_of_rounded_embeddings_round_the_weights_under_autocast_and_nothing_else(
    make_head, impl
):
    head = make_head(10, 16, 30, torch.float32)
    rows, weights = head.embeddings.bfloat16(), head.class_weights
    rounded = head_summaries(rows, head.labels, weights.bfloat16(), parts=("angles",), impl=impl)
    exact = head_summaries(head.embeddings, head.labels, weights, parts=("angles",), impl=impl)
    with torch.autocast("cpu", torch.bfloat16):
        found = head_summaries(rows, head.labels, weights, parts=("angles",), impl=impl)
        wide = head_summaries(head.embeddings, head.labels, weights, parts=("angles",), impl=impl)
    assert torch.equal(found.angles.target, rounded.angles.target)
    assert torch.equal(wide.angles.target, exact.angles.target)


@pytest.mark.parametrize("size", [1e-3, 1e-5])
def test_small_class_weights_in_half_precision_have_finite_gradients(make_head, size):
    # examples aligned with another class, where a slope is the largest
    head = make_head(12, 24, 30, torch.float32)
    class_weights = (head.class_weights * size).half()
    x = head.class_weights.half()[(head.labels + 1) % 30].requires_grad_()
    w = class_weights.requires_grad_()
    found = torch.autograd.grad(linear_avh_loss(x, head.labels, w, scale=16, impl="triton"), (x, w))
    plain = torch.autograd.grad(linear_avh_loss(x, head.labels, w, scale=16, impl="torch"), (x, w))
    for one, other in zip(found, plain, strict=True):
        assert one.isfinite().all()
        assert float(one.float().norm()) < 3 * float(other.float().norm())


@losses
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch about its own jvp
@pytest.mark.filterwarnings("ignore::FutureWarning")  # the same, since torch 2.15
def test_forward_mode_is_refused_by_the_kernels_instead_of_a_derivative_of_0(make_head, loss):
    head = make_head(6, 8, 12, torch.float32)
    x = head.embeddings

    def value(x):
        return loss(x, head.labels, head.class_weights, impl="triton")

    with pytest.raises(GradientError, match=r"no derivative under torch\.func.*impl='torch'"):
        torch.func.jvp(value, (x,), (x,))
    with pytest.raises(GradientError, match=r"no derivative under torch\.func.*impl='torch'"):
        torch.func.jvp(torch.vmap(lambda x: value(x.expand(6, 8))), (x,), (x,))
    with pytest.raises(GradientError, match=r"no derivative under torch\.func.*impl='torch'"):
        torch.func.grad(value)(x)
    forward = torch.autograd.forward_ad
    with (
        forward.dual_level(),
        pytest.raises(GradientError, match=r"no derivative under torch\.func"),
    ):
        value(forward.make_dual(x, x))


@pytest.mark.parametrize("own", [True, False], ids=["own-class", "another-class"])
def test_a_class_masked_by_a_bias_of_minus_infinity_leaves_the_plain_summaries(make_head, own):
    head = make_head(12, 16, 40, torch.float32)
    labels = torch.full((12,), 7) if own else torch.where(head.labels == 7, 8, head.labels)
    bias = head.bias.clone()
    bias[7] = -math.inf
    inputs = (head.embeddings, labels, head.class_weights, bias)
    plain, fused = (head_summaries(*inputs, impl=impl) for impl in ("torch", "triton"))
    for part, name in (
        ("logits", "entropy"),
        ("logits", "largest"),
        ("targets", "logit"),
        ("targets", "log_prob"),
        ("targets", "others_prob"),
    ):
        expected = getattr(getattr(plain, part), name)
        assert not expected.isnan().any()
        torch.testing.assert_close(
            getattr(getattr(fused, part), name), expected, rtol=1e-5, atol=1e-5, msg=name
        )


def test_classes_that_are_all_masked_have_no_largest_logit():
    bias = torch.tensor([0.0, -math.inf, -math.inf])
    found = head_statistics(torch.ones(1, 2), torch.tensor([0]), torch.ones(3, 2), bias)
    assert found.largest_other_logit.item() == -math.inf
    assert found.other_probability.item() == 0
    assert found.entropy.item() == 0


@pytest.mark.parametrize("name", ["labels", "class_weights", "bias"])
def test_tensors_on_two_devices_are_refused(name):
    inputs = {
        "embeddings": torch.ones(3, 4),
        "labels": torch.tensor([0, 1, 4]),
        "class_weights": torch.ones(5, 4),
        "bias": torch.ones(5),
    }
    inputs[name] = inputs[name].to("meta")
    with pytest.raises(OptionError, match=f"one device, got embeddings on cpu, {name} on meta"):
        head_statistics(**inputs)
    with pytest.raises(OptionError, match=f"one device, got embeddings on cpu, {name} on meta"):
        linear_log_odds(**inputs)


def test_a_chunk_of_classes_fits_the_grid_of_a_launch():
    # CUDA takes 65,535 blocks in the second dimension, of 64 classes or more
    for rows, dtype in ((1, torch.float32), (1, torch.bfloat16), (2, torch.float32)):
        step = _log_odds._chunk_classes(torch.empty(rows, 4, dtype=dtype), 10**8, wide=False)
        assert step % 512 == 0
        assert step <= 64 * 65_535


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch since 2.15
def test_vmap_over_a_fused_value_is_that_of_a_loop(make_head):
    head = make_head(3, 8, 12, torch.float32)
    stacked = torch.stack([head.embeddings, 2 - head.embeddings])

    def value(x):
        return angular_log_odds(x, head.labels, head.class_weights, scale=4)

    found = torch.vmap(value)(stacked)
    torch.testing.assert_close(found, torch.stack([value(x) for x in stacked]))
