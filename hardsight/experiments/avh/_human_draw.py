"""The pictures of ``avh-human``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.experiments.avh._human_studies import AVH, NORM, TITLES, Floats
from hardsight.experiments.avh._models import Subjects, density, say
from hardsight.experiments.lab import Figure, Lab
from hardsight.report.figures import panels


def _unit(values: Floats) -> Floats:
    """Linearly to [0, 1], as the paper draws AVH."""
    scaled: Floats = (values - values.min()) / max(float(values.max() - values.min()), 1e-12)
    return scaled


def three_panels(lab: Lab, columns: Mapping[str, Floats], subjects: Subjects, model: str) -> Figure:
    """Human frequency against AVH, confidence and norm (Fig. 5)."""
    figure, axes = panels(1, 3, width=3.8, height=3.2)
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        values = _unit(columns[name]) if name == AVH else columns[name]
        density(figure, axis, subjects.frequency, values, title=title)
        axis.set(xlabel=f"frequency among {subjects.annotators}",
                 ylabel=f"{title}, scaled to [0, 1]" if name == AVH else title)  # fmt: skip
    return lab.figure(
        figure, "histograms",
        caption=f"Fig. 5: {say(model)}, first seed. Share of {subjects.annotators} who chose the "
        "label against AVH (scaled to [0, 1]), model confidence and the norm within its class; "
        "colour: number of examples.",
        alt="Three two-dimensional histograms of human frequency against a score.",
    )  # fmt: skip


def by_model(lab: Lab, columns: Mapping[str, Mapping[str, Floats]], subjects: Subjects) -> Figure:
    """Human frequency against AVH, network by network (Fig. 16)."""
    figure, axes = panels(1, len(columns), width=3.8, height=3.2)
    for axis, (model, found) in zip(axes, columns.items(), strict=True):
        density(figure, axis, subjects.frequency, _unit(found[AVH]), title=say(model))
        axis.set(ylabel="AVH, scaled to [0, 1]", xlabel=f"frequency among {subjects.annotators}")
    return lab.figure(
        figure, "networks",
        caption=f"Fig. 16: share of {subjects.annotators} who chose the label against AVH, by "
        "network, first seed.",
        alt="Two-dimensional histograms of human frequency against AVH, one per network.",
    )  # fmt: skip


def class_groups(classes: Sequence[str]) -> dict[str, list[int]]:
    """Three granularities: a wide group of classes, a narrow one, a single class."""
    vehicles = [at for at, name in enumerate(classes) if name in _VEHICLES]
    if len(vehicles) == len(_VEHICLES):
        animals = [at for at in range(len(classes)) if at not in vehicles]
        return {f"animals ({len(animals)} classes)": animals,
                f"vehicles ({len(vehicles)} classes)": vehicles,
                f"{classes[animals[1]]} (1 class)": animals[1:2]}  # fmt: skip
    count = len(classes)
    return {
        f"{count // 2} classes": list(range(count // 2)),
        f"{max(2, count // 3)} classes": list(range(max(2, count // 3))),
        "1 class": [0],
    }


_VEHICLES = ("airplane", "automobile", "ship", "truck")


def group_frequency(counts: NDArray[Any], group: Sequence[int]) -> Floats:
    """Share of annotators who chose any class of a group, ``[N]``.

    Example:
        >>> group_frequency(np.array([[5, 3, 2], [0, 1, 9]]), [0, 1])
        array([0.8, 0.1])
    """
    shares: Floats = counts[:, list(group)].sum(axis=1) / counts.sum(axis=1)
    return shares


def by_granularity(
    lab: Lab, columns: Mapping[str, Floats], subjects: Subjects, model: str
) -> Figure:
    """Human frequency of groups of classes against the norm (Fig. 19)."""
    test = subjects.test
    assert test.human_counts is not None
    groups = class_groups(test.classes)
    figure, axes = panels(1, len(groups), width=3.8, height=3.2)
    for axis, (title, group) in zip(axes, groups.items(), strict=True):
        rows = np.isin(test.labels, group)
        frequency = group_frequency(test.human_counts, group)[rows]
        density(figure, axis, frequency, columns[NORM][rows], title=title)
        axis.set(xlabel=f"frequency of the group among {subjects.annotators}",
                 ylabel="‖x‖ within class")  # fmt: skip
    return lab.figure(
        figure, "granularity",
        caption=f"Fig. 19: the norm against the frequency at three granularities of classes, "
        f"{say(model)}, first seed. A choice counts if it falls into the group.",
        alt="Two-dimensional histograms of human frequency against the norm, for three groups.",
    )  # fmt: skip
