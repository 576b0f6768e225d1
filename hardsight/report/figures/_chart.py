"""Coordinates of charts: axes with round numbers, and the lines, bars and points on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hardsight.report.page import number

_SMALLEST = 1e-290  # with a smaller range, the steps of an axis are no longer normal floats
_FAR = 0.75  # a tail is clipped if it is longer than this share of the bulk, which it would squeeze


@dataclass(frozen=True)
class Tick:
    """A round value, its text and its place on the page."""

    at: float
    text: str


@dataclass(frozen=True)
class Axis:
    """An axis that maps values from ``low`` to ``high`` to places from ``start`` to ``end``.

    Values beyond the ends are drawn at the ends.

    Attributes:
        low: value at ``start``.
        high: value at ``end``; larger than ``low``.
        start: place of ``low``.
        end: place of ``high``; smaller than ``start`` on an axis that points up.
        clipped: number of values beyond either end.
    """

    low: float
    high: float
    start: float
    end: float
    clipped: int = 0

    def place(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The places of values on the page."""
        share = (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)
        placed: NDArray[np.float64] = self.start + share * (self.end - self.start)
        return placed

    def at(self, value: float) -> float:
        """The place of one value on the page."""
        return float(self.place(np.array([value]))[0])

    def ticks(self, most: int = 6) -> list[Tick]:
        """Round values along the axis."""
        return [Tick(self.at(value), number(value)) for value in _round_values(self, most)]


def axis_for(values: NDArray[np.float64], start: float, end: float) -> Axis:
    """The axis that shows ``values``; NaN is ignored, and a far tail is clipped.

    Example:
        >>> axis = axis_for(np.array([0.0, 4.0, np.nan]), 0.0, 100.0)
        >>> axis.at(1.0), [tick.text for tick in axis.ticks(4)]
        (25.0, ['0', '1', '2', '3', '4'])
    """
    finite = values[~np.isnan(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if len(finite) >= 100:
        inner_low, inner_high = np.quantile(finite, [0.001, 0.999])
        bulk = inner_high - inner_low  # 0 if nearly all values are equal; then nothing is clipped
        low = float(inner_low) if inner_low - low > _FAR * bulk > 0 else low
        high = float(inner_high) if high - inner_high > _FAR * bulk > 0 else high
    scale = max(abs(low), abs(high))
    if high - low <= max(1e-12 * scale, _SMALLEST):  # only one value, in the middle of the axis
        room = 0.05 * scale if scale > _SMALLEST else 0.5
        low, high = low - room, high + room
    return Axis(low, high, start, end, int(((finite < low) | (finite > high)).sum()))


def _round_values(axis: Axis, most: int) -> list[float]:
    rough = (axis.high - axis.low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    # 1e-9 against rounding: in binary, a multiple such as 0.3 / 0.1 comes out just beside 3
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(axis.low / step - 1e-9), math.floor(axis.high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


@dataclass(frozen=True)
class Mark:
    """One dot: its place, its radius and its tooltip."""

    x: float
    y: float
    text: str
    r: float = 3.5
    kind: str = ""


@dataclass(frozen=True)
class Line:
    """A series of one model: a path through its marks."""

    model: int
    path: str
    marks: list[Mark]
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """A drawing with axes."""

    key: str
    title: str
    x_title: str
    y_title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    summary: str
    lines: list[Line] = field(default_factory=list)
    model: int = 0


@dataclass(frozen=True)
class Bars:
    """Right predictions above a line, wrong ones below."""

    model: int
    ticks: list[Tick]
    bars: list[tuple[float, float, float, float, str]]  # x, width, up, down, text
    zero: float | None
    summary: str


@dataclass(frozen=True)
class Cloud:
    """Points by class, each class one path of dots."""

    model: int
    paths: list[tuple[int, bool, str]]  # colour, whether on the far side, path
    summary: str
    circle: bool = False
