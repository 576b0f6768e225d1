import math

import pytest
import torch

from hardsight.errors import OptionError
from hardsight.kernels import avh_loss, linear_encouraging_loss


def test_avh_loss_matches_a_softmax_over_angles_worked_by_hand():
    # one embedding at 0, 90 and 180 degrees from the three class weights
    axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    found = avh_loss(axes[:1].expand(3, 2), torch.tensor([0, 1, 2]), axes, scale=2 / math.pi)
    terms = torch.tensor([2.0, 1.0, 0.0])  # s (pi - angle)
    torch.testing.assert_close(found, terms.exp().sum().log() - terms)


def test_a_margin_is_added_to_the_angle_of_the_own_class(make_head):
    head = make_head(8, 10, 15, torch.float32)
    angles = head.angles() + 0.3 * head.own
    expected = torch.nn.functional.cross_entropy(-6 * angles, head.labels, reduction="none")
    found = avh_loss(head.embeddings, head.labels, head.class_weights, scale=6, margin_rad=0.3)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("log_end", "bonus_start"), [(1.0, None), (0.75, None), (0.2, None), (0.0, None), (0.75, 0.5)]
)
def test_encouraging_loss_matches_its_formula_in_float64(make_head, log_end, bonus_start):
    head = make_head(30, 6, 4, torch.float32)
    p = head.logits().softmax(dim=1)[head.own]
    if bonus_start is not None:
        bonus = torch.where(p > bonus_start, (1 - p).log() - math.log(1 - bonus_start), 0.0)
    elif log_end == 1:
        bonus = (1 - p).log()
    else:
        tangent = math.log(1 - log_end) - (p - log_end) / (1 - log_end)
        bonus = torch.where(p <= log_end, (1 - p).log(), tangent)
    found = linear_encouraging_loss(
        head.embeddings, head.labels, head.class_weights, head.bias,
        log_end=log_end, bonus_start=bonus_start,
    )  # fmt: skip
    torch.testing.assert_close(found, (bonus - p.log()).float(), rtol=1e-5, atol=1e-5)


def test_the_best_classified_examples_still_have_a_gradient():
    w = torch.tensor([[60.0], [0.0]])
    x = torch.ones(1, 1, requires_grad=True)
    linear_encouraging_loss(x, torch.tensor([0]), w, log_end=1.0).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[-60.0]]))


def test_ignored_examples_have_loss_zero():
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    w = torch.eye(4)
    labels = torch.tensor([0, -1, 2])
    found = linear_encouraging_loss(x, labels, w, ignore_index=-1)
    found.sum().backward()
    assert found[1] == 0
    assert torch.equal(x.grad[1], torch.zeros(4))
    assert (x.grad[[0, 2]] != 0).any(dim=1).all()


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan])
def test_a_scale_that_is_not_positive_is_refused(scale):
    axes = torch.eye(2)
    with pytest.raises(OptionError, match="expected scale to be positive, got"):
        avh_loss(axes, torch.tensor([0, 1]), axes, scale=scale)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"log_end": 1.5}, r"expected log_end in \[0, 1\], got 1.5"),
        ({"bonus_start": 1.0}, r"expected bonus_start in \[0, 1\) or None, got 1.0"),
    ],
)
def test_options_out_of_range_are_refused(option, message):
    axes = torch.eye(2)
    with pytest.raises(OptionError, match=message):
        linear_encouraging_loss(axes, torch.tensor([0, 1]), axes, **option)
