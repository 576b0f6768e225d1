"""The histogram of each score, with right predictions above the line and wrong ones below."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardsight.report.figures import Axis, Tick, axis_for
from hardsight.report.page import NONE, count, number, percent
from hardsight.report.table._view import View

WIDTH, HEIGHT = 480, 210
_LEFT, _RIGHT, _TOP, _MIDDLE, _BOTTOM, _GAP = 6, 474, 14, 96, 178, 8
_BINS = 40


@dataclass(frozen=True)
class Bin:
    """One bar: its place, its heights above and below the line, and its tooltip."""

    x: float
    width: float
    above: float
    below: float
    text: str


@dataclass(frozen=True)
class Group:
    """Quartiles of the right, the wrong, or all examples, and their places on the page."""

    name: str
    count: str
    quartiles: tuple[str, ...]
    places: tuple[float, float, float] | None


@dataclass(frozen=True)
class Histogram:
    """Everything the page draws for one score."""

    name: str
    title: str
    unit: str
    direction: str
    bins: list[Bin]
    ticks: list[Tick]
    groups: list[Group]
    chance: Tick | None
    missing: int
    clipped: int
    summary: str


def histograms(view: View) -> list[Histogram]:
    """One histogram per score with at least one finite value."""
    drawn = (_histogram(view, name) for name in view.table.scores)
    return [histogram for histogram in drawn if histogram is not None]


def _histogram(view: View, name: str) -> Histogram | None:
    values = view.values(name)
    present = ~np.isnan(values)
    if not present.any():
        return None
    axis = axis_for(values, _LEFT, _RIGHT)
    # without labels or predictions, all examples are above the line
    judged = bool((view.right | view.wrong).any())
    above, below = (present & view.right if judged else present), present & view.wrong
    groups = [
        _group(axis, "Right" if judged else "All", values[above]),
        *([_group(axis, "Wrong", values[below])] if judged else []),
    ]
    return Histogram(
        name=name,
        title=view.title_of(name),
        unit=view.table.about(name)["unit"],
        direction=direction(view, name),
        bins=_bins(axis, values[above], values[below]),
        ticks=axis.ticks(),
        groups=groups,
        chance=_chance(view, name, axis),
        missing=int((~present).sum()),
        clipped=axis.clipped,
        summary=_summary(view.title_of(name), groups),
    )


def direction(view: View, name: str) -> str:
    """Which direction of a score is harder, in words."""
    higher = view.table.about(name)["higher_is_harder"]
    return "larger is harder" if higher else "larger is easier"


def _bins(axis: Axis, above: NDArray[np.float64], below: NDArray[np.float64]) -> list[Bin]:
    edges = np.linspace(axis.low, axis.high, _BINS + 1)
    # a scale for each side: on a common one, few wrong predictions would not show
    ups, downs = _counts(axis, above), _counts(axis, below)
    up_scale = (_MIDDLE - _GAP - _TOP) / max(1, ups.max())
    down_scale = (_BOTTOM - _MIDDLE - _GAP) / max(1, downs.max())
    width = (axis.end - axis.start) / _BINS
    return [
        Bin(
            x=round(axis.start + i * width, 2),
            width=round(width, 2),
            above=_height(ups[i], up_scale),
            below=_height(downs[i], down_scale),
            text=f"{number(edges[i])} to {number(edges[i + 1])}: "
            + _bar_text(ups[i], len(above), downs[i], len(below)),
        )
        for i in range(_BINS)
        if ups[i] or downs[i]
    ]


def _height(n: int, scale: float) -> float:
    return round(max(1.0, float(n * scale)), 2) if n else 0.0  # a single example must be visible


def _counts(axis: Axis, values: NDArray[np.float64]) -> NDArray[np.int64]:
    # outliers beyond the axis are counted in its outer bars; the largest value is in the last bar
    share = (np.clip(values, axis.low, axis.high) - axis.low) / (axis.high - axis.low)
    return np.bincount(np.minimum((share * _BINS).astype(np.int64), _BINS - 1), minlength=_BINS)


def _bar_text(up: int, ups: int, down: int, downs: int) -> str:
    if not downs:
        return f"{count(up)} ({percent(up / max(1, ups))})"
    right = f"{count(up)} right ({percent(up / max(1, ups))} of them)"
    return f"{right}, {count(down)} wrong ({percent(down / downs)} of them)"


def _group(axis: Axis, name: str, values: NDArray[np.float64]) -> Group:
    if not len(values):
        return Group(name, "0", (NONE,) * 3, None)
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    places = (round(axis.at(low), 2), round(axis.at(middle), 2), round(axis.at(high), 2))
    shown = tuple(number(value, trim=False) for value in (low, middle, high))
    return Group(name, count(len(values)), shown, places)


def _chance(view: View, name: str, axis: Axis) -> Tick | None:
    """The AVH of an example that is equally far from all classes, as a mark on the axis."""
    value = 1 / max(1, view.num_classes)
    if name != "avh" or view.num_classes < 2 or not axis.low <= value <= axis.high:
        return None
    return Tick(round(axis.at(value), 2), f"1/{view.num_classes:,}")


def _summary(title: str, groups: list[Group]) -> str:
    parts = [
        f"{group.name.lower()}: median {group.quartiles[1]}, n {group.count}" for group in groups
    ]
    return f"Histogram of {title}. {'; '.join(parts).capitalize()}."
