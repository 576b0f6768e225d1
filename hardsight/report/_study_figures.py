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
    "figure.facecolor": "white",
    "svg.fonttype": "none",
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
        one["x_edges"], one["y_edges"], shown, cmap="viridis", rasterized=True,
        norm=LogNorm(1, max(2.0, float(counts.max()))),
    )  # fmt: skip
    axis.grid(False)
    figure.colorbar(mesh, ax=axis, label="examples").solids.set_rasterized(True)


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
    """Accuracy and mean score against the level, one figure per kind of degradation."""
    return [_levels(study, folder) for study in content["result"]]


def _levels(study: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    levels, kind = np.array(study["levels"]), study["kind"]
    with _panels(1 + len(study["scores"]), size=(3.4, 3.0)) as (figure, axes):
        accuracy = study["accuracy"]
        values = np.array([one["value"] for one in accuracy])
        ends = np.array([[one["value"] - one["low"], one["high"] - one["value"]]
                         for one in accuracy]).T  # fmt: skip
        axes[0, 0].errorbar(levels, values, yerr=ends.clip(0), fmt="o-", capsize=3,
                            color=_COLOURS[0])  # fmt: skip
        axes[0, 0].set(title="accuracy (95 % interval)", xlabel=f"{kind} level", ylabel="accuracy")
        for axis, one in zip(axes[0, 1:], study["scores"], strict=True):
            mean, std = np.array(one["means"]), np.array(one["stds"])
            axis.plot(levels, mean, "o-", color=_COLOURS[1], label="mean over pictures")
            axis.fill_between(levels, mean - std, mean + std, color=_COLOURS[1], alpha=0.15,
                              label="± standard deviation", lw=0)  # fmt: skip
            axis.set(title=title(one["name"]), xlabel=f"{kind} level", ylabel=title(one["name"]))
        axes[0, -1].legend(fontsize=8)
        if kind == "contrast":  # harder to the right, as for noise
            for axis in axes[0]:
                axis.invert_xaxis()
        name = _save(figure, folder / f"degradation-{kind}.svg")
    return name, f"Accuracy and scores by level of {kind}; harder to see towards the right."


def dynamics_figures(content: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Measures against epochs: all examples of every run, then the groups of each run."""
    runs = content["result"]["runs"]
    made = [_all_runs(runs, folder)]
    for place, run in enumerate(runs):
        if run["groups"]:
            file = folder / f"dynamics-groups-{place + 1}.svg"
            made.append(_groups(run, file))
    return made


_ALONG = ("norm", "avh", "confidence", "correct")


def _all_runs(runs: list[Any], folder: Path) -> tuple[str, str]:
    with _panels(len(_ALONG), size=(3.4, 3.0)) as (figure, axes):
        for place, run in enumerate(runs):
            colour = _COLOURS[place % len(_COLOURS)]
            _along(axes[0], run["overall"], run["epochs"], colour, run["name"], band=True)
        axes[0, -1].legend(fontsize=8)
        name = _save(figure, folder / "dynamics.svg")
    return name, "Means over examples by epoch; bands: standard deviation over examples."


def _groups(run: Mapping[str, Any], file: Path) -> tuple[str, str]:
    with _panels(len(_ALONG), size=(3.4, 3.0)) as (figure, axes):
        for place, group in enumerate(run["groups"]):
            colour = _COLOURS[place % len(_COLOURS)]
            label = f"{group['group']}, n {group['n']:,}"
            _along(axes[0], group, run["epochs"], colour, label, band=False)
        axes[0, -1].legend(fontsize=8)
        name = _save(figure, file)
    return name, f"{run['name']}: means by epoch, split by the share of people who chose the label."


def _along(
    axes: Any, curves: Mapping[str, Any], epochs: int, colour: str, label: str, *, band: bool
) -> None:
    at = np.arange(1, epochs + 1)
    for axis, measure in zip(axes, _ALONG, strict=True):
        mean, std = np.array(curves["means"][measure]), np.array(curves["stds"][measure])
        axis.plot(at, mean, "-o", ms=3, color=colour, label=label)
        if band and measure in ("norm", "avh"):
            axis.fill_between(at, mean - std, mean + std, color=colour, alpha=0.12, lw=0)
        axis.set(title=title(measure), xlabel="epoch", ylabel=title(measure))
        axis.xaxis.get_major_locator().set_params(integer=True)


def title(name: str) -> str:
    """A column's name as a figure shows it."""
    return _TITLES.get(name, name.replace("_", " "))
