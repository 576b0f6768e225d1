"""Pairs and triplets that are mined, against a second statement row by row."""

import math

import numpy as np
import pytest
import torch

from hardsight.errors import LabelError, OptionError, ShapeError
from hardsight.losses import amc_loss, angular_triplet_loss, euclidean_contrastive_loss


def angle(a, b):
    cosine = np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b))
    return np.arccos(np.clip(cosine, -1, 1))


def euclidean(a, b):
    return np.linalg.norm(a - b)


def partners(x, labels, distance, how):
    """For every row: distance to the farthest similar row and to the chosen dissimilar one."""
    chosen = []
    for i, row in enumerate(x):
        same = [distance(row, x[j]) for j in range(len(x)) if j != i and labels[j] == labels[i]]
        other = [distance(row, x[j]) for j in range(len(x)) if labels[j] != labels[i]]
        far = max(same, default=None)
        beyond = [d for d in other if far is None or d > far]
        if how == "hard":
            near = min(other, default=None)
        else:
            near = min(beyond) if beyond else max(other, default=None)
        chosen.append((far, near))
    return chosen


@pytest.fixture
def batch():
    x = torch.randn(14, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # class 3 has one row
    return x, torch.tensor([0, 1, 2, 0, 1, 2, 0, 2, 1, 0, 0, 1, 2, 3])


@pytest.mark.parametrize("how", ["hard", "semi_hard"])
@pytest.mark.parametrize(
    ("loss", "distance", "margin"),
    [
        (amc_loss, angle, {"margin_rad": 1.5}),
        (euclidean_contrastive_loss, euclidean, {"margin": 2}),
    ],
)
def test_mined_pairs_are_the_farthest_similar_and_a_near_dissimilar_row(
    batch, how, loss, distance, margin
):
    x, labels = batch
    chosen = partners(x.numpy(), labels, distance, how)
    (size,) = margin.values()
    similar = [far**2 for far, _ in chosen if far is not None]
    dissimilar = [max(0.0, size - near) ** 2 for _, near in chosen]
    got = loss(x, labels, pairs=how, reduction="none", **margin)
    assert got.shape == (28,)
    assert got[13] == 0  # the only row of its class
    torch.testing.assert_close(got[:13], torch.tensor(similar, dtype=torch.float64))
    torch.testing.assert_close(got[14:], torch.tensor(dissimilar, dtype=torch.float64))
    mean = loss(x, labels, pairs=how, **margin)
    torch.testing.assert_close(mean.item(), np.mean(similar + dissimilar))
    by_sign = loss(x, labels, pairs=how, average="signs", **margin)
    torch.testing.assert_close(by_sign.item(), np.mean(similar) + np.mean(dissimilar))


@pytest.mark.parametrize("how", ["hard", "semi_hard"])
def test_triplets_match_their_equation(batch, how):
    x, labels = batch
    chosen = partners(x.numpy(), labels, angle, how)
    expected = [0.0 if far is None else max(0.0, far - near + 0.7) for far, near in chosen]
    options = {"margin_rad": 0.7, "triplets": how}
    got = angular_triplet_loss(x, labels, reduction="none", **options)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))
    mean = angular_triplet_loss(x, labels, **options)
    torch.testing.assert_close(mean.item(), sum(expected) / 13)
    leaf = x.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: angular_triplet_loss(x, labels, **options), (leaf,))


def test_semi_hard_leaves_out_the_row_that_lies_among_another_class():
    degrees = torch.tensor([0.0, 20.0, 1.0, 40.0])  # the third has the label of the fourth
    x = torch.stack([degrees.deg2rad().cos(), degrees.deg2rad().sin()], dim=1)
    labels = torch.tensor([0, 0, 1, 1])
    hard = angular_triplet_loss(x, labels, margin_rad=0.5, reduction="none")
    semi = angular_triplet_loss(x, labels, margin_rad=0.5, triplets="semi_hard", reduction="none")
    torch.testing.assert_close(hard[0].item(), math.radians(20 - 1) + 0.5, rtol=1e-5, atol=0)
    torch.testing.assert_close(semi[0].item(), math.radians(20 - 40) + 0.5, rtol=1e-5, atol=0)


LOSSES = [
    lambda x, labels, **options: amc_loss(x, labels, pairs="hard", **options),
    lambda x, labels, **options: euclidean_contrastive_loss(x, labels, pairs="hard", **options),
    angular_triplet_loss,
]


@pytest.mark.parametrize("loss", LOSSES)
def test_ignored_rows_are_nobodys_partner_and_have_no_gradient(batch, loss):
    x, labels = batch
    x.requires_grad_()
    ignored = labels.clone()
    ignored[[2, 9]] = -100
    rows = torch.tensor([i for i in range(14) if i not in (2, 9)])
    value = loss(x, ignored)
    torch.testing.assert_close(value, loss(x[rows], labels[rows]))
    (grad,) = torch.autograd.grad(value, x)
    assert grad[[2, 9]].abs().max() == 0


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_row_is_chosen_by_nobody_and_its_own_value_is_nan(batch, loss, broken):
    x, labels = batch
    x[13] = broken  # the only one of its class: not even then does it vanish
    values = loss(x, labels, reduction="none")
    bad = values.isnan().nonzero().flatten().tolist()
    assert bad == ([13] if len(values) == 14 else [13, 27])
    assert torch.isnan(loss(x, labels))


@pytest.mark.parametrize("loss", LOSSES)
def test_one_class_alone_has_no_dissimilar_row(loss):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    value = loss(x, torch.zeros(4).long())
    assert torch.isfinite(value)
    assert (value == 0) == (loss is angular_triplet_loss)
    assert torch.isfinite(torch.autograd.grad(value, x)[0]).all()


def test_bad_options_are_named(batch):
    x, labels = batch
    with pytest.raises(OptionError, match="triplets to be one of 'hard', 'semi_hard', got 'all'"):
        angular_triplet_loss(x, labels, triplets="all")
    with pytest.raises(OptionError, match=r"margin_rad in \(0, pi\], radians, got 4"):
        angular_triplet_loss(x, labels, margin_rad=4)
    with pytest.raises(LabelError, match="got -1; pass it as ignore_index"):
        angular_triplet_loss(x, labels - 1)
    with pytest.raises(ShapeError, match=r"embeddings \[14, 3\], labels \[4\]"):
        angular_triplet_loss(x, labels[:4])
