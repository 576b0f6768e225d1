import math

import pytest
import torch

from hardsight.run.train import OptimizerConfig, ScheduleConfig, optimizer_of, scheduler_of


def rates(config, *, epochs=10, steps=4, optimizer=None):
    """The learning rate of every step, over the recipe's own."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = optimizer_of(optimizer or OptimizerConfig("sgd", lr=1.0), [parameter])
    made = scheduler_of(config, optimizer, epochs=epochs, steps_per_epoch=steps)
    found = []
    for step in range(epochs * steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (step + 1) % made["frequency"] == 0:
            made["scheduler"].step()
    return found


def test_steps_drop_at_whole_epochs():
    wanted = [0.1 ** (step // 4 // 3) for step in range(40)]
    assert rates(ScheduleConfig("step", step_epochs=3)) == pytest.approx(wanted)


def test_steps_drop_from_the_epochs_that_are_named():
    # counted from 1: epochs 1 to 3 at 1, 4 and 5 at .1, from 6 on at .01
    wanted = [1.0] * 12 + [0.1] * 8 + [0.01] * 20
    assert rates(ScheduleConfig("step", drop_epochs=(4, 6))) == pytest.approx(wanted)


def test_cosine_falls_from_one_to_its_final_share():
    found = rates(ScheduleConfig("cosine", final=0.1))
    wanted = [0.1 + 0.9 * (1 + math.cos(math.pi * step / 40)) / 2 for step in range(40)]
    assert found == pytest.approx(wanted)


def test_warm_up_rises_linearly_and_reaches_the_full_rate():
    found = rates(ScheduleConfig("constant", warmup_epochs=2))
    assert found[:9] == pytest.approx([1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8, 6 / 8, 7 / 8, 1, 1])


def test_one_cycle_peaks_after_its_warm_up_and_ends_near_zero():
    found = rates(ScheduleConfig("one_cycle", warmup_epochs=5))
    assert max(found) == pytest.approx(1.0, abs=0.01)
    assert abs(found.index(max(found)) - 20) <= 1
    assert found[-1] < 0.01
    assert found[0] == pytest.approx(1 / 25)


@pytest.mark.parametrize(
    ("epochs", "steps", "warmup"), [(1, 1, 0.5), (2, 1, 2 / 3), (3, 2, 3 / 7), (1, 1, 0.0)]
)
def test_one_cycle_takes_a_rise_of_a_single_step(epochs, steps, warmup):
    # 1 = share of the rise x steps: torch divides by the length of the rise less one
    found = rates(ScheduleConfig("one_cycle", warmup_epochs=warmup), epochs=epochs, steps=steps)
    assert all(0 < rate <= 1 for rate in found)


def test_gaussian_ramps_are_those_of_amc_and_lower_beta1():
    config = ScheduleConfig("gaussian_ramps", warmup_epochs=4, ramp_down_epochs=3, final_beta1=0.5)
    found = rates(config, optimizer=OptimizerConfig("adam", lr=1.0))
    up = [math.exp(-5 * (1 - t / 4) ** 2) if t < 4 else 1.0 for t in range(10)]
    down = [math.exp(-12.5 * (1 - (10 - t) / 3) ** 2) if t > 7 else 1.0 for t in range(10)]
    wanted = [up[step // 4] * down[step // 4] for step in range(40)]
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "kind", "lr", "decay"),
    [
        ("sgd", torch.optim.SGD, 0.1, 5e-4),
        ("adam", torch.optim.Adam, 1e-3, 0.0),
        ("adamw", torch.optim.AdamW, 1e-3, 1e-2),
    ],
)
def test_an_optimizer_has_its_own_defaults(name, kind, lr, decay):
    made = optimizer_of(OptimizerConfig(name), [torch.nn.Parameter(torch.zeros(1))])
    assert type(made) is kind
    assert made.defaults["lr"] == lr
    assert made.defaults["weight_decay"] == decay


def test_frozen_parameters_are_left_out():
    free, frozen = (torch.nn.Parameter(torch.zeros(1), requires_grad=g) for g in (True, False))
    (group,) = optimizer_of(OptimizerConfig(), [free, frozen]).param_groups
    assert len(group["params"]) == 1
