"""The ensemble of attacks: inside the ball, never weaker than its parts, stronger than PGD."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hardsight.errors import OptionError
from hardsight.evaluate import (
    ENSEMBLE,
    Normalisation,
    apgd,
    checkpoints,
    ensemble_attack,
    pgd,
    square_attack,
)

SHIFTED = Normalisation(mean=(0.4,), std=(0.25,))
PIXELS = Normalisation()


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def pixels_of(inputs, how):
    return inputs * how.per_channel(how.std, inputs) + how.per_channel(how.mean, inputs)


def inputs_of(pixels, how):
    return (pixels - how.per_channel(how.mean, pixels)) / how.per_channel(how.std, pixels)


def net_of(seed, classes=4):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, classes)
    ).eval()  # fmt: skip


ATTACKS = {
    "apgd, linf": lambda *a, **k: apgd(*a, steps=6, norm="linf", **k),
    "apgd, l2": lambda *a, **k: apgd(*a, steps=6, norm="l2", **k),
    "apgd, dlr": lambda *a, **k: apgd(*a, steps=6, loss="dlr", **k),
    "square": lambda *a, **k: square_attack(*a, queries=12, **k),
    "ensemble": lambda *a, **k: ensemble_attack(*a, steps=4, queries=6, **k).inputs,
    "ensemble, l2": lambda *a, **k: ensemble_attack(*a, steps=4, norm="l2", **k).inputs,
}


@given(st.integers(0, 1000), st.floats(0, 0.5), st.sampled_from(sorted(ATTACKS)))
def test_the_change_stays_in_the_ball_and_pixels_in_their_range(seed, epsilon, attack):
    net = net_of(seed)
    pixels = torch.rand(3, 1, 6, 6).round(decimals=1)  # some exactly 0 and 1
    inputs, labels = inputs_of(pixels, SHIFTED), torch.tensor([0, 1, 2])
    found = ATTACKS[attack](
        net, inputs, labels, epsilon=epsilon, normalisation=SHIFTED, generator=draws()
    )
    changed = pixels_of(found, SHIFTED)
    assert float(changed.min()) >= -1e-6
    assert float(changed.max()) <= 1 + 1e-6
    apart = (changed - pixels).flatten(1)
    size = apart.norm(dim=1) if "l2" in attack else apart.abs().amax(dim=1)
    assert float(size.max()) <= epsilon + 1e-5


@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_a_radius_of_zero_gives_back_the_very_same_input(attack):
    net, inputs = net_of(0), inputs_of(torch.rand(5, 1, 6, 6), SHIFTED)
    labels = net(inputs).argmax(dim=1)
    found = ATTACKS[attack](
        net, inputs, labels, epsilon=0.0, normalisation=SHIFTED, generator=draws()
    )
    assert torch.equal(found, inputs)


def test_what_is_wrong_already_stays_wrong_and_a_radius_of_zero_is_the_clean_accuracy():
    net, inputs = net_of(1), torch.rand(20, 1, 6, 6)
    guessed = net(inputs).argmax(dim=1)
    labels = torch.where(torch.arange(20) % 3 == 0, (guessed + 1) % 4, guessed)
    found = ensemble_attack(
        net, inputs, labels, epsilon=0.0, normalisation=PIXELS, generator=draws(), steps=3,
        queries=3,
    )  # fmt: skip
    assert torch.equal(found.right, guessed == labels)
    assert list(found.after) == list(ENSEMBLE)


@pytest.fixture(scope="module")
def trained():
    """A small network that has learned bright quarters, and images that it knows."""
    torch.manual_seed(3)
    pixels = 0.6 * torch.rand(400, 1, 8, 8)
    labels = torch.arange(400) % 4
    for row, label in enumerate(labels.tolist()):
        top, left = 4 * (label // 2), 4 * (label % 2)
        pixels[row, 0, top : top + 4, left : left + 4] += 0.25
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(60):
        loss = nn.functional.cross_entropy(net(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval().requires_grad_(False)
    assert float((net(pixels).argmax(dim=1) == labels).float().mean()) > 0.95
    return net, pixels[:200], labels[:200]


def right(net, inputs, labels):
    return net(inputs).argmax(dim=1) == labels


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_ensemble_leaves_no_more_than_each_of_its_parts(trained, norm):
    net, inputs, labels = trained
    epsilon = {"linf": 0.05, "l2": 0.4}[norm]
    how = {"epsilon": epsilon, "normalisation": PIXELS}
    found = ensemble_attack(
        net, inputs, labels, norm=norm, steps=20, queries=60, generator=draws(), **how
    )
    clean = right(net, inputs, labels)
    alone = {
        "apgd_cross_entropy": apgd(net, inputs, labels, norm=norm, steps=20, generator=draws(),
                                   **how),
        "apgd_dlr": apgd(net, inputs, labels, norm=norm, steps=20, loss="dlr", generator=draws(),
                         **how),
    }  # fmt: skip
    if norm == "linf":
        alone["square"] = square_attack(net, inputs, labels, queries=60, generator=draws(), **how)
    assert list(found.after) == list(alone)
    before = clean
    for name, made in alone.items():
        assert (found.after[name] <= before).all()  # never gives an example back
        before = found.after[name]
        assert int(found.right.sum()) <= int((clean & right(net, made, labels)).sum())
    # what it says is what its images do
    assert torch.equal(clean & right(net, found.inputs, labels), found.right)
    assert 0 < int(found.right.sum()) < int(clean.sum())


@pytest.mark.parametrize("steps", [10, 40])
def test_apgd_is_no_weaker_than_pgd_of_as_many_steps_and_the_ensemble_than_both(trained, steps):
    net, inputs, labels = trained
    how = {"epsilon": 0.06, "normalisation": PIXELS, "steps": steps}
    made = {
        "pgd": pgd(net, inputs, labels, **how),
        "apgd": apgd(net, inputs, labels, generator=draws(), **how),
        "ensemble": ensemble_attack(
            net, inputs, labels, generator=draws(), queries=50, **how
        ).inputs,
    }  # fmt: skip
    left = {name: int(right(net, images, labels).sum()) for name, images in made.items()}
    # APGD starts at random, so that single images may go either way
    assert left["apgd"] <= left["pgd"] + len(labels) // 50
    assert left["ensemble"] <= left["apgd"]


def test_dlr_finds_what_a_saturated_cross_entropy_hides(trained):
    """With logits a thousand times as large the probabilities are 0 and 1, and so are gradients."""
    net, inputs, labels = trained
    sharp = nn.Sequential(net, Scaled(3000.0))
    how = {"epsilon": 0.06, "normalisation": PIXELS, "steps": 20}
    left = {
        "pgd": right(sharp, pgd(sharp, inputs, labels, **how), labels),
        "dlr": right(sharp, apgd(sharp, inputs, labels, loss="dlr", generator=draws(), **how),
                     labels),
        "same": right(net, apgd(net, inputs, labels, loss="dlr", generator=draws(), **how), labels),
    }  # fmt: skip
    counts = {name: int(mask.sum()) for name, mask in left.items()}
    assert counts["dlr"] < counts["pgd"] - 20
    assert abs(counts["dlr"] - counts["same"]) <= 4  # a factor of the logits changes nothing


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self._factor = factor

    def forward(self, logits):
        return self._factor * logits


def test_square_needs_no_gradient(trained):
    net, inputs, labels = trained

    class Rounded(nn.Module):
        def forward(self, images):
            return net((images * 50).round() / 50)

    stepped = Rounded()
    how = {"epsilon": 0.08, "normalisation": PIXELS}
    clean = right(stepped, inputs, labels)
    blind = right(stepped, pgd(stepped, inputs, labels, **how), labels)
    made = square_attack(stepped, inputs, labels, queries=150, generator=draws(), **how)
    assert torch.equal(blind, clean)  # rounding has no slope
    assert int(right(stepped, made, labels).sum()) < int(clean.sum()) - 10


def test_more_queries_never_leave_a_larger_margin(trained):
    net, inputs, labels = trained

    def margins(queries):
        """Of as many queries of the same draws, if the squares do not shrink with their number."""
        made = square_attack(
            net, inputs[:20], labels[:20], epsilon=0.02, normalisation=PIXELS, queries=queries,
            generator=draws(),
        )  # fmt: skip
        logits = net(made)
        own = logits.gather(1, labels[:20, None])[:, 0]
        others = logits.scatter(1, labels[:20, None], -math.inf).amax(dim=1)
        return own - others

    start, end = margins(1), margins(100)
    assert (end <= start).all()
    assert (end < start).any()


def test_checkpoints_are_those_of_the_paper():
    # p = 0, .22, then each distance .03 shorter than the one before, but not below .06
    assert checkpoints(100) == (0, 22, 41, 57, 70, 80, 87, 93, 99)
    assert checkpoints(10) == (0, 3, 5, 6, 7, 8, 9, 10)
    assert checkpoints(1)[0] == 0


def test_apgd_on_a_linear_model_reaches_the_known_optimum():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    pixels, labels = torch.full((4, 1, 4, 4), 0.5), torch.tensor([0, 1, 2, 0])
    made = apgd(net, pixels, labels, epsilon=0.1, normalisation=PIXELS, loss="margin",
                generator=draws(), steps=50)  # fmt: skip
    weight = net[1].weight.detach()
    logits = net(made).detach()
    for row, label in enumerate(labels.tolist()):
        base = net(pixels[row : row + 1]).detach()[0]
        # the best change against one rival moves every pixel by the whole radius
        best = max(
            float(base[other] - base[label] + 0.1 * (weight[other] - weight[label]).abs().sum())
            for other in range(3) if other != label
        )  # fmt: skip
        others = logits[row].clone()
        others[label] = -math.inf
        reached = float(others.max() - logits[row, label])
        # the first image that changes the prediction is kept, the best one otherwise
        assert reached > 0 or reached == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "l1"}, "expected norm to be one of linf, l2, got 'l1'"),
        ({"steps": 0}, "expected steps >= 1, got 0"),
        ({"epsilon": -0.1}, "expected epsilon >= 0, got -0.1"),
        ({"loss": "hinge"}, "expected loss to be one of cross_entropy, margin, dlr, got 'hinge'"),
    ],
)
def test_bad_options_of_apgd_say_what_was_expected(options, message):
    how = {"epsilon": 0.1, "normalisation": PIXELS, "generator": draws(), **options}
    with pytest.raises(OptionError, match=message):
        apgd(net_of(0), torch.rand(2, 1, 6, 6), torch.tensor([0, 1]), **how)


def test_two_classes_have_no_third_logit():
    net, inputs, labels = net_of(0, classes=2), torch.rand(2, 1, 6, 6), torch.tensor([0, 1])
    how = {"epsilon": 0.1, "normalisation": PIXELS, "generator": draws(), "steps": 2}
    with pytest.raises(OptionError, match="'dlr' needs a third class, got 2; use 'margin'"):
        apgd(net, inputs, labels, loss="dlr", **how)
    found = ensemble_attack(net, inputs, labels, queries=2, **how)
    assert list(found.after) == ["apgd_cross_entropy", "square"]


def test_bad_options_of_square_say_what_was_expected():
    how = {"epsilon": 0.1, "normalisation": PIXELS, "generator": draws()}
    with pytest.raises(OptionError, match=r"queries >= 1 and first_share in \(0, 1\], got 0 and"):
        square_attack(net_of(0), torch.rand(1, 1, 6, 6), torch.tensor([0]), queries=0, **how)
