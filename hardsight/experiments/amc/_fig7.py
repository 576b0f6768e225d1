"""AMC-Loss, Fig. 7: how much the weight and the margin matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hardsight.experiments import lab as kit
from hardsight.experiments.amc import _recipes as recipes
from hardsight.report.figures import COLOURS, panels

_MARGIN = 0.5  # Section 3.2: leads to the best performance


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of ``amc-fig7``.

    Attributes:
        dataset: to train on.
        weights: λ, at the margin ``margin_rad``; the paper's 1 to 0.001, and the published code's
            10.
        margins_rad: at the weight ``weight``; the paper's 0.5 to 1.5.
        weight: λ while the margin varies.
        margin_rad: the margin while the weight varies.
    """

    dataset: str = "cifar10"
    weights: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0, 10.0)
    margins_rad: tuple[float, ...] = (0.5, 1.0, 1.5)
    weight: float = 0.1
    margin_rad: float = 0.5

    @property
    def by_weight(self) -> dict[float, recipes.Variant]:
        """What is trained while the weight varies."""
        return {weight: recipes.amc(weight, self.margin_rad) for weight in self.weights}

    @property
    def by_margin(self) -> dict[float, recipes.Variant]:
        """What is trained while the margin varies."""
        return {margin: recipes.amc(self.weight, margin) for margin in self.margins_rad}


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    grid = kit.Grid.read(data, setting.seeds, "loss")
    weights = {loss.with_margin: weight for weight, loss in setting.by_weight.items()}
    best = grid.only(loss=weights).best("loss", "validation")
    margins = {margin: loss.with_margin for margin, loss in setting.by_margin.items()}
    by_margin = {margin: grid.values("validation", loss=loss) for margin, loss in margins.items()}
    means = ", ".join(f"m = {m:g} {grid.cell('validation', loss=x)}" for m, x in margins.items())
    is_asked = _MARGIN in margins and len(margins) > 1
    others = {f"minus m = {m:g}": values for m, values in by_margin.items() if m != _MARGIN}
    gate = setting.gate(setting.dataset, grid.values("test", loss=recipes.CROSS_ENTROPY))
    return [_table(grid), kit.networks_table([gate])], [
        grid.question(
            "AMC-Loss with a well chosen weight is more accurate than cross-entropy",
            "Fig. 7; the text has no number", "test",
            {"loss": best}, {"loss": recipes.CROSS_ENTROPY}, names=("test", recipes.CROSS_ENTROPY),
            told=f"λ = {weights[best]:g} (chosen on validation): {{}}", weak=gate.weak,
        ),
        kit.Question(
            f"the margin {_MARGIN:g} leads to the best performance", "Section 3.2",
            by_margin.get(_MARGIN, []), others if is_asked else {},
            told=f"validation accuracy: {means}" + ("; {}" if is_asked else ""), weak=gate.weak,
        ),
    ]  # fmt: skip


@kit.experiment(
    "amc-fig7",
    title="Sensitivity of AMC-Loss to its weight and its margin",
    reproduces="AMC-Loss, Fig. 7",
    scales={
        "smoke": Setting(
            dataset="builtin:digits", weights=(0.1, 10.0), margins_rad=(0.5, 1.5), seeds=(0, 1),
            **recipes.SMOKE,
        ),
        "short": Setting(),
        "paper": Setting(
            weights=(0.001, 0.01, 0.1, 1.0), margins_rad=(0.5, 0.75, 1.0, 1.25, 1.5),
            **{**recipes.PAPER, "seeds": (0, 1, 2)},
        ),
    },
    asks=_asks,
)  # fmt: skip
def amc_fig7(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Trains with several weights at one margin, then with several margins at one weight.

    The training is that of amc-table1, on {limit} training images of {dataset}. It uses {network}
    (the paper: 13 layers, amc13) for {epochs} epochs (the paper: 300 epochs), batches of
    {batch_size} (the paper: 128) and scaled ramps.

    Weight and margin are chosen by the accuracy on a tenth of the training images. The paper's
    figure shows only the accuracy on the test images. Here the test images are used once per model,
    to show how the choice turns out.
    """
    train = lab.source(setting.dataset, "train", limit=setting.limit)
    test = lab.source(setting.dataset, "test")
    wanted = [recipes.Variant(), *setting.by_weight.values(), *setting.by_margin.values()]
    rows = [
        {"loss": loss.with_margin, "seed": seed}
        | recipes.accuracies(lab, recipes.trained(lab, setting, train, loss, seed=seed), test)
        for loss in dict.fromkeys(wanted)
        for seed in setting.seeds
    ]
    grid = kit.Grid.of(rows, "loss")
    return kit.Result(figures=[_figure(lab, setting, grid)], data=grid.data())


def _table(grid: kit.Grid) -> kit.Table:
    plain = {"loss": recipes.CROSS_ENTROPY}
    others = [title for title in grid.names("loss") if title != recipes.CROSS_ENTROPY]
    comparisons = grid.compared("test", {title: ({"loss": title}, plain) for title in others})
    return grid.table(
        "Accuracy by weight λ and margin m",
        {"loss": "Loss"},
        {
            "validation, %": "validation",
            "test, %": "test",
            "p against cross-entropy": lambda _, loss: (
                comparisons[loss].p if loss in comparisons else None
            ),
        },
        note=(
            "Mean ± standard deviation over seeds. P-values are from paired t tests over seeds on "
            "the test column, raised by Holm's method over the column. The margin is in radians."
        ),
    )


def _figure(lab: kit.Lab, setting: Setting, grid: kit.Grid) -> kit.Figure:
    figure, (left, right) = panels(1, 2, width=4.0)
    for axis, by in ((left, setting.by_weight), (right, setting.by_margin)):
        for colour, part in zip(COLOURS[1:], ("validation", "test"), strict=False):
            series = grid.series(part, "loss")
            points = [series[by[value].with_margin] for value in sorted(by)]
            axis.errorbar(
                sorted(by), [point.mean for point in points], [point.std for point in points],
                fmt="o-", capsize=3, color=colour, label=part,
            )  # fmt: skip
            axis.axhline(
                series[recipes.CROSS_ENTROPY].mean, color=colour, linestyle="--", linewidth=1
            )
    title = f"m = {setting.margin_rad:g} rad"
    left.set(xscale="log", xlabel="weight λ", ylabel="accuracy, %", title=title)
    right.set(xlabel="margin m, rad", title=f"λ = {setting.weight:g}")
    return lab.figure(
        figure, "sensitivity",
        caption="Accuracy against weight and margin, mean and standard deviation over seeds; "
        "dashed: cross-entropy alone.",
        alt="Two panels: accuracy on validation and test images against weight and margin.",
    )  # fmt: skip
