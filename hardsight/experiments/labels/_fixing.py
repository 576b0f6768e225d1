"""What fixing labels is worth: plant errors, review the suspects, retrain, measure."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight._checks import require
from hardsight.data import MemorySource, open_source, with_label_errors
from hardsight.errors import ConfigError
from hardsight.exchange import patch_of
from hardsight.experiments import lab as kit
from hardsight.experiments.labels._errors import KINDS, partners, trained
from hardsight.experiments.labels._reviewer import review_from_truth
from hardsight.patch import read_patch, write_patch
from hardsight.report.figures import COLOURS, panels
from hardsight.run.train import TrainResult
from hardsight.table import DYNAMICS

# what is trained on, by what was done to the noisy labels
NOISY, RANDOM, FIXED, CLEAN = "as planted", "random review", "suspects reviewed", "no errors"
LABELS = (NOISY, RANDOM, FIXED, CLEAN)
_RANDOM_DRAW = 0x2E71E3  # of the examples that a review at random looks at


@dataclass(frozen=True)
class Setting:
    """Keys of the experiment.

    Attributes:
        dataset: to plant errors in.
        kinds: of noise, ``symmetric`` or ``pairs``.
        share: of the labels that are made wrong.
        reviewed: how many suspects are looked at.
        limit: take so many training examples; all by default.
        test_limit: take so many test examples; all by default.
        epochs: of training.
        model: to train.
        batch_size: of training.
        lr: largest learning rate.
        seeds: of the errors, the weights and the order.
    """

    dataset: str = "cifar10"
    kinds: tuple[str, ...] = KINDS
    share: float = 0.2
    reviewed: int = 1000
    limit: int | None = 10_000
    test_limit: int | None = None
    epochs: int = 10
    model: str = "small_cnn"
    batch_size: int = 128
    lr: float = 0.005
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    @property
    def percent(self) -> str:
        """The share of wrong labels in words."""
        return f"{self.share:.0%}"

    @property
    def on(self) -> str:
        """The data in words."""
        return kit.DATASETS.get(self.dataset, self.dataset)

    def __post_init__(self) -> None:
        if not set(self.kinds) <= set(KINDS):
            raise ConfigError(f"expected kinds among {', '.join(KINDS)}, got {self.kinds}")


def asks(setting: Any, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    """The table of accuracies, and whether a review pays."""
    grid = kit.Grid.of(data["trials"], "kind", "labels")
    kinds = grid.names("kind")
    rows: list[list[kit.Cell]] = [
        [kind, labels, grid.cell("accuracy", kind=kind, labels=labels)]
        + [_count(grid, what, kind, labels) for what in ("wrong", "found")]
        for kind in kinds
        for labels in LABELS
    ]
    table = kit.Table(
        "Accuracy before and after",
        ("noise", "labels", "test accuracy, %", "labels still wrong", "errors found"),
        rows,
        note=f"{len(setting.seeds)} seeds; ± is the standard deviation over seeds. Errors found "
        f"are those among the {setting.reviewed:,} examples that were reviewed."
        + _limits(setting, grid),
    )
    pairs = {}
    for kind in kinds:
        values = {labels: grid.values("accuracy", kind=kind, labels=labels) for labels in LABELS}
        pairs[kind, "gain"] = (values[FIXED], values[NOISY])
        pairs[kind, "choice"] = (values[FIXED], values[RANDOM])
        pairs[kind, "rest"] = (values[CLEAN], values[FIXED])
    found = kit.compared_in_pairs(pairs)
    compared = kit.Table(
        "Paired differences of test accuracy, in points",
        ("noise", "suspects reviewed - as planted", "suspects reviewed - random review",
         "no errors - suspects reviewed"),
        [[kind, *(str(found[kind, what]) for what in ("gain", "choice", "rest"))]
         for kind in kinds],
        note="Mean over seeds, 95 % t-interval in brackets, p-values raised by Holm's method for "
        "all comparisons of this page.",
    )  # fmt: skip
    claims = [
        kit.Claim(
            f"{kind} noise: fixing the labels of the first {setting.reviewed:,} suspects makes the "
            "next network better",
            "ours",
            f"{found[kind, 'gain']} points of test accuracy",
            found[kind, "gain"].is_above,
        )
        for kind in kinds
    ] + [
        kit.Claim(
            f"{kind} noise: reviewing suspects is better than reviewing as many random examples",
            "ours",
            f"{found[kind, 'choice']} points of test accuracy",
            found[kind, "choice"].is_above,
        )
        for kind in kinds
    ]
    return [table, compared], claims


def _limits(setting: Any, grid: kit.Grid) -> str:
    """How far the network is from a good one, in words; empty if nobody has measured a good one."""
    good = kit.GOOD.get(f"{setting.dataset}/resnet18")
    if good is None or setting.model == "resnet18":
        return ""
    best = max(
        float(np.mean(grid.values("accuracy", kind=kind, labels=CLEAN)))
        for kind in grid.names("kind")
    )
    return (
        f" The network is far from a good one: without errors, {setting.model} reaches "
        f"{best:.1f} % here, and ResNet-18 on all pictures reaches {good.accuracy:g} %. The page "
        "therefore shows what fixed labels are worth to this network, not to a good one."
    )


def _count(grid: kit.Grid, what: str, kind: str, labels: str) -> str:
    """A count over seeds in words; nothing if there is none."""
    values = grid.values(what, kind=kind, labels=labels)
    if not np.isfinite(values).all():
        return ""
    spread = f" ± {np.std(values, ddof=1):.0f}" if np.ptp(values) else ""
    return f"{np.mean(values):,.0f}{spread}"


@kit.experiment(
    "label-fixing",
    title="What fixing labels is worth: review the suspects, retrain, measure",
    reproduces="not from a paper; the whole workflow of hardsight",
    scales={
        "smoke": Setting(
            dataset="builtin:digits", kinds=("symmetric",), reviewed=20, limit=120, test_limit=100,
            epochs=2, batch_size=32, seeds=(0, 1),
        ),
        "short": Setting(),
    },
    asks=asks,
)  # fmt: skip
def label_fixing(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Closes the loop: planted errors are found, reviewed, fixed, and trained on again.

    {percent} of the labels of {limit} training images of {on} are made wrong, either at random
    (symmetric noise) or swapped between classes that look alike (pairs). A network is trained on
    them while its dynamics are recorded. A script that knows the truth then answers in the review
    app, over HTTP, for the first {reviewed} suspects: it keeps the label or gives the right one.
    The decisions are exported as a patch, read back, and applied to the noisy data. The same
    network is then trained again from the same seed.

    This is compared with reviewing the same number of random examples, and with labels without
    errors. Accuracy is measured on test images whose labels nobody touched. The network is {model},
    {epochs} epochs.
    """
    for module in ("starlette", "uvicorn", "duckdb"):
        require(module, extra="app", feature="the experiment label-fixing")
    cases = product(setting.kinds, setting.seeds)
    trial = partial(_trial, lab, setting)
    trials = lab.trials("reviews", cases, trial, told="{} noise, seed {}".format)
    return kit.Result(figures=[_figure(lab, trials)], data={"trials": trials})


def _trial(lab: kit.Lab, setting: Setting, kind: str, seed: int) -> list[dict[str, Any]]:
    """One set of planted errors, and a network for each state of its labels."""
    source = lab.source(setting.dataset, "train", limit=setting.limit)
    test = lab.source(setting.dataset, "test", limit=setting.test_limit)
    truth, classes = source.labels, len(source.classes)
    labels, wrong = with_label_errors(
        truth, num_classes=classes, share=setting.share, seed=seed,
        towards=None if kind == "symmetric" else partners(setting.dataset, classes),
    )  # fmt: skip
    noisy = source.relabelled(labels)
    training = partial(trained, lab, setting, epochs=setting.epochs, seed=seed)
    first = training(noisy, track=True)
    draw = np.random.default_rng([seed, _RANDOM_DRAW])
    some = draw.choice(len(labels), min(setting.reviewed, len(labels)), replace=False)
    at_random = labels.copy()
    at_random[some] = truth[some]
    states = {
        NOISY: labels,
        RANDOM: at_random,
        FIXED: _reviewed(first, noisy, truth, setting.reviewed),
        CLEAN: truth,
    }
    rows = []
    for name, state in states.items():
        run = first if name == NOISY else training(noisy.relabelled(state))
        still_wrong = int((state != truth).sum())
        rows.append({
            "kind": kind, "labels": name, "seed": seed,
            "accuracy": 100 * lab.outputs(run, test).accuracy, "wrong": float(still_wrong),
            "found": float(wrong.sum() - still_wrong) if name in (RANDOM, FIXED) else None,
        })  # fmt: skip
    return rows


def _reviewed(
    run: TrainResult, noisy: MemorySource, truth: NDArray[np.int64], most: int
) -> NDArray[np.int64]:
    """The labels after a review of the suspects, by way of the app, a patch and a file."""
    with tempfile.TemporaryDirectory(prefix="hardsight-review-") as folder:
        # a copy, since a run that is used again must not have been reviewed already
        shutil.copy(run.folder / DYNAMICS, Path(folder) / DYNAMICS)
        review_from_truth(Path(folder), truth, most)
        file = write_patch(patch_of(folder), Path(folder) / "patch.csv")
        fixed = open_source(noisy, patch=read_patch(file))
    return fixed.labels


def _figure(lab: kit.Lab, trials: list[dict[str, Any]]) -> kit.Figure:
    """Accuracy for each state of the labels; a line is a seed."""
    kinds = list(dict.fromkeys(trial["kind"] for trial in trials))
    figure, axes = panels(1, len(kinds), width=3.6, height=2.8)
    for ax, kind in zip(axes, kinds, strict=True):
        rows = [trial for trial in trials if trial["kind"] == kind]
        by_seed = {
            seed: [next(r["accuracy"] for r in rows if (r["seed"], r["labels"]) == (seed, name))
                   for name in LABELS]
            for seed in dict.fromkeys(row["seed"] for row in rows)
        }  # fmt: skip
        for values in by_seed.values():
            ax.plot(range(len(LABELS)), values, "-", color=COLOURS[0], alpha=0.35, linewidth=1)
        means = np.mean(list(by_seed.values()), axis=0)
        ax.plot(range(len(LABELS)), means, "o", color=COLOURS[1], markersize=6)
        ax.set(title=f"{kind} noise", ylabel="test accuracy, %")
        ax.set_xticks(range(len(LABELS)), [name.replace(" ", "\n") for name in LABELS])
    return lab.figure(
        figure, "label-fixing",
        caption="Test accuracy by what was done to the labels that the network learns from; a "
        "line is a seed, a dot the mean over seeds.",
        alt=f"Test accuracy of networks that learned labels in four states: {', '.join(LABELS)}.",
    )  # fmt: skip
