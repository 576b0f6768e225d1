"""AVH, Figs. 2, 3, 20 and 22: what norm and angle mean, in pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardsight.experiments import lab as kit
from hardsight.experiments.avh import _geometry_measures as measures
from hardsight.experiments.avh._geometry_measures import GeometrySetting, Paths, Sphere
from hardsight.report.figures import COLOURS, panels
from hardsight.stats import wilson_interval

Rows = Sequence[Mapping[str, Any]]  # one per seed
_TEN = (*COLOURS, "#1f1f1f", "#74b816")  # a colour for each class
_MEANS = "Mean ± standard deviation over seeds"


def _asks(setting: GeometrySetting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    tables = [
        _one_row(
            "An embedding of two dimensions (Figs. 2, 8)",
            data["plane"],
            {
                "accuracy": "accuracy",
                "angle to the own class, median, degrees": "own_angle",
                "angle to the nearest other class, median, degrees": "nearest_other_angle",
                "AVH of right examples": "avh_right",
                "AVH of wrong examples": "avh_wrong",
            },
            f"{_MEANS}, on test examples.",
        ),
        _one_row(
            "Two Gaussians on the sphere (Figs. 3, 7)",
            data["sphere"],
            {
                "accuracy": "accuracy",
                "|Spearman| of AVH and doubt": "avh",
                "|Spearman| of norm and doubt": "norm",
                "z of the difference (Steiger)": "z",
            },
            f"Doubt: the probability of the other class given the point, by formula. {_MEANS}.",
        ),
        _path_table(data["paths"], setting.seeds),
    ]
    claims = [
        _cones(data["plane"]),
        _overlap(data["sphere"]),
        _growing(data["growth"]),
        _norm_then_angle(data["paths"]),
    ]
    return tables, claims


@kit.experiment(
    "avh-geometry",
    title="What norm and angle stand for",
    reproduces="Angular Visual Hardness, Figs. 2, 3, 7, 8, 20, 22",
    scales={
        "smoke": GeometrySetting(
            dataset="builtin:digits", epochs=2, batch_size=32, enlarge=2, train_limit=150,
            points=100, sphere_steps=100, attacked=10, attack_steps=20, step_length=0.01,
            seeds=(0, 1),
        ),
        "short": GeometrySetting(),
    },
    asks=_asks,
)  # fmt: skip
def avh_geometry(lab: kit.Lab, setting: GeometrySetting) -> kit.Result:
    """Draws four pictures of what norm and angle stand for.

    The first is a network with a two-dimensional embedding, trained on {train_limit} training
    images of {dataset} (seeds {seeds}, {epochs} epochs, last epoch): classes are cones. The second
    is a perceptron on two Gaussians projected to the sphere. There, the true hardness of a point is
    known, as the probability of the other class. Does AVH or the norm follow it?

    The third shows confidence and AVH of one point as its norm grows, by formula. The fourth is
    gradient ascent on the loss of correctly classified examples in the plane: does the norm shrink
    before the angle turns?
    """
    train, test = measures.digits(lab, setting)
    runs = [measures.plane(lab, setting, train, seed) for seed in setting.seeds]
    outputs = [lab.outputs(run, test) for run in runs]
    spheres = [measures.sphere(setting, seed) for seed in setting.seeds]
    growth = {name: measures.grown(name) for name in ("nearer", "farther")}
    paths = [measures.trajectories(lab, run, test, setting) for run in runs]
    return kit.Result(
        figures=[
            plane_figure(lab, outputs[0], setting),
            sphere_figure(lab, spheres[0]),
            growth_figure(lab, growth),
            path_figure(lab, outputs[0], paths[0], setting),
        ],
        data={
            "plane": [measures.plane_numbers(output) for output in outputs],
            "sphere": [sphere.numbers() for sphere in spheres],
            "growth": growth,
            "paths": [path.numbers() for path in paths],
        },
    )


def _one_row(title: str, rows: Rows, columns: Mapping[str, str], note: str) -> kit.Table:
    """Means over seeds of one setting."""
    cells = [kit.spread([row[measure] for row in rows]) for measure in columns.values()]
    return kit.Table(title, tuple(columns), [cells], note)


def _path_table(paths: Rows, seeds: Sequence[int]) -> kit.Table:
    rows: list[list[kit.Cell]] = [
        [seed, path["examples"], path["flipped"], path["shrunk"], path["least_norm"],
         f"{path['norm_first']} of {path['of']}"]
        for seed, path in zip(seeds, paths, strict=True)
    ]  # fmt: skip
    return kit.Table(
        "Leaving the class by gradient ascent (Fig. 22)",
        ("seed", "right examples", "changed class", "of these came nearer to the origin",
         "least norm over first norm, median", "norm half-way before the angle"),
        rows,
        "Paths end when the prediction changes. Nearer: by more than 5 % of the first norm. "
        "Half-way: half of the whole fall of the norm, and half of the whole rise of the angle to "
        "the own class.",
    )  # fmt: skip


def _cones(plane: Rows) -> kit.Claim:
    listed = ", ".join(
        f"{boundary['own_angle']:.0f}° against {boundary['nearest_other_angle']:.0f}°"
        for boundary in plane
    )
    return kit.Claim.of_runs(
        "Samples of each class concentrate in a convex cone around their class weight.",
        "Figs. 2, 8",
        f"median angle to the own class against the nearest other one, by seed: {listed}",
        [boundary["own_angle"] < boundary["nearest_other_angle"] for boundary in plane],
    )


def _overlap(spheres: Rows) -> kit.Claim:
    ahead = [sphere["avh"] > sphere["norm"] and sphere["p"] < 0.05 for sphere in spheres]
    behind = [sphere["avh"] < sphere["norm"] and sphere["p"] < 0.05 for sphere in spheres]
    listed = ", ".join(f"{sphere['avh']:.2f} against {sphere['norm']:.2f}" for sphere in spheres)
    return kit.Claim.of_runs(
        "AVH is high where the classes overlap; the norm has less to do with hard examples.",
        "Figs. 3, 7",
        f"|Spearman| with the probability of the other class, AVH against norm, by seed: {listed}; "
        f"AVH is ahead in {sum(ahead)} of {len(ahead)}, the norm in {sum(behind)}",
        ahead,
    )


def _growing(growth: Mapping[str, Mapping[str, Sequence[float]]]) -> kit.Claim:
    near, far = growth["nearer"], growth["farther"]
    still = max(max(path["avh"]) - min(path["avh"]) for path in (near, far))
    up, down = np.diff(near["confidence"]), np.diff(far["confidence"])
    return kit.Claim(
        "As the norm grows, confidence goes to 1 (or to 0 on the wrong side) while AVH stays "
        "unchanged.",
        "Fig. 20",
        f"norm {near['norm'][0]:g} to {near['norm'][-1]:g}: confidence {near['confidence'][0]:.3f} "
        f"→ {near['confidence'][-1]:.3f} and {far['confidence'][0]:.3f} → "
        f"{far['confidence'][-1]:.3f}; AVH changes by at most {still:.1e}",
        bool((up >= 0).all() and (down <= 0).all() and still < 1e-6),
    )


def _norm_then_angle(paths: Rows) -> kit.Claim:
    says = (
        "An adversarial example first shrinks its norm towards the origin and then turns its angle."
    )
    flipped, shrunk, first = (
        sum(path[key] for path in paths) for key in ("flipped", "of", "norm_first")
    )
    if not shrunk:
        seen = f"none of {flipped} examples that changed class came nearer to the origin"
        return kit.Claim(says, "Fig. 22, one example", seen, False if flipped else None)
    low, high = wilson_interval(first, shrunk)
    seen = (
        f"{shrunk} of {flipped} examples that changed class came nearer to the origin; of these "
        f"the norm is half-way before the angle in {first / shrunk:.0%} [{low:.0%}, {high:.0%}]"
    )
    enough = 2 * shrunk > flipped
    holds = (True if enough else None) if low > 0.5 else (False if high < 0.5 else None)
    return kit.Claim(says, "Fig. 22, one example", seen, holds)


def plane_figure(lab: kit.Lab, outputs: kit.Outputs, setting: GeometrySetting) -> kit.Figure:
    """Test examples in the plane (Figs. 2, 8)."""
    figure, (axis,) = panels(1, 1, width=5.4, height=5.0)
    _scatter_plane(axis, outputs)
    return lab.figure(
        figure, "plane",
        caption=f"Figs. 2 and 8: test examples of {setting.dataset} in an embedding of two "
        "dimensions, first seed; lines: the classes' weights, lengthened.",
        alt="Points of ten colours in rays around the origin, one ray per class.",
        legend={"title": "class", "scale": 3},
    )  # fmt: skip


def _scatter_plane(
    axis: Any, outputs: kit.Outputs, *, most: int = 3000, alpha: float = 0.6
) -> None:
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


def sphere_figure(lab: kit.Lab, sphere: Sphere) -> kit.Figure:
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
    for axis in axes:
        axis.set(xlabel="first minus second coordinate", ylabel="third coordinate")
    return lab.figure(
        figure, "sphere",
        caption="Figs. 3 and 7: two overlapping Gaussians on the sphere, seen from the side, first "
        "seed: the classes, AVH and the norm of the perceptron's embedding.",
        alt="Three views of a sphere: points of two classes, coloured by class, AVH and norm.",
        legend={"scale": 3},
    )  # fmt: skip


def growth_figure(lab: kit.Lab, growth: Mapping[str, Mapping[str, Sequence[float]]]) -> kit.Figure:
    """Confidence and AVH against the norm (Fig. 20)."""
    figure, axes = panels(1, 2, width=3.8, height=2.9)
    titles = {"nearer": "nearer to its own class", "farther": "nearer to the other class"}
    for axis, (which, values) in zip(axes, growth.items(), strict=True):
        axis.plot(values["norm"], values["confidence"], label="model confidence", color=COLOURS[1])
        axis.plot(values["norm"], values["avh"], label="AVH", color=COLOURS[0])
        axis.set(title=titles[which], xlabel="norm ‖x‖", ylabel="score", ylim=(-0.02, 1.05))
    return lab.figure(
        figure, "growth",
        caption="Fig. 20: confidence and AVH of one point as its norm grows, by formula. AVH is a "
        "hardness: smaller is easier.",
        alt="Two panels: confidence rises to 1 or falls to 0 with the norm, AVH stays level.",
    )  # fmt: skip


def path_figure(
    lab: kit.Lab, outputs: kit.Outputs, paths: Paths, setting: GeometrySetting
) -> kit.Figure:
    """Leaving the class by gradient ascent (Fig. 22)."""
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
    return lab.figure(
        figure, "adversarial",
        caption=f"Fig. 22: right test examples of {setting.dataset} pushed out of their class by "
        "gradient ascent, first seed. Left: one path in the embedding; right: norm and angle to "
        "the own class on the way.",
        alt="A path in the plane from one class to another; curves of norm and angle on the way.",
        legend={"axes": axes[1:]},
    )  # fmt: skip
