"""The pictures of ``amc-figs``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hardsight.data import MemorySource
from hardsight.evaluate import tsne_map
from hardsight.experiments.lab import Figure, Lab, Outputs
from hardsight.geometry import unit_vectors
from hardsight.report.figures import panels

_CLASS_COLOURS = "tab10"
Places = NDArray[np.floating[Any]]


def plane_figure(lab: Lab, outputs: Mapping[str, Outputs]) -> Figure:
    """Embeddings of two dimensions as they are, one panel per loss (Fig. 1)."""
    figure, panel_of = _panels(outputs)
    for title, found in outputs.items():
        places = found.embeddings.numpy()
        _points(panel_of[title], places, found)
        panel_of[title].plot(0, 0, "+", color="black", markersize=9)
        reach = 1.05 * float(np.quantile(np.abs(places), 0.995)) or 1.0
        panel_of[title].set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    return lab.figure(
        figure, "plane",
        caption="Embeddings of two dimensions, a colour per class, the origin marked: classes lie "
        "along directions.",
        alt="Scatter of embeddings in the plane, one panel per loss.",
    )  # fmt: skip


def sphere_figure(lab: Lab, outputs: Mapping[str, Outputs]) -> Figure:
    """Directions of embeddings of three dimensions, seen from one side (Fig. 4)."""
    figure, panel_of = _panels(outputs)
    turn = np.linspace(0, 2 * np.pi, 100)
    for title, found in outputs.items():
        ax, places = panel_of[title], _seen_from_above(unit_vectors(found.embeddings).numpy())
        ax.plot(np.cos(turn), np.sin(turn), color="grey", linewidth=0.8)
        is_behind = places[:, 2] < 0
        _points(ax, places[is_behind], found, rows=is_behind, alpha=0.15)
        _points(ax, places[~is_behind], found, rows=~is_behind)
        ax.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal")
        ax.axis("off")
    return lab.figure(
        figure, "sphere",
        caption="Directions of embeddings of three dimensions on the unit sphere, a colour per "
        "class; points on the far side are pale.",
        alt="Points on a sphere, one panel per loss.",
    )  # fmt: skip


def tsne_figure(lab: Lab, outputs: Mapping[str, Outputs]) -> Figure:
    """A t-SNE map of the embeddings' directions, one panel per loss (Fig. 5)."""
    figure, panel_of = _panels(outputs)
    for title, found in outputs.items():
        lab.step(f"t-SNE: {title}")
        _points(panel_of[title], tsne_map(unit_vectors(found.embeddings)), found)
        panel_of[title].set(xticks=[], yticks=[])
    return lab.figure(
        figure, "tsne",
        caption="t-SNE of the directions of test features, a colour per class. Distances between "
        "groups and sizes of groups mean nothing on such a map.",
        alt="Scatter of features on a map, one panel per loss.",
    )  # fmt: skip


def _panels(outputs: Mapping[str, Outputs]) -> tuple[Any, dict[str, Any]]:
    """A figure, and its panels by the loss that each shows."""
    figure, axes = panels(1, len(outputs), width=2.3, height=2.5)
    for title, axis in zip(outputs, axes, strict=True):
        axis.set_title(title)
    return figure, dict(zip(outputs, axes, strict=True))


def cam_figure(lab: Lab, source: MemorySource, maps: Mapping[str, Tensor]) -> Figure:
    """An image of every class above its Grad-CAM maps, a row per loss (Figs. 2 and 6)."""
    figure, axes = panels(1 + len(maps), len(source), width=0.85, height=0.85)
    grey = source.images.ndim == 3
    for column in range(len(source)):
        image = source.images[column] / 255.0
        axes[column].imshow(image, cmap="gray" if grey else None)
        axes[column].set_title(source.classes[source.labels[column]], fontsize=7)
        behind = image if grey else image.mean(axis=2)
        for row, found in enumerate(maps.values(), start=1):
            ax = axes[row * len(source) + column]
            ax.imshow(behind, cmap="gray")
            ax.imshow(found[column].numpy(), cmap="inferno", alpha=0.65, vmin=0, vmax=1)
    for at, ax in enumerate(axes):
        ax.set(xticks=[], yticks=[])
        for side in ax.spines.values():
            side.set_visible(False)
        if at % len(source) == 0:
            name = ["image", *maps][at // len(source)]
            ax.set_ylabel(name.replace(", ", "\n"), fontsize=7)
    return lab.figure(
        figure, "gradcam",
        caption="The first test image of every class and the Grad-CAM map of its prediction.",
        alt="A grid of images, and below each its map under every loss.",
    )  # fmt: skip


def _points(
    ax: Any, places: Places, found: Outputs, *, rows: Any = slice(None), alpha: float = 0.6
) -> None:
    # as pixels: thousands of circles would make the file large
    ax.scatter(
        places[:, 0], places[:, 1], c=found.labels.numpy()[rows] % 10, cmap=_CLASS_COLOURS, s=4,
        alpha=alpha, linewidths=0, vmin=0, vmax=9, rasterized=True,
    )  # fmt: skip


def _seen_from_above(directions: Places) -> Places:
    """Coordinates that look down a little, so that no axis is hidden behind another."""
    turn, tilt = np.deg2rad(30), np.deg2rad(-55)
    about_z = np.array(
        [[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]]
    )
    about_x = np.array(
        [[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]]
    )
    turned: Places = directions @ (about_x @ about_z).T
    return turned
