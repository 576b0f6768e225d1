"""Attacks: inside the ball, inside the picture, never helped by a weaker search."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hardsight.errors import NonFiniteError, OptionError, ShapeError
from hardsight.evaluate import Normalisation, fgsm, pgd

IDENTITY = Normalisation()
SHIFTED = Normalisation(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))


@pytest.fixture
def linear():
    """A linear model of 3x4x4 images, where the best attack is known in closed form."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 2))


def pixels_of(inputs, how):
    return inputs * how.per_channel(how.std, inputs) + how.per_channel(how.mean, inputs)


def inputs_of(pixels, how):
    return (pixels - how.per_channel(how.mean, pixels)) / how.per_channel(how.std, pixels)


@given(st.integers(0, 1000), st.floats(0, 0.5), st.sampled_from(["fgsm", "linf", "l2"]))
def test_the_change_stays_in_the_ball_and_pixels_in_their_range(seed, epsilon, attack):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    pixels = torch.rand(3, 3, 4, 4).round(decimals=1)  # some exactly 0 and 1
    inputs, labels = inputs_of(pixels, SHIFTED), torch.tensor([0, 1, 2])
    options = {"epsilon": epsilon, "normalisation": SHIFTED}
    if attack == "fgsm":
        found = fgsm(net, inputs, labels, **options)
    else:
        draws = torch.Generator().manual_seed(0)
        found = pgd(net, inputs, labels, norm=attack, steps=3, restarts=2, generator=draws,
                    **options)  # fmt: skip
    changed = pixels_of(found, SHIFTED)
    assert float(changed.min()) >= -1e-6
    assert float(changed.max()) <= 1 + 1e-6
    apart = (changed - pixels).flatten(1)
    size = apart.norm(dim=1) if attack == "l2" else apart.abs().amax(dim=1)
    assert float(size.max()) <= epsilon + 1e-5


@pytest.mark.parametrize("attack", ["fgsm", "linf", "l2"])
def test_a_radius_of_zero_gives_back_the_very_same_input(linear, attack):
    inputs, labels = inputs_of(torch.rand(5, 3, 4, 4), SHIFTED), torch.arange(5) % 2
    options = {"epsilon": 0.0, "normalisation": SHIFTED}
    if attack == "fgsm":
        found = fgsm(linear, inputs, labels, **options)
    else:
        found = pgd(linear, inputs, labels, norm=attack, **options)
    assert torch.equal(found, inputs)


def test_attacks_on_a_linear_model_find_the_known_optimum(linear):
    pixels, labels = torch.full((1, 3, 4, 4), 0.5), torch.tensor([0])
    weight = (linear[1].weight[1] - linear[1].weight[0]).detach()  # ascent of the margin
    for found, best in [
        (fgsm(linear, pixels, labels, epsilon=0.1, normalisation=IDENTITY), 0.1 * weight.sign()),
        (pgd(linear, pixels, labels, epsilon=0.1, normalisation=IDENTITY), 0.1 * weight.sign()),
        (pgd(linear, pixels, labels, epsilon=0.1, normalisation=IDENTITY, norm="l2"),
         0.1 * weight / weight.norm()),
    ]:  # fmt: skip
        torch.testing.assert_close((found - pixels).flatten(), best, atol=1e-5, rtol=1e-4)


def test_epsilon_is_in_pixels_whatever_the_normalisation(linear):
    inputs = inputs_of(torch.full((1, 3, 4, 4), 0.5), SHIFTED)
    found = fgsm(linear, inputs, torch.tensor([0]), epsilon=0.03, normalisation=SHIFTED)
    change = (found - inputs).abs().amax(dim=(0, 2, 3))
    torch.testing.assert_close(change, torch.tensor([0.03 / 0.2, 0.03 / 0.3, 0.03 / 0.25]))


def test_the_margin_loss_still_moves_where_cross_entropy_has_no_gradient():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    with torch.no_grad():
        net[1].weight *= 500
        net[1].bias.copy_(torch.tensor([400.0, 0.0]))  # so sure that p rounds to 1 in float32
    image, label = torch.full((1, 3, 4, 4), 0.5), torch.tensor([0])
    options = {"epsilon": 0.5, "normalisation": IDENTITY}
    masked = pgd(net, image, label, **options)
    assert torch.equal(masked, image)
    found = pgd(net, image, label, loss="margin", **options)
    assert net(found).argmax() == 1


def test_more_restarts_are_never_weaker():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))
    images, labels = torch.rand(20, 3, 4, 4), torch.randint(0, 3, (20,))

    def margin(restarts):
        draws = torch.Generator().manual_seed(0)
        found = pgd(net, images, labels, epsilon=0.1, normalisation=IDENTITY, steps=4,
                    restarts=restarts, generator=draws)  # fmt: skip
        logits = net(found)
        own = logits.gather(1, labels[:, None]).squeeze(1)
        return logits.scatter(1, labels[:, None], -torch.inf).amax(1) - own

    assert bool((margin(4) >= margin(1) - 1e-5).all())


def test_a_model_without_gradient_leaves_the_image_and_parameters_alone(linear):
    nn.init.zeros_(linear[1].weight)
    image = torch.rand(2, 3, 4, 4)
    found = pgd(linear, image, torch.tensor([0, 1]), epsilon=0.1, norm="l2",
                normalisation=IDENTITY)  # fmt: skip
    assert torch.equal(found, image)
    assert linear[1].weight.grad is None


def test_bad_input_says_what_was_expected(linear):
    image, label = torch.rand(1, 3, 4, 4), torch.tensor([0])
    options = {"epsilon": 0.1, "normalisation": IDENTITY}
    with pytest.raises(OptionError, match=r"gives pixels from .* instead of \[0, 1\]; pass the"):
        fgsm(linear, 5 * image, label, **options)
    with pytest.raises(ShapeError, match=r"images \[N, C, H, W\] with C = 1, got \[1, 48\]"):
        fgsm(linear, image.flatten(1), label, **options)
    with pytest.raises(OptionError, match="epsilon >= 0, got -1"):
        fgsm(linear, image, label, epsilon=-1, normalisation=IDENTITY)
    with pytest.raises(OptionError, match="norm to be one of linf, l2, got 'l1'"):
        pgd(linear, image, label, norm="l1", **options)
    with pytest.raises(OptionError, match="one of cross_entropy, margin, dlr, got 'mse'"):
        fgsm(linear, image, label, loss="mse", **options)
    with pytest.raises(OptionError, match=r"pass generator="):
        pgd(linear, image, label, restarts=2, **options)
    with pytest.raises(OptionError, match="steps and restarts >= 1, got 0 and 1"):
        pgd(linear, image, label, steps=0, **options)
    with pytest.raises(NonFiniteError, match="gradient with respect to the image is not finite"):
        fgsm(lambda x: linear(x) * torch.nan, image, label, **options)
