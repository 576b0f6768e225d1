"""Losses fused to the last sum, and the two ways an operator is called."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from hardsight.errors import GradientError, LabelError, OptionError
from hardsight.kernels import angular_log_odds, angular_loss, linear_log_odds, linear_loss
from hardsight.losses import (
    encouraging_loss,
    linear_avh_loss,
    linear_encouraging_loss,
)

ENDS = [None, 0.0, 0.3, 0.75, 1.0]


@pytest.fixture
def head(make_head):
    """Some labels twice, one example near its class, one ignored."""
    made = make_head(40, 12, 30, torch.float32)
    made.labels[5:8] = made.labels[4]
    made.embeddings[9] = made.class_weights[made.labels[9]] + 0.01
    made.labels[3] = -100
    return made


def gradients(loss, *tensors):
    return torch.autograd.grad(loss, [tensor for tensor in tensors if tensor.requires_grad])


def with_gradients(head):
    return (t.clone().requires_grad_() for t in (head.embeddings, head.class_weights, head.bias))


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("margin_rad", [0.0, 0.2])
def test_the_avh_loss_is_the_plain_one(head, mean, margin_rad):
    x, w, _ = with_gradients(head)
    options = {"scale": 4.0, "margin_rad": margin_rad}
    found = angular_loss(x, head.labels, w, **options, mean=mean)
    reduction = "mean" if mean else "sum"
    expected = linear_avh_loss(x, head.labels, w, **options, reduction=reduction, impl="torch")
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, x, w), gradients(expected, x, w))


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("log_end", ENDS)
def test_the_encouraging_loss_is_the_plain_one(head, mean, log_end):
    x, w, b = with_gradients(head)
    found = linear_loss(x, head.labels, w, b, log_end=log_end, mean=mean)
    reduction = "mean" if mean else "sum"
    logits = x @ w.T + b
    if log_end is None:
        expected = torch.nn.functional.cross_entropy(logits, head.labels, reduction=reduction)
    else:
        expected = encouraging_loss(logits, head.labels, log_end=log_end, reduction=reduction)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, x, w, b), gradients(expected, x, w, b))


@pytest.mark.parametrize("log_end", [None, 0.75, 1.0])
@pytest.mark.parametrize("size", [1e-4, 1.0, 30.0, 1e4])
def test_the_curve_is_right_from_hopeless_to_certain_examples(log_end, size):
    # two classes: the log-odds is the difference of two logits
    log_odds = torch.tensor([-size, -size / 3, 0.0, size / 3, size])
    x = torch.stack([log_odds, torch.zeros(5)], dim=1).requires_grad_()
    labels = torch.zeros(5, dtype=torch.int64)
    found = linear_loss(x, labels, torch.eye(2), log_end=log_end, mean=False)
    x64 = x.detach().double().requires_grad_()
    if log_end is None:
        expected = -torch.nn.functional.logsigmoid(x64[:, 0] - x64[:, 1]).sum()
    else:
        expected = encouraging_loss(x64, labels, log_end=log_end, reduction="sum")
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        gradients(found, x)[0].double(), gradients(expected, x64)[0], rtol=1e-5, atol=1e-30
    )


@pytest.mark.parametrize("ignore_index", [-100, 7, 30])
def test_an_ignored_label_may_be_a_class_or_none(head, ignore_index):
    x, w, b = with_gradients(head)
    labels = torch.where(head.labels < 0, ignore_index, head.labels)
    labels[:2] = ignore_index
    kept = labels != ignore_index
    for found, alone in (
        (
            angular_loss(x, labels, w, scale=4.0, ignore_index=ignore_index),
            angular_loss(x[kept], labels[kept], w, scale=4.0, ignore_index=-1),
        ),
        (
            linear_loss(x, labels, w, b, log_end=0.75, ignore_index=ignore_index),
            linear_loss(x[kept], labels[kept], w, b, log_end=0.75, ignore_index=-1),
        ),
    ):
        torch.testing.assert_close(found, alone)
        for one, other in zip(gradients(found, x, w), gradients(alone, x, w), strict=True):
            torch.testing.assert_close(one, other)


def test_without_an_example_that_takes_part_the_mean_is_nan_and_the_sum_is_0(head):
    labels = torch.full_like(head.labels, -100)
    given = (head.embeddings, labels, head.class_weights)
    assert angular_loss(*given, scale=4.0).isnan()
    assert angular_loss(*given, scale=4.0, mean=False) == 0


@pytest.mark.parametrize("wrong", [30, -2])
def test_a_label_that_is_no_class_is_refused_and_unseen_gives_nan(head, wrong):
    head.labels[11] = wrong
    x, w, b = with_gradients(head)
    with pytest.raises(LabelError, match=r"expected labels in \[0, 30\)"):
        angular_loss(x, head.labels, w, scale=4.0)
    # on a device the labels are not looked at before the kernels run
    for name, rest in (("angular_log_odds", 4.0), ("linear_log_odds", b)):
        operator = getattr(torch.ops.hardsight, name)
        loss = operator(x, head.labels, w, rest, [-100.0, 0.0, 0.75, 1.0])[0]
        assert loss.isnan()
        d_x = gradients(loss, x)[0]
        assert d_x[11].isnan().any()
        assert d_x[:11].isfinite().all()


def test_the_losses_of_heads_are_reduced_by_the_kernels(head):
    x, w, b = with_gradients(head)
    labels = head.labels
    for plain, fused in (
        (
            linear_avh_loss(x, labels, w, scale=4.0, margin_rad=0.1, impl="triton"),
            angular_loss(x, labels, w, scale=4.0, margin_rad=0.1),
        ),
        (
            linear_encouraging_loss(x, labels, w, b, log_end=1.0, impl="triton"),
            linear_loss(x, labels, w, b, log_end=1.0),
        ),
    ):
        assert plain.equal(fused)
        assert plain.grad_fn.name() == fused.grad_fn.name()


@pytest.mark.parametrize(
    "options",
    [
        {"bonus_start": 0.5},
        {"bonus": "cosine"},
        {"bonus": "power"},
        {"log_end": 1.0, "clamp": 1e-5},
        {"reduction": "none"},
        {"weight": torch.linspace(0.5, 2, 30)},
        {"check_finite": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_the_kernels_cannot_reduce_is_reduced_by_torch(head, options):
    x, w, b = with_gradients(head)
    found, expected = (
        linear_encouraging_loss(x, head.labels, w, b, impl=impl, **options).sum()
        for impl in ("triton", "torch")
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, x, w, b), gradients(expected, x, w, b))


def test_options_out_of_range_are_refused(head):
    given = (head.embeddings, head.labels, head.class_weights)
    with pytest.raises(OptionError, match="expected scale to be positive, got 0"):
        angular_loss(*given, scale=0)
    with pytest.raises(OptionError, match=r"expected log_end in \[0, 1\], got 2"):
        linear_loss(*given, log_end=2)


def test_labels_too_many_to_compare_are_sorted(launching, head, monkeypatch):
    x, w, _ = with_gradients(head)

    def found():
        return gradients(angular_loss(x, head.labels, w, scale=4.0), w)[0]

    ranked = found()
    monkeypatch.setattr(launching.portable, "_MOST_RANKED", 0)
    assert torch.equal(found(), ranked)


class Seen(TorchDispatchMode):
    """Names of the operators called under it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("reduction", [[], [-100.0, 0.0, 0.75, 1.0]], ids=["log-odds", "loss"])
@pytest.mark.parametrize("name", ["angular_log_odds", "linear_log_odds"])
def test_a_call_seen_as_an_operator_is_the_direct_one(head, name, reduction):
    from hardsight.kernels import _log_odds

    x, w, b = with_gradients(head)
    given = (x, head.labels, w, 4.0 if name == "angular_log_odds" else b, reduction)
    direct = getattr(_log_odds, name.replace("log_odds", "operator"))
    with Seen() as seen:
        observed = direct(*given)[0]
        expected = gradients(observed.nansum(), x, w)
    assert f"hardsight::{name}" in seen.names
    assert f"hardsight::{name}_backward" in seen.names
    found = direct(*given)[0]
    torch.testing.assert_close(found, observed, rtol=0, atol=0, equal_nan=True)
    for one, other in zip(gradients(found.nansum(), x, w), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("function", [angular_log_odds, linear_log_odds])
def test_a_second_derivative_is_refused(head, function):
    x, w, _ = with_gradients(head)
    options = {"scale": 4.0} if function is angular_log_odds else {}
    value = function(x, head.labels.clamp_min(0), w, **options).sum()
    with pytest.raises(GradientError, match="differentiable once"):
        torch.autograd.grad(value, x, create_graph=True)


def test_without_gradients_no_graph_is_kept(head):
    loss = angular_loss(head.embeddings, head.labels, head.class_weights, scale=4.0)
    assert loss.grad_fn is None
    x, w, _ = with_gradients(head)
    with torch.no_grad():
        assert angular_loss(x, head.labels, w, scale=4.0).grad_fn is None
    assert math.isclose(loss, angular_loss(x, head.labels, w, scale=4.0).item())


def test_the_node_of_a_loss_keeps_the_promises_of_autograd(head):
    x, w, _ = with_gradients(head)

    def loss(x, w):
        return angular_loss(x, head.labels, w, scale=4.0)

    once = loss(x, w)
    expected = torch.autograd.grad(once, (x, w), retain_graph=True)
    with torch.autograd.graph.save_on_cpu():
        moved = loss(x, w)
    again = checkpoint(loss, x, w, use_reentrant=False)
    for found in (once, moved, again):
        for one, other in zip(torch.autograd.grad(found, (x, w)), expected, strict=True):
            assert torch.equal(one, other)
    changed = loss(x, w)
    with torch.no_grad():
        w += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed.backward()
