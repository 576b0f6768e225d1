"""What it costs to train on fewer examples, by what chooses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hardsight.errors import ConfigError
from hardsight.experiments import lab as kit
from hardsight.experiments.acting import _recipes as recipes
from hardsight.report.figures import COLOURS, panels
from hardsight.selection import select
from hardsight.table import ScoreTable

RANDOM, EL2N, COVERAGE, DROPPED = "random", "EL2N, hardest", "EL2N, coverage", "suspects dropped"
# options of hs.select, by the name of the method
METHODS: dict[str, dict[str, Any]] = {
    RANDOM: {"how": "random"},
    EL2N: {"by": "early_el2n", "how": "hardest"},
    "AUM, hardest": {"by": "aum", "how": "hardest"},
    "forgetting, hardest": {"by": "forgetting_events", "how": "hardest"},
    "AVH, hardest": {"by": "mean_avh", "how": "hardest"},
    COVERAGE: {"by": "early_el2n", "how": "coverage"},
    DROPPED: {"how": "random"},  # and drop_suspects, see _rows
}


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of the experiment, in addition to those of :class:`Recipe`.

    Attributes:
        kept: shares of the training examples that are kept, ascending.
        noise: shares of the labels that are made wrong.
        dropped: share of the examples that "suspects dropped" drops, if so many may go.
        methods: that choose; see ``METHODS``.
    """

    kept: tuple[float, ...] = (0.1, 0.3, 0.6)
    noise: tuple[float, ...] = (0.0, 0.2)
    dropped: float = 0.2
    methods: tuple[str, ...] = tuple(METHODS)

    def __post_init__(self) -> None:
        if not set(self.methods) <= set(METHODS):
            raise ConfigError(f"expected methods among {', '.join(METHODS)}, got {self.methods}")


def asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    """Accuracy by share and method, and what the papers say about the ends."""
    grid = kit.Grid.of(data["trials"], "noise", "kept", "method")
    tables = [
        grid.at(noise=share).table(
            f"Test accuracy, wrong labels: {recipes.noise_in_words(share)}",
            {"method": "chosen by"},
            grid.across("kept", "accuracy", {kept: f"{kept:.0%} kept" for kept in setting.kept}),
            note="In per cent, mean ± standard deviation over seeds. Accuracy with all examples: "
            f"{kit.Grid.of(data['whole'], 'noise').cell('accuracy', noise=share)}.",
        )
        for share in setting.noise
    ]
    # the network with all examples; without noise, if that was run
    whole = kit.Grid.of(data["whole"], "noise").values("accuracy", noise=min(setting.noise))
    gate = setting.gate(whole)
    return [*tables, kit.networks_table([gate])], _questions(grid, setting, gate.weak)


def _questions(grid: kit.Grid, setting: Setting, weak: str) -> list[kit.Question]:
    few, many = min(setting.kept), max(setting.kept)
    zheng, paul = "Zheng et al., ICLR 2023, Fig. 1", "Paul et al., NeurIPS 2021, Fig. 1"
    # what is said, paper, share that is kept, method, other method
    always = (
        (
            f"{few:.0%} kept: coverage of EL2N beats its hardest examples",
            zheng,
            few,
            COVERAGE,
            EL2N,
        ),
        (f"{few:.0%} kept: coverage of EL2N beats a random choice", zheng, few, COVERAGE, RANDOM),
    )
    clean = (
        f"{many:.0%} kept: the hardest by EL2N beat a random choice", paul, many, EL2N, RANDOM,
    )  # fmt: skip
    noisy = (
        f"{many:.0%} kept: a random choice without the suspects beats one among all", "ours", many,
        DROPPED, RANDOM,
    )  # fmt: skip
    return [
        grid.question(
            f"wrong labels: {recipes.noise_in_words(share)}; {says}", paper, "accuracy",
            {"noise": share, "kept": kept, "method": first},
            {"noise": share, "kept": kept, "method": second}, names=(first, second), weak=weak,
        )
        for share in setting.noise
        for says, paper, kept, first, second in (*always, noisy if share else clean)
        if {first, second} <= set(setting.methods)
    ]  # fmt: skip


@kit.experiment(
    "pruning",
    title="Training on fewer examples: accuracy by selection rule",
    reproduces="not a paper's table; after Paul et al. 2021 (EL2N) and Zheng et al. 2023 "
    "(coverage)",
    scales={
        "smoke": Setting(
            **{**recipes.SMOKE, "kept": (0.3,), "methods": (RANDOM, EL2N, COVERAGE, DROPPED)}
        ),
        "short": Setting(limit=600, epochs=10),
        "paper": Setting(
            **{**recipes.PAPER, "kept": (0.1, 0.2, 0.3, 0.5, 0.7, 0.9), "noise": (0.0, 0.2)}
        ),
    },
    asks=asks,
)
def pruning(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Keeps a share of the training examples of {on}, by several rules, and trains again.

    A network is trained on all examples while its dynamics are recorded. `hs.select` then keeps a
    share of them by one of these rules:

    - at random;
    - the hardest by early EL2N, AUM, forgetting events or mean AVH;
    - the same number from each stratum of EL2N (coverage);
    - at random, after the most suspect labels were dropped ({dropped} of all examples, if the share
      leaves room for that).

    The same network, {model}, is trained from the same seed on the examples that were kept, with as
    many steps as on the whole ({epochs} epochs of {limit} examples), and tested once. Labels of the
    test split are never made wrong.
    """
    trials, whole = [], []
    runs = len(setting.noise) * len(setting.seeds)
    with lab.progress("sets of labels", runs) as advance:
        for share in setting.noise:
            for seed in setting.seeds:
                lab.step(recipes.noise_told(share, seed))
                all_of_it, kept = _trial(lab, setting, share, seed)
                where = {"noise": share, "seed": seed}
                whole.append({**where, "accuracy": all_of_it})
                trials += [{**where, **row} for row in kept]
                advance(1)
    data = {"trials": trials, "whole": whole}
    return kit.Result(figures=[_figure(lab, setting, data)], data=data)


def _trial(
    lab: kit.Lab, setting: Setting, share: float, seed: int
) -> tuple[float, list[dict[str, Any]]]:
    """Accuracy with all examples, and a row for every method and share that is kept."""
    source, test = recipes.splits(lab, setting)
    noisy = recipes.with_noise(source, share, seed)
    first = recipes.trained(
        lab, setting, noisy, seed=seed, whole=len(noisy), track=True, thumbnails=0
    )
    assert first.dynamics is not None
    rows = []
    for method in setting.methods:
        for kept in setting.kept:
            chosen = noisy.subset(_rows(first.dynamics, setting, method, kept, seed))
            run = recipes.trained(lab, setting, chosen, seed=seed, whole=len(noisy))
            rows.append(
                {"method": method, "kept": kept, "accuracy": recipes.accuracy(lab, run, test)}
            )
    return recipes.accuracy(lab, first, test), rows


def _rows(table: ScoreTable, setting: Setting, method: str, kept: float, seed: int) -> Any:
    suspects = min(setting.dropped, 1 - kept) if method == DROPPED else 0.0
    return select(table, keep=kept, seed=seed, drop_suspects=suspects, **METHODS[method])


def _figure(lab: kit.Lab, setting: Setting, data: Mapping[str, Any]) -> kit.Figure:
    """Accuracy against the share kept; a panel per share of wrong labels."""
    grid = kit.Grid.of(data["trials"], "noise", "kept", "method")
    whole = kit.Grid.of(data["whole"], "noise")
    figure, axes = panels(1, len(setting.noise), width=4.0, ylabel="test accuracy, %")
    for axis, share in zip(axes, setting.noise, strict=True):
        for method, colour in zip(setting.methods, COLOURS, strict=False):
            curves = [
                grid.values("accuracy", noise=share, kept=kept, method=method)
                for kept in setting.kept
            ]
            at = [100 * kept for kept in setting.kept]
            kit.band(axis, at, list(zip(*curves, strict=True)), colour, method, marker="o",
                     markersize=3)  # fmt: skip
        values = whole.values("accuracy", noise=share)
        axis.axhline(sum(values) / len(values), color="#1f1f1f", linestyle="--", label="all")
        axis.set(title=f"wrong labels: {recipes.noise_in_words(share)}", xlabel="examples kept, %")
    return lab.figure(
        figure, "pruning",
        caption=f"Test accuracy against the share of examples kept; {kit.BANDS}. Dashed: all kept.",
        alt=f"Curves of test accuracy for {', '.join(setting.methods)}.",
    )  # fmt: skip
