"""Encouraging Loss, Table 5: squared error and its mirrored bonus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hardsight.experiments._el_recipes import (
    LOST,
    PAPER,
    SMOKE,
    Fitted,
    Loss,
    Recipe,
    Task,
    best_of,
    claim_of,
    compared,
    encouraging,
    fitted,
)
from hardsight.experiments._lab import Lab
from hardsight.experiments._registry import experiment
from hardsight.experiments._result import Result, Table, spread

_PAPER = {
    "CE + softmax": ("99.42 ± 0.06", "99.56 ± 0.05"),
    "MSE + softmax": ("99.56 ± 0.05", "99.66 ± 0.04"),
    "MSE + sigmoid": ("99.63 ± 0.04", "99.69 ± 0.02"),
}
Pair = tuple[list[Fitted], list[Fitted]]


@dataclass(frozen=True)
class Setting(Recipe):
    """Keys of ``el-table5``.

    Attributes:
        tasks: ``DATASET/NETWORK``.
        factors: of squared errors, tried on validation: 1 is the mean over classes, 10 their sum.
    """

    tasks: tuple[str, ...] = ("mnist/small_cnn",)
    factors: tuple[float, ...] = (1.0, 10.0)


@experiment(
    "el-table5",
    title="Squared error gains from its mirrored bonus, too",
    reproduces=f"{PAPER}, Table 5",
    scales={
        "smoke": Setting(tasks=("builtin:digits/small_cnn",), factors=(1.0,), **SMOKE),
        "paper": Setting(),
    },
)
def el_table5(lab: Lab, setting: Setting) -> Result:
    """Cross-entropy and squared error, each without and with the bonus that mirrors it.

    The recipe is that of el-table1 on MNIST, 6 epochs of SGD at paper scale; the two
    cross-entropies are its models, the bonus the normal one, LE = 1. The paper does not say how
    squared errors are averaged; the mean over classes and their sum are tried, and for each loss
    the better one on a held-out tenth is kept, as is the epoch.
    """
    found = {name: _rows(lab, setting, Task.named(name)) for name in setting.tasks}
    claims, tables = [], []
    for name, rows in found.items():
        title = Task.named(name).title
        pairs: dict[str, Any] = {
            row: (_tests(with_bonus), _tests(plain)) for row, (plain, with_bonus) in rows.items()
        }
        pairs["MSE"] = (_tests(rows["MSE + softmax"][0]), _tests(rows["CE + softmax"][0]))
        differences = compared(pairs)
        for row, difference in differences.items():
            if row == "MSE":
                says, paper = "squared error (softmax) is above cross-entropy", "99.42 to 99.56"
            else:
                says = f"the mirror bonus makes {row} better"
                paper = " to ".join(text.partition(" ")[0] for text in _PAPER[row])
            claims.append(claim_of(f"{title}: {says}", paper, difference))
        tables.append(
            Table(
                f"{title}: test accuracy, %",
                ("loss", "original", "+ mirror bonus"),
                [[row, *(spread(_tests(one)) for one in pair)] for row, pair in rows.items()],
                note="Mean ± standard deviation over seeds. Differences in the claims: paired "
                "over seeds, 95 % interval, p by Holm's method over the rows." + LOST,
                paper=[[row, *texts] for row, texts in _PAPER.items()],
            )
        )
    data = {
        name: {
            row: {"original": _tests(plain), "with_bonus": _tests(with_bonus)}
            for row, (plain, with_bonus) in rows.items()
        }
        for name, rows in found.items()
    }
    return Result(tables=tables, claims=claims, data=data)


def _rows(lab: Lab, setting: Setting, task: Task) -> dict[str, Pair]:
    def runs(loss: Loss) -> list[Fitted]:
        return [fitted(lab, task, setting, loss, seed=seed) for seed in setting.seeds]

    def squared(activation: str, bonus: float) -> list[Fitted]:
        options = {"activation": activation, "bonus_weight": bonus}
        tried = {
            factor: runs({"name": "mirror_mse", "weight": factor, "options": options})
            for factor in setting.factors
        }
        chosen = best_of({key: [one.validation for one in each] for key, each in tried.items()})
        return tried[chosen]

    return {
        "CE + softmax": (runs(encouraging(None)), runs(encouraging(1.0))),
        "MSE + softmax": (squared("softmax", 0.0), squared("softmax", 1.0)),
        "MSE + sigmoid": (squared("sigmoid", 0.0), squared("sigmoid", 1.0)),
    }


def _tests(each: list[Fitted]) -> list[float]:
    return [one.test for one in each]
