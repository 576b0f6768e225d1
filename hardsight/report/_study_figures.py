"""Figures of a study, drawn from its ``study.json`` with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight._optional import require

if TYPE_CHECKING:
    from collections.abc import Iterator

_COLOURS = ("#0b6e99", "#c8501e", "#3f7d3a", "#7a4fa3", "#a37b00", "#444444", "#b0306a", "#2b8f8f")
_STYLE: Any = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "hardsight",
    "figure.constrained_layout.use": True,
}
_TITLES = {
    "avh": "AVH",
    "model_confidence": "model confidence",
    "confidence": "model confidence",
    "feature_norm": "norm ‖x‖",
    "norm": "norm ‖x‖",
    "class_normalized_feature_norm": "norm ‖x‖ within class",
    "correct": "accuracy",
    "accuracy": "accuracy",
}


@contextmanager
def _panels(columns: int, rows: int = 1, *, size: tuple[float, float]) -> Iterator[Any]:
    """A figure and its axes ``[rows, columns]``, closed afterwards."""
    require("matplotlib", extra="experiments", feature="a study's figures")
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(size[0] * columns, size[1] * rows))
        FigureCanvasSVG(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False)


def _save(figure: Any, file: Path) -> str:
    figure.savefig(file, metadata={"Date": None})
    return file.name


def human_figures(content: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Two-dimensional histograms, and every score's coefficient with its interval."""
    return [_human_histograms(content, folder), _forest(content, folder)]


def _human_histograms(content: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    shown = {name: one for name, one in content["figures"]["histograms"].items() if one}
    spearman = {
        one["name"]: one["correlations"].get("spearman") for one in content["result"]["scores"]
    }
    with _panels(max(1, len(shown)), size=(4.0, 3.6)) as (figure, axes):
        for axis, (name, one) in zip(axes[0], shown.items(), strict=False):
            density(figure, axis, one)
            found = spearman.get(name)
            said = f"Spearman {found['value']:.3f}" if found else "constant"
            axis.set(
                title=f"{title(name)}: {said}", xlabel="human selection frequency",
                ylabel=title(name),
            )  # fmt: skip
        name = _save(figure, folder / "human-histograms.svg")
    return name, "Human selection frequency against each score; colour: number of examples."


def density(figure: Any, axis: Any, one: Mapping[str, Any]) -> None:
    """A two-dimensional histogram on a logarithmic colour scale; empty cells stay white."""
    from matplotlib.colors import LogNorm

    counts = np.array(one["counts"], dtype=np.float64).T
    shown = np.ma.masked_equal(counts, 0)
    mesh = axis.pcolormesh(
        one["x_edges"], one["y_edges"], shown, cmap="viridis", rasterized=False,
        norm=LogNorm(1, max(2.0, float(counts.max()))),
    )  # fmt: skip
    axis.grid(False)
    figure.colorbar(mesh, ax=axis, label="examples")


def _forest(content: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    tested = [one for one in content["result"]["scores"] if one["correlations"]][::-1]
    with _panels(1, size=(6.5, 0.32 * len(tested) + 1.2)) as (figure, axes):
        axis = axes[0, 0]
        places = np.arange(len(tested))
        for offset, method, colour in ((0.12, "spearman", 0), (-0.12, "pearson", 1)):
            found = [one["correlations"][method] for one in tested]
            values = np.array([one["value"] for one in found])
            errors = np.array([[one["value"] - one["low"], one["high"] - one["value"]]
                               for one in found]).T  # fmt: skip
            axis.errorbar(
                values, places + offset, xerr=errors.clip(0), fmt="o", ms=4, capsize=2,
                color=_COLOURS[colour], label=method.capitalize(),
            )  # fmt: skip
        axis.axvline(0, color="#888888", lw=1)
        axis.set_yticks(places, [one["name"] for one in tested])
        axis.set(xlabel="correlation with human selection frequency (95 % interval)")
        axis.legend(loc="best")
        name = _save(figure, folder / "human-scores.svg")
    return name, "Every score's correlation with human selection frequency, with 95 % intervals."


def degradation_figures(content: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Mean score against the level of degradation."""
    return []


def dynamics_figures(content: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Measures against epochs."""
    return []


def title(name: str) -> str:
    """A column's name as a figure shows it."""
    return _TITLES.get(name, name.replace("_", " "))
