import math
from functools import partial

import numpy as np
import pytest
import torch

from hardsight.errors import LabelError, NonFiniteError, OptionError, ShapeError
from hardsight.losses import amc_loss, euclidean_contrastive_loss

LOSSES = [amc_loss, euclidean_contrastive_loss]


def angle(a, b):
    cosine = np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b))
    return np.arccos(np.clip(cosine, -1, 1))


def euclidean(a, b):
    return np.linalg.norm(a - b)


def reference(x, groups, *, distance, margin, pairs):
    """Eq. (1) or (2), pair by pair, in float64 numpy: values and which pairs are similar."""
    x = np.asarray(x, dtype=np.float64)
    half, n = len(x) // 2, len(x)
    if pairs == "halves":
        rows = [(i, i + half) for i in range(half)]
    else:
        rows = [(i, j) for i in range(n) for j in range(i + 1, n)]
    similar = np.array([bool(groups[i] == groups[j]) for i, j in rows])
    d = np.array([distance(x[i], x[j]) for i, j in rows])
    return np.where(similar, d**2, np.maximum(0, margin - d) ** 2), similar


def assert_is(expected, loss, x, labels):
    """Values, their mean, and the gradient of a loss of pairs."""
    torch.testing.assert_close(loss(x, labels, reduction="none"), torch.from_numpy(expected))
    torch.testing.assert_close(loss(x, labels).item(), expected.mean())
    leaf = x.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (leaf,))


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 2, 1, 0, 0, 1, 2])  # halves: 3 similar, 3 not
    return x, labels


@pytest.mark.parametrize("pairs", ["halves", "all"])
@pytest.mark.parametrize("margin", [0.5, 1.5, math.pi])
def test_amc_loss_matches_equation_2(batch, pairs, margin):
    x, labels = batch
    expected, _ = reference(x, labels, distance=angle, margin=margin, pairs=pairs)
    assert_is(expected, partial(amc_loss, margin_rad=margin, pairs=pairs), x, labels)


@pytest.mark.parametrize("pairs", ["halves", "all"])
@pytest.mark.parametrize("margin", [1.0, 3.0])
def test_euclidean_contrastive_loss_matches_equation_1(batch, pairs, margin):
    x, labels = batch
    expected, _ = reference(x, labels, distance=euclidean, margin=margin, pairs=pairs)
    assert_is(expected, partial(euclidean_contrastive_loss, margin=margin, pairs=pairs), x, labels)


def test_defaults_are_the_papers_margins(batch):
    x, labels = batch
    options = {"pairs": "halves"}
    expected, _ = reference(x, labels, distance=angle, margin=0.5, **options)
    torch.testing.assert_close(amc_loss(x, labels).item(), expected.mean())
    expected, _ = reference(x, labels, distance=euclidean, margin=1.0, **options)
    torch.testing.assert_close(euclidean_contrastive_loss(x, labels).item(), expected.mean())


@pytest.mark.parametrize("pairs", ["halves", "all"])
def test_per_sign_average_is_the_mean_of_similar_plus_the_mean_of_dissimilar(batch, pairs):
    x, labels = batch
    values, similar = reference(x, labels, distance=angle, margin=2.0, pairs=pairs)
    got = amc_loss(x, labels, margin_rad=2.0, pairs=pairs, average="signs")
    expected = values[similar].mean() + values[~similar].mean()
    torch.testing.assert_close(got.item(), expected)


def test_per_sign_average_without_one_of_the_signs_is_the_other_mean():
    x = torch.eye(2)
    torch.testing.assert_close(
        amc_loss(x, torch.tensor([0, 0]), average="signs").item(), (math.pi / 2) ** 2
    )
    got = amc_loss(x, torch.tensor([0, 1]), average="signs", margin_rad=2.0)
    torch.testing.assert_close(got.item(), (2 - math.pi / 2) ** 2, rtol=1e-5, atol=0)


def test_similarity_from_predictions_follows_equation_3_and_not_the_labels(batch):
    x, labels = batch
    logits = torch.randn(13, 3, generator=torch.Generator().manual_seed(4))
    predictions = logits.argmax(dim=1)
    assert (predictions != labels).any()
    torch.testing.assert_close(
        amc_loss(x, labels, logits, similarity="predictions"), amc_loss(x, predictions)
    )
    unlabelled = torch.full_like(labels, -100)
    torch.testing.assert_close(
        amc_loss(x, unlabelled, logits, similarity="predictions"), amc_loss(x, predictions)
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_the_last_row_of_an_odd_batch_is_left_out_of_halves(batch, loss):
    x, labels = batch
    assert loss(x, labels, reduction="none").shape == (6,)
    torch.testing.assert_close(loss(x, labels), loss(x[:12], labels[:12]))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("pairs", ["halves", "all"])
def test_ignored_examples_take_part_in_no_pair(batch, loss, pairs):
    x, labels = batch
    x.requires_grad_()
    labels = labels.clone()
    labels[2] = labels[9] = -1
    values = loss(x, labels, pairs=pairs, ignore_index=-1, reduction="none")
    if pairs == "halves":
        kept = torch.tensor([i not in (2, 3) for i in range(6)])  # rows 2 and 8, 3 and 9
        expected = loss(x, labels.clamp(min=0), reduction="none")[kept]
    else:
        rows = torch.tensor([i for i in range(13) if i not in (2, 9)])
        expected = loss(x[rows], labels[rows], pairs="all", reduction="none")
    mean = loss(x, labels, pairs=pairs, ignore_index=-1)
    torch.testing.assert_close(mean, expected.mean())
    torch.testing.assert_close(values.sum(), expected.sum())
    (grad,) = torch.autograd.grad(mean, x)
    assert grad[[2, 9]].abs().max() == 0


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("pairs", ["halves", "all"])
@pytest.mark.parametrize("average", ["pairs", "signs"])
def test_a_batch_of_one_costs_nothing_and_keeps_its_gradient_finite(loss, pairs, average):
    x = torch.ones(1, 3, requires_grad=True)
    value = loss(x, torch.tensor([0]), pairs=pairs, average=average)
    assert value == 0
    (grad,) = torch.autograd.grad(value, x)
    assert grad.abs().max() == 0


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("pairs", ["halves", "all"])
@pytest.mark.parametrize("average", ["pairs", "signs"])
def test_empty_and_all_ignored_batches_follow_cross_entropy(loss, pairs, average):
    options = {"pairs": pairs, "average": average}
    for rows in (0, 4):
        x, labels = torch.randn(rows, 3), torch.full((rows,), -100)
        assert torch.isnan(loss(x, labels, **options))
        assert loss(x, labels, reduction="sum", **options) == 0


@pytest.mark.parametrize("pairs", ["halves", "all"])
@pytest.mark.parametrize("case", ["aligned", "opposite", "zero", "both zero"])
def test_gradcheck_holds_on_the_pairs_where_arccos_has_no_gradient(case, pairs):
    row = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
    other = {"aligned": 2 * row, "opposite": -row, "zero": 0 * row, "both zero": 0 * row}[case]
    row = 0 * row if case == "both zero" else row
    fixed = torch.stack([row, other])
    free = torch.randn(
        2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).requires_grad_()
    labels = torch.tensor([0, 1, 0, 1])

    def loss(free, pair):
        x = torch.stack([pair[0], free[0], pair[1], free[1]])
        return amc_loss(x, labels, margin_rad=math.pi, pairs=pairs)

    pair = fixed.clone().requires_grad_()
    if "zero" in case:  # an angle jumps at a zero vector: no difference quotient, but a gradient
        assert torch.autograd.gradcheck(lambda free: loss(free, fixed), (free,))
        (grad,) = torch.autograd.grad(loss(free, pair), pair)
        assert torch.isfinite(grad).all()
        assert grad[1].abs().max() == 0
    else:
        assert torch.autograd.gradcheck(loss, (free, pair))


def test_gradient_of_the_squared_angle_at_0_is_finite_and_right():
    # theta^2 = |x_perp|^2 / |x|^2 near 0: second derivative 2 across, 0 along
    fixed = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def loss(x):
        return amc_loss(torch.stack([x, fixed]), torch.tensor([0, 0]))

    x = fixed.clone().requires_grad_()
    assert torch.autograd.grad(loss(x), x)[0].abs().max() == 0
    for offset in (1e-3, 1e-6, 1e-9):
        x = (fixed + torch.tensor([0.0, offset], dtype=torch.float64)).requires_grad_()
        (grad,) = torch.autograd.grad(loss(x), x)
        torch.testing.assert_close(grad[1].item() / offset, 2.0, rtol=1e-5, atol=0)


def test_gradient_with_respect_to_the_cosine_is_minus_2_at_angle_0():
    # on the unit circle cos = cos(theta): d(theta^2)/d(cos) = -2 theta / sin(theta) -> -2
    theta = torch.tensor(1e-4, dtype=torch.float64, requires_grad=True)
    x = torch.stack([theta.cos(), theta.sin()])
    loss = amc_loss(torch.stack([x, torch.tensor([1.0, 0.0]).double()]), torch.tensor([0, 0]))
    (slope,) = torch.autograd.grad(loss, theta)
    torch.testing.assert_close((slope / -theta.sin()).item(), -2.0)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("pairs", ["halves", "all"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_duplicate_rows_have_finite_gradients_in_every_dtype(loss, pairs, dtype):
    x = torch.ones(6, 3, dtype=dtype, requires_grad=True)
    for labels in (torch.zeros(6).long(), torch.arange(6)):
        value = loss(x, labels, pairs=pairs)
        assert torch.isfinite(value)
        (grad,) = torch.autograd.grad(value, x)
        assert grad.dtype == dtype
        assert torch.isfinite(grad).all()


def test_all_pairs_resolve_rows_that_are_close_together_and_far_from_0():
    # by inner products, |x|^2 + |y|^2 - 2xy, float32 would see a distance of 0 or .03 here
    x = torch.tensor([[1000.0, 0.0], [1000.0, 0.001]])
    labels = torch.tensor([0, 0])
    got = euclidean_contrastive_loss(x, labels, pairs="all")
    torch.testing.assert_close(got.item(), 1e-6, rtol=1e-3, atol=0)


@pytest.mark.parametrize("margin", [0.0, -0.5, 3.2, float("nan")])
def test_angular_margin_must_lie_between_0_and_pi(batch, margin):
    with pytest.raises(OptionError, match=r"margin_rad in \(0, pi\], radians, got"):
        amc_loss(*batch, margin_rad=margin)


def test_euclidean_margin_must_be_positive(batch):
    with pytest.raises(OptionError, match="margin to be positive, got 0"):
        euclidean_contrastive_loss(*batch, margin=0)


@pytest.mark.parametrize("loss", LOSSES)
def test_bad_input_raises_what_was_expected(batch, loss):
    x, labels = batch
    with pytest.raises(ShapeError, match=r"embeddings \[13, 3\], labels \[4\]"):
        loss(x, labels[:4])
    with pytest.raises(ShapeError, match=r"embeddings to have 2 dimensions, got \[3\]"):
        loss(x[0], labels[:1])
    with pytest.raises(ShapeError, match=r"labels to have 1 dimension, got \[13, 1\]"):
        loss(x, labels[:, None])
    with pytest.raises(ShapeError, match="embeddings to be floating point"):
        loss(x.long(), labels)
    with pytest.raises(LabelError, match="labels to be integers, got"):
        loss(x, labels.float())
    with pytest.raises(LabelError, match="got -1; pass it as ignore_index"):
        loss(x, labels - 1)
    with pytest.raises(
        OptionError, match="pairs to be one of 'halves', 'all', 'hard', 'semi_hard', got 'some'"
    ):
        loss(x, labels, pairs="some")
    with pytest.raises(OptionError, match="similarity to be one of"):
        loss(x, labels, similarity="teacher")
    with pytest.raises(OptionError, match="average to be one of"):
        loss(x, labels, average="both")
    with pytest.raises(OptionError, match=r"needs logits \[N, C\], got none"):
        loss(x, labels, similarity="predictions")
    with pytest.raises(ShapeError, match=r"logits \[4, 2\]"):
        loss(x, labels, torch.zeros(4, 2), similarity="predictions")


def test_check_finite_names_both_examples_of_a_pair(batch):
    x, labels = batch
    x[8] = float("nan")
    with pytest.raises(NonFiniteError, match=r"1 of 6 .* at positions \(2, 8\);"):
        amc_loss(x, labels, check_finite=True)


@pytest.mark.parametrize("loss", LOSSES)
def test_labels_of_8_bits_are_not_taken_for_the_ignored_one(loss):
    # as uint8, -100 is 156: a class of a dataset with more than that many
    rows, labels = torch.eye(4), torch.tensor([156, 3, 156, 156])
    expected = loss(rows, labels, reduction="none")
    assert (expected > 0).any()
    torch.testing.assert_close(loss(rows, labels.to(torch.uint8), reduction="none"), expected)
