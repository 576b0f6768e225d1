"""The pictures of ``avh-dynamics``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hardsight.experiments.avh._models import Subjects, levels_of, say
from hardsight.experiments.lab import Figure, Lab, band
from hardsight.report.figures import COLOURS, legend, panels
from hardsight.run.study import Curves, RunDynamics

MEASURES = {"norm": "norm ‖x‖", "avh": "AVH", "correct": "accuracy"}


def _line(axis: Any, curves: Sequence[Sequence[float]], colour: str, label: str) -> None:
    """Mean over seeds with a band of their standard deviation; epochs or steps from 1."""
    band(axis, range(1, len(curves[0]) + 1), curves, colour, label)
    axis.locator_params(axis="x", integer=True)


_BAND = "Lines: mean over examples and seeds; bands: standard deviation over seeds."


def human_figure(lab: Lab, runs: Mapping[str, Sequence[RunDynamics]], subjects: Subjects) -> Figure:
    """Norm, AVH and accuracy by epoch and human frequency (Fig. 4)."""
    figure, axes = panels(len(runs), 3, width=3.7, height=2.5)
    for row, (model, of_seeds) in enumerate(runs.items()):
        for column, (key, title) in enumerate(MEASURES.items()):
            axis = axes[3 * row + column]
            for place, group in enumerate(of_seeds[0].groups):
                _line(axis, [run.groups[place].means[key] for run in of_seeds], COLOURS[place],
                      f"{group.group.replace('people ', '')}, n {group.n:,}")  # fmt: skip
            axis.set(title=f"{say(model)}: {title}", xlabel="epoch", ylabel=title)
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
        for place, group in enumerate(of_seeds[0].groups):
            curves = [run.groups[place].means["confidence"] for run in of_seeds]
            _line(axis, curves, COLOURS[place], group.group.replace("people ", ""))
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


def level_figure(lab: Lab, by_model: Mapping[str, Sequence[Sequence[Curves]]], kind: str) -> Figure:
    """The levels of one degradation by epoch (Figs. 11, 12)."""
    figure, axes = panels(len(by_model), 3, width=3.7, height=2.5)
    for row, (model, of_seeds) in enumerate(by_model.items()):
        for column, (key, title) in enumerate(MEASURES.items()):
            axis = axes[3 * row + column]
            for place, level in enumerate(levels_of(kind)):
                curves = [of_level[place].means[key] for of_level in of_seeds]
                _line(axis, curves, COLOURS[place], f"{kind} {level:g}")
            axis.set(title=f"{say(model)}: {title}", xlabel="epoch", ylabel=title)
    legend(figure)
    number, count = (11 if kind == "noise" else 12), next(iter(by_model.values()))[0][0].n
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
