"""Encouraging Loss, Table 5: squared error and its mirrored bonus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hardsight.experiments import lab as kit
from hardsight.experiments.el import _recipes as recipes
from hardsight.experiments.el._recipes import Task

_PAPER = {
    "CE + softmax": ("99.42 ± 0.06", "99.56 ± 0.05"),
    "MSE + softmax": ("99.56 ± 0.05", "99.66 ± 0.04"),
    "MSE + sigmoid": ("99.63 ± 0.04", "99.69 ± 0.02"),
}
_BONUS = {"original": "original", "with_bonus": "+ mirror bonus"}


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of ``el-table5``.

    Attributes:
        tasks: ``DATASET/NETWORK``.
        factors: of squared errors, tried on validation: 1 is the mean over classes, 10 their sum.
    """

    tasks: tuple[str, ...] = ("mnist/small_cnn",)
    factors: tuple[float, ...] = (1.0, 10.0)


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    choice = f"How squared errors are averaged is {recipes.CHOICE}."
    tables, questions, gates = [], [], []
    for name, part in data.items():
        task, grid = Task.named(name), _read(setting, part)
        tables.append(
            grid.table(
                f"{task.title}: test accuracy, %",
                {"loss": "loss"},
                grid.across("bonus", "test", _BONUS),
                note=setting.note(part["lost"], choice if len(setting.factors) > 1 else ""),
                paper=[[row, *texts] for row, texts in _PAPER.items()],
            )
        )
        tables += recipes.best_test_table(grid, "bonus", _BONUS)
        gates.append(task.gate(grid.values("test", loss="CE + softmax", bonus="original")))
        questions += _questions(task, grid, gates[-1].weak)
    return [*tables, kit.networks_table(gates)], questions


def _read(setting: Setting, part: Mapping[str, Any]) -> kit.Grid:
    """The grid of one task; the file has the bonus and the measure in one level."""
    by: dict[str, Any] = {}
    for row in _PAPER:
        best = part[row].get("best_test", [None, None])
        by[row] = {
            bonus: {"test": part[row][bonus], "best_test": best[at]}
            for at, bonus in enumerate(_BONUS)
        }
    return kit.Grid.read(by, setting.seeds, "loss", "bonus")


def _questions(task: Task, grid: kit.Grid, weak: str) -> list[kit.Question]:
    plain = {"loss": "CE + softmax", "bonus": "original"}
    asked = [  # what is said, paper, first, second
        (f"the mirror bonus makes {row} better",
         " to ".join(text.partition(" ")[0] for text in texts),
         {"loss": row, "bonus": "with_bonus"}, {"loss": row, "bonus": "original"})
        for row, texts in _PAPER.items()
    ]  # fmt: skip
    squared = {"loss": "MSE + softmax", "bonus": "original"}
    asked.append(
        ("squared error (softmax) is above cross-entropy", "99.42 to 99.56", squared, plain)
    )
    return [
        grid.question(
            f"{task.title}: {says}", paper, "test", first, second, weak=weak,
            effect=_gain(paper),
        )
        for says, paper, first, second in asked
    ]  # fmt: skip


def _gain(printed: str) -> float:
    """Points from the first to the second of two numbers, ``99.42 to 99.56``."""
    first, second = map(float, printed.split(" to "))
    return second - first


@kit.experiment(
    "el-table5",
    title="Squared error and the bonus that mirrors it",
    reproduces="Encouraging Loss, Table 5",
    scales={
        "smoke": Setting(factors=(1.0,), **recipes.DIGITS_ALONE),
        "short": Setting(),
        "paper": Setting(factors=(1.0,), **recipes.MNIST_ALONE),
    },
    asks=_asks,
)
def el_table5(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Trains cross-entropy and squared error, each without and with the bonus that mirrors it.

    Data and networks: {networks}. The recipe is that of el-table1: {recipes}. The model kept is
    that of {selection}. The two cross-entropies are models of el-table1, and their bonus is the
    normal one, LE = 1.

    The paper does not say how squared errors are averaged. Of the factors {factors}, 1 is the mean
    over classes, as in the published code, and 10 is their sum if there are ten classes. If there
    are several factors, the one that is better on the held-out images is kept for each loss.
    """
    data = {}
    for name in setting.tasks:
        rows = [
            {"loss": row, "bonus": bonus, "factor": factor, "seed": seed}
            | recipes.accuracies(recipes.fitted(lab, Task.named(name), setting, loss, seed=seed))
            for row, bonus, factor, loss in _losses(setting)
            for seed in setting.seeds
        ]
        grid = kit.Grid.of(rows, "loss", "bonus", "factor", measures=recipes.ACCURACIES)
        data[name] = _data(grid)
    return kit.Result(data=data)


def _losses(setting: Setting) -> list[tuple[str, str, float, recipes.Loss]]:
    """Row, bonus and factor of everything that is trained, and its loss."""

    def squared(activation: str, weight: float, factor: float) -> recipes.Loss:
        options = {"activation": activation, "bonus_weight": weight}
        return {"name": "mirror_mse", "weight": factor, "options": options}

    return [
        ("CE + softmax", "original", 1.0, recipes.encouraging(None)),
        ("CE + softmax", "with_bonus", 1.0, recipes.encouraging(1.0)),
        *(
            (f"MSE + {activation}", bonus, factor, squared(activation, weight, factor))
            for activation in ("softmax", "sigmoid")
            for bonus, weight in (("original", 0.0), ("with_bonus", 1.0))
            for factor in setting.factors
        ),
    ]


def _data(grid: kit.Grid) -> dict[str, Any]:
    """The chosen factors, and what was lost of all of them."""
    data: dict[str, Any] = {}
    for row in grid.names("loss"):
        tried = {bonus: grid.at(loss=row, bonus=bonus) for bonus in _BONUS}
        best = {
            bonus: runs.at(factor=runs.best("factor", "validation"))
            for bonus, runs in tried.items()
        }
        data[row] = {bonus: runs.values("test") for bonus, runs in best.items()}
        data[row]["best_test"] = [runs.values("best_test") for runs in best.values()]
    words = {"original": "", "with_bonus": " with the bonus"}
    data["lost"] = {
        f"{row}{words[bonus]}, factor {factor:g}": count
        for (row, bonus, factor), count in grid.lost("test").items()
    }
    return data
