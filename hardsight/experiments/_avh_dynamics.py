"""AVH, Section 3: norm and angle along training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from hardsight.data import MemorySource
from hardsight.experiments._avh_models import (
    PAPER,
    SMOKE,
    ModelSetting,
    Subjects,
    levels_of,
    say,
    set_name,
)
from hardsight.experiments._lab import Lab
from hardsight.experiments._plots import COLOURS, panels
from hardsight.experiments._registry import experiment
from hardsight.experiments._result import Cell, Claim, Figure, Result, Table, spread
from hardsight.heads import capture, find_head
from hardsight.models import SmallCNN
from hardsight.run.study import (
    Curves,
    RunDynamics,
    concordance,
    observations,
    read_histories,
    run_dynamics,
    settled_epoch,
)
from hardsight.scores import angular_visual_hardness, feature_norm

Floats = NDArray[np.float64]
Runs = dict[str, list[RunDynamics]]

_MEASURES = {"norm": "norm ‖x‖", "avh": "AVH", "correct": "accuracy"}
_SHORTCUTS = ("resnet18", "resnet50", "densenet121")


@dataclass(frozen=True)
class DynamicsSetting(ModelSetting):
    """The shared networks, and a small one on MNIST.

    Attributes:
        digits: the dataset of the small network.
        digits_epochs: passes over it.
        iterations: of the loop that is watched step by step (Fig. 15).
        watched: test examples that are looked at after every iteration.
    """

    digits: str = "mnist"
    digits_epochs: int = 9
    iterations: int = 60
    watched: int = 2000


def _setting(shared: ModelSetting, **more: int | str) -> DynamicsSetting:
    values = {field.name: getattr(shared, field.name) for field in dataclasses.fields(shared)}
    return DynamicsSetting(**values, **more)  # type: ignore[arg-type]


@experiment(
    "avh-dynamics",
    title="Norm and angle along training",
    reproduces="Angular Visual Hardness, Figs. 4, 9-13, 15, Observations 1-4",
    scales={
        "smoke": _setting(
            SMOKE, digits="builtin:digits", digits_epochs=4, iterations=12, watched=200
        ),
        "paper": _setting(PAPER),
    },
)
def avh_dynamics(lab: Lab, setting: DynamicsSetting) -> Result:
    """The networks of avh-human, watched: after every epoch one pass over the test split, which
    is never trained on, records norm, AVH, confidence and correctness of each example, and the
    same of 1,000 of them at every level of noise and contrast. Curves are means over examples,
    then over 3 seeds; epochs count from 1. The learning rate is divided by 10 after each third of
    the 15 epochs (the paper: of 90). A small network on MNIST is watched over 9 epochs, and over
    its first 60 steps. Fig. 14 (CIFAR-100) is left out. At smoke scale annotators are simulated.
    """  # noqa: D205
    subjects = Subjects(lab, setting)
    runs: Runs = {model: [] for model in setting.models}
    levels: dict[str, dict[str, list[list[Curves]]]] = {"noise": {}, "contrast": {}}
    for model in setting.models:
        for seed in setting.seeds:
            done = subjects.run(model, seed)
            test = dataclasses.replace(subjects.histories(done), name=f"{say(model)}, seed {seed}")
            runs[model].append(run_dynamics(test, frequency=subjects.frequency))
            clean = np.isin(np.arange(len(subjects.test)), subjects.rows)
            first = run_dynamics(test, groups={"clean": clean}).groups[0]
            for kind, by_model in levels.items():
                others = [
                    run_dynamics(subjects.histories(done, set_name(kind, level))).overall
                    for level in levels_of(kind)[1:]
                ]
                by_model.setdefault(model, []).append([first, *others])
    digits = _digits_runs(lab, setting)
    loops = [_first_steps(lab, setting, seed) for seed in setting.seeds]
    return Result(
        tables=[_curve_table(runs, digits, subjects.annotators), _gap_table(runs)],
        claims=dynamics_claims(runs, digits, subjects.annotators),
        figures=[
            _human_figure(lab, runs, subjects),
            _confidence_figure(lab, runs, subjects),
            _overall_figure(lab, runs),
            *(_level_figure(lab, by_model, kind) for kind, by_model in levels.items()),
            _steps_figure(lab, loops, digits, setting),
        ],
        data={
            "annotators": subjects.annotators,
            "overall": {
                model: [dict(run.overall.means) for run in of_seeds]
                for model, of_seeds in runs.items()
            },
            "by_frequency": {
                model: [
                    {group.group: {"n": group.n, **group.means} for group in run.groups}
                    for run in of_seeds
                ]
                for model, of_seeds in runs.items()
            },
            "spearman_with_frequency": {
                model: [{key: [one.value for one in found] for key, found in run.human.items()}
                        for run in of_seeds]
                for model, of_seeds in runs.items()
            },
            "by_level": {
                kind: {
                    model: [[dict(curves.means) for curves in of_level] for of_level in of_seeds]
                    for model, of_seeds in by_model.items()
                }
                for kind, by_model in levels.items()
            },
            "digits": [dict(run.overall.means) for run in digits],
            "first_steps": loops,
        },
    )  # fmt: skip


def _digits_runs(lab: Lab, setting: DynamicsSetting) -> list[RunDynamics]:
    """The small network, watched on its test split after every epoch."""
    train = lab.source(setting.digits, "train", limit=setting.train_limit)
    test = lab.source(setting.digits, "test", limit=setting.test_limit)
    found = []
    for seed in setting.seeds:
        lab.step(f"SmallCNN on {setting.digits}, seed {seed}")
        done = lab.train(
            "small_cnn", train, seed=seed, epochs=setting.digits_epochs,
            batch_size=setting.batch_size, optimizer={"name": "sgd", "lr": 0.1},
            schedule={"name": "step", "step_epochs": max(1, setting.digits_epochs // 3)},
            validation=0.0, select="last", track_on={"test": test},
        )  # fmt: skip
        name = f"SmallCNN on {setting.digits}, seed {seed}"
        found.append(run_dynamics(read_histories(done.folder, examples="test", name=name)))
    return found


def _first_steps(lab: Lab, setting: DynamicsSetting, seed: int) -> dict[str, list[float]]:
    """Mean norm, AVH and accuracy on the test split after each of the first steps."""
    train = lab.source(setting.digits, "train")
    test = lab.source(setting.digits, "test", limit=setting.watched)
    net = SmallCNN(num_classes=len(train.classes), seed=seed).to(lab.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    draw = torch.Generator().manual_seed(seed)
    inputs, labels = _inputs(test, lab.device)
    pixels, targets = _inputs(train, lab.device)
    means: dict[str, list[float]] = {key: [] for key in _MEASURES}
    with capture(net, find_head(net, inputs[:2])) as forward:
        for _ in range(setting.iterations):
            rows = torch.randint(len(targets), (setting.batch_size,), generator=draw)
            rows = rows.to(lab.device)
            net.train()
            loss = cross_entropy(net(pixels[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            net.eval()
            with torch.no_grad():
                embeddings, logits = forward(inputs)
                weights = net.head.weight
                means["norm"].append(float(feature_norm(embeddings).mean()))
                hardness = angular_visual_hardness(embeddings, labels, weights)
                means["avh"].append(float(hardness.mean()))
                means["correct"].append(float((logits.argmax(1) == labels).float().mean()))
    return means


def _inputs(source: MemorySource, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.from_numpy(source.images)[:, None].float() / 255
    return images.to(device), torch.from_numpy(source.labels.copy()).to(device)


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


def _curve_table(runs: Runs, digits: Sequence[RunDynamics], who: str) -> Table:
    rows: list[list[Cell]] = []
    named = {
        **{say(model): of_seeds for model, of_seeds in runs.items()},
        "SmallCNN, digits": digits,
    }
    for name, of_seeds in named.items():
        cells: list[Cell] = []
        for key in ("norm", "avh", "confidence", "correct"):
            for epoch in (0, -1):
                cells.append(spread([run.overall.means[key][epoch] for run in of_seeds]))
        people = [run.human["avh"][-1].value for run in of_seeds if run.human]
        settled: list[Cell] = [
            spread([float(run.settled[key]) for run in of_seeds])
            for key in ("avh", "correct", "loss", "norm")
        ]
        rows.append([name, *cells, *settled, spread(people) if people else None])
    return Table(
        "First and last epoch, and when a curve settles",
        ("network", "‖x‖ first", "last", "AVH first", "last", "confidence first", "last",
         "accuracy first", "last", "AVH settled", "accuracy settled", "loss settled",
         "norm settled", f"Spearman of AVH with {who}, last"),
        rows,
        "Mean ± standard deviation over seeds, on examples never trained on. Settled: the first "
        "epoch, counted from 1, from which the mean stays within 10 % of its range from its last "
        "value.",
    )  # fmt: skip


def _gap_table(runs: Runs) -> Table:
    rows: list[list[Cell]] = []
    for model, of_seeds in runs.items():
        groups = of_seeds[0].groups
        for place, group in enumerate(groups):
            cells: list[Cell] = []
            for key in ("norm", "avh", "confidence", "correct"):
                cells.append(spread([run.groups[place].means[key][-1] for run in of_seeds]))
            settled = [float(settled_epoch(run.groups[place].means["avh"])) for run in of_seeds]
            rows.append([say(model), group.group, group.n, *cells, spread(settled)])
    return Table(
        "Last epoch by human frequency",
        ("network", "examples", "n", "‖x‖", "AVH", "confidence", "accuracy", "AVH settled"),
        rows,
        "Mean ± standard deviation over seeds. Bins are half-open, the last one is closed.",
    )


def _mean_and_spread(curves: Sequence[Sequence[float]]) -> tuple[Floats, Floats]:
    values = np.array(curves, dtype=np.float64)
    return values.mean(axis=0), values.std(axis=0, ddof=1 if len(values) > 1 else 0)


def _line(axis: Any, curves: Sequence[Sequence[float]], colour: str, label: str) -> None:
    """Mean over seeds with a band of their standard deviation; epochs or steps from 1."""
    mean, std = _mean_and_spread(curves)
    at = np.arange(1, len(mean) + 1)
    axis.plot(at, mean, color=colour, label=label)
    axis.fill_between(at, mean - std, mean + std, color=colour, alpha=0.2, lw=0)
    axis.locator_params(axis="x", integer=True)


def _legend(figure: Any, axis: Any, title: str | None = None) -> None:
    """One legend under the whole figure, of what one panel shows."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8,
                  title=title, title_fontsize=8)  # fmt: skip


_BAND = "Lines: mean over examples and seeds; bands: standard deviation over seeds."


def _human_figure(lab: Lab, runs: Runs, subjects: Subjects) -> Figure:
    figure, axes = panels(len(runs), 3, width=3.7, height=2.5)
    for row, (model, of_seeds) in enumerate(runs.items()):
        for column, (key, title) in enumerate(_MEASURES.items()):
            axis = axes[3 * row + column]
            for place, group in enumerate(of_seeds[0].groups):
                _line(axis, [run.groups[place].means[key] for run in of_seeds], COLOURS[place],
                      f"{group.group.replace('people ', '')}, n {group.n:,}")  # fmt: skip
            axis.set(title=f"{say(model)}: {title}", xlabel="epoch", ylabel=title)
    _legend(figure, axes[0], f"share of {subjects.annotators} who chose the label")
    return lab.figure(
        figure, "human-bins",
        caption=f"Fig. 4: norm, AVH and accuracy by epoch, split by the share of "
        f"{subjects.annotators} who chose the label. {_BAND}",
        alt="Grid of curves: one row per network; norm, AVH and accuracy against the epoch.",
    )  # fmt: skip


def _confidence_figure(lab: Lab, runs: Runs, subjects: Subjects) -> Figure:
    figure, axes = panels(1, len(runs), width=3.4, height=2.7)
    for axis, (model, of_seeds) in zip(axes, runs.items(), strict=True):
        for place, group in enumerate(of_seeds[0].groups):
            curves = [run.groups[place].means["confidence"] for run in of_seeds]
            _line(axis, curves, COLOURS[place], group.group.replace("people ", ""))
        axis.set(title=say(model), xlabel="epoch", ylabel="model confidence")
    _legend(figure, axes[0], f"share of {subjects.annotators} who chose the label")
    return lab.figure(
        figure, "confidence",
        caption=f"Fig. 9: model confidence by epoch, split likewise. {_BAND}",
        alt="Curves of model confidence against the epoch, one panel per network.",
    )  # fmt: skip


def _overall_figure(lab: Lab, runs: Runs) -> Figure:
    figure, axes = panels(1, 4, width=3.4, height=2.7)
    titles = {**_MEASURES, "confidence": "model confidence"}
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for place, (model, of_seeds) in enumerate(runs.items()):
            _line(axis, [run.overall.means[key] for run in of_seeds], COLOURS[place], say(model))
        axis.set(title=title, xlabel="epoch", ylabel=title)
    _legend(figure, axes[0])
    return lab.figure(
        figure, "overall",
        caption=f"Figs. 10 and 13: all test examples by epoch. {_BAND}",
        alt="Four panels of curves against the epoch: norm, AVH, accuracy and confidence.",
    )  # fmt: skip


def _level_figure(
    lab: Lab, by_model: Mapping[str, Sequence[Sequence[Curves]]], kind: str
) -> Figure:
    figure, axes = panels(len(by_model), 3, width=3.7, height=2.5)
    for row, (model, of_seeds) in enumerate(by_model.items()):
        for column, (key, title) in enumerate(_MEASURES.items()):
            axis = axes[3 * row + column]
            for place, level in enumerate(levels_of(kind)):
                curves = [of_level[place].means[key] for of_level in of_seeds]
                _line(axis, curves, COLOURS[place], f"{kind} {level:g}")
            axis.set(title=f"{say(model)}: {title}", xlabel="epoch", ylabel=title)
    _legend(figure, axes[0])
    number, count = (11 if kind == "noise" else 12), next(iter(by_model.values()))[0][0].n
    return lab.figure(
        figure, kind,
        caption=f"Fig. {number}: the same {count:,} test pictures at the levels of {kind}. {_BAND}",
        alt=f"Grid of curves by level of {kind}: norm, AVH and accuracy against the epoch.",
    )  # fmt: skip


def _steps_figure(
    lab: Lab,
    loops: Sequence[Mapping[str, Sequence[float]]],
    digits: Sequence[RunDynamics],
    setting: DynamicsSetting,
) -> Figure:
    figure, axes = panels(2, 3, width=3.7, height=2.5)
    for column, (key, title) in enumerate(_MEASURES.items()):
        _line(axes[column], [loop[key] for loop in loops], COLOURS[0], "first steps")
        _line(axes[3 + column], [run.overall.means[key] for run in digits], COLOURS[1], "epochs")
        axes[column].set(title=title, xlabel="iteration", ylabel=title)
        axes[3 + column].set(title=title, xlabel="epoch", ylabel=title)
    axes[2].legend(fontsize=7)
    axes[5].legend(fontsize=7)
    return lab.figure(
        figure, "digits",
        caption=f"Fig. 15: SmallCNN on {setting.digits}: the first {setting.iterations} steps "
        f"(above) and whole epochs (below), on test examples. {_BAND}",
        alt="Curves of norm, AVH and accuracy against iterations and against epochs.",
    )  # fmt: skip
