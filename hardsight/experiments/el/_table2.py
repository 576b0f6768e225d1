"""Encouraging Loss, Table 2: learning rate and loss; and which learning rates are safe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hardsight.experiments import lab as kit
from hardsight.experiments.el import _recipes as recipes
from hardsight.experiments.el._recipes import Task, loss_name
from hardsight.report.figures import panels

_PAPER = {  # CIFAR-10, ResNet-50; the paper's loss is LE = 1
    ("CE", "1"): "92.34 ± 0.70", ("CE", "2"): "91.53 ± 0.19",
    ("EL, LE=1", "1"): "92.74 ± 0.38", ("EL, LE=1", "0.5"): "93.69 ± 0.25",
}  # fmt: skip
_FAILED = 5.0  # points below cross-entropy at which a run counts as failed
_EL = loss_name(1.0)


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of ``el-table2``.

    Attributes:
        task: ``DATASET/NETWORK`` of the table.
        ce_factors: of the learning rate, for cross-entropy.
        el_factors: for Encouraging Loss with LE = 1.
        adam_task: for the second table, with AdamW.
        adam_lrs: its learning rates.
        adam_epochs: its epochs.
        adam_log_ends: its losses in addition to cross-entropy and the unclamped normal bonus.
    """

    task: str = "cifar10/resnet18"
    ce_factors: tuple[float, ...] = (1.0, 2.0)
    el_factors: tuple[float, ...] = (0.5, 1.0)
    adam_task: str = "builtin:digits/small_cnn"
    adam_lrs: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2)
    adam_epochs: int = 8
    adam_log_ends: tuple[float, ...] = (0.75, 1.0)
    colour_epochs: int = 30
    seeds: tuple[int, ...] = recipes.FIVE_SEEDS


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    sgd, adam = (
        kit.Grid.read(data[key], setting.seeds, "loss", "rate") for key in ("sgd", "adamw")
    )
    chosen = {name: sgd.best("rate", "validation", loss=name) for name in sgd.names("loss")}
    asked = (  # what is said, paper, first, second, the paper's difference
        ("Twice the learning rate makes CE worse", "92.34 to 91.53", ("CE", "2"), ("CE", "1"),
         -0.81),
        ("Half the learning rate makes EL (LE=1) better", "92.74 to 93.69", (_EL, "0.5"),
         (_EL, "1"), 0.95),
        ("EL (LE=1) beats CE, each at its learning rate chosen on validation",
         "+1.35 (its EL at half against CE)", (_EL, chosen[_EL]), ("CE", chosen["CE"]), 1.35),
    )  # fmt: skip
    settings = set(sgd.lost("test"))
    plain = sgd.values("test", loss="CE", rate="1") if ("CE", "1") in settings else []
    gate = Task.named(setting.task).gate(plain)
    questions = [
        sgd.question(
            says, paper, "test", *({"loss": loss, "rate": rate} for loss, rate in pair),
            larger=effect > 0, weak=gate.weak, effect=effect,
        )
        for says, paper, *pair, effect in asked if set(pair) <= settings
    ]  # fmt: skip
    failures = failed(adam)
    safe = [_safe_claim(loss, adam, failures) for loss in adam.names("loss") if loss != "CE"]
    tables = [_table(setting, sgd, chosen), _safe_table(setting, adam, failures)]
    tables.append(kit.networks_table([gate]))
    return tables, [*questions, *safe]


@kit.experiment(
    "el-table2",
    title="Does Encouraging Loss need a smaller learning rate?",
    reproduces="Encouraging Loss, Table 2",
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", ce_factors=(1.0,), el_factors=(0.5, 1.0),
            adam_lrs=(1e-3, 1e-2), adam_epochs=1, adam_log_ends=(), **recipes.SMOKE,
        ),
        "short": Setting(),
        "paper": Setting(task="cifar10/resnet50", **recipes.PUBLISHED_CIFAR),
    },
    asks=_asks,
)  # fmt: skip
def el_table2(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Trains cross-entropy and Encouraging Loss (LE = 1) at fractions of one learning rate.

    The gradient of Encouraging Loss does not fade as examples become right, so the paper lowers the
    learning rate for it. The first table repeats that with {networks}, trained for {recipes}. The
    learning rate of each loss is chosen on validation.

    The second table looks for learning rates of AdamW (one cycle, gradients not clipped) that are
    safe. It trains {adam_task} for {adam_epochs} epochs and counts the runs that fail. A run fails
    if it is lost because its loss became infinite or NaN, or if it ends more than 5 points below
    cross-entropy at the same learning rate. The table has the normal bonus unclamped, as in Eq.
    (6), and also LE = {adam_log_ends}, of which 1 is the normal bonus as the paper trains it, with
    1 - p clamped at 1e-5.
    """
    task, adam_task = Task.named(setting.task), Task.named(setting.adam_task)

    def row(end: recipes.LogEnd, rate: float, seed: int, of: Task, **more: Any) -> dict[str, Any]:
        fit = recipes.fitted(lab, of, setting, recipes.encouraging(end), seed=seed, **more)
        named = {"loss": loss_name(end), "rate": f"{rate:g}", "seed": seed}
        return named | recipes.accuracies(fit)

    sgd = [
        row(end, factor, seed, task, lr_factor=factor)
        for end, factors in ((None, setting.ce_factors), (1.0, setting.el_factors))
        for factor in factors
        for seed in setting.seeds
    ]
    adam = [
        row(
            end, lr, seed, adam_task, epochs=setting.adam_epochs,
            optimizer={"name": "adamw", "lr": lr}, schedule={"name": "one_cycle"},
            batch_size=min(128, setting.grey_batch), augment={"crop_padding": 1}, select="last",
        )
        for end in (None, *setting.adam_log_ends, recipes.EXACT)
        for lr in setting.adam_lrs
        for seed in setting.seeds
    ]  # fmt: skip
    grids = {
        name: kit.Grid.of(rows, "loss", "rate", measures=recipes.ACCURACIES)
        for name, rows in (("sgd", sgd), ("adamw", adam))
    }
    data = {name: grid.data(lost="test") for name, grid in grids.items()}
    return kit.Result(figures=[_figure(lab, grids["adamw"])], data=data)


def _lost(grid: kit.Grid, sign: str) -> dict[str, int]:
    return {f"{loss} at {sign}{rate}": count for (loss, rate), count in grid.lost("test").items()}


def _table(setting: Setting, sgd: kit.Grid, chosen: Mapping[str, str]) -> kit.Table:
    factors = sorted(sgd.names("rate"), key=float)
    task = Task.named(setting.task)
    base = setting.colour_lr if task.is_colour else setting.grey_lr
    about = f"The paper: ResNet-50 on CIFAR-10. The learning rate is {recipes.CHOICE}."
    return sgd.table(
        f"Test accuracy, %, at fractions of the learning rate {base:g} ({task.title})",
        {"loss": "loss"},
        {
            **sgd.across("rate", "test", {factor: f"× {factor}" for factor in factors}),
            "chosen on validation": lambda _, loss: f"× {chosen[loss]}",
        },
        note=setting.note(_lost(sgd, "× "), about),
        paper=[
            [name, *(_PAPER.get((name, factor)) for factor in factors), ""] for name in ("CE", _EL)
        ],
    )


def failed(adam: kit.Grid) -> dict[tuple[str, str], int]:
    """Runs by loss and learning rate that were lost, or end 5 points below the mean of CE there.

    If every run of CE was lost there is no mean, and only lost runs count.
    """
    bars = {
        rate: point.mean - _FAILED
        for rate, point in adam.at(loss="CE").series("test", "rate").items()
    }
    return {
        (loss, rate): sum(
            math.isnan(value) or value < bars.get(rate, -math.inf)
            for value in adam.values("test", loss=loss, rate=rate)
        )
        for loss, rate in adam.lost("test")
    }


def _safe_table(
    setting: Setting, adam: kit.Grid, failures: Mapping[tuple[str, str], int]
) -> kit.Table:
    def cell(runs: kit.Grid, loss: str, rate: str) -> str:
        values = [value for value in runs.values("test", rate=rate) if not math.isnan(value)]
        count = f"{failures[loss, rate]} failed"
        if not values:
            return f"none of {len(setting.seeds)} ended ({count})"
        lost = len(setting.seeds) - len(values)
        some = f"{len(values)} of {len(setting.seeds)} ended; " if lost else ""
        return f"{sum(values) / len(values):.1f} ({some}worst {min(values):.1f}; {count})"

    return adam.table(
        f"Which learning rates of AdamW are safe ({Task.named(setting.adam_task).title}): test "
        "accuracy, %",
        {"loss": "loss"},
        {rate: partial(cell, rate=rate) for rate in adam.names("rate")},
        note=setting.note(
            _lost(adam, ""),
            "After the mean come the worst seed and the number of runs that failed: lost, or more "
            "than 5 points below the mean of CE at the same learning rate. Not in the paper.",
        ),
    )


def _safe_claim(loss: str, adam: kit.Grid, failures: Mapping[tuple[str, str], int]) -> kit.Claim:
    rates = adam.names("rate")
    known = adam.at(loss="CE").series("test", "rate")
    bad = [rate for rate in rates if failures[loss, rate]]
    unknown = [rate for rate in rates if rate not in known and rate not in bad]
    safe = [rate for rate in rates if rate not in (*bad, *unknown)]
    return kit.Claim(
        f"{loss} is safe at every learning rate of AdamW tried",
        "not in the paper; its limitations advise a smaller one",
        f"safe: {', '.join(safe) or 'none'}; runs failed at: {', '.join(bad) or 'none'}"
        + (f"; no run of CE ended at: {', '.join(unknown)}" if unknown else ""),
        False if bad else None if unknown else True,
    )


def _figure(lab: kit.Lab, adam: kit.Grid) -> kit.Figure:
    figure, (axes,) = panels(1, 1, width=4.6)
    for loss in adam.names("loss"):
        runs = adam.at(loss=loss)
        points = {float(rate): point.mean for rate, point in runs.series("test", "rate").items()}
        (line,) = axes.plot(list(points), list(points.values()), marker="o", label=loss)
        same = {"color": line.get_color()}
        axes.plot(
            runs.frame["rate"].astype(float), runs.frame["test"], ".", alpha=0.5, ms=4, **same
        )
        gone = [float(rate) for rate, count in runs.lost("test").items() if count]
        foot = axes.get_xaxis_transform()
        axes.plot(gone, [0.02] * len(gone), "x", transform=foot, **same)
    axes.set(xscale="log", xlabel="largest learning rate of AdamW", ylabel="test accuracy, %")
    return lab.figure(
        figure, "learning-rates",
        caption="Accuracy at the end of training against the learning rate of AdamW; lines are "
        "means, dots are seeds; a cross at the foot: a run was lost there.",
        alt="Accuracy against learning rate on a log axis, one line per loss.",
    )  # fmt: skip
