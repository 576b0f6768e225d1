"""Which examples to label next: rules of the queue against a random choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.errors import ConfigError
from hardsight.experiments import lab as kit
from hardsight.experiments.acting import _recipes as recipes
from hardsight.report.figures import COLOURS, panels
from hardsight.run.queue import RULES, queue

RANDOM = "random"


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of the experiment, in addition to those of :class:`Recipe`.

    Attributes:
        begin: labels to begin with, drawn at random.
        budget: labels that every round adds.
        rounds: of asking for labels.
        rules: of ``hs.queue``.
    """

    begin: int = 50
    budget: int = 50
    rounds: int = 4
    rules: tuple[str, ...] = RULES

    def __post_init__(self) -> None:
        if not set(self.rules) <= set(RULES):
            raise ConfigError(f"expected rules among {', '.join(RULES)}, got {self.rules}")
        if RANDOM not in self.rules:
            raise ConfigError(f"expected {RANDOM!r} among the rules, to compare with")

    @property
    def counts(self) -> tuple[int, ...]:
        """Labels that a network learns from, from the start to the last round."""
        return tuple(self.begin + at * self.budget for at in range(self.rounds + 1))


def asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    """Accuracy by rule and number of labels; is a rule better than chance on the way?"""
    grid = kit.Grid.of(data["trials"], "rule", "labels")
    # the networks before the first question are the same ones
    asked = grid.only(labels=setting.counts[1:]).mean_over("labels")
    table = grid.table(
        "Test accuracy by the number of labels",
        {"rule": "rule"},
        {
            **grid.across("labels", "accuracy", {count: f"{count:,}" for count in setting.counts}),
            "mean of all rounds": lambda _, rule: asked.cell("accuracy", rule=rule),
        },
        note=f"In per cent, mean ± standard deviation over seeds. All rules begin with the same "
        f"{setting.begin:,} labels and network, which the mean leaves out.",
    )
    questions = [
        asked.question(
            f"asking by {rule} is better than asking at random, averaged over the rounds", "ours",
            "accuracy", {"rule": rule}, {"rule": RANDOM},
        )
        for rule in setting.rules
        if rule != RANDOM
    ]  # fmt: skip
    return [table], questions


@kit.experiment(
    "active",
    title="Labelling next: rules of the queue against a random choice",
    reproduces="not a paper's table; coverage after Sener and Savarese 2018",
    scales={
        "smoke": Setting(
            limit=200, test_limit=100, epochs=2, begin=30, budget=20, rounds=1,
            rules=("margin", "coverage", RANDOM), seeds=(0, 1),
        ),
        "short": Setting(limit=600, begin=30, budget=30, seeds=(0, 1, 2, 3, 4)),
        "paper": Setting(**{**recipes.PAPER, "begin": 1000, "budget": 1000, "rounds": 6}),
    },
    asks=asks,
)  # fmt: skip
def active(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Asks for the labels of {on} in rounds, with every rule of `hs.queue`.

    All rules begin with the same {begin} labelled examples, drawn at random, and the network
    trained on them. Each of {rounds} rounds works as follows: the network looks at the examples
    that have no label yet, the rule names {budget} of them, their true labels are added, and
    {model} is trained again from the start. Training always takes as many steps as {epochs} epochs
    of the whole training split.

    No rule balances the classes. Every network is tested once. Labels of the pool are read only if
    a rule asked for them.
    """
    cases = [(rule, seed) for seed in setting.seeds for rule in setting.rules]
    trial = partial(_trial, lab, setting)
    trials = lab.trials("pools", cases, trial, told="{}, seed {}".format)
    return kit.Result(figures=[_figure(lab, setting, trials)], data={"trials": trials})


def _trial(lab: kit.Lab, setting: Setting, rule: str, seed: int) -> list[dict[str, Any]]:
    source, test = recipes.splits(lab, setting)
    draw = np.random.default_rng([seed, *b"active"])
    known: NDArray[np.int64] = np.sort(draw.permutation(len(source))[: setting.begin])
    rows = []
    for count in setting.counts:
        run = recipes.trained(lab, setting, source.subset(known), seed=seed, whole=len(source))
        reached = recipes.accuracy(lab, run, test)
        rows.append({"rule": rule, "labels": count, "seed": seed, "accuracy": reached})
        if count < setting.counts[-1]:
            rest = np.setdiff1d(np.arange(len(source)), known)
            asked = queue(
                run.folder, source.subset(rest), budget=setting.budget, by=rule, seed=seed,
                device=str(lab.device), show_progress=False,
            )  # fmt: skip
            known = np.union1d(known, rest[asked.column("index")])
    return rows


def _figure(lab: kit.Lab, setting: Setting, trials: list[dict[str, Any]]) -> kit.Figure:
    grid = kit.Grid.of(trials, "rule", "labels")
    figure, (axis,) = panels(width=5.0, height=3.2)
    for rule, colour in zip(setting.rules, COLOURS, strict=False):
        curves = [grid.values("accuracy", rule=rule, labels=count) for count in setting.counts]
        style = {"linestyle": "--"} if rule == RANDOM else {}
        kit.band(axis, setting.counts, list(zip(*curves, strict=True)), colour, rule, marker="o",
                 markersize=3, **style)  # fmt: skip
    axis.set(xlabel="labelled examples", ylabel="test accuracy, %")
    return lab.figure(
        figure, "active",
        caption=f"Test accuracy against the number of labels, by the rule that asks; {kit.BANDS}.",
        alt=f"Curves of test accuracy for {', '.join(setting.rules)}.",
    )  # fmt: skip
