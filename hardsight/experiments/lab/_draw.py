"""Ways to draw numbers over seeds that several figures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

# for captions: what band() and seed_dots() draw
BANDS = "lines are means over seeds, bands their standard deviation"
DOTS = "a dot is a seed, a bar their mean"


def band(axis: Any, at: ArrayLike, curves: ArrayLike, colour: str, label: str, **line: Any) -> None:
    """The mean of curves as a line, and their standard deviation (n - 1) as a band around it.

    Args:
        axis: to draw on.
        at: places of the points, ``[P]``.
        curves: one per seed, ``[S, P]``; without a curve nothing is drawn.
        colour: of line and band.
        label: of the line.
        line: more for the line, such as a marker.
    """
    values = np.asarray(curves, dtype=np.float64)
    if not len(values):
        return
    mean = values.mean(axis=0)
    std = values.std(axis=0, ddof=min(1, len(values) - 1))
    axis.plot(at, mean, color=colour, label=label, **line)
    axis.fill_between(at, mean - std, mean + std, color=colour, alpha=0.15, lw=0)


def seed_dots(
    axis: Any, place: float, values: Sequence[float], colour: str, *, width: float, **bar: Any
) -> None:
    """A dot per seed at a place of the x axis, and a bar at their mean."""
    axis.plot([place] * len(values), values, "o", color=colour, alpha=0.6, markersize=4)
    ends = [place - width, place + width]
    axis.plot(ends, [float(np.mean(values))] * 2, color=colour, linewidth=2.5, **bar)
