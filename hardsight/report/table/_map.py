"""The angle-norm map: the angle of examples to their class against the norm of their features.

All rows are counted in hexagonal bins, so the picture stays small with any number of rows. Only
examples that the page shows are drawn as points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardsight.report.figures import Axis, Tick, axis_for
from hardsight.report.page import count, percent, plural
from hardsight.report.table._view import View

WIDTH, HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 742, 34, 388
HEX = 7.0  # radius of a hexagon
_SHADES = 6
# angle against norm is the picture of the paper; the others are for tables without these columns
_PAIRS = (
    ("target_angle", "feature_norm"),
    ("avh", "feature_norm"),
    ("target_angle", "model_confidence"),
    ("avh", "model_confidence"),
)


@dataclass(frozen=True)
class Cell:
    """One hexagon: its centre, its colour (0-4, 5 unknown), its shade (1-6), and its counts."""

    x: float
    y: float
    wrong: int
    shade: int
    text: str


@dataclass(frozen=True)
class Point:
    """One shown example on the map."""

    x: float
    y: float
    row: int
    index: int
    wrong: bool


@dataclass(frozen=True)
class Map:
    """Everything the page draws for a map of two columns; ``shades`` names the colour scale."""

    x_name: str
    y_name: str
    x_title: str
    y_title: str
    shades: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    degrees: list[Tick]
    cells: list[Cell]
    points: list[Point]
    note: str
    summary: str


def angle_norm_map(view: View) -> Map | None:
    """The map of the first pair of columns the table has; ``None`` if there is no pair."""
    pair = _pair(view)
    if pair is None:
        return None
    # rows without an outcome are neither right nor wrong, and count in no share
    wrong = np.where(view.outcome < 0, np.nan, view.outcome == 0)
    return _map(view, pair, "share wrong", wrong, _right_and_wrong)


def data_map(view: View) -> Map | None:
    """The data map of Swayamdipta et al.: confidence against variability, by correctness."""
    pair = ("map_variability", "map_confidence")
    needed = {*pair, "map_correctness"}
    if not needed <= set(view.table.scores) or np.isnan(view.values(pair[0])).all():
        return None
    wrong = 1 - view.values("map_correctness")
    return _map(view, pair, "share of epochs wrong", wrong, _right_epochs)


def _map(
    view: View,
    pair: tuple[str, str],
    shades: str,
    wrongness: NDArray[np.float64],
    text: Callable[[float, float], str],
) -> Map:
    """The map of two columns, coloured by a share per row; NaN for a row without one."""
    x_values, y_values = view.values(pair[0]), view.values(pair[1])
    shown = ~np.isnan(x_values) & ~np.isnan(y_values)
    x_axis = axis_for(x_values[shown], _LEFT, _RIGHT)
    y_axis = axis_for(y_values[shown], _BOTTOM, _TOP)
    x, y = x_axis.place(x_values), y_axis.place(y_values)
    return Map(
        x_name=pair[0],
        y_name=pair[1],
        x_title=_title(view, pair[0]),
        y_title=_title(view, pair[1]),
        shades=shades,
        x_ticks=x_axis.ticks(8),
        y_ticks=y_axis.ticks(6),
        degrees=_degrees(x_axis) if pair[0] == "target_angle" else [],
        cells=_cells(x[shown], y[shown], wrongness[shown], text),
        points=_points(view, x, y, shown),
        note=_note(int((~shown).sum()), x_axis.clipped + y_axis.clipped),
        summary=f"Map of {plural(shown.sum(), 'example')}: {view.title_of(pair[0])} from left to "
        f"right, {view.title_of(pair[1])} from bottom to top.",
    )


def _pair(view: View) -> tuple[str, str] | None:
    usable = [name for name in view.table.scores if not np.isnan(view.values(name)).all()]
    for pair in _PAIRS:
        if set(pair) <= set(usable):
            return pair
    return (usable[0], usable[1]) if len(usable) >= 2 else None


def _title(view: View, name: str) -> str:
    unit = view.table.about(name)["unit"]
    return f"{view.title_of(name)} ({unit})" if unit else view.title_of(name)


def _degrees(axis: Axis) -> list[Tick]:
    marks = [d for d in range(0, 181, 15) if axis.low <= np.deg2rad(d) <= axis.high]
    return [Tick(axis.at(float(np.deg2rad(d))), f"{d}°") for d in marks]


def _cells(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    wrongness: NDArray[np.float64],
    text: Callable[[float, float], str],
) -> list[Cell]:
    """Hexagons with at least one example."""
    centre_x, centre_y, codes = _hexagons(x, y)
    _, first, inverse, totals = np.unique(
        codes, return_index=True, return_inverse=True, return_counts=True
    )
    known = ~np.isnan(wrongness)
    judged = np.bincount(inverse, known, minlength=len(totals))
    wrong = np.bincount(inverse, np.where(known, wrongness, 0.0), minlength=len(totals))
    # logarithmic, because a single full hexagon would leave all others white
    fullest = np.log1p(totals.max(initial=1))
    levels = np.ceil(_SHADES * np.log1p(totals) / fullest).astype(int)
    return [
        Cell(
            x=round(float(centre_x[first[i]]), 1),
            y=round(float(centre_y[first[i]]), 1),
            wrong=_wrongness(judged[i], wrong[i]),
            shade=int(levels[i]),
            text=text(judged[i], wrong[i]) if judged[i] else plural(int(totals[i]), "example"),
        )
        for i in range(len(totals))
    ]


def _hexagons(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """The centre of each point's hexagon, and a number that identifies it.

    The centres form two rectangular lattices, one shifted by half a step; the nearer centre wins.
    """
    # a hexagon standing on a corner is sqrt(3) radii wide; its rows are 3/2 radii apart, so those
    # of one lattice, every second row, are 3 radii apart
    step_x, step_y = HEX * np.sqrt(3.0), HEX * 3.0
    even_x, even_y = np.round(x / step_x) * step_x, np.round(y / step_y) * step_y
    odd_x = (np.floor(x / step_x) + 0.5) * step_x
    odd_y = (np.floor(y / step_y) + 0.5) * step_y
    even = (x - even_x) ** 2 + (y - even_y) ** 2 <= (x - odd_x) ** 2 + (y - odd_y) ** 2
    centre_x, centre_y = np.where(even, even_x, odd_x), np.where(even, even_y, odd_y)
    # counted in half steps, so that the centres of both lattices have whole numbers
    column = np.round(2 * centre_x / step_x).astype(np.int64)
    line = np.round(2 * centre_y / step_y).astype(np.int64)
    return centre_x, centre_y, line * 100_000 + column


def _wrongness(judged: float, wrong: float) -> int:
    # rounded up, so that a single mistake shows and 0 means none; 1e-9 against rounding errors
    return int(np.ceil(4 * wrong / judged - 1e-9)) if judged else 5


def _right_and_wrong(judged: float, wrong: float) -> str:
    return f"{count(judged - wrong)} right, {count(wrong)} wrong"


def _right_epochs(judged: float, wrong: float) -> str:
    return f"{plural(judged, 'example')}, right in {percent(1 - wrong / judged)} of the epochs"


def _points(
    view: View, x: NDArray[np.float64], y: NDArray[np.float64], shown: NDArray[np.bool_]
) -> list[Point]:
    rows = view.gallery.rows()
    rows = rows[shown[rows]]
    return [
        Point(
            x=round(float(x[row]), 1),
            y=round(float(y[row]), 1),
            row=row,
            index=int(view.gallery.source[row]),
            wrong=bool(view.wrong[row]),
        )
        for row in rows[np.lexsort((y[rows], x[rows]))].tolist()  # arrow keys walk left to right
    ]


def _note(missing: int, clipped: int) -> str:
    parts = []
    if clipped:
        parts.append(f"{plural(clipped, 'far value')} drawn at the edge")
    if missing:
        parts.append(f"{plural(missing, 'example')} without finite values left out")
    return "; ".join(parts).capitalize() + "." if parts else ""
