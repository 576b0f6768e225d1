"""AMC-Loss, Table 1: accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hardsight.experiments.amc._recipes import (
    CROSS_ENTROPY,
    Variant,
    amc,
    euclid,
    network,
    network_title,
    trained,
    validation_accuracy,
    variants,
)
from hardsight.experiments.lab import (
    Cell,
    Claim,
    Figure,
    Lab,
    Result,
    Table,
    compared,
    corrected,
    experiment,
    in_words,
    spread,
    verdict,
)
from hardsight.report.figures import COLOURS, panels

# mean, SD, and p against + Euclid
_PAPER: dict[str, dict[str, tuple[str, float | None]]] = {
    "mnist": {
        CROSS_ENTROPY: ("99.63 ± 0.01", None),
        "+ Euclid": ("99.65 ± 0.01", None),
        "+ AMC": ("99.66 ± 0.01", 0.1525),
    },
    "cifar10": {
        CROSS_ENTROPY: ("82.35 ± 0.17", None),
        "+ Euclid": ("82.60 ± 0.21", None),
        "+ AMC": ("82.97 ± 0.20", 0.0214),
    },
    "svhn": {
        CROSS_ENTROPY: ("94.03 ± 0.11", None),
        "+ Euclid": ("95.29 ± 0.06", None),
        "+ AMC": ("95.52 ± 0.05", 0.0002),
    },
    "cifar100-coarse": {
        CROSS_ENTROPY: ("65.16 ± 0.12", None),
        "+ Euclid": ("65.57 ± 0.20", None),
        "+ AMC": ("66.19 ± 0.22", 0.0016),
    },
}
_COLUMNS = (
    "Dataset", "Loss", "validation, %", "test, %", "p against + Euclid", "p, Holm",
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """Keys of ``amc-table1``.

    Attributes:
        datasets: also ``cifar100-coarse`` (the paper's CIFAR-100) and ``svhn``.
        model: to train.
        width: of ``amc13``; 0.5 is the published code's.
        weights: largest weights of the second loss.
        similarity: what makes a pair similar; the paper's ``predictions``, or ``labels``.
        epochs: of colour images; the paper's 300.
        grey_epochs: of grey images.
        batch_size: the paper's 128.
        limit: examples to train on, all by default.
        seeds: one run each.
    """

    datasets: tuple[str, ...] = ("mnist", "cifar10")
    model: str = "amc13"
    width: float = 0.5
    weights: tuple[float, ...] = (0.1, 10.0)
    similarity: str = "predictions"
    epochs: int = 10
    grey_epochs: int = 4
    batch_size: int = 512
    limit: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def network(self) -> str:
        """The model in words."""
        return network_title(self.model, self.width)


@dataclass(frozen=True)
class _Scores:
    """Percent of one variant on one dataset, a value per seed."""

    validation: list[float]
    test: list[float]


@experiment(
    "amc-table1",
    title="AMC-Loss against cross-entropy and the Euclidean contrastive loss",
    reproduces="AMC-Loss, Table 1",
    scales={
        "smoke": Setting(
            datasets=("builtin:digits",), model="small_cnn", weights=(0.1,), epochs=2,
            grey_epochs=2, batch_size=128, seeds=(0, 1),
        ),
        "short": Setting(),
    },
)  # fmt: skip
def amc_table1(lab: Lab, setting: Setting) -> Result:
    """Trains a network with cross-entropy alone and with each contrastive loss.

    It is {network}; the paper's has 13 layers, amc13 here, and its published code half their
    width. Beside cross-entropy stands the Euclidean or the angular loss at the weights {weights};
    the paper's text has 0.1, the published code 10. Adam and the Gaussian ramps are the paper's,
    scaled from its 300 epochs to {epochs} on colour images and {grey_epochs} on grey ones, on
    {limit} training images, in batches of {batch_size} (the paper: 128). A tenth of the training
    images selects the epoch, and the weight that the claims speak of; the test images are used once
    per model. P-values are of two-sided Welch t tests over seeds, against + Euclid of the same
    weight as in the paper, and in the last column corrected for their number by Holm; each claim
    is judged by its own p alone.
    """
    found = {name: _dataset_scores(lab, setting, name) for name in setting.datasets}
    return Result(
        tables=[_table(found, setting.weights)],
        claims=[claim for name in found for claim in _claims(name, found[name], setting.weights)],
        figures=[_figure(lab, found)],
        data={
            name: {variant.title: vars(scores) for variant, scores in by_variant.items()}
            for name, by_variant in found.items()
        },
    )


def _dataset_scores(lab: Lab, setting: Setting, name: str) -> dict[Variant, _Scores]:
    train = lab.source(name, "train", limit=setting.limit)
    test = lab.source(name, "test")
    epochs = setting.grey_epochs if train.images.ndim == 3 else setting.epochs
    found: dict[Variant, _Scores] = {}
    for variant in variants(setting.weights):
        runs = [
            trained(
                lab, network(setting.model, setting.width), train, variant, seed=seed,
                epochs=epochs, batch_size=setting.batch_size, similarity=setting.similarity,
            )
            for seed in setting.seeds
        ]  # fmt: skip
        found[variant] = _Scores(
            [validation_accuracy(run) for run in runs],
            [100 * lab.outputs(run, test).accuracy for run in runs],
        )
    return found


def _table(found: dict[str, dict[Variant, _Scores]], weights: tuple[float, ...]) -> Table:
    tests = {
        (name, weight): compared(by[amc(weight)].test, by[euclid(weight)].test)
        for name, by in found.items()
        for weight in weights
    }
    raised = dict(zip(tests, corrected(list(tests.values())), strict=True))
    rows: list[list[Cell]] = []
    for name, by_variant in found.items():
        for variant, scores in by_variant.items():
            key = (name, variant.weight) if variant.loss == "amc" else None
            both = (tests[key], raised[key]) if key else (None, None)
            rows.append([
                name, variant.title, spread(scores.validation), spread(scores.test),
                *(None if test is None else test.p for test in both),
            ])  # fmt: skip
    return Table(
        "Accuracy",
        _COLUMNS,
        rows,
        note=(
            "Mean ± standard deviation over seeds. The validation column is what choices were "
            "made by; the test column was looked at once per model."
        ),
        paper=[
            [name, title, None, accuracy, p, None]
            for name in found
            for title, (accuracy, p) in _PAPER.get(name, {}).items()
        ]
        or None,
    )


def _claims(name: str, by: dict[Variant, _Scores], weights: tuple[float, ...]) -> list[Claim]:
    """The two comparisons of the paper, at the weight that validation prefers."""
    weight = max(weights, key=lambda one: float(np.mean(by[amc(one)].validation)))
    ours = by[amc(weight)].test
    paper = _PAPER.get(name, {})
    claims = []
    for rival, short in ((euclid(weight), "+ Euclid"), (Variant(), CROSS_ENTROPY)):
        test = compared(ours, by[rival].test)
        numbers = f"{paper['+ AMC'][0]} against {paper[short][0]}" if paper else "not in the paper"
        p = paper["+ AMC"][1] if paper and rival.loss else None
        claims.append(
            Claim(
                f"{name}: + AMC is more accurate than {short}",
                numbers + (f", p = {p}" if p is not None else ""),
                in_words(
                    f"λ = {weight:g} (chosen on validation): + AMC",
                    ours,
                    short,
                    by[rival].test,
                    test,
                ),
                verdict(test),
            )
        )
    return claims


def _figure(lab: Lab, found: dict[str, dict[Variant, _Scores]]) -> Figure:
    figure, axes = panels(1, len(found), width=4.2, height=2.4)
    for at, (ax, (name, by_variant)) in enumerate(zip(axes, found.items(), strict=True)):
        _draw(ax, by_variant, named=at == 0)
        ax.set(title=name, xlabel="test accuracy, %")
    return lab.figure(
        figure,
        "accuracy",
        caption="Test accuracy: a point per seed, the bar at their mean.",
        alt="Points of test accuracy per loss, one panel per dataset.",
    )


def _draw(ax: Any, by_variant: dict[Variant, _Scores], *, named: bool) -> None:
    for at, scores in enumerate(by_variant.values()):
        colour = COLOURS[at % len(COLOURS)]
        ax.plot(scores.test, [at] * len(scores.test), "o", color=colour, alpha=0.7)
        ax.plot([np.mean(scores.test)] * 2, [at - 0.3, at + 0.3], color=colour, linewidth=2.5)
    titles = [variant.title for variant in by_variant] if named else [""] * len(by_variant)
    ax.set_yticks(range(len(by_variant)), titles)
    ax.invert_yaxis()
