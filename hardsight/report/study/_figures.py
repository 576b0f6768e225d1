"""Figures of a study, drawn from its ``study.json`` with matplotlib."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hardsight.registry import words_of
from hardsight.report.figures import COLOURS, density, legend, panels, save

_COLUMNS = 6  # of a gallery


class Titles(dict[str, str]):
    """Headings by name, from the study; a study of an older version has none."""

    def __missing__(self, name: str) -> str:
        return words_of(name)


def _titles(content: Mapping[str, Any]) -> Titles:
    return Titles(content.get("titles", {}))


def human_figures(content: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Draw histograms, the coefficient of every score with its interval, and galleries."""
    drawn = [_human_histograms(content, folder), _forest(content, folder)]
    pictures = content["figures"].get("galleries", {})
    galleries = content["result"].get("galleries", [])
    return drawn + [
        _gallery(gallery, pictures[gallery["title"]], folder)
        for gallery in galleries
        if any(pictures.get(gallery["title"], ()))
    ]


def _gallery(
    gallery: Mapping[str, Any], pictures: list[str | None], folder: Path
) -> tuple[str, str]:
    """Draw the examples of a gallery with what people and the network say about them."""
    shown = [
        (example, picture)
        for example, picture in zip(gallery["examples"], pictures, strict=True)
        if picture is not None
    ]
    columns = min(_COLUMNS, len(shown))
    figure, axes = panels(-(-len(shown) // columns), columns, width=1.35, height=1.75)
    # all of them: the last row may have more places than pictures
    for axis in axes:
        axis.set_axis_off()
    for axis, (example, picture) in zip(axes, shown, strict=False):
        axis.imshow(np.asarray(Image.open(io.BytesIO(base64.b64decode(picture)))), cmap="gray",
                    interpolation="nearest")  # fmt: skip
        text = example["label"]
        if example["prediction"] != text:
            text += f"\nnetwork: {example['prediction']}"
        by, score = words_of(gallery["by"]), example["score"]
        text += f"\npeople {example['frequency']:.0%}, {by} {score:.3f}"
        axis.text(0.5, -0.04, text, transform=axis.transAxes, ha="center", va="top", fontsize=6)
    title = gallery["title"]
    name = title.replace(", ", "-").replace(" ", "-")
    caption = (
        f"{title[0].upper()}{title[1:]}: the label, the prediction if it differs, and the share of "
        "people who chose the label."
    )
    return save(figure, folder / f"{name}.svg"), caption


def _human_histograms(content: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    shown = {
        name: histogram for name, histogram in content["figures"]["histograms"].items() if histogram
    }
    spearman = {
        score["name"]: score["correlations"].get("spearman")
        for score in content["result"]["scores"]
    }
    titles = _titles(content)
    figure, axes = panels(columns=max(1, len(shown)), width=4.0, height=3.6)
    for axis, (name, histogram) in zip(axes, shown.items(), strict=False):
        density(figure, axis, histogram["counts"], histogram["x_edges"], histogram["y_edges"])
        interval = spearman.get(name)
        said = f"Spearman {interval['value']:.3f}" if interval else "constant"
        axis.set(
            title=f"{titles[name]}: {said}", xlabel="human selection frequency", ylabel=titles[name]
        )
    file = save(figure, folder / "human-histograms.svg")
    return file, "Human selection frequency against each score; colour: number of examples."


def _forest(content: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    # reversed, because matplotlib counts places from below
    tested = [score for score in content["result"]["scores"] if score["correlations"]][::-1]
    figure, (axis,) = panels(width=6.5, height=0.32 * len(tested) + 1.6)
    places = np.arange(len(tested))
    for offset, method, colour in ((0.12, "spearman", 0), (-0.12, "pearson", 1)):
        values, reach = _intervals([score["correlations"][method] for score in tested])
        axis.errorbar(
            values, places + offset, xerr=reach, fmt="o", ms=4, capsize=2,
            color=COLOURS[colour], label=method.capitalize(),
        )  # fmt: skip
    axis.axvline(0, color="#888888", lw=1)
    axis.set_yticks(places, [score["name"] for score in tested])
    axis.set(xlabel="correlation with human selection frequency (95 % interval)")
    legend(figure)
    file = save(figure, folder / "human-scores.svg")
    return file, "Every score's correlation with human selection frequency, with 95 % intervals."


def _intervals(correlations: list[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values ``[N]``, and how far their intervals reach down and up, ``[2, N]``."""
    low, values, high = (
        np.array([correlation[key] for correlation in correlations])
        for key in ("low", "value", "high")
    )
    # an interval of width 0 can round to a negative length, which matplotlib refuses
    return values, np.stack([values - low, high - values]).clip(0)


def degradation_figures(content: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Draw accuracy and mean scores against the level, one figure per kind of degradation."""
    titles = _titles(content)
    return [_levels(study, titles, folder) for study in content["result"]]


def _levels(study: Mapping[str, Any], titles: Titles, folder: Path) -> tuple[str, str]:
    levels, kind = np.array(study["levels"]), study["kind"]
    figure, axes = panels(columns=1 + len(study["scores"]), width=3.4, height=3.2)
    values, reach = _intervals(study["accuracy"])
    axes[0].errorbar(levels, values, yerr=reach, fmt="o-", capsize=3, color=COLOURS[0])
    axes[0].set(title="accuracy (95 % interval)", xlabel=f"{kind} level", ylabel="accuracy")
    for axis, score in zip(axes[1:], study["scores"], strict=True):
        mean, std = np.array(score["means"]), np.array(score["stds"])
        axis.plot(levels, mean, "o-", color=COLOURS[1], label="mean over pictures")
        axis.fill_between(levels, mean - std, mean + std, color=COLOURS[1], alpha=0.15,
                          label="± standard deviation", lw=0)  # fmt: skip
        name = titles[score["name"]]
        axis.set(title=name, xlabel=f"{kind} level", ylabel=name)
    if kind == "contrast":  # harder to the right, as for noise
        for axis in axes:
            axis.invert_xaxis()
    legend(figure)
    file = save(figure, folder / f"degradation-{kind}.svg")
    return file, f"Accuracy and scores by level of {kind}; harder to see towards the right."


def dynamics_figures(content: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Draw measures against epochs, for all examples of every run and for the groups of each."""
    runs, titles = content["result"]["runs"], _titles(content)
    made = [_all_runs(runs, titles, folder)]
    for place, run in enumerate(runs):
        if run["groups"]:
            file = folder / f"dynamics-groups-{place + 1}.svg"
            made.append(_groups(run, titles, file))
    return made


_ALONG = ("norm", "avh", "confidence", "correct")


def _all_runs(runs: list[Any], titles: Titles, folder: Path) -> tuple[str, str]:
    figure, axes = panels(columns=len(_ALONG), width=3.4, height=3.2)
    for place, run in enumerate(runs):
        _along(axes, run["overall"], run["epochs"], place, run["name"], titles, band=True)
    legend(figure)
    file = save(figure, folder / "dynamics.svg")
    return file, "Means over examples by epoch; bands: standard deviation over examples."


def _groups(run: Mapping[str, Any], titles: Titles, file: Path) -> tuple[str, str]:
    figure, axes = panels(columns=len(_ALONG), width=3.4, height=3.2)
    for place, group in enumerate(run["groups"]):
        label = f"{group['group']}, n {group['n']:,}"
        _along(axes, group, run["epochs"], place, label, titles, band=False)
    legend(figure)
    name = save(figure, file)
    return name, f"{run['name']}: means by epoch, split by the share of people who chose the label."


def _along(
    axes: Any,
    curves: Mapping[str, Any],
    epochs: int,
    place: int,
    label: str,
    titles: Titles,
    *,
    band: bool,
) -> None:
    colour = COLOURS[place % len(COLOURS)]
    at = np.arange(1, epochs + 1)
    for axis, measure in zip(axes, _ALONG, strict=True):
        mean, std = np.array(curves["means"][measure]), np.array(curves["stds"][measure])
        axis.plot(at, mean, "-o", ms=3, color=colour, label=label)
        if band and measure in ("norm", "avh"):
            axis.fill_between(at, mean - std, mean + std, color=colour, alpha=0.12, lw=0)
        axis.set(title=titles[measure], xlabel="epoch", ylabel=titles[measure])
        # there is no epoch 1.5
        axis.xaxis.get_major_locator().set_params(integer=True)
