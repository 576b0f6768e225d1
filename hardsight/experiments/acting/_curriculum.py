"""Whether the order of examples matters: curricula against uniform draws, at equal steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from hardsight.errors import ConfigError
from hardsight.experiments import lab as kit
from hardsight.experiments.acting import _recipes as recipes
from hardsight.report.figures import COLOURS, panels
from hardsight.run.train import TrainResult

UNIFORM = "uniform"
ORDERS = ("easy_first", "hard_first", "weighted", "self_paced")
_WORDS = {
    "easy_first": "a curriculum (easy first)", "hard_first": "an anti-curriculum (hard first)",
    "weighted": "drawing hard examples more often", "self_paced": "self-paced learning",
}  # fmt: skip


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of the experiment, in addition to those of :class:`Recipe`.

    Attributes:
        noise: shares of the labels that are made wrong.
        orders: of ``sampling.order``.
        start: share of the examples in the first epoch.
        power: of ``weighted``.
    """

    noise: tuple[float, ...] = (0.0, 0.4)
    orders: tuple[str, ...] = ORDERS
    start: float = 0.3
    power: float = 1.0

    def __post_init__(self) -> None:
        if not set(self.orders) <= set(ORDERS):
            raise ConfigError(f"expected orders among {', '.join(ORDERS)}, got {self.orders}")


def asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    """Accuracy by order and noise; is any order better than none?"""
    grid = kit.Grid.of(data["trials"], "order", "noise")
    table = grid.table(
        "Test accuracy after equal steps",
        {"order": "order"},
        grid.across(
            "noise", "accuracy",
            {share: f"wrong labels: {recipes.noise_in_words(share)}" for share in setting.noise},
        ),
        note="In per cent, mean ± standard deviation over seeds.",
    )  # fmt: skip
    gate = setting.gate(grid.values("accuracy", order=UNIFORM, noise=min(setting.noise)))
    questions = [
        grid.question(
            f"wrong labels: {recipes.noise_in_words(share)}; "
            f"{_WORDS[order]} is better than uniform draws",
            "Bengio et al., ICML 2009, and Kumar et al., NeurIPS 2010, on other tasks"
            if order in ("easy_first", "self_paced") else "ours",
            "accuracy", {"order": order, "noise": share}, {"order": UNIFORM, "noise": share},
            weak=gate.weak,
        )
        for share in setting.noise
        for order in setting.orders
    ]  # fmt: skip
    return [table, kit.networks_table([gate])], questions


@kit.experiment(
    "curriculum",
    title="Learning in an order: curricula against uniform draws at equal steps",
    reproduces="not a paper's table; after Bengio et al. 2009 and Kumar et al. 2010",
    scales={
        "smoke": Setting(**{**recipes.SMOKE, "orders": ("easy_first", "self_paced")}),
        "short": Setting(limit=600, epochs=10),
        "paper": Setting(**recipes.PAPER),
    },
    asks=asks,
)
def curriculum(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Trains the same network on {on} with its examples in several orders.

    A first network sees every example once per epoch while its dynamics are recorded. Its mean AVH
    determines the order for the next networks:

    - easy first: the easiest {start} of the examples first, and a share that grows to all of them
      by half of the epochs;
    - hard first: the same from the hardest end;
    - weighted: every example with a chance that depends on the rank of its hardness (power
      {power});
    - self-paced learning, which goes by what its own tracker saw an epoch before.

    All have the same number of draws per epoch, the same recipe ({model}, {epochs} epochs) and the
    same seeds, and are tested once. With noise, labels are made wrong at random, and the first
    network learns from the same wrong labels.
    """
    cases = product(setting.noise, setting.seeds)
    trial = partial(_trial, lab, setting)
    trials = lab.trials("sets of labels", cases, trial, told=recipes.noise_told)
    return kit.Result(figures=[_figure(lab, setting, trials)], data={"trials": trials})


def _trial(lab: kit.Lab, setting: Setting, share: float, seed: int) -> list[dict[str, Any]]:
    source, test = recipes.splits(lab, setting)
    noisy = recipes.with_noise(source, share, seed)

    def run(**more: Any) -> TrainResult:
        return recipes.trained(lab, setting, noisy, seed=seed, whole=len(noisy), **more)

    tracked = {"track": True, "thumbnails": 0}
    first = run(**tracked)
    runs = {UNIFORM: first}
    for order in setting.orders:
        sampling = _sampling(setting, order, str(first.folder))
        runs[order] = run(sampling=sampling, **(tracked if order == "self_paced" else {}))
    return [
        {
            "order": order,
            "noise": share,
            "seed": seed,
            "accuracy": recipes.accuracy(lab, done, test),
        }
        for order, done in runs.items()
    ]


def _sampling(setting: Setting, order: str, table: str) -> dict[str, Any]:
    """The table ``[sampling]`` of a recipe."""
    pace = {"start": setting.start, "full_epoch": max(1, setting.epochs // 2)}
    if order == "self_paced":
        return {"order": order, "by": "avh", **pace}
    more = {"power": setting.power} if order == "weighted" else pace
    return {"order": order, "by": "mean_avh", "table": table, **more}


def _figure(lab: kit.Lab, setting: Setting, trials: list[dict[str, Any]]) -> kit.Figure:
    grid = kit.Grid.of(trials, "order", "noise")
    orders = (UNIFORM, *setting.orders)
    figure, axes = panels(1, len(setting.noise), width=4.0, ylabel="test accuracy, %")
    for axis, share in zip(axes, setting.noise, strict=True):
        for place, order in enumerate(orders):
            values = grid.values("accuracy", order=order, noise=share)
            kit.seed_dots(axis, place, values, COLOURS[place % len(COLOURS)], width=0.25)
        axis.set(title=f"wrong labels: {recipes.noise_in_words(share)}")
        axis.set_xticks(range(len(orders)), [name.replace("_", "\n") for name in orders])
    return lab.figure(
        figure, "curriculum",
        caption=f"Test accuracy by the order of the examples, at equal steps; {kit.DOTS}.",
        alt=f"Dots of test accuracy for the orders {', '.join(orders)}.",
    )  # fmt: skip
