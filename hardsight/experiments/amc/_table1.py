"""AMC-Loss, Table 1: accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hardsight.experiments import lab as kit
from hardsight.experiments.amc import _recipes as recipes
from hardsight.report.figures import COLOURS, panels

# mean and standard deviation of cross-entropy, + Euclid and + AMC; p of the last two
_PAPER = {
    "mnist": ("99.63 ± 0.01", "99.65 ± 0.01", "99.66 ± 0.01", 0.1525),
    "cifar10": ("82.35 ± 0.17", "82.60 ± 0.21", "82.97 ± 0.20", 0.0214),
    "svhn": ("94.03 ± 0.11", "95.29 ± 0.06", "95.52 ± 0.05", 0.0002),
    "cifar100-coarse": ("65.16 ± 0.12", "65.57 ± 0.20", "66.19 ± 0.22", 0.0016),
}
_TITLES = (recipes.CROSS_ENTROPY, "+ Euclid", "+ AMC")


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of ``amc-table1``.

    Attributes:
        datasets: also ``cifar100-coarse`` (the paper's CIFAR-100) and ``svhn``.
        weights: largest weights of the second loss.
        grey_epochs: of grey images.
    """

    datasets: tuple[str, ...] = ("mnist", "cifar10")
    weights: tuple[float, ...] = (0.1, 10.0)
    grey_epochs: int = 4


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    grid = kit.Grid.read(data, setting.seeds, "dataset", "loss")
    gates = {
        name: setting.gate(name, grid.values("test", dataset=name, loss=recipes.CROSS_ENTROPY))
        for name in data
    }
    questions = [
        question
        for name, gate in gates.items()
        for question in _questions(name, grid.at(dataset=name), setting, gate.weak)
    ]
    return [_table(grid, setting), kit.networks_table(list(gates.values()))], questions


def _questions(name: str, grid: kit.Grid, setting: Setting, weak: str) -> list[kit.Question]:
    """The two comparisons of the paper, at the weight that validation prefers."""
    tried = {recipes.amc(weight).title: weight for weight in setting.weights}
    ours = grid.only(loss=tried).best("loss", "validation")
    told = f"λ = {tried[ours]:g} (chosen on validation): {{}}"
    plain, contrastive, angular, p = _PAPER.get(name, ("0", "0", "0", 0.0))
    rivals = (  # name, loss, the paper's numbers, its number of the rival
        ("+ Euclid", recipes.euclid(tried[ours]).title, f"{angular} against {contrastive}, p = {p}",
         contrastive),
        (recipes.CROSS_ENTROPY, recipes.CROSS_ENTROPY, f"{angular} against {plain}", plain),
    )  # fmt: skip
    return [
        grid.question(
            f"{name}: + AMC is more accurate than {rival}",
            paper if name in _PAPER else "not in the paper", "test", {"loss": ours},
            {"loss": loss}, names=("+ AMC", rival), told=told, weak=weak,
            effect=_mean(angular) - _mean(theirs),
        )
        for rival, loss, paper, theirs in rivals
    ]  # fmt: skip


def _mean(printed: str) -> float:
    return float(printed.partition(" ")[0])


@kit.experiment(
    "amc-table1",
    title="AMC-Loss against cross-entropy and the Euclidean contrastive loss",
    reproduces="AMC-Loss, Table 1",
    scales={
        "smoke": Setting(
            datasets=("builtin:digits",),
            weights=(0.1,),
            grey_epochs=1,
            seeds=(0, 1),
            **recipes.SMOKE,
        ),
        "short": Setting(),
        "paper": Setting(weights=(0.1,), grey_epochs=300, **recipes.PAPER),
    },
    asks=_asks,
)
def amc_table1(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Trains a network with cross-entropy alone and with each contrastive loss.

    The network is {network}. The paper's has 13 layers (amc13 here), and its published code uses
    half their width. The Euclidean or the angular loss is added to cross-entropy at the weights
    {weights}; the paper's text uses 0.1 and the published code 10.

    Adam and the Gaussian ramps are the paper's, scaled from its 300 epochs to {epochs} on colour
    images and {grey_epochs} on grey ones. Training uses {limit} training images, in batches of
    {batch_size} (the paper: 128). A tenth of the training images selects the epoch, and also the
    weight that the claims are about. The test images are used once per model.
    """
    rows = []
    for name in setting.datasets:
        train = lab.source(name, "train", limit=setting.limit)
        test = lab.source(name, "test")
        epochs = setting.grey_epochs if train.images.ndim == 3 else setting.epochs
        for variant in recipes.variants(setting.weights):
            for seed in setting.seeds:
                run = recipes.trained(lab, setting, train, variant, seed=seed, epochs=epochs)
                numbers = recipes.accuracies(lab, run, test)
                rows.append({"dataset": name, "loss": variant.title, "seed": seed, **numbers})
    grid = kit.Grid.of(rows, "dataset", "loss")
    return kit.Result(figures=[_figure(lab, grid)], data=grid.data())


def _table(grid: kit.Grid, setting: Setting) -> kit.Table:
    pairs = {
        (name, recipes.amc(weight).title): (
            {"dataset": name, "loss": recipes.amc(weight).title},
            {"dataset": name, "loss": recipes.euclid(weight).title},
        )
        for name in grid.names("dataset")
        for weight in setting.weights
    }
    alone = {key: grid.compared("test", {key: pair})[key].p for key, pair in pairs.items()}
    raised = grid.compared("test", pairs)
    return grid.table(
        "Accuracy",
        {"dataset": "Dataset", "loss": "Loss"},
        {
            "validation, %": "validation",
            "test, %": "test",
            "p against + Euclid": lambda _, *key: alone.get(key),
            "p, Holm": lambda _, *key: raised[key].p if key in raised else None,
        },
        note=(
            "Mean ± standard deviation over seeds. Choices were made by the validation column; the "
            "test column was looked at once per model. P-values are from paired t tests over seeds "
            "against + Euclid of the same weight, uncorrected and raised by Holm's method over the "
            "column; the claims are corrected among themselves."
        ),
        paper=[
            [name, title, None, accuracy, _PAPER[name][-1] if title == "+ AMC" else None, None]
            for name in grid.names("dataset") if name in _PAPER
            for title, accuracy in zip(_TITLES, _PAPER[name][:3], strict=True)
        ],
    )  # fmt: skip


def _figure(lab: kit.Lab, grid: kit.Grid) -> kit.Figure:
    names = grid.names("dataset")
    figure, axes = panels(1, len(names), width=4.2, height=2.4)
    for ax, name in zip(axes, names, strict=True):
        titles = grid.names("loss")
        for at, title in enumerate(titles):
            values = grid.values("test", dataset=name, loss=title)
            kit.seed_dots(ax, at, values, COLOURS[at % len(COLOURS)], width=0.3)
        ax.set(title=name, ylabel="test accuracy, %" if ax is axes[0] else "")
        ax.set_xticks(range(len(titles)), titles, rotation=30, ha="right", fontsize=7)
    return lab.figure(
        figure, "accuracy",
        caption=f"Test accuracy: {kit.DOTS}.",
        alt="Points of test accuracy per loss, one panel per dataset.",
    )  # fmt: skip
