"""What a drawing consists of, as places on the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from hardsight.report.figures._axis import Tick


@dataclass(frozen=True)
class Mark:
    """One dot: its place, its radius and what it stands for."""

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
