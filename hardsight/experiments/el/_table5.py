"""Encouraging Loss, Table 5: squared error and its mirrored bonus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hardsight.experiments.el._recipes import (
    PAPER,
    SMOKE,
    Fitted,
    Loss,
    Recipe,
    Task,
    encouraging,
    fitted,
)
from hardsight.experiments.el._seeds import (
    CHOICE,
    accuracies_of,
    best_of,
    claim_of,
    compared,
    lost_in,
    lost_note,
    spread_of,
    validations_of,
)
from hardsight.experiments.lab import Lab, Result, Table, experiment

_PAPER = {
    "CE + softmax": ("99.42 ± 0.06", "99.56 ± 0.05"),
    "MSE + softmax": ("99.56 ± 0.05", "99.66 ± 0.04"),
    "MSE + sigmoid": ("99.63 ± 0.04", "99.69 ± 0.02"),
}
Runs = list[Fitted | None]
# without and with the bonus: those of every factor, and the chosen ones
Tried = tuple[dict[float, Runs], dict[float, Runs]]
Pair = tuple[Runs, Runs]


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
    title="Squared error and the bonus that mirrors it",
    reproduces=f"{PAPER}, Table 5",
    scales={
        "smoke": Setting(tasks=("builtin:digits/small_cnn",), factors=(1.0,), **SMOKE),
        "paper": Setting(),
    },
)
def el_table5(lab: Lab, setting: Setting) -> Result:
    """Cross-entropy and squared error, each without and with the bonus that mirrors it.

    The recipe is that of el-table1 (SGD; {grey_epochs} epochs on grey images, {colour_epochs} on
    coloured ones); the two cross-entropies are its models, the bonus the normal one, LE = 1. The
    paper does not say how squared errors are averaged; the factors {factors} are tried, of which 1
    is the mean over classes and 10 their sum where there are ten, and for each loss the better one
    on a held-out tenth is kept, as is the epoch.
    """
    tried = {name: _tried(lab, setting, Task.named(name)) for name in setting.tasks}
    found = {name: _rows(each) for name, each in tried.items()}
    claims, tables = [], []
    for name, rows in found.items():
        title = Task.named(name).title
        pairs: dict[str, Any] = {
            row: (accuracies_of(with_bonus), accuracies_of(plain))
            for row, (plain, with_bonus) in rows.items()
        }
        pairs["MSE"] = (
            accuracies_of(rows["MSE + softmax"][0]),
            accuracies_of(rows["CE + softmax"][0]),
        )
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
                [
                    [row, *(spread_of(accuracies_of(one)) for one in pair)]
                    for row, pair in rows.items()
                ],
                note="Mean ± standard deviation over seeds. Differences in the claims: paired "
                "over seeds, 95 % interval, p by Holm's method over the rows. How squared "
                f"errors are averaged is {CHOICE}.{lost_note(_named(tried[name]))}",
                paper=[[row, *texts] for row, texts in _PAPER.items()],
            )
        )
    data = {
        name: {
            **{
                row: {"original": accuracies_of(plain), "with_bonus": accuracies_of(with_bonus)}
                for row, (plain, with_bonus) in rows.items()
            },
            "lost": {label: lost_in(runs) for label, runs in _named(tried[name]).items()},
        }
        for name, rows in found.items()
    }
    return Result(tables=tables, claims=claims, data=data)


def _tried(lab: Lab, setting: Setting, task: Task) -> dict[str, Tried]:
    def runs(loss: Loss) -> Runs:
        return [fitted(lab, task, setting, loss, seed=seed) for seed in setting.seeds]

    def squared(activation: str, bonus: float) -> dict[float, Runs]:
        options = {"activation": activation, "bonus_weight": bonus}
        return {
            factor: runs({"name": "mirror_mse", "weight": factor, "options": options})
            for factor in setting.factors
        }

    return {
        "CE + softmax": ({1.0: runs(encouraging(None))}, {1.0: runs(encouraging(1.0))}),
        "MSE + softmax": (squared("softmax", 0.0), squared("softmax", 1.0)),
        "MSE + sigmoid": (squared("sigmoid", 0.0), squared("sigmoid", 1.0)),
    }


def _rows(tried: dict[str, Tried]) -> dict[str, Pair]:
    def chosen(each: dict[float, Runs]) -> Runs:
        return each[best_of({factor: validations_of(runs) for factor, runs in each.items()})]

    return {row: (chosen(plain), chosen(bonus)) for row, (plain, bonus) in tried.items()}


def _named(tried: dict[str, Tried]) -> dict[str, Runs]:
    """Everything that was trained, also what was not chosen."""
    return {
        f"{row}{bonus}, factor {factor:g}": runs
        for row, pair in tried.items()
        for bonus, each in zip(("", " with the bonus"), pair, strict=True)
        for factor, runs in each.items()
    }
