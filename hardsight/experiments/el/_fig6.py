"""Encouraging Loss, Figures 1 and 6: margins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardsight.experiments import lab as kit
from hardsight.experiments.el import _recipes as recipes
from hardsight.experiments.el._recipes import Task
from hardsight.report.figures import COLOURS, panels
from hardsight.scores import logit_margin

_COLUMNS = ("median", "1st percentile", "negative, %", "median, relative")


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of ``el-fig6``; ``tasks`` are ``DATASET/NETWORK``."""

    tasks: tuple[str, ...] = ("cifar10/resnet18",)
    log_ends: tuple[float, ...] = (0.75, 1.0)
    colour_epochs: int = 30
    seeds: tuple[int, ...] = recipes.FIVE_SEEDS


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    tables, questions, gates = [], [], []
    for name, part in data.items():
        task, grid = Task.named(name), kit.Grid.read(part, setting.seeds, "loss")
        # a margin below 0 is a mistake
        gates.append(task.gate([100 - wrong for wrong in grid.values("negative, %", loss="CE")]))
        questions += _questions(task.title, grid, gates[-1].weak)
        tables.append(
            grid.table(
                f"{task.title}: margins",
                {"loss": "loss"},
                {column: column for column in _COLUMNS},
                note=setting.note(
                    {loss: outcome["lost"] for loss, outcome in part.items()},
                    "The paper's margins are centred at 15 for CE and 50 for EL (ResNet-50, "
                    "CIFAR-10).",
                ),
                paper=[["CE", 15, None, None, None], ["EL, LE=1", 50, None, None, None]]
                if task.is_colour
                else None,
            )
        )
    return [*tables, kit.networks_table(gates)], questions


def _questions(title: str, grid: kit.Grid, weak: str) -> list[kit.Question]:
    el, ce = {"loss": recipes.normal_or_last(grid.names("loss"))}, {"loss": "CE"}
    medians = np.array([grid.values("median", **loss) for loss in (el, ce)])
    both = medians[:, ~np.isnan(medians).any(axis=0)]
    times = f"{np.divide(*both.mean(axis=1)):.1f} times: " if both.size else ""
    return [
        grid.question(
            f"{title}: the median margin of {el['loss']} is larger", "15 to 50 (3.3 times)",
            "median", el, ce, told=f"{times}{{}}", weak=weak,
        ),
        grid.question(
            f"{title}: the median margin is also larger relative to the scale of the logits",
            "not in the paper",
            "median, relative", el, ce, weak=weak,
        ),
    ]  # fmt: skip


@kit.experiment(
    "el-fig6",
    title="Margins under cross-entropy and Encouraging Loss",
    reproduces="Encouraging Loss, Figures 1 and 6",
    scales={
        "smoke": Setting(log_ends=(1.0,), **recipes.DIGITS_ALONE),
        "short": Setting(),
        "paper": Setting(log_ends=(1.0,), **recipes.MNIST_ALONE),
    },
    asks=_asks,
)
def el_fig6(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Shows margins, the logit of the label minus the largest other one, on test examples.

    The models are those of el-table1 (the paper: LE = 1, ResNet-50 on CIFAR-10). A margin in logits
    grows when all logits grow, and that alone moves no example across the boundary. Each margin is
    therefore also given relative to its model, divided by the mean deviation of an example's logits
    from their mean. The margin in logits is the one to compare with the paper. The relative one
    shows whether examples are further from the boundary than the scale of the logits explains.
    """
    figures, data = [], {}
    for name in setting.tasks:
        task = Task.named(name)
        _, test = task.data(lab, setting)
        rows, drawn = [], {}
        for loss, runs in recipes.fitted_by_loss(lab, task, setting, setting.log_ends).items():
            margins = [
                None if fit is None else margins_and_scale(lab.outputs(fit.run, test))
                for fit in runs
            ]
            rows += [
                {"loss": loss, "seed": seed, **(margin_measures(*pair) if pair else {})}
                for seed, pair in zip(setting.seeds, margins, strict=True)
            ]
            drawn[loss] = [pair for pair in margins if pair is not None]
        figures.append(_figure(lab, task, drawn))
        data[name] = kit.Grid.of(rows, "loss", measures=_COLUMNS).data(lost="median")
    return kit.Result(figures=figures, data=data)


def margins_and_scale(outputs: kit.Outputs) -> tuple[Any, float]:
    """Margins ``[N]``, and the mean over examples of the deviation of their logits."""
    logits = outputs.logits.double()
    margins = logit_margin(logits, outputs.labels)
    scale = float(logits.std(dim=1, correction=0).mean())
    return margins.numpy(), max(scale, 1e-12)  # a model may say nothing at all


def margin_measures(margins: Any, scale: float) -> dict[str, float]:
    """The columns of the table."""
    median, low = float(np.median(margins)), float(np.quantile(margins, 0.01))
    numbers = (median, low, 100 * float((margins < 0).mean()), median / scale)
    return dict(zip(_COLUMNS, numbers, strict=True))


def _figure(lab: kit.Lab, task: Task, margins: Mapping[str, list[tuple[Any, float]]]) -> kit.Figure:
    figure, axes = panels(1, 2, width=4.0, ylabel="density of test examples")
    for place, is_relative in zip(axes, (False, True), strict=True):
        values = {
            loss: np.concatenate([margin / (scale if is_relative else 1) for margin, scale in each])
            for loss, each in margins.items()
            if each
        }
        everything = np.concatenate(list(values.values())) if values else np.zeros(1)
        low, high = np.quantile(everything, [0.002, 0.998])
        edges = np.linspace(low, high, 70)
        for colour, (loss, of_loss) in zip(COLOURS, values.items(), strict=False):
            place.hist(of_loss, edges, density=True, histtype="step", color=colour, label=loss,
                       linewidth=1.4)  # fmt: skip
        place.axvline(0, color="grey", lw=0.8, linestyle=":")
        place.set_xlabel("margin / scale of the logits" if is_relative else "margin, logits")
        place.set_yticks([])
    return lab.figure(
        figure, f"margins-{task.dataset.replace(':', '-')}",
        caption=f"{task.title}: margins of test examples of all seeds; left of 0 are errors. Left: "
        "in logits, as in the paper. Right: relative to the scale of each model's logits.",
        alt="Two histograms of margins, one outline per loss.",
    )  # fmt: skip
