"""Encouraging Loss, Figures 1 and 6: margins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hardsight.experiments.el._recipes import (
    PAPER,
    PUBLISHED_MNIST,
    SMOKE,
    LogEnd,
    Recipe,
    Task,
    encouraging,
    fitted,
    loss_name,
)
from hardsight.experiments.el._seeds import (
    claim_of,
    ended,
    lost_in,
    lost_note,
    spread_of,
    values_of,
)
from hardsight.experiments.lab import (
    Claim,
    Figure,
    Lab,
    Outputs,
    Result,
    Table,
    both_ended,
    compared_in_pairs,
    experiment,
)
from hardsight.report.figures import COLOURS, legend, panels
from hardsight.scores import logit_margin

_NORMAL = 1.0
_COLUMNS = ("median", "1st percentile", "negative, %", "median, relative")
Summary = tuple[float, float, float, float]


@dataclass(frozen=True)
class Setting(Recipe):
    """Keys of ``el-fig6``; ``tasks`` are ``DATASET/NETWORK``."""

    tasks: tuple[str, ...] = ("cifar10/resnet18:width=32", "mnist/small_cnn")
    log_ends: tuple[float, ...] = (0.75, 1.0)


@experiment(
    "el-fig6",
    title="Margins under cross-entropy and Encouraging Loss",
    reproduces=f"{PAPER}, Figures 1 and 6",
    scales={
        "smoke": Setting(tasks=("builtin:digits/small_cnn",), log_ends=(1.0,), **SMOKE),
        "short": Setting(),
        "paper": Setting(tasks=("mnist/el_mnist",), log_ends=(1.0,), **PUBLISHED_MNIST),
    },
)
def el_fig6(lab: Lab, setting: Setting) -> Result:
    """Margins, the own logit minus the largest other one, on test examples.

    The models are those of el-table1 (the paper: LE = 1, ResNet-50 on CIFAR-10). A margin in
    logits grows when all logits do, and that alone moves no example across the boundary; so each
    margin is also given relative to its model, divided by the mean deviation of an example's
    logits from their mean. The first compares with the paper, the second says whether examples
    lie further from the boundary than the scale of the logits explains.
    """
    tables, claims, figures, data = [], [], [], {}
    keys: tuple[LogEnd, ...] = (None, *setting.log_ends)
    for name in setting.tasks:
        task = Task.named(name)
        margins = {key: _margins(lab, setting, task, key) for key in keys}
        rows = {
            key: [None if one is None else _summary(*one) for one in each]
            for key, each in margins.items()
        }
        tables.append(
            Table(
                f"{task.title}: margins",
                ("loss", *_COLUMNS),
                [[loss_name(key), *(spread_of(_column(each, at)) for at in range(4))]
                 for key, each in rows.items()],
                note="Mean ± standard deviation over seeds. The paper's margins are centred at 15 "
                "for CE and 50 for EL (ResNet-50, CIFAR-10)."
                + lost_note({loss_name(key): each for key, each in rows.items()}),
                paper=[["CE", 15, None, None, None], ["EL, LE=1", 50, None, None, None]]
                if task.is_colour else None,
            )
        )  # fmt: skip
        claims += _claims(task, rows)
        figures.append(_figure(lab, task, margins))
        data[name] = {
            loss_name(key): {
                **{column: _column(each, at) for at, column in enumerate(_COLUMNS)},
                "lost": lost_in(each),
            }
            for key, each in rows.items()
        }
    return Result(tables=tables, claims=claims, figures=figures, data=data)


def _margins(
    lab: Lab, setting: Setting, task: Task, log_end: LogEnd
) -> list[tuple[Any, float] | None]:
    """Margins ``[N]`` and the scale of the logits, per seed; ``None`` if the run was lost."""
    _, test = task.data(lab, setting)
    runs = [fitted(lab, task, setting, encouraging(log_end), seed=seed) for seed in setting.seeds]
    return [None if one is None else margins_and_scale(lab.outputs(one.run, test)) for one in runs]


def margins_and_scale(outputs: Outputs) -> tuple[Any, float]:
    """Margins ``[N]``, and the mean over examples of the deviation of their logits."""
    logits = outputs.logits.double()
    margins = logit_margin(logits, outputs.labels)
    scale = float(logits.std(dim=1, correction=0).mean())
    return margins.numpy(), max(scale, 1e-12)  # a model may say nothing at all


def _summary(margins: Any, scale: float) -> Summary:
    median = float(np.median(margins))
    low = float(np.quantile(margins, 0.01))
    return median, low, 100 * float((margins < 0).mean()), median / scale


def _column(each: list[Summary | None], at: int) -> list[float | None]:
    return values_of(each, lambda one: one[at])


def _claims(task: Task, rows: dict[LogEnd, list[Summary | None]]) -> list[Claim]:
    el = _NORMAL if _NORMAL in rows else list(rows)[-1]
    medians, relative = ((_column(rows[el], at), _column(rows[None], at)) for at in (0, 3))
    found = compared_in_pairs({"logits": medians, "relative": relative})
    pairs = both_ended(*medians)
    times = f"{np.divide(*np.mean(pairs, axis=0)):.1f} times: " if pairs else ""
    first = claim_of(
        f"{task.title}: the median margin of {loss_name(el)} is larger", "15 to 50 (3.3 times)",
        found["logits"],
    )  # fmt: skip
    return [
        Claim(first.says, first.paper, f"{times}{first.seen}", first.holds),
        claim_of(
            f"{task.title}: it is larger relative to the scale of the logits, too",
            "not in the paper",
            found["relative"],
        ),
    ]


def _figure(lab: Lab, task: Task, margins: dict[LogEnd, list[tuple[Any, float] | None]]) -> Figure:
    figure, axes = panels(1, 2, width=4.0)
    for place, is_relative in zip(axes, (False, True), strict=True):
        values = {
            key: np.concatenate([m / (scale if is_relative else 1) for m, scale in ended(each)])
            for key, each in margins.items()
            if ended(each)
        }
        everything = np.concatenate(list(values.values())) if values else np.zeros(1)
        low, high = np.quantile(everything, [0.002, 0.998])
        edges = np.linspace(low, high, 70)
        for number, (key, one) in enumerate(values.items()):
            place.hist(one, edges, density=True, histtype="step", color=COLOURS[number],
                       label=loss_name(key), linewidth=1.4)  # fmt: skip
        place.axvline(0, color="grey", lw=0.8, linestyle=":")
        place.set_xlabel("margin / scale of the logits" if is_relative else "margin, logits")
        place.set_yticks([])
    axes[0].set_ylabel("density of test examples")
    legend(figure)
    name = task.dataset.replace(":", "-")
    return lab.figure(
        figure,
        f"margins-{name}",
        caption=f"{task.title}: margins of test examples of all seeds; left of 0 are errors. Left: "
        "in logits, as in the paper. Right: relative to the scale of each model's logits.",
        alt="Two histograms of margins, one outline per loss.",
    )
