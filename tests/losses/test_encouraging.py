import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hardsight.losses import encouraging_bonus, encouraging_loss, focal_loss


def reference(logits, labels, log_end=1.0, bonus_start=None, bonus="log", power=2.0, clamp=0.0):
    """-log p + bonus(p) from the equations, in float64 numpy."""
    z = np.asarray(logits, dtype=np.float64)
    p = np.exp(z - z.max(1, keepdims=True))
    p = (p / p.sum(1, keepdims=True))[np.arange(len(z)), np.asarray(labels)]

    def reward(q):
        if bonus == "power":
            return -(q**power)
        if bonus == "cosine":
            return np.cos(np.pi * q) - 1
        if log_end == 1 or bonus_start is not None:
            return np.log(np.maximum(1 - q, clamp))
        line = np.log(1 - log_end) - (q - log_end) / (1 - log_end)
        return np.where(q <= log_end, np.log(1 - q), line)

    if bonus_start is None:
        return -np.log(p) + reward(p)
    return -np.log(p) + np.where(p > bonus_start, reward(p) - reward(np.float64(bonus_start)), 0.0)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 5, generator=generator, dtype=torch.float64) * 3
    return logits, torch.randint(0, 5, (64,), generator=generator)


@pytest.mark.parametrize(
    "options",
    [
        {"log_end": 1.0},
        {"log_end": 0.75},
        {"log_end": 0.5},
        {"log_end": 0.0},
        {"bonus_start": 0.5},
        {"bonus_start": 0.2},
        {"log_end": 1.0, "clamp": 0.2},
        {"bonus_start": 0.5, "clamp": 1e-2},
        {"log_end": 0.75, "clamp": 1e-5},
        {"bonus": "power", "power": 2.0},
        {"bonus": "power", "power": 1.0, "bonus_start": 0.5},
        {"bonus": "cosine"},
        {"bonus": "cosine", "bonus_start": 0.3},
    ],
)
def test_encouraging_loss_matches_its_equation(batch, options):
    logits, labels = batch
    got = encouraging_loss(logits, labels, reduction="none", **options)
    torch.testing.assert_close(got, torch.from_numpy(reference(logits, labels, **options)))
    leaf, own = logits[:6].clone().requires_grad_(), labels[:6]
    assert torch.autograd.gradcheck(lambda z: encouraging_loss(z, own, **options), leaf)


def test_default_is_the_conservative_bonus_that_ends_at_three_quarters(batch):
    logits, labels = batch
    expected = reference(logits, labels, log_end=0.75).mean()
    torch.testing.assert_close(encouraging_loss(logits, labels).item(), expected)


def test_normal_bonus_is_the_negative_log_odds_worked_by_hand():
    # z = (2, 0, 0): p = e^2 / (e^2 + 2), so -log p + log(1 - p) = log 2 - 2
    got = encouraging_loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), log_end=1.0)
    torch.testing.assert_close(got, torch.tensor(math.log(2) - 2))


@pytest.mark.parametrize("log_end", [0.25, 0.5, 0.75])
def test_encouraging_loss_is_continuous_where_the_log_turns_into_a_line(log_end):
    def at(p):  # two classes: log-odds of p
        z = torch.tensor([[math.log(p / (1 - p)), 0.0]], dtype=torch.float64, requires_grad=True)
        loss = encouraging_loss(z, torch.tensor([0]), log_end=log_end)
        return loss, torch.autograd.grad(loss, z)[0]

    (below, slope_below), (above, slope_above) = at(log_end - 1e-9), at(log_end + 1e-9)
    torch.testing.assert_close(below, above, atol=1e-7, rtol=0)
    torch.testing.assert_close(slope_below, slope_above, atol=1e-7, rtol=0)


def test_aggressive_bonus_is_continuous_where_it_starts():
    z = torch.tensor([[-1e-9, 0.0], [1e-9, 0.0]], dtype=torch.float64)
    below, above = encouraging_loss(z, torch.tensor([0, 0]), bonus_start=0.5, reduction="none")
    torch.testing.assert_close(below, above, atol=1e-8, rtol=0)
    torch.testing.assert_close(below.item(), math.log(2), atol=1e-8, rtol=0)


@pytest.mark.parametrize("own_logit", [10.0, 17.0, 30.0, 100.0, 1e4])
def test_gradient_for_p_near_1_is_the_closed_form_without_a_cliff(own_logit):
    logits = torch.tensor([[own_logit, 0.0, 0.0]], requires_grad=True)
    loss = encouraging_loss(logits, torch.tensor([0]), log_end=1.0)
    (grad,) = torch.autograd.grad(loss, logits)
    # Eq. (7): -1 at the own logit whatever p, plus the softmax over the others
    torch.testing.assert_close(grad, torch.tensor([[-1.0, 0.5, 0.5]]))
    torch.testing.assert_close(loss, torch.tensor(math.log(2) - own_logit))


@pytest.mark.parametrize("own_logit", [5.0, 10.0, 17.0, 30.0, 80.0])
@pytest.mark.parametrize("log_end", [0.5, 0.75])
def test_conservative_gradient_keeps_its_digits_where_p_rounds_to_1(own_logit, log_end):
    logits = torch.tensor([[own_logit, 0.0, 0.0]], requires_grad=True)
    loss = encouraging_loss(logits, torch.tensor([0]), log_end=log_end)
    (grad,) = torch.autograd.grad(loss, logits)
    rest = 2 / (math.exp(own_logit) + 2)  # 1 - p, in double precision
    own = -rest - (1 - rest) * rest / (1 - log_end)
    torch.testing.assert_close(grad, torch.tensor([[own, -own / 2, -own / 2]]), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    "options", [{"log_end": 1.0}, {}, {"bonus_start": 0.5}, {"bonus": "power"}]
)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_logits_up_to_ten_thousand_stay_finite(options, label_smoothing, dtype):
    corners = torch.tensor([-1e4, 0.0, 1e4], dtype=dtype)
    logits = torch.cartesian_prod(corners, corners, corners).requires_grad_()
    for label in range(3):
        labels = torch.full((len(logits),), label)
        loss = encouraging_loss(
            logits, labels, label_smoothing=label_smoothing, reduction="none", **options
        )
        assert torch.isfinite(loss).all()
        (grad,) = torch.autograd.grad(loss.sum(), logits)
        assert grad.dtype == dtype
        assert torch.isfinite(grad).all()


def test_label_smoothing_applies_the_smoothed_targets_to_the_loss_of_every_class(batch):
    logits, labels = batch
    every = torch.stack(
        [
            torch.from_numpy(reference(logits, torch.full_like(labels, c), log_end=0.75))
            for c in range(5)
        ],
        dim=1,
    )
    smoothed = torch.full_like(every, 0.1 / 5)
    smoothed[torch.arange(len(labels)), labels] += 0.9
    got = encouraging_loss(logits, labels, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(got, (smoothed * every).sum(dim=1))


def test_smoothed_loss_of_a_certain_example_keeps_its_bonus():
    # published code clamps 1 - p at 1e-5; the log-odds of the top class must not be clamped
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    loss = encouraging_loss(logits, torch.tensor([0]), log_end=1.0, label_smoothing=0.2)
    # q = (.9, .1), log-odds (200, -200): -(.9 * 200) + .1 * 200
    torch.testing.assert_close(loss, torch.tensor(-160.0))
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], torch.tensor([[-0.8, 0.8]]))


@pytest.mark.parametrize(
    "options", [{"log_end": 1.0}, {}, {"bonus_start": 0.5}, {"bonus": "cosine"}]
)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_bonus_adds_to_cross_entropy_and_gives_the_encouraging_loss(
    batch, options, label_smoothing
):
    logits, labels = batch
    smoothed = {"label_smoothing": label_smoothing, "weight": torch.arange(1.0, 6.0).double()}
    added = F.cross_entropy(logits, labels, **smoothed) + encouraging_bonus(
        logits, labels, **smoothed, **options
    )
    torch.testing.assert_close(added, encouraging_loss(logits, labels, **smoothed, **options))


def test_bonus_is_never_positive_and_rewards_confidence():
    logits = torch.linspace(-20, 20, 41)[:, None] * torch.tensor([[1.0, 0.0]])
    for options in ({"log_end": 1.0}, {}, {"bonus_start": 0.5}, {"bonus": "power"}):
        reward = encouraging_bonus(logits, torch.zeros(41).long(), reduction="none", **options)
        assert reward.max() <= 0
        assert (reward.diff() <= 0).all()
        assert reward[-1] < -0.9


def test_bonus_adds_to_focal_loss(batch):
    logits, labels = batch
    p = logits.softmax(dim=1)[torch.arange(64), labels]
    expected = -((1 - p) ** 2) * p.log() + (1 - p).log()
    got = focal_loss(logits, labels, reduction="none") + encouraging_bonus(
        logits, labels, log_end=1.0, reduction="none"
    )
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_loss_matches_its_equation(batch, gamma):
    logits, labels = batch
    p = logits.softmax(dim=1)[torch.arange(64), labels]
    got = focal_loss(logits, labels, gamma=gamma, reduction="none")
    torch.testing.assert_close(got, -((1 - p) ** gamma) * p.log())
    leaf, own = logits[:6].clone().requires_grad_(), labels[:6]
    assert torch.autograd.gradcheck(lambda z: focal_loss(z, own, gamma=gamma), leaf)


def test_focal_loss_refuses_a_negative_gamma(batch):
    with pytest.raises(ValueError, match="gamma of at least 0, got -1"):
        focal_loss(*batch, gamma=-1)


def test_focal_gradient_is_finite_for_certain_examples():
    for value in (-1e4, 1e4):
        logits = torch.tensor([[value, 0.0]], requires_grad=True)
        loss = focal_loss(logits, torch.tensor([0]), gamma=0.5)
        assert torch.isfinite(torch.autograd.grad(loss, logits)[0]).all()


def test_a_clamp_ends_the_bonus_of_an_example_that_is_certain():
    logits = torch.tensor([[11.0, 0.0], [12.0, 0.0], [40.0, 0.0]], requires_grad=True)
    labels = torch.zeros(3, dtype=torch.long)
    encouraging_loss(logits, labels, log_end=1.0, clamp=1e-5, reduction="sum").backward()
    slopes = logits.grad[:, 0]
    # before log-odds of log(1e5) = 11.5 the slope is -1, after them cross-entropy's p - 1
    torch.testing.assert_close(slopes[0], torch.tensor(-1.0))
    torch.testing.assert_close(slopes[1], torch.tensor(-1 / (1 + math.exp(12))))
    assert abs(float(slopes[2])) < 1e-12


def test_normal_bonus_keeps_the_digits_of_odds_that_are_almost_even():
    # -log p and log(1 - p) are both .693 there: their difference would have four digits left
    logits = torch.tensor([[1e-4, 0.0]], requires_grad=True)
    loss = encouraging_loss(logits, torch.tensor([0]), log_end=1.0)
    torch.testing.assert_close(loss.item(), -1e-4, rtol=1e-6, atol=0)
    loss.backward()
    assert logits.grad.tolist() == [[-1.0, 1.0]]
