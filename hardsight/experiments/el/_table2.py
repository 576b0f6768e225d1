"""Encouraging Loss, Table 2: learning rate and loss; and which learning rates are safe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hardsight.experiments.el._recipes import (
    ACCURACIES,
    CHOICE,
    EXACT,
    MEANS,
    PAPER,
    SMOKE,
    LogEnd,
    Recipe,
    Task,
    accuracies,
    encouraging,
    fitted,
    loss_name,
    lost_note,
)
from hardsight.experiments.lab import (
    Claim,
    Figure,
    Grid,
    Lab,
    Result,
    Table,
    experiment,
    judged,
    spread,
)
from hardsight.report.figures import legend, panels

_PAPER = {  # CIFAR-10, ResNet-50; the paper's loss is LE = 1
    ("CE", 1.0): "92.34 ± 0.70", ("CE", 2.0): "91.53 ± 0.19",
    ("EL, LE=1", 1.0): "92.74 ± 0.38", ("EL, LE=1", 0.5): "93.69 ± 0.25",
}  # fmt: skip
_FAILED = 5.0  # points below cross-entropy at which a run counts as failed
_EL = loss_name(1.0)


@dataclass(frozen=True)
class Setting(Recipe):
    """Keys of ``el-table2``.

    Attributes:
        task: ``DATASET/NETWORK`` of the table.
        ce_factors: of the learning rate, for cross-entropy.
        el_factors: for Encouraging Loss with LE = 1.
        adam_task: for the second table, with AdamW.
        adam_lrs: its learning rates.
        adam_epochs: its epochs.
        adam_log_ends: its losses beside cross-entropy and the unclamped normal bonus.
    """

    task: str = "cifar10/resnet18:width=32"
    ce_factors: tuple[float, ...] = (0.5, 1.0, 2.0)
    el_factors: tuple[float, ...] = (0.25, 0.5, 1.0)
    adam_task: str = "builtin:digits/small_cnn"
    adam_lrs: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2)
    adam_epochs: int = 8
    adam_log_ends: tuple[float, ...] = (0.75, 1.0)


def _judge(setting: Setting, data: Mapping[str, Any]) -> tuple[list[Table], list[Claim]]:
    sgd, adam = (Grid.read(data[key], setting.seeds, "loss", "rate") for key in ("sgd", "adamw"))
    chosen = {name: sgd.best("rate", "validation", loss=name) for name in sgd.names("loss")}
    asked = (  # what is said, paper, first, second, whether the first is said to be larger
        ("Twice the learning rate makes CE worse", "92.34 to 91.53", ("CE", "2"), ("CE", "1"),
         False),
        ("Half the learning rate makes EL (LE=1) better", "92.74 to 93.69", (_EL, "0.5"),
         (_EL, "1"), True),
        ("EL (LE=1) beats CE, each at its learning rate chosen on validation",
         "+1.35 (its EL at half against CE)", (_EL, chosen[_EL]), ("CE", chosen["CE"]), True),
    )  # fmt: skip
    tried = set(sgd.lost("test"))
    questions = [
        sgd.question(
            says, paper, "test", *({"loss": loss, "rate": rate} for loss, rate in pair),
            larger=larger,
        )
        for says, paper, *pair, larger in asked if set(pair) <= tried
    ]  # fmt: skip
    tables = [_table(setting, sgd, chosen), _safe_table(setting, adam)]
    return tables, [*judged(questions), *_safe_claims(adam)]


@experiment(
    "el-table2",
    title="Learning rate and loss: Encouraging Loss wants a smaller one",
    reproduces=f"{PAPER}, Table 2",
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", ce_factors=(1.0,), el_factors=(0.5, 1.0),
            adam_lrs=(1e-3, 1e-2), adam_epochs=1, adam_log_ends=(), **SMOKE,
        ),
        "short": Setting(),
    },
    judge=_judge,
)  # fmt: skip
def el_table2(lab: Lab, setting: Setting) -> Result:
    """Cross-entropy and Encouraging Loss (LE = 1) at fractions of one learning rate.

    The gradient of Encouraging Loss does not fade as examples become right, so the paper lowers
    the learning rate for it. The first table repeats that with the recipe of el-table1 (SGD;
    {grey_epochs} epochs on grey images, {colour_epochs} on coloured ones); the learning rate of
    each loss is chosen on validation. The second looks for the learning rates of AdamW (one cycle,
    gradients not clipped) that are safe: it trains {adam_task} for {adam_epochs} epochs and counts
    the runs that fail: lost, as their loss became infinite or NaN, or more than 5 points below
    cross-entropy at the same learning rate. It has the normal bonus unclamped as in Eq. (6), and
    beside it LE = {adam_log_ends}, of which 1 is the normal bonus as the paper trains it, with
    1 - p clamped at 1e-5.
    """
    task, adam_task = Task.named(setting.task), Task.named(setting.adam_task)
    rates = {None: setting.ce_factors, 1.0: setting.el_factors}
    sgd = [
        _row(end, rate, seed)
        | accuracies(fitted(lab, task, setting, encouraging(end), seed=seed, lr_factor=rate))
        for end, factors in rates.items()
        for rate in factors
        for seed in setting.seeds
    ]
    adam = [
        _row(end, lr, seed)
        | accuracies(
            fitted(
                lab, adam_task, setting, encouraging(end), seed=seed, epochs=setting.adam_epochs,
                optimizer={"name": "adamw", "lr": lr}, schedule={"name": "one_cycle"},
                batch_size=min(128, setting.grey_batch), augment={"crop_padding": 1}, select="last",
            )
        )
        for end in (None, *setting.adam_log_ends, EXACT)
        for lr in setting.adam_lrs
        for seed in setting.seeds
    ]  # fmt: skip
    grids = {
        name: Grid.of(rows, "loss", "rate", measures=ACCURACIES)
        for name, rows in (("sgd", sgd), ("adamw", adam))
    }
    data = {name: grid.data(lost="test") for name, grid in grids.items()}
    return Result(figures=[_figure(lab, grids["adamw"])], data=data)


def _row(end: LogEnd, rate: float, seed: int) -> dict[str, Any]:
    return {"loss": loss_name(end), "rate": f"{rate:g}", "seed": seed}


def _lost(grid: Grid, sign: str) -> dict[str, int]:
    return {f"{loss} at {sign}{rate}": count for (loss, rate), count in grid.lost("test").items()}


def _table(setting: Setting, sgd: Grid, chosen: Mapping[str, str]) -> Table:
    factors = sorted(sgd.names("rate"), key=float)
    task = Task.named(setting.task)
    base = setting.colour_lr if task.is_colour else setting.grey_lr
    return sgd.table(
        f"Test accuracy, %, at fractions of the learning rate {base:g} ({task.title})",
        {"loss": "loss"},
        sgd.across("rate", "test", {factor: f"× {factor}" for factor in factors})
        | {"chosen on validation": lambda _, loss: f"× {chosen[loss]}"},
        note=f"{MEANS} The paper: ResNet-50 on CIFAR-10. The learning rate is {CHOICE}."
        + lost_note(_lost(sgd, "× "), setting.seeds),
        paper=[
            [name, *(_PAPER.get((name, float(factor))) for factor in factors), ""]
            for name in ("CE", _EL)
        ],
    )


def failed(adam: Grid) -> dict[tuple[str, str], int]:
    """Runs by loss and learning rate that were lost, or end 5 points below the mean of CE there.

    If every run of CE was lost there is no mean, and only lost runs count.
    """
    bars = {rate: spread(adam.values("test", loss="CE", rate=rate)).mean - _FAILED
            for rate in adam.names("rate")}  # fmt: skip
    return {
        (loss, rate): sum(
            math.isnan(value) or value < bars[rate]
            for value in adam.values("test", loss=loss, rate=rate)
        )
        for loss, rate in adam.lost("test")
    }


def _safe_table(setting: Setting, adam: Grid) -> Table:
    gone = failed(adam)

    def cell(runs: Grid, loss: str, rate: str) -> str:
        values = runs.values("test", rate=rate)
        found, count = spread(values), gone[loss, rate]
        if not found.n:
            return f"none of {found.lost} ended ({count} failed)"
        some = f"{found.n} of {len(values)} ended; " if found.lost else ""
        return f"{found.mean:.1f} ({some}worst {np.nanmin(values):.1f}; {count} failed)"

    return adam.table(
        f"Which learning rates of AdamW are safe ({Task.named(setting.adam_task).title}): test "
        "accuracy, %",
        {"loss": "loss"},
        {rate: partial(cell, rate=rate) for rate in adam.names("rate")},
        note=f"Mean over {len(setting.seeds)} seeds, the worst seed, and how many runs failed: "
        "lost, or more than 5 points below the mean of CE at the same learning rate. Not in the "
        "paper." + lost_note(_lost(adam, ""), setting.seeds),
    )


def _safe_claims(adam: Grid) -> list[Claim]:
    gone, claims = failed(adam), []
    without_ce = [
        rate
        for rate in adam.names("rate")
        if not spread(adam.values("test", loss="CE", rate=rate)).n
    ]
    for loss in adam.names("loss"):
        if loss == "CE":
            continue
        bad = [rate for rate in adam.names("rate") if gone[loss, rate]]
        unknown = [rate for rate in without_ce if rate not in bad]
        safe = [rate for rate in adam.names("rate") if rate not in (*bad, *unknown)]
        claims.append(
            Claim(
                f"{loss} is safe at every learning rate of AdamW tried",
                "not in the paper; its limitations advise a smaller one",
                f"safe: {_listed(safe)}; runs failed at: {_listed(bad)}"
                + (f"; no run of CE ended at: {_listed(unknown)}" if unknown else ""),
                False if bad else None if unknown else True,
            )
        )
    return claims


def _listed(rates: list[str]) -> str:
    return ", ".join(rates) or "none"


def _figure(lab: Lab, adam: Grid) -> Figure:
    figure, (axes,) = panels(1, 1, width=4.6)
    for loss in adam.names("loss"):
        runs = adam.at(loss=loss)
        points = {float(rate): one.mean for rate, one in runs.series("test", "rate").items()}
        (line,) = axes.plot(list(points), list(points.values()), marker="o", label=loss)
        dots = {"color": line.get_color()}
        axes.plot(
            runs.frame["rate"].astype(float), runs.frame["test"], ".", alpha=0.5, ms=4, **dots
        )
        gone = [float(rate) for rate, count in runs.lost("test").items() if count]
        foot = axes.get_xaxis_transform()
        axes.plot(gone, [0.02] * len(gone), "x", transform=foot, **dots)
    axes.set_xscale("log")
    axes.set_xlabel("largest learning rate of AdamW")
    axes.set_ylabel("test accuracy, %")
    legend(figure)
    return lab.figure(
        figure,
        "learning-rates",
        caption="Accuracy at the end of training against the learning rate of AdamW; lines are "
        "means, dots are seeds; a cross at the foot: a run was lost there.",
        alt="Accuracy against learning rate on a log axis, one line per loss.",
    )
