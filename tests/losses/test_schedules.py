import math

import pytest
import torch

from hardsight.errors import OptionError, UnknownNameError
from hardsight.losses import (
    AMC_PRESETS,
    GaussianRampLR,
    amc_preset,
    gaussian_ramp_down,
    gaussian_ramp_up,
    ramped_beta1,
)


def adam(lr=0.003):
    return torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=lr)


def walk(optimizer, scheduler, epochs):
    rows = []
    for _ in range(epochs):
        group = optimizer.param_groups[0]
        rows.append((group["lr"], group.get("betas", (None,))[0]))
        optimizer.step()
        scheduler.step()
    return rows


def test_ramps_match_the_formulas_of_the_paper():
    for t in range(301):
        up = math.exp(-5 * (1 - t / 80) ** 2) if t < 80 else 1.0
        down = math.exp(-12.5 * (1 - (300 - t) / 50) ** 2) if t > 250 else 1.0
        assert gaussian_ramp_up(t) == pytest.approx(up)
        assert gaussian_ramp_down(t) == pytest.approx(down)
        assert ramped_beta1(down) == pytest.approx(0.9 * down + 0.5 * (1 - down))


def test_ramps_of_no_length_are_no_ramps():
    assert gaussian_ramp_up(0, ramp_epochs=0) == 1.0
    assert gaussian_ramp_down(300, ramp_epochs=0) == 1.0


def test_scheduler_walks_learning_rate_and_beta1_along_the_ramps():
    optimizer = adam()
    rows = walk(optimizer, GaussianRampLR(optimizer, final_beta1=0.5), 300)
    for t in (0, 1, 40, 79, 80, 250, 251, 299):
        down = gaussian_ramp_down(t)
        assert rows[t] == pytest.approx(
            (0.003 * gaussian_ramp_up(t) * down, 0.9 * down + 0.5 * (1 - down))
        )
    assert optimizer.param_groups[0]["betas"][1] == 0.999


def test_scheduler_leaves_beta1_alone_unless_asked_and_works_with_sgd():
    optimizer = adam()
    assert {beta1 for _, beta1 in walk(optimizer, GaussianRampLR(optimizer), 300)} == {0.9}
    sgd = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    rows = walk(sgd, GaussianRampLR(sgd, total_epochs=10, ramp_up_epochs=4, ramp_down_epochs=2), 10)
    assert rows[5][0] == pytest.approx(0.1)
    with pytest.raises(OptionError, match="final_beta1 needs an optimizer with betas, got SGD"):
        GaussianRampLR(sgd, final_beta1=0.5)


def test_a_scheduler_restored_from_its_state_continues_as_if_uninterrupted():
    options = {"total_epochs": 20, "ramp_up_epochs": 6, "ramp_down_epochs": 8, "final_beta1": 0.5}
    optimizer = adam()
    straight = walk(optimizer, GaussianRampLR(optimizer, **options), 20)

    optimizer = adam()
    scheduler = GaussianRampLR(optimizer, **options)
    first = walk(optimizer, scheduler, 15)
    saved = optimizer.state_dict(), scheduler.state_dict()
    again = adam()
    resumed = GaussianRampLR(again, **options)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    torch.testing.assert_close(
        torch.tensor(first + walk(again, resumed, 5)), torch.tensor(straight)
    )


def test_a_scheduler_made_for_a_restored_optimizer_knows_the_beta1_it_began_with():
    options = {"total_epochs": 20, "ramp_up_epochs": 6, "ramp_down_epochs": 8, "final_beta1": 0.5}
    optimizer = adam()
    straight = walk(optimizer, GaussianRampLR(optimizer, **options), 20)
    optimizer = adam()
    walk(optimizer, GaussianRampLR(optimizer, **options), 15)
    again = adam()
    again.load_state_dict(optimizer.state_dict())
    rows = walk(again, GaussianRampLR(again, **options, last_epoch=14), 5)
    torch.testing.assert_close(torch.tensor(rows), torch.tensor(straight[15:]))


def test_presets_hold_the_weights_of_the_paper_and_of_the_published_code():
    paper, code = amc_preset("paper"), amc_preset("published-code")
    assert paper.weight_at(300) == 0.1
    assert paper.weight_at(40) == pytest.approx(0.1 * math.exp(-5 / 4))
    # a coefficient of .1 times a ramp to 100, and nothing in the first epoch
    assert code.weight_at(199) == pytest.approx(10.0)
    assert code.weight_at(0) == 0.0
    assert code.weight_at(25) == pytest.approx(10 * math.exp(-5 / 4))


def test_preset_of_the_published_code_ramps_down_as_the_code_does():
    optimizer = adam()
    rows = walk(optimizer, amc_preset("published-code").scheduler(optimizer), 200)
    for t in (170, 180, 199):
        down = math.exp(-(((t - 170) * 0.5) ** 2) / 30)
        assert rows[t] == pytest.approx((0.003 * down, 0.9 * down + 0.5 * (1 - down)))


def test_presets_build_the_loss_of_equation_3():
    for preset in AMC_PRESETS.values():
        criterion = preset.loss(pairs="all")
        assert criterion.options["similarity"] == "predictions"
        assert criterion.options["margin_rad"] == 0.5
        assert criterion.options["pairs"] == "all"
        x, logits = torch.randn(4, 3), torch.randn(4, 2)
        assert torch.isfinite(criterion(x, torch.zeros(4).long(), logits))


def test_unknown_preset_names_the_known_ones():
    with pytest.raises(UnknownNameError, match="Did you mean 'published-code'\\? Known: paper"):
        amc_preset("published_code")
