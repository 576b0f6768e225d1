"""AMC-Loss, Fig. 7: how much the weight and the margin matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardsight.experiments.amc._recipes import (
    CROSS_ENTROPY,
    Variant,
    amc,
    network,
    network_title,
    trained,
    validation_accuracy,
)
from hardsight.experiments.lab import (
    Cell,
    Claim,
    Figure,
    Lab,
    Result,
    Table,
    compared,
    experiment,
    in_words,
    spread,
    verdict,
)
from hardsight.report.figures import COLOURS, legend, panels


@dataclass(frozen=True)
class Setting:
    """Keys of ``amc-fig7``.

    Attributes:
        dataset: to train on.
        model: to train.
        width: of ``amc13``; 0.5 is the published code's.
        weights: λ, at the margin ``margin_rad``; the paper's 1 to 0.001, and the published code's
            10.
        margins_rad: at the weight ``weight``; the paper's 0.5 to 1.5.
        weight: λ while the margin varies.
        margin_rad: the margin while the weight varies.
        similarity: what makes a pair similar; the paper's ``predictions``, or ``labels``.
        epochs: the paper's 300.
        batch_size: the paper's 128.
        limit: examples to train on, all by default.
        seeds: one run each.
    """

    dataset: str = "cifar10"
    model: str = "amc13"
    width: float = 0.5
    weights: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0, 10.0)
    margins_rad: tuple[float, ...] = (0.5, 1.0, 1.5)
    weight: float = 0.1
    margin_rad: float = 0.5
    similarity: str = "predictions"
    epochs: int = 10
    batch_size: int = 512
    limit: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def network(self) -> str:
        """The model in words."""
        return network_title(self.model, self.width)


@dataclass(frozen=True)
class _Scores:
    """Percent, a value per seed."""

    validation: list[float]
    test: list[float]


@experiment(
    "amc-fig7",
    title="Sensitivity of AMC-Loss to its weight and its margin",
    reproduces="AMC-Loss, Fig. 7",
    scales={
        "smoke": Setting(
            dataset="builtin:digits", model="small_cnn", weights=(0.1, 10.0),
            margins_rad=(0.5, 1.5), epochs=2, batch_size=128, seeds=(0, 1),
        ),
        "short": Setting(),
    },
)  # fmt: skip
def amc_fig7(lab: Lab, setting: Setting) -> Result:
    """Trains with several weights at one margin, then with several margins at one weight.

    The training is that of amc-table1, on {limit} training images of {dataset}: {network} (the
    paper: 13 layers, amc13), {epochs} epochs (the paper: 300 epochs), batches of {batch_size} (the
    paper: 128), ramps scaled. Weight and margin are chosen by the accuracy on a tenth of the
    training images; the paper's figure shows the accuracy on the test images alone. Those are used
    here once per model, to show how the choice turns out.
    """
    by_weight = {weight: amc(weight, setting.margin_rad) for weight in setting.weights}
    by_margin = {margin: amc(setting.weight, margin) for margin in setting.margins_rad}
    wanted = dict.fromkeys([Variant(), *by_weight.values(), *by_margin.values()])
    found = {variant: _scores(lab, setting, variant) for variant in wanted}
    return Result(
        tables=[_table(found)],
        claims=_claims(found, by_weight, by_margin),
        figures=[_figure(lab, found, by_weight, by_margin)],
        data={_title(variant): vars(scores) for variant, scores in found.items()},
    )


def _scores(lab: Lab, setting: Setting, variant: Variant) -> _Scores:
    train = lab.source(setting.dataset, "train", limit=setting.limit)
    test = lab.source(setting.dataset, "test")
    runs = [
        trained(
            lab, network(setting.model, setting.width), train, variant, seed=seed,
            epochs=setting.epochs, batch_size=setting.batch_size, similarity=setting.similarity,
        )
        for seed in setting.seeds
    ]  # fmt: skip
    return _Scores(
        [validation_accuracy(run) for run in runs],
        [100 * lab.outputs(run, test).accuracy for run in runs],
    )


def _title(variant: Variant) -> str:
    return f"λ = {variant.weight:g}, m = {variant.margin:g}" if variant.loss else CROSS_ENTROPY


def _table(found: Mapping[Variant, _Scores]) -> Table:
    base = found[Variant()]
    rows: list[list[Cell]] = []
    for variant, scores in found.items():
        test = compared(scores.test, base.test) if variant.loss else None
        rows.append(
            [_title(variant), spread(scores.validation), spread(scores.test),
             None if test is None else test.p]
        )  # fmt: skip
    return Table(
        "Accuracy by weight λ and margin m",
        ("Loss", "validation, %", "test, %", "p against cross-entropy"),
        rows,
        note=(
            "Mean ± standard deviation over seeds; p of two-sided Welch t tests on the test "
            "column, not corrected for their number. The margin is in radians."
        ),
    )


def _claims(
    found: Mapping[Variant, _Scores],
    by_weight: Mapping[float, Variant],
    by_margin: Mapping[float, Variant],
) -> list[Claim]:
    best_weight = _best(found, by_weight)
    chosen, base = found[by_weight[best_weight]], found[Variant()]
    gain = compared(chosen.test, base.test)
    best_margin = _best(found, by_margin)
    return [
        Claim(
            "AMC-Loss with a well chosen weight is more accurate than cross-entropy",
            "Fig. 7; the text has no number",
            in_words(
                f"λ = {best_weight:g} (chosen on validation): test", chosen.test, CROSS_ENTROPY,
                base.test, gain,
            ),
            verdict(gain),
        ),
        Claim(
            "the margin 0.5 leads to the best performance",
            "Section 3.2",
            "validation accuracy: "
            + ", ".join(
                f"m = {margin:g} {spread(found[variant].validation)}"
                for margin, variant in by_margin.items()
            ),
            _is_best(0.5, best_margin, found, by_margin),
        ),
    ]  # fmt: skip


def _best(found: Mapping[Variant, _Scores], by: Mapping[float, Variant]) -> float:
    return max(by, key=lambda value: float(np.mean(found[by[value]].validation)))


def _is_best(
    value: float, best: float, found: Mapping[Variant, _Scores], by: Mapping[float, Variant]
) -> bool | None:
    """Whether ``value`` is better than every other one, or another one better than it."""
    if value not in by or len(by) == 1:
        return None
    ours = found[by[value]].validation
    if best != value:
        is_worse = verdict(compared(found[by[best]].validation, ours))
        return False if is_worse else None
    others = [found[variant].validation for key, variant in by.items() if key != value]
    return True if all(verdict(compared(ours, other)) for other in others) else None


def _figure(
    lab: Lab,
    found: Mapping[Variant, _Scores],
    by_weight: Mapping[float, Variant],
    by_margin: Mapping[float, Variant],
) -> Figure:
    figure, (left, right) = panels(1, 2, width=4.0)
    _draw(left, found, by_weight, sorted(by_weight))
    _draw(right, found, by_margin, sorted(by_margin))
    margin = next(iter(by_weight.values())).margin
    weight = next(iter(by_margin.values())).weight
    left.set(xscale="log", xlabel="weight λ", ylabel="accuracy, %", title=f"m = {margin:g} rad")
    right.set(xlabel="margin m, rad", title=f"λ = {weight:g}")
    legend(figure)
    return lab.figure(
        figure,
        "sensitivity",
        caption=(
            "Accuracy against weight and margin, mean and standard deviation over seeds; dashed: "
            "cross-entropy alone."
        ),
        alt="Two panels: accuracy on validation and test images against weight and margin.",
    )


def _draw(
    ax: Any, found: Mapping[Variant, _Scores], by: Mapping[float, Variant], at: Sequence[float]
) -> None:
    for colour, part in zip(COLOURS[1:], ("validation", "test"), strict=False):
        values = [spread(getattr(found[by[value]], part)) for value in at]
        base = spread(getattr(found[Variant()], part))
        ax.errorbar(
            at, [one.mean for one in values], [one.std for one in values], fmt="o-", capsize=3,
            color=colour, label=part,
        )  # fmt: skip
        ax.axhline(base.mean, color=colour, linestyle="--", linewidth=1)
