"""Figures in one house style: legible on white and on black, small files."""

from __future__ import annotations

from typing import Any

from hardsight._optional import require

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
    "svg.fonttype": "none",
    "svg.hashsalt": "hardsight",
}


def panels(rows: int = 1, columns: int = 1, *, width: float = 3.6, height: float = 2.8) -> Any:
    """A figure with a grid of axes, and the axes as a flat list.

    Args:
        rows: of the grid.
        columns: of the grid.
        width: of one panel, in inches.
        height: of one panel, in inches.

    Returns:
        the matplotlib figure and its axes, row by row.
    """
    mpl = require("matplotlib", extra="experiments", feature="an experiment's figures")
    mpl.use("Agg")
    from cycler import cycler
    from matplotlib import pyplot as plt

    with mpl.rc_context({**_STYLE, "axes.prop_cycle": cycler(color=COLOURS)}):
        figure, grid = plt.subplots(
            rows, columns, figsize=(width * columns, height * rows), layout="constrained",
            squeeze=False,
        )  # fmt: skip
    return figure, list(grid.flat)


def legend(axes: Any) -> None:
    """Name the lines, where any were drawn: all runs of an experiment may be lost."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def save(figure: Any, path: Any) -> None:
    """Write a figure as SVG, the same bytes each time, and close it."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    with mpl.rc_context(_STYLE):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
