"""The claims of ``avh-dynamics``: Observations 1 to 4, and shortcuts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hardsight.experiments import lab as kit
from hardsight.experiments.avh._models import agreement_of_networks, say
from hardsight.run import study
from hardsight.run.study import LEARNED_ACCURACY, Curves, RunDynamics, observations
from hardsight.stats import Correlation, correlation_interval

Runs = dict[str, list[RunDynamics]]
STORED = ("overall", "by_frequency", "spearman_with_frequency")  # of each network and seed
SETTLED = {"avh": "AVH", "correct": "accuracy", "loss": "loss", "norm": "norm"}
SETTLES = "no more than 10 % of the change from first to last is left"
_SHORTCUTS = ("resnet18", "resnet50", "densenet121")


def stored_runs(data: Mapping[str, Any]) -> tuple[Runs, list[RunDynamics]]:
    """The runs of every network, and those of the small one, from the data of a result."""
    runs = {}
    for model in data["overall"]:
        of_seeds = zip(*(data[key][model] for key in STORED), strict=True)
        runs[model] = [_stored(*parts) for parts in of_seeds]
    return runs, [_stored(run, {}, {}) for run in data["digits"]]


def _stored(
    means: Mapping[str, Sequence[float]],
    by_frequency: Mapping[str, Mapping[str, Any]],
    people: Mapping[str, Sequence[float]],
) -> RunDynamics:
    """A run as far as its file has it: without spreads over examples, and without p-values."""
    groups = tuple(
        Curves(group, int(part["n"]), {key: tuple(part[key]) for key in means}, {})
        for group, part in by_frequency.items()
    )
    n = sum(group.n for group in groups)

    def stored(value: float) -> Correlation:
        low, high = correlation_interval(value, n)
        return Correlation(value, low, high, n, 0.95, "analytic", p=math.nan, method="spearman")

    return RunDynamics(
        name="",
        epochs=len(means["avh"]),
        overall=Curves("all", n, {key: tuple(curve) for key, curve in means.items()}, {}),
        groups=groups,
        settled={key: study.settled_epoch(curve) for key, curve in means.items()},
        human={key: tuple(stored(value) for value in values) for key, values in people.items()},
    )


def dynamics_claims(
    runs: Runs,
    digits: Sequence[RunDynamics],
    *,
    who: str,
    dataset: str,
    weak: tuple[str, str] = ("", ""),
) -> list[kit.Question | kit.Claim]:
    """Observations 1 to 4 of the networks and 1 and 2 of the small one; networks with shortcuts.

    Args:
        runs: of each network, one per seed.
        digits: of the small network.
        who: the annotators, in words.
        dataset: of the small network.
        weak: why the networks, and the small one, are too weak to judge by; empty if they are not.
    """
    every = [run for of_seeds in runs.values() for run in of_seeds]
    small = f"SmallCNN on {kit.DATASETS.get(dataset, dataset)}: "
    watched = [*_rise_and_plateau(every, "", "Figs. 4, 10, 13"), _people(every, who), _better(runs)]
    return [
        *(kit.gated(claim, weak[0]) for claim in watched),
        replace(_shortcuts(runs), weak=weak[0]),
        *(kit.gated(claim, weak[1]) for claim in _rise_and_plateau(digits, small, "Fig. 15")),
    ]


def _rise_and_plateau(runs: Sequence[RunDynamics], which: str, paper: str) -> list[kit.Claim]:
    """Observations 1 and 2: each run is judged by itself."""
    rises, plateaus = zip(*(observations([run])[:2] for run in runs), strict=True)
    return [
        kit.Claim.of_runs(which + each[0].says, paper, seen, [claim.holds for claim in each])
        for each, seen in ((rises, _counted_rise(runs)), (plateaus, _counted_plateau(runs)))
    ]


def _counted_rise(runs: Sequence[RunDynamics]) -> str:
    norms = [run.overall.means["norm"] for run in runs]
    ratios = [norm[-1] / norm[0] if norm[0] else np.nan for norm in norms]
    steps = np.concatenate([np.diff(norm) > 0 for norm in norms])
    larger = sum(ratio > 1 for ratio in ratios)
    rising = sum(observations([run])[0].holds is True for run in runs)
    return (
        f"the mean norm rises with the epoch (Spearman, p < 0.05) in {rising} of {len(runs)} runs "
        f"and from one epoch to the next in {steps.sum()} of {len(steps)} steps; last over first "
        f"epoch: {np.nanmin(ratios):.2f} to {np.nanmax(ratios):.2f}, larger than 1 in {larger}"
    )


def _counted_plateau(runs: Sequence[RunDynamics]) -> str:
    at = {key: np.array([run.settled[key] for run in runs]) for key in SETTLED}
    earlier = int((at["avh"] < np.maximum(at["correct"], at["loss"])).sum())
    said = ", ".join(f"{title} {at[key].mean():.1f}" for key, title in SETTLED.items())
    # what accuracy and norm gain from the epoch on in which AVH has settled
    last, then = (
        np.array([[means["correct"][epoch], means["norm"][epoch]] for means, epoch in places]).T
        for places in (
            [(run.overall.means, -1) for run in runs],
            [(run.overall.means, run.settled["avh"] - 1) for run in runs],
        )
    )
    points, shares = 100 * (last[0] - then[0]), 100 * (last[1] / then[1] - 1)
    return (
        f"AVH settles before accuracy or loss in {earlier} of {len(runs)} runs; mean epoch from "
        f"which {SETTLES}: {said}; still to come when AVH has settled: {min(points):.1f} to "
        f"{max(points):.1f} points of accuracy, {min(shares):+.0f} to {max(shares):+.0f} % of the "
        "norm"
    )


def _people(runs: Sequence[RunDynamics], who: str) -> kit.Claim:
    """Observation 3, from the epoch on in which a run has learned its task."""
    early: list[bool] = []
    later: list[bool] = []
    values = [interval.value for run in runs for interval in run.human.get("avh", ())]
    for run in runs:
        below = [interval.high < 0 for interval in run.human.get("avh", ())]
        start = (study.learned_epoch(run) or len(below) + 1) - 1
        early, later = early + below[:start], later + below[start:]
    outcomes = [observations([run])[2].holds for run in runs]
    seen = "not tested"
    if values:
        seen = (
            f"Spearman {min(values):+.3f} to {max(values):+.3f} over runs and epochs; once "
            f"accuracy is at least {100 * LEARNED_ACCURACY:g} %, the interval is below 0 in "
            f"{sum(later)} of {len(later)} epochs (before that, in {sum(early)} of {len(early)})"
        )
    return kit.Claim.of_runs(
        f"AVH's correlation with the frequency of {who} consistently holds across models "
        "throughout the training process.",
        "Fig. 4",
        seen,
        [holds for holds in outcomes if holds is not None],
    )


def _better(runs: Runs) -> kit.Claim:
    """Network by network, at the last epoch and over all of them."""
    means = [
        np.mean([[run.overall.means[key] for key in ("correct", "avh")] for run in of], axis=0)
        for of in runs.values()
    ]
    # [E, networks, 2]: accuracy and AVH
    points = np.stack(means).transpose(2, 0, 1).tolist()
    agree, pairs = np.sum([study.concordance(point) for point in points], axis=0)
    last = study.concordance(points[-1])
    listed = "; ".join(
        f"{say(model)}: {100 * accuracy:.1f} %, AVH {avh:.4f}"
        for model, (accuracy, avh) in zip(runs, points[-1], strict=True)
    )
    return kit.Claim(
        "Better models (higher accuracy) have lower average AVH throughout the training process.",
        "Fig. 4; AlexNet, the weakest, has the highest AVH",
        f"{last[0]} of {last[1]} pairs of networks agree after the last epoch, {agree} of {pairs} "
        f"over all epochs; {listed}",
        agreement_of_networks(agree, pairs),
    )


def relative_gap(run: RunDynamics, measure: str) -> float:
    """Easiest minus hardest populated bin in the last epoch, over the mean of all examples."""
    whole = run.overall.means[measure][-1]
    if len(run.groups) < 2 or not whole:
        return math.nan
    return (run.groups[-1].means[measure][-1] - run.groups[0].means[measure][-1]) / whole


def _shortcuts(runs: Runs) -> kit.Question:
    """The gap of the norm, averaged over each kind of network: a seed counts once."""
    gaps = {model: [relative_gap(run, "norm") for run in of] for model, of in runs.items()}
    known = {model: gap for model, gap in gaps.items() if not np.isnan(gap).all()}
    listed = ", ".join(f"{say(model)} {np.nanmean(gap):+.1%}" for model, gap in known.items())
    plain, short = (
        [np.abs(gap) for model, gap in known.items() if (model in _SHORTCUTS) is is_short]
        for is_short in (False, True)
    )
    is_asked = bool(plain) and bool(short)
    return kit.Question(
        "Networks with shortcuts (ResNet, DenseNet) tend to give images of different human "
        "frequency the same norm; networks without (AlexNet, VGG) keep the gap.",
        "Fig. 4, first column",
        np.mean(plain, axis=0).tolist() if is_asked else [],
        np.mean(short, axis=0).tolist() if is_asked else {},
        told=f"gap of the norm between the easiest and the hardest bin, over its mean: {listed}; "
        + ("without minus with shortcuts {}" if is_asked else "one kind of network only"),
    )
