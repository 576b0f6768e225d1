"""The pictures of ``avh-dynamics``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hardsight.experiments.avh._models import Subjects, levels_of, say
from hardsight.experiments.lab import Figure, Lab, band
from hardsight.report.figures import COLOURS, legend, panels
from hardsight.run.study import RunDynamics

MEASURES = {"norm": "norm ‖x‖", "avh": "AVH", "correct": "accuracy"}


def _line(axis: Any, curves: Sequence[Sequence[float]], colour: str, label: str) -> None:
    """Mean over seeds with a band of their standard deviation; epochs or steps from 1."""
    band(axis, range(1, len(curves[0]) + 1), curves, colour, label)
    axis.locator_params(axis="x", integer=True)


_BAND = "Lines: mean over examples and seeds; bands: standard deviation over seeds."


def _curve_grid(names: Sequence[str], lines: Any) -> tuple[Any, list[Any]]:
    """A row of panels per network: norm, AVH and accuracy, with the lines of each.

    Args:
        names: of the networks.
        lines: from a network and a measure to curves, one per seed, by label.
    """
    figure, axes = panels(len(names), 3, width=3.7, height=2.5)
    places = [(name, key, title) for name in names for key, title in MEASURES.items()]
    for axis, (name, key, title) in zip(axes, places, strict=True):
        for colour, (label, curves) in zip(COLOURS, lines(name, key).items(), strict=False):
            _line(axis, curves, colour, label)
        axis.set(title=f"{say(name)}: {title}", xlabel="epoch", ylabel=title)
    return figure, axes


def _by_frequency(of_seeds: Sequence[RunDynamics], key: str) -> dict[str, list[Any]]:
    """Curves of the bins of human frequency, one per seed, by name."""
    return {
        f"{group.group.replace('people ', '')}, n {group.n:,}": [
            run.groups[place].means[key] for run in of_seeds
        ]
        for place, group in enumerate(of_seeds[0].groups)
    }


def human_figure(lab: Lab, runs: Mapping[str, Sequence[RunDynamics]], subjects: Subjects) -> Figure:
    """Norm, AVH and accuracy by epoch and human frequency (Fig. 4)."""
    figure, axes = _curve_grid(list(runs), lambda name, key: _by_frequency(runs[name], key))
    legend(figure, axes[:1], title=f"share of {subjects.annotators} who chose the label")
    return lab.figure(
        figure, "human-bins",
        caption=f"Fig. 4: norm, AVH and accuracy by epoch, split by the share of "
        f"{subjects.annotators} who chose the label. {_BAND}",
        alt="Grid of curves: one row per network; norm, AVH and accuracy against the epoch.",
    )  # fmt: skip


def confidence_figure(
    lab: Lab, runs: Mapping[str, Sequence[RunDynamics]], subjects: Subjects
) -> Figure:
    """Confidence by epoch and human frequency (Fig. 9)."""
    figure, axes = panels(1, len(runs), width=3.4, height=2.7)
    for axis, (model, of_seeds) in zip(axes, runs.items(), strict=True):
        lines = _by_frequency(of_seeds, "confidence")
        for colour, (label, curves) in zip(COLOURS, lines.items(), strict=False):
            _line(axis, curves, colour, label)
        axis.set(title=say(model), xlabel="epoch", ylabel="model confidence")
    legend(figure, axes[:1], title=f"share of {subjects.annotators} who chose the label")
    return lab.figure(
        figure, "confidence",
        caption=f"Fig. 9: model confidence by epoch, split in the same way. {_BAND}",
        alt="Curves of model confidence against the epoch, one panel per network.",
    )  # fmt: skip


def overall_figure(lab: Lab, runs: Mapping[str, Sequence[RunDynamics]]) -> Figure:
    """All test examples by epoch (Figs. 10, 13)."""
    figure, axes = panels(1, 4, width=3.4, height=2.7)
    titles = {**MEASURES, "confidence": "model confidence"}
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for place, (model, of_seeds) in enumerate(runs.items()):
            _line(axis, [run.overall.means[key] for run in of_seeds], COLOURS[place], say(model))
        axis.set(title=title, xlabel="epoch", ylabel=title)
    legend(figure)
    return lab.figure(
        figure, "overall",
        caption=f"Figs. 10 and 13: all test examples by epoch. {_BAND}",
        alt="Four panels of curves against the epoch: norm, AVH, accuracy and confidence.",
    )  # fmt: skip


def level_figure(
    lab: Lab, by_model: Mapping[str, Sequence[Sequence[Mapping[str, Sequence[float]]]]], kind: str,
    *, count: int,
) -> Figure:  # fmt: skip
    """The levels of one degradation by epoch (Figs. 11, 12)."""
    levels = [f"{kind} {level:g}" for level in levels_of(kind)]

    def lines(model: str, key: str) -> dict[str, list[Any]]:
        every = enumerate(levels)
        return {name: [of[place][key] for of in by_model[model]] for place, name in every}

    figure, _ = _curve_grid(list(by_model), lines)
    legend(figure)
    number = 11 if kind == "noise" else 12
    return lab.figure(
        figure, kind,
        caption=f"Fig. {number}: the same {count:,} test pictures at the levels of {kind}. {_BAND}",
        alt=f"Grid of curves by level of {kind}: norm, AVH and accuracy against the epoch.",
    )  # fmt: skip


def steps_figure(
    lab: Lab,
    loops: Sequence[Mapping[str, Sequence[float]]],
    digits: Sequence[RunDynamics],
    dataset: str,
) -> Figure:
    """The small network over its first steps and over its epochs (Fig. 15)."""
    figure, axes = panels(2, 3, width=3.7, height=2.5)
    for column, (key, title) in enumerate(MEASURES.items()):
        _line(axes[column], [loop[key] for loop in loops], COLOURS[0], "first steps")
        _line(axes[3 + column], [run.overall.means[key] for run in digits], COLOURS[1], "epochs")
        axes[column].set(title=title, xlabel="iteration", ylabel=title)
        axes[3 + column].set(title=title, xlabel="epoch", ylabel=title)
    legend(figure)
    return lab.figure(
        figure, "digits",
        caption=f"Fig. 15: SmallCNN on {dataset}: the first {len(loops[0]['norm'])} steps "
        f"(above) and whole epochs (below), on test examples. {_BAND}",
        alt="Curves of norm, AVH and accuracy against iterations and against epochs.",
    )  # fmt: skip
