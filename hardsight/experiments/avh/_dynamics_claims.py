"""The claims of ``avh-dynamics``: Observations 1 to 4, and shortcuts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hardsight.experiments.avh._models import say
from hardsight.experiments.lab import Claim, spread
from hardsight.run.study import RunDynamics, concordance, observations

Runs = dict[str, list[RunDynamics]]
_SHORTCUTS = ("resnet18", "resnet50", "densenet121")


def dynamics_claims(runs: Runs, digits: Sequence[RunDynamics], who: str) -> list[Claim]:
    """Observations 1 to 4, and the remark on networks with shortcuts."""
    every = [run for of_seeds in runs.values() for run in of_seeds]
    first, second, third, _ = observations([*every, *digits])
    return [
        Claim(first.says, "Figs. 4, 10, 13, 15", _counted_rise([*every, *digits]), first.holds),
        Claim(second.says, "Figs. 4, 10, 13, 15", _counted_plateau([*every, *digits]),
              second.holds),
        Claim(f"AVH's correlation with the frequency of {who} consistently holds across models "
              "throughout the training process.", "Fig. 4", _counted_people(every), third.holds),
        _better(runs),
        _shortcuts(runs),
    ]  # fmt: skip


def _counted_rise(runs: Sequence[RunDynamics]) -> str:
    norms = [run.overall.means["norm"] for run in runs]
    ratios = [norm[-1] / norm[0] if norm[0] else np.nan for norm in norms]
    steps = [np.diff(norm) > 0 for norm in norms]
    rising = int(sum(step.sum() for step in steps))
    count = sum(len(step) for step in steps)
    larger = sum(ratio > 1 for ratio in ratios)
    return (
        f"last over first epoch: {np.nanmin(ratios):.2f} to {np.nanmax(ratios):.2f}, larger than 1 "
        f"in {larger} of {len(runs)} runs; the mean norm rises in {rising} of {count} steps "
        "between epochs"
    )


def _counted_plateau(runs: Sequence[RunDynamics]) -> str:
    at = {key: [run.settled[key] for run in runs] for key in ("avh", "correct", "loss", "norm")}
    earlier = sum(
        run.settled["avh"] < max(run.settled["correct"], run.settled["loss"]) for run in runs
    )
    said = ", ".join(
        f"{title} {np.mean(at[key]):.1f}"
        for key, title in (("avh", "AVH"), ("correct", "accuracy"), ("loss", "loss"),
                           ("norm", "norm"))
    )  # fmt: skip
    return (
        f"AVH settles before accuracy or loss in {earlier} of {len(runs)} runs; mean epoch from "
        f"which the curve stays within 10 % of its range from its last value: {said}"
    )


def _counted_people(runs: Sequence[RunDynamics]) -> str:
    found = [one for run in runs for one in run.human.get("avh", ())]
    below = sum(one.high < 0 for one in found)
    values = [one.value for one in found]
    return (
        f"Spearman {min(values):+.3f} to {max(values):+.3f} over runs and epochs; the interval is "
        f"below 0 in {below} of {len(found)} epochs"
        if found
        else "not tested"
    )


def _better(runs: Runs) -> Claim:
    """Network by network, at the last epoch and over all of them."""
    means = {
        model: {
            key: np.mean([run.overall.means[key] for run in of_seeds], axis=0)
            for key in ("correct", "avh")
        }
        for model, of_seeds in runs.items()
    }
    last = [(float(one["correct"][-1]), float(one["avh"][-1])) for one in means.values()]
    agree, pairs = concordance(last)
    epochs = len(next(iter(means.values()))["avh"])
    each = [
        concordance([(float(m["correct"][e]), float(m["avh"][e])) for m in means.values()])
        for e in range(epochs)
    ]
    total = sum(one[0] for one in each), sum(one[1] for one in each)
    listed = "; ".join(
        f"{say(model)}: {100 * accuracy:.1f} %, AVH {avh:.4f}"
        for model, (accuracy, avh) in zip(means, last, strict=True)
    )
    holds = None
    if total[1]:
        holds = True if total[0] == total[1] else (False if 2 * total[0] < total[1] else None)
    return Claim(
        "Better models (higher accuracy) have lower average AVH throughout the training process.",
        "Fig. 4; AlexNet, the weakest, has the highest AVH",
        f"{agree} of {pairs} pairs of networks agree after the last epoch, {total[0]} of "
        f"{total[1]} over all epochs; {listed}",
        holds,
    )


def relative_gap(run: RunDynamics, measure: str) -> float | None:
    """Easiest minus hardest populated bin in the last epoch, over the mean of all examples."""
    if len(run.groups) < 2:
        return None
    hard, easy = run.groups[0].means[measure][-1], run.groups[-1].means[measure][-1]
    whole = run.overall.means[measure][-1]
    return (easy - hard) / whole if whole else None


def _gaps(runs: Runs, measure: str) -> dict[str, list[float]]:
    found = {
        model: [gap for run in of_seeds if (gap := relative_gap(run, measure)) is not None]
        for model, of_seeds in runs.items()
    }
    return {model: gaps for model, gaps in found.items() if gaps}


def _shortcuts(runs: Runs) -> Claim:
    says = (
        "Networks with shortcuts (ResNet, DenseNet) tend to give images of different human "
        "frequency the same norm; networks without (AlexNet, VGG) keep the gap."
    )
    gaps = _gaps(runs, "norm")
    plain = [g for model, found in gaps.items() if model not in _SHORTCUTS for g in found]
    short = [g for model, found in gaps.items() if model in _SHORTCUTS for g in found]
    listed = ", ".join(f"{say(model)} {np.mean(found):+.1%}" for model, found in gaps.items())
    seen = f"gap of the norm between the easiest and the hardest bin, over its mean: {listed}"
    if not plain or not short:
        return Claim(says, "Fig. 4, first column", f"{seen}; one kind of network only", None)
    one, two = spread(np.abs(plain).tolist()), spread(np.abs(short).tolist())
    apart = one.low > two.high or two.low > one.high
    return Claim(says, "Fig. 4, first column", seen, one.mean > two.mean if apart else None)
