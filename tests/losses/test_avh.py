import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hardsight.errors import HeadError, LabelError, NonFiniteError, OptionError, ShapeError
from hardsight.losses import AVHLoss, avh_logits, avh_loss, encouraging_loss
from tests._tensors import head_batch

AXES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)


def reference(x, labels, w, scale):
    """-log of Eq. (5), in float64 numpy."""
    x, w = np.asarray(x, dtype=np.float64), np.asarray(w, dtype=np.float64)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    w = w / np.linalg.norm(w, axis=1, keepdims=True)
    angles = np.arccos(np.clip(x @ w.T, -1, 1))
    weights = np.exp(scale * (np.pi - angles))
    return -np.log(weights[np.arange(len(x)), labels] / weights.sum(axis=1))


@pytest.fixture
def batch():
    return head_batch(10, 6, 5)


@pytest.mark.parametrize("scale", [0.5, 1.0, 8.0, 30.0])
def test_avh_loss_matches_equation_5_with_its_negative_log(batch, scale):
    got = avh_loss(*batch, scale=scale, reduction="none")
    torch.testing.assert_close(got, torch.from_numpy(reference(*batch, scale)))


def test_avh_loss_worked_by_hand():
    # at 0, 90 and 180 degrees of the three weights, scale 2: -log(e^0 / (e^0 + e^-pi + e^-2pi))
    total = 1 + math.exp(-math.pi) + math.exp(-2 * math.pi)
    got = avh_loss(
        AXES[:1].expand(3, 2), torch.tensor([0, 1, 2]), AXES, scale=2.0, reduction="none"
    )
    expected = [math.log(total) + angle for angle in (0.0, math.pi, 2 * math.pi)]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


def test_gradient_of_avh_loss_passes_gradcheck(batch):
    x, labels, w = batch
    x, w = x.requires_grad_(), w.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: avh_loss(x, labels, w, scale=4.0), (x, w))


def test_gradcheck_holds_on_aligned_opposite_and_duplicate_rows():
    # every row of x equals, mirrors or repeats a class weight; two class weights are the same
    w = torch.tensor(
        [[1.0, 2.0, 2.0], [2.0, -1.0, 0.5], [2.0, -1.0, 0.5]], dtype=torch.float64
    ).requires_grad_()
    x = torch.stack([w[0], -w[0], 3 * w[1], 3 * w[1]]).detach().requires_grad_()
    labels = torch.tensor([0, 0, 1, 2])
    # the kink of an angle at 0 and pi has slopes +-1, whose middle a central difference sees
    assert torch.autograd.gradcheck(lambda x: avh_loss(x, labels, w.detach(), scale=2.0), (x,))
    assert torch.autograd.gradcheck(lambda w: avh_loss(x.detach(), labels, w, scale=2.0), (w,))


def test_gradient_next_to_a_zero_row_passes_gradcheck(batch):
    x, labels, w = batch
    zero = torch.zeros(1, 6, dtype=torch.float64)
    more = torch.cat([labels, torch.tensor([2])])
    x = x.requires_grad_()

    def loss(x):
        return avh_loss(torch.cat([x, zero]), more, torch.cat([w, zero]), scale=3.0)

    assert torch.autograd.gradcheck(loss, (x,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["aligned", "opposite", "zero example", "zero class", "near"])
def test_gradient_is_finite_where_arccos_has_none(case, dtype):
    w = torch.eye(3, dtype=dtype) * 0.3
    x = torch.tensor([[2.0, 0.0, 0.0]], dtype=dtype)
    if case == "opposite":
        x = -x
    elif case == "zero example":
        x = torch.zeros_like(x)
    elif case == "zero class":
        w = torch.zeros_like(w)
    elif case == "near":
        x = x + torch.tensor([[0.0, 1e-6, 0.0]], dtype=dtype)
    x, w = x.requires_grad_(), w.requires_grad_()
    loss = avh_loss(x, torch.tensor([0]), w, scale=16.0)
    assert torch.isfinite(loss)
    for grad, leaf in zip(torch.autograd.grad(loss, (x, w)), (x, w), strict=True):
        assert grad.dtype == leaf.dtype
        assert torch.isfinite(grad).all()


def test_a_zero_example_is_equally_far_from_every_class_and_gets_no_gradient():
    x = torch.zeros(1, 3, requires_grad=True)
    loss = avh_loss(x, torch.tensor([1]), torch.eye(3), scale=7.0)
    torch.testing.assert_close(loss, torch.tensor(math.log(3)))
    assert torch.autograd.grad(loss, x)[0].abs().max() == 0


def test_small_target_angles_are_seen_in_float32():
    # 1e-5 rad is 0 for arccos in float32. Classes at theta and pi - theta: the slope in theta is
    # 2 s (1 - p), where 1 - p = sigmoid(-s (pi - 2 theta))
    x = torch.tensor([[1.0, 1e-5]], requires_grad=True)
    loss = avh_loss(x, torch.tensor([0]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), scale=0.5)
    (grad,) = torch.autograd.grad(loss, x)
    slope = 2 * 0.5 / (1 + math.exp(0.5 * math.pi))
    torch.testing.assert_close(grad[0, 1].item(), slope, rtol=1e-4, atol=0)


def test_avh_loss_ignores_the_scale_of_embeddings_and_weights(batch):
    x, labels, w = batch
    factors = torch.logspace(-20, 20, 10, dtype=torch.float64)[:, None]
    torch.testing.assert_close(
        avh_loss(x * factors, labels, w * 1e-12, scale=4.0), avh_loss(x, labels, w, scale=4.0)
    )


def test_avh_loss_takes_the_options_of_cross_entropy(batch):
    x, labels, w = batch
    labels = labels.clone()
    labels[3] = -1
    options = {
        "weight": torch.arange(1.0, 6.0).double(),
        "label_smoothing": 0.1,
        "ignore_index": -1,
    }
    logits = avh_logits(x, w, scale=4.0)
    torch.testing.assert_close(
        avh_loss(x, labels, w, scale=4.0, **options), F.cross_entropy(logits, labels, **options)
    )
    soft = logits.softmax(dim=1).flip(0)
    torch.testing.assert_close(avh_loss(x, soft, w, scale=4.0), F.cross_entropy(logits, soft))


def test_bonus_adds_to_the_angular_loss(batch):
    x, labels, w = batch
    nll = torch.from_numpy(reference(x, labels, w, 4.0))
    expected = nll + torch.log(1 - torch.exp(-nll))
    got = encouraging_loss(avh_logits(x, w, scale=4.0), labels, log_end=1.0, reduction="none")
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_scale_must_be_positive(batch, scale):
    with pytest.raises(OptionError, match="scale to be positive, got"):
        avh_loss(*batch, scale=scale)


def test_bad_tensors_raise_what_was_expected(batch):
    x, labels, w = batch
    with pytest.raises(ShapeError, match=r"embeddings \[10, 6\], labels \[4\]"):
        avh_loss(x, labels[:4], w, scale=1.0)
    with pytest.raises(ShapeError, match=r"same width D, got embeddings \[10, 5\]"):
        avh_loss(x[:, :5], labels, w, scale=1.0)
    with pytest.raises(ShapeError, match=r"labels to have 1 dimension, got \[10, 1\]"):
        avh_loss(x, labels[:, None], w, scale=1.0)
    with pytest.raises(ShapeError, match="at least 2 classes"):
        avh_loss(x, torch.zeros(10).long(), w[:1], scale=1.0)
    with pytest.raises(ShapeError, match=r"embeddings to be floating point, got torch.int64"):
        avh_loss(x.long(), labels, w, scale=1.0)
    with pytest.raises(LabelError, match=r"labels in \[0, 5\), got values from 0 to 9"):
        avh_loss(x, torch.where(labels == 0, 9, 0), w, scale=1.0)


def test_check_finite_names_the_examples(batch):
    x, labels, w = batch
    x[7, 2] = float("nan")
    with pytest.raises(NonFiniteError, match=r"1 of 10 .* at positions 7;"):
        avh_loss(x, labels, w, scale=1.0, check_finite=True)


def test_empty_batch_follows_cross_entropy():
    x, labels, w = torch.zeros(0, 3), torch.zeros(0).long(), torch.eye(3)
    assert torch.isnan(avh_loss(x, labels, w, scale=1.0))
    assert avh_loss(x, labels, w, scale=1.0, reduction="sum") == 0
    assert avh_loss(x, labels, w, scale=1.0, reduction="none").shape == (0,)


def test_module_shares_the_weights_of_a_given_head():
    head = torch.nn.Linear(6, 5, bias=False, dtype=torch.bfloat16)
    criterion = AVHLoss.from_head(head, scale=4.0)
    assert criterion.class_weights is head.weight
    criterion(torch.randn(3, 6), torch.tensor([0, 1, 2])).backward()
    assert head.weight.grad.abs().sum() > 0
    assert head.weight.dtype == torch.bfloat16


def test_module_owns_trainable_weights_of_the_asked_shape_and_dtype():
    criterion = AVHLoss(5, 6, scale=4.0, dtype=torch.float64)
    assert [tuple(p.shape) for p in criterion.parameters()] == [(5, 6)]
    assert criterion.class_weights.dtype == torch.float64
    assert criterion.class_weights.std() > 0
    x = torch.randn(2, 6)
    torch.testing.assert_close(
        criterion.logits(x), avh_logits(x, criterion.class_weights, scale=4.0)
    )


def test_from_head_asks_for_a_layer_with_a_weight_matrix():
    with pytest.raises(HeadError, match=r"weight matrix \[C, D\], got ReLU"):
        AVHLoss.from_head(torch.nn.ReLU(), scale=1.0)


def test_the_own_angle_is_exact_under_vmap_for_labels_of_8_bits():
    # 200 classes do not fit int8, the labels do
    weights = torch.eye(200)
    embeddings = (weights[:4] + 1e-5 * weights[4:8])[:, None]
    labels = torch.arange(4, dtype=torch.int8)[:, None]
    logits = torch.vmap(lambda x, y: avh_logits(x, weights, scale=1.0, labels=y))
    own = logits(embeddings, labels)[:, 0].diagonal()
    torch.testing.assert_close(own, torch.full((4,), -1e-5), rtol=1e-3, atol=0)
