"""The pictures of ``avh-geometry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardsight.experiments.avh._geometry_measures import GeometrySetting, Paths, Sphere
from hardsight.experiments.lab import Figure, Lab, Outputs
from hardsight.report.figures import COLOURS, legend, panels

_TEN = (*COLOURS, "#1f1f1f", "#74b816")


def plane_figure(lab: Lab, outputs: Outputs, setting: GeometrySetting) -> Figure:
    """Test examples in the plane (Figs. 2, 8)."""
    figure, (axis,) = panels(1, 1, width=5.4, height=5.0)
    _scatter_plane(axis, outputs)
    legend(figure, title="class", scale=3)
    return lab.figure(
        figure, "plane",
        caption=f"Figs. 2 and 8: test examples of {setting.dataset} in an embedding of two "
        "dimensions, first seed; lines: the classes' weights, lengthened.",
        alt="Points of ten colours in rays around the origin, one ray per class.",
    )  # fmt: skip


def _scatter_plane(axis: Any, outputs: Outputs, *, most: int = 3000, alpha: float = 0.6) -> None:
    points, labels = outputs.embeddings[:most].numpy(), outputs.labels[:most].numpy()
    reach = float(np.quantile(np.linalg.norm(points, axis=1), 0.99))
    for label, weight in enumerate(outputs.class_weights.numpy()):
        rows, colour = labels == label, _TEN[label % len(_TEN)]
        axis.plot(*points[rows].T, ".", ms=2.5, color=colour, alpha=alpha, label=str(label),
                  rasterized=True)  # fmt: skip
        end = reach * weight / max(float(np.linalg.norm(weight)), 1e-12)
        axis.plot([0, end[0]], [0, end[1]], color=colour, lw=1)
    axis.set(aspect="equal", xlabel="first dimension of the embedding",
             ylabel="second dimension")  # fmt: skip


def sphere_figure(lab: Lab, sphere: Sphere) -> Figure:
    """Classes, AVH and norm on the sphere (Figs. 3, 7)."""
    figure, axes = panels(1, 3, width=3.8, height=3.2)
    across, up = sphere.points[:, 0] - sphere.points[:, 1], sphere.points[:, 2]
    for label in (0, 1):
        rows = sphere.labels == label
        axes[0].plot(across[rows], up[rows], ".", ms=2.5, color=(COLOURS[0], COLOURS[2])[label],
                     label=f"class {label}", rasterized=True)  # fmt: skip
    axes[0].set_title("points on the sphere")
    for axis, values, title in ((axes[1], sphere.avh, "AVH"), (axes[2], sphere.norm, "norm ‖x‖")):
        dots = axis.scatter(across, up, c=values, s=4, cmap="viridis", rasterized=True)
        figure.colorbar(dots, ax=axis, label=title).solids.set_rasterized(True)
        axis.set_title(title)
    legend(figure, scale=3)
    for axis in axes:
        axis.set(xlabel="first minus second coordinate", ylabel="third coordinate")
    return lab.figure(
        figure, "sphere",
        caption="Figs. 3 and 7: two overlapping Gaussians on the sphere, seen from the side, first "
        "seed: the classes, AVH and the norm of the perceptron's embedding.",
        alt="Three views of a sphere: points of two classes, coloured by class, AVH and norm.",
    )  # fmt: skip


def growth_figure(lab: Lab, growth: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Confidence and AVH against the norm (Fig. 20)."""
    figure, axes = panels(1, 2, width=3.8, height=2.9)
    titles = {"nearer": "nearer to its own class", "farther": "nearer to the other class"}
    for axis, (which, found) in zip(axes, growth.items(), strict=True):
        axis.plot(found["norm"], found["confidence"], label="model confidence", color=COLOURS[1])
        axis.plot(found["norm"], found["avh"], label="AVH", color=COLOURS[0])
        axis.set(title=titles[which], xlabel="norm ‖x‖", ylabel="score", ylim=(-0.02, 1.05))
    legend(figure)
    return lab.figure(
        figure, "growth",
        caption="Fig. 20: confidence and AVH of one point as its norm grows, by formula. AVH is a "
        "hardness: smaller is easier.",
        alt="Two panels: confidence rises to 1 or falls to 0 with the norm, AVH stays level.",
    )  # fmt: skip


def path_figure(lab: Lab, outputs: Outputs, paths: Paths, setting: GeometrySetting) -> Figure:
    """Out of the class by gradient ascent (Fig. 22)."""
    figure, axes = panels(1, 2, width=4.8, height=4.2)
    _scatter_plane(axes[0], outputs, alpha=0.15)
    flipped = [at for at in range(paths.places.shape[1]) if paths.flips[at] > 0]
    if flipped:
        at = flipped[0]
        stop = min(len(paths.places), 2 * int(paths.flips[at]) + 1)
        path = paths.places[:stop, at]
        axes[0].plot(*path.T, color="#7048e8", lw=2, label="path")
        axes[0].plot(*path[0], "o", color="#7048e8", ms=6)
        axes[0].plot(*path[-1], "*", color="#7048e8", ms=10)
    axes[0].set_title("one example, from the dot to the star")
    share = np.linspace(0, 1, 41)
    norms, angles = [], []
    for at, flip in enumerate(paths.flips):
        if flip > 0:
            steps = np.linspace(0, 1, flip + 1)
            norm, angle = paths.norms[: flip + 1, at], paths.angles[: flip + 1, at]
            norms.append(np.interp(share, steps, norm / max(norm[0], 1e-12)))
            angles.append(np.interp(share, steps, angle / max(float(angle.max()), 1e-12)))
    for values, title, colour in ((norms, "norm over first norm", COLOURS[1]),
                                  (angles, "angle over largest angle", COLOURS[0])):  # fmt: skip
        if values:
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
            axes[1].plot(share, middle, color=colour, label=title)
            axes[1].fill_between(share, low, high, color=colour, alpha=0.2, lw=0)
    axes[1].set(title=f"{len(norms)} examples: median and quartiles",
                xlabel="share of the steps until the prediction changes",
                ylabel="share")  # fmt: skip
    legend(figure, axes[1:])
    return lab.figure(
        figure, "adversarial",
        caption=f"Fig. 22: right test examples of {setting.dataset} pushed out of their class by "
        "gradient ascent, first seed. Left: one path in the embedding; right: norm and angle to "
        "the own class on the way.",
        alt="A path in the plane from one class to another; curves of norm and angle on the way.",
    )  # fmt: skip
