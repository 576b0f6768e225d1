"""Properties over drawn batches; numbers drawn are few-digit so that failures read well."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardsight.losses import (
    amc_loss,
    avh_loss,
    encouraging_loss,
    euclidean_contrastive_loss,
    focal_loss,
    large_margin_softmax_loss,
    linear_avh_loss,
    mirror_mse_loss,
)

quick = settings(derandomize=True, deadline=None, max_examples=30)


@st.composite
def batches(draw):
    """Embeddings, labels, class weights, with zero, repeated and aligned rows among them."""
    rows = draw(st.integers(1, 7))
    classes = draw(st.integers(2, 5))
    numbers = st.integers(-8, 8).map(lambda n: n / 4)
    vectors = st.lists(numbers, min_size=3, max_size=3)
    x = draw(st.lists(vectors, min_size=rows, max_size=rows))
    w = draw(st.lists(vectors, min_size=classes, max_size=classes))
    if draw(st.booleans()):
        x[0] = [2 * value for value in w[0]]
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))
    return (
        torch.tensor(x, dtype=torch.float64),
        torch.tensor(labels),
        torch.tensor(w, dtype=torch.float64),
    )


orders = st.randoms(use_true_random=False)


def permutation(random, count):
    order = list(range(count))
    random.shuffle(order)
    return torch.tensor(order)


LOGIT_LOSSES = [
    encouraging_loss,
    lambda *args, **kw: encouraging_loss(*args, log_end=1.0, **kw),
    lambda *args, **kw: encouraging_loss(*args, label_smoothing=0.1, **kw),
    focal_loss,
    mirror_mse_loss,
]
HEAD_LOSSES = [
    lambda *args, **kw: avh_loss(*args, scale=3.0, **kw),
    lambda *args, **kw: linear_avh_loss(*args, scale=3.0, **kw),
    large_margin_softmax_loss,
]
PAIR_LOSSES = [
    lambda *args, **kw: amc_loss(*args, pairs="all", margin_rad=2.0, **kw),
    lambda *args, **kw: euclidean_contrastive_loss(*args, pairs="all", **kw),
]


@quick
@given(batch=batches(), random=orders)
def test_permuting_examples_permutes_values(batch, random):
    x, labels, w = batch
    order = permutation(random, len(x))
    for loss in HEAD_LOSSES:
        values = loss(x, labels, w, reduction="none")
        torch.testing.assert_close(
            loss(x[order], labels[order], w, reduction="none"), values[order]
        )
    for loss in LOGIT_LOSSES:
        values = loss(x @ w.T, labels, reduction="none")
        torch.testing.assert_close(
            loss(x[order] @ w.T, labels[order], reduction="none"), values[order]
        )
    for loss in PAIR_LOSSES:
        torch.testing.assert_close(loss(x[order], labels[order]), loss(x, labels))


@quick
@given(batch=batches(), random=orders)
def test_renaming_classes_changes_nothing(batch, random):
    x, labels, w = batch
    order = permutation(random, len(w))
    renamed = torch.argsort(order)[labels]
    for loss in HEAD_LOSSES:
        torch.testing.assert_close(loss(x, renamed, w[order]), loss(x, labels, w))
    for loss in LOGIT_LOSSES:
        torch.testing.assert_close(loss(x @ w[order].T, renamed), loss(x @ w.T, labels))
    for loss in PAIR_LOSSES:
        torch.testing.assert_close(loss(x, renamed), loss(x, labels))


@quick
@given(batch=batches(), exponent=st.integers(-60, 60), class_exponent=st.integers(-60, 60))
def test_angular_losses_ignore_the_scale_of_every_row(batch, exponent, class_exponent):
    x, labels, w = batch
    scaled, scaled_w = x * 2.0**exponent, w * 2.0**class_exponent
    for loss in HEAD_LOSSES[:2]:
        torch.testing.assert_close(loss(scaled, labels, scaled_w), loss(x, labels, w))
    torch.testing.assert_close(amc_loss(scaled, labels), amc_loss(x, labels))


@quick
@given(batch=batches())
def test_reductions_agree_and_gradients_are_finite(batch):
    x, labels, w = batch
    x.requires_grad_()
    calls = [lambda loss=loss, **kw: loss(x, labels, w, **kw) for loss in HEAD_LOSSES]
    calls += [lambda loss=loss, **kw: loss(x @ w.T, labels, **kw) for loss in LOGIT_LOSSES]
    calls += [lambda loss=loss, **kw: loss(x, labels, **kw) for loss in PAIR_LOSSES]
    for call in calls:
        values = call(reduction="none")
        torch.testing.assert_close(call(reduction="sum"), values.sum())
        mean = call(reduction="mean")
        if values.numel():  # a batch of one has no pair
            torch.testing.assert_close(mean, values.mean())
        assert torch.isfinite(mean)
        (grad,) = torch.autograd.grad(mean, x)
        assert torch.isfinite(grad).all()


@quick
@given(batch=batches(), shift=st.integers(-1000, 1000))
def test_losses_of_logits_ignore_a_shift_of_all_logits(batch, shift):
    x, labels, w = batch
    logits = x @ w.T
    for loss in LOGIT_LOSSES:
        torch.testing.assert_close(loss(logits + shift, labels), loss(logits, labels))
