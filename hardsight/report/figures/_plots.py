"""Draw matplotlib figures for studies and experiments in one style.

pyplot is not used, because it would change the user's own figures and backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hardsight._checks import require
from hardsight.run_folder import replacing

COLOURS = ("#d9480f", "#1971c2", "#2f9e44", "#9c36b5", "#e8a200", "#0c8599", "#868e96", "#c2255c")
_STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "font.size": 9,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "savefig.dpi": 150,
    "svg.fonttype": "none",  # text stays text: smaller, and it can be searched
    "svg.hashsalt": "hardsight",  # ids in the file are the same every time
}


def panels(
    rows: int = 1, columns: int = 1, *, width: float = 3.6, height: float = 2.8, ylabel: str = ""
) -> Any:
    """A figure with a grid of axes, and the axes as a flat list.

    Args:
        rows: of the grid.
        columns: of the grid.
        width: of one panel, in inches.
        height: of one panel, in inches.
        ylabel: of the first panel, for all that share its y axis.

    Returns:
        the matplotlib figure and its axes, row by row.
    """
    mpl = require("matplotlib", extra="experiments", feature="drawing figures")
    from cycler import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({**_STYLE, "axes.prop_cycle": cycler(color=COLOURS)}):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    axes[0].set_ylabel(ylabel)
    return figure, axes


def density(figure: Any, axis: Any, counts: ArrayLike, x_edges: Any, y_edges: Any) -> None:
    """A two-dimensional histogram on a logarithmic colour scale; empty cells stay white.

    Args:
        figure: of the axis; gets a colour bar.
        axis: to draw on.
        counts: ``[X, Y]``, as ``numpy.histogram2d`` gives them.
        x_edges: ``[X + 1]``.
        y_edges: ``[Y + 1]``.
    """
    from matplotlib.colors import LogNorm

    cells = np.asarray(counts, dtype=np.float64).T
    mesh = axis.pcolormesh(
        x_edges, y_edges, np.ma.masked_equal(cells, 0), cmap="viridis", rasterized=True,
        norm=LogNorm(1, max(2.0, float(cells.max()))),
    )  # fmt: skip
    axis.grid(False)
    figure.colorbar(mesh, ax=axis, label="examples").solids.set_rasterized(True)


def legend(
    figure: Any, axes: Sequence[Any] | None = None, *, title: str | None = None, scale: float = 1.0
) -> None:
    """Add a legend below all panels, where it covers none of them.

    Args:
        figure: a figure whose panels are drawn. If no line has a label, there is no legend: all
            runs of an experiment may have failed.
        axes: the axes whose lines are named, all by default; equal labels are named once.
        title: a title above the names.
        scale: the scale of the markers, for dots that are too small to show a colour.
    """
    named = {
        label: handle
        for axis in (figure.axes if axes is None else axes)
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if not named:
        return
    # the width of a column in inches: a sample of the line, and about 0.07 per letter of 8 points
    wide = 0.55 + 0.07 * max(len(label) for label in named)
    lines = math.ceil(len(named) / max(1, int(figure.get_figwidth() / wide)))
    figure.legend(
        named.values(), named.keys(), loc="outside lower center", fontsize=8,
        ncols=math.ceil(len(named) / lines), title=title, title_fontsize=8, markerscale=scale,
        frameon=False,
    )  # fmt: skip


def save(figure: Any, file: Path) -> str:
    """Write a figure as SVG, with the same bytes every time, and return the name of the file."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE), replacing(file) as partial:
        figure.savefig(partial, metadata={"Date": None})
    return file.name
