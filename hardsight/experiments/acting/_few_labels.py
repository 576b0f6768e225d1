"""Few labels within one domain: self-training on the rest, by every rule of ``adapt``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from hardsight.errors import ConfigError
from hardsight.experiments import lab as kit
from hardsight.experiments.acting import _recipes as recipes
from hardsight.report.figures import COLOURS, panels
from hardsight.run.adapt import ADAPT_RULES, AdaptResult, adapt
from hardsight.run.score import score

FEW, ALL = "source-only", "all labels"
_CBST, _AVH, _CONTROL = "cbst", "cbst+avh", "bn-only"


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of the experiment, in addition to those of :class:`Recipe`.

    Attributes:
        labels: how many examples have one, the same number of every class.
        rules: of ``hs.adapt``; ``source-only`` is the few labels alone.
        rounds: of select and retrain.
        round_epochs: of training in a round.
        round_lr: learning rate of a round.
        portion: share of each class that is selected in the first round.
        portion_step: added in each later round.
        portion_max: largest portion.
    """

    labels: int = 40
    rules: tuple[str, ...] = (FEW, _CONTROL, "threshold", _CBST, _AVH)
    rounds: int = 4
    round_epochs: int = 2
    round_lr: float = 0.002
    portion: float = 0.3
    portion_step: float = 0.2
    portion_max: float = 0.9

    def __post_init__(self) -> None:
        if not set(self.rules) <= set(ADAPT_RULES):
            raise ConfigError(f"expected rules among {', '.join(ADAPT_RULES)}, got {self.rules}")


def asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    """Accuracy by rule; does self-training help, and which rule helps most?"""
    grid = kit.Grid.of(data["trials"], "rule")
    table = grid.table(
        "Test accuracy",
        {"rule": "rule"},
        {
            "test accuracy, %": "accuracy",
            "accuracy on the examples without labels, %": _rest,
        },
        note=f"Mean ± standard deviation over seeds. {FEW} uses the {setting.labels:,} labels "
        f"alone, and all rules start from it. {_CONTROL} takes the same steps as a rule but gives "
        f"the rest no labels, so that only the statistics of batch normalisation change.",
    )
    # what is said, paper, rule, other rule
    asked = (
        ("self-training (CBST) improves on the few labels alone", "ours", _CBST, FEW),
        ("self-training (CBST) improves on the same steps without labels", "ours", _CBST, _CONTROL),
        ("selection by angles (CBST+AVH) is better than by probabilities (CBST)",
         "81.5 against 76.4 between domains, AVH Table 3", _AVH, _CBST),
        ("a separate threshold for each class (CBST) is better than one threshold for all",
         "ours", _CBST, "threshold"),
    )  # fmt: skip
    gate = setting.gate(grid.values("accuracy", rule=ALL))
    questions: list[kit.Question] = [
        grid.question(says, paper, "accuracy", {"rule": rule}, {"rule": other}, weak=gate.weak)
        for says, paper, rule, other in asked
        if {rule, other} <= set(setting.rules)
    ]
    return [table, kit.networks_table([gate])], questions


def _rest(runs: kit.Grid, rule: str) -> kit.Cell:
    """Accuracy on the rest; with all labels there is no rest, and no run of it was lost."""
    return None if rule == ALL else runs.cell("unlabelled")


@kit.experiment(
    "few-labels",
    title="Few labels, many pictures: self-training within one domain",
    reproduces="not a paper's table; the rules are those of AVH, section 5.1",
    scales={
        "smoke": Setting(
            limit=300, test_limit=100, epochs=2, labels=40, rules=(FEW, _CBST), rounds=1,
            seeds=(0, 1),
        ),
        "short": Setting(limit=600, seeds=(0, 1, 2, 3, 4)),
        "paper": Setting(
            **{**recipes.PAPER, "labels": 4000, "rounds": 5, "round_epochs": 10, "round_lr": 0.02}
        ),
    },
    asks=asks,
)  # fmt: skip
def few_labels(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Learns {on} from {labels} labels and the pictures of all other examples.

    The labelled examples are drawn at random, the same number from every class. {model} is trained
    on them, with as many steps as {epochs} epochs over the whole training split. Every rule starts
    from this network. In each of {rounds} rounds, the network predicts the examples without labels,
    the rule selects a growing portion of each class (from {portion} by {portion_step}), and the
    network is trained on both.

    The other labels are read for the column that says so, and by no rule. "all labels" is the same
    network trained on the whole split. The model of the last round is tested once.
    """
    cases = [(seed,) for seed in setting.seeds]
    trial = partial(_trial, lab, setting)
    trials = lab.trials("draws of labels", cases, trial, told="seed {}".format)
    return kit.Result(figures=[_figure(lab, setting, trials)], data={"trials": trials})


def _trial(lab: kit.Lab, setting: Setting, seed: int) -> list[dict[str, Any]]:
    source, test = recipes.splits(lab, setting)
    few = labelled_rows(source.labels, setting.labels, seed)
    done = _adapted(lab, setting, source, few, seed)
    rows = []
    for rule, run in done.runs.items():
        table = score(
            run.folder, test, scores="logit_margin", device=str(lab.device), show_progress=False
        )
        right = np.mean(table.column("prediction") == table.column("label"))
        last = run.rounds[-1]["evaluation"]["accuracy"]
        rows.append({"rule": rule, "accuracy": 100 * float(right), "unlabelled": 100 * last})
    whole = recipes.trained(lab, setting, source, seed=seed, whole=len(source))
    rows.append({"rule": ALL, "accuracy": recipes.accuracy(lab, whole, test), "unlabelled": None})
    return [{"seed": seed, **row} for row in rows]


def labelled_rows(labels: np.ndarray[Any, Any], count: int, seed: int) -> np.ndarray[Any, Any]:
    """Positions of the examples that keep their labels, the same number of every class.

    Example:
        >>> rows = labelled_rows(np.repeat([0, 1], 50), 6, seed=0)
        >>> np.bincount(np.repeat([0, 1], 50)[rows]).tolist()
        [3, 3]
    """
    classes = np.unique(labels)
    if count % len(classes):
        raise ConfigError(
            f"expected labels to be a multiple of the {len(classes)} classes, got {count}"
        )
    order = np.random.default_rng([seed, *b"few"]).permutation(len(labels))
    each = count // len(classes)
    chosen = [order[labels[order] == label][:each] for label in classes.tolist()]
    return np.sort(np.concatenate(chosen))


def _adapted(
    lab: kit.Lab, setting: Setting, source: Any, few: np.ndarray[Any, Any], seed: int
) -> AdaptResult:
    rest = np.setdiff1d(np.arange(len(source)), few)
    optimizer = {"name": setting.optimizer}
    epochs = max(1, round(setting.epochs * len(source) / len(few)))
    settings: dict[str, Any] = {
        "rule": setting.rules,
        "rounds": setting.rounds,
        "portion": setting.portion,
        "portion_step": setting.portion_step,
        "portion_max": setting.portion_max,
        "pretrain": {"epochs": epochs, "optimizer": {**optimizer, "lr": setting.lr},
                     "schedule": "one_cycle"},
        "retrain": {"epochs": setting.round_epochs,
                    "optimizer": {**optimizer, "lr": setting.round_lr}, "schedule": "one_cycle"},
        "batch_size": min(setting.batch_size, len(few)),
        "augment": {"crop_padding": setting.crop_padding, "flip": setting.flip},
        "seed": seed,
        "examples": 0,
    }  # fmt: skip
    key = [asdict(setting), settings, source.fingerprint(), few.tolist()]
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return adapt(
        setting.model, {"name": source.subset(few), "validation": 0.0}, source.subset(rest),
        out=lab.runs / f"few-{digest}", device=str(lab.device), keep_models=False, resume=True,
        show_progress=lab.show, **settings,
    )  # fmt: skip


def _figure(lab: kit.Lab, setting: Setting, trials: list[dict[str, Any]]) -> kit.Figure:
    grid = kit.Grid.of(trials, "rule")
    rules = (*setting.rules, ALL)
    figure, (axis,) = panels(width=5.0, height=3.0, ylabel="test accuracy, %")
    for place, rule in enumerate(rules):
        values = grid.values("accuracy", rule=rule)
        kit.seed_dots(axis, place, values, COLOURS[place % len(COLOURS)], width=0.25)
    axis.set_xticks(range(len(rules)), [rule.replace("-", "-\n", 1) for rule in rules])
    return lab.figure(
        figure, "few-labels",
        caption=f"Test accuracy with {setting.labels:,} labels and the pictures of the rest, by "
        f"rule, and with all labels; {kit.DOTS}.",
        alt=f"Dots of test accuracy for {', '.join(rules)}.",
    )  # fmt: skip
