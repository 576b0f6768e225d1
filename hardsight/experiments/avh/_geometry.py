"""AVH, Figs. 2, 3, 20 and 22: what norm and angle mean, in pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardsight.experiments.avh import _geometry_draw as draw
from hardsight.experiments.avh import _geometry_measures as measures
from hardsight.experiments.avh._geometry_measures import GeometrySetting
from hardsight.experiments.lab import Asked, Cell, Claim, Lab, Result, Table, experiment, spread
from hardsight.stats import wilson_interval

Rows = Sequence[Mapping[str, Any]]  # one per seed
_MEANS = "Mean ± standard deviation over seeds"


def _asks(setting: GeometrySetting, data: Mapping[str, Any]) -> Asked:
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


@experiment(
    "avh-geometry",
    title="What norm and angle stand for",
    reproduces="Angular Visual Hardness, Figs. 2, 3, 7, 8, 20, 22",
    scales={
        "smoke": GeometrySetting(
            dataset="builtin:digits", epochs=3, batch_size=32, enlarge=2, train_limit=200,
            points=100, sphere_steps=150, attacked=20, attack_steps=20, step_length=0.01,
            seeds=(0, 1),
        ),
        "short": GeometrySetting(),
    },
    asks=_asks,
)  # fmt: skip
def avh_geometry(lab: Lab, setting: GeometrySetting) -> Result:
    """Draws four pictures of what norm and angle stand for.

    A network whose embedding is a plane, trained on {train_limit} training images of {dataset}
    (seeds {seeds}, {epochs} epochs, last epoch): classes are cones. A perceptron on two Gaussians
    projected to the sphere, where the true hardness of a point, the probability of the other class,
    is known: which of AVH and norm follows it? Confidence and AVH of one point as its norm grows,
    by formula. And gradient ascent on the loss of right examples in the plane: does the norm shrink
    before the angle turns?
    """
    train, test = measures.digits(lab, setting)
    runs = [measures.plane(lab, setting, train, seed) for seed in setting.seeds]
    outputs = [lab.outputs(run, test) for run in runs]
    spheres = [measures.sphere(setting, seed) for seed in setting.seeds]
    growth = {name: measures.grown(name) for name in ("nearer", "farther")}
    paths = [measures.trajectories(lab, run, test, setting) for run in runs]
    return Result(
        figures=[
            draw.plane_figure(lab, outputs[0], setting),
            draw.sphere_figure(lab, spheres[0]),
            draw.growth_figure(lab, growth),
            draw.path_figure(lab, outputs[0], paths[0], setting),
        ],
        data={
            "plane": [measures.plane_numbers(output) for output in outputs],
            "sphere": [sphere.numbers() for sphere in spheres],
            "growth": growth,
            "paths": [path.numbers() for path in paths],
        },
    )


def _one_row(title: str, rows: Rows, columns: Mapping[str, str], note: str) -> Table:
    """Means over seeds of one setting."""
    cells = [spread([row[measure] for row in rows]) for measure in columns.values()]
    return Table(title, tuple(columns), [cells], note)


def _path_table(paths: Rows, seeds: Sequence[int]) -> Table:
    rows: list[list[Cell]] = [
        [seed, path["examples"], path["flipped"], path["shrunk"], path["least_norm"],
         f"{path['norm_first']} of {path['of']}"]
        for seed, path in zip(seeds, paths, strict=True)
    ]  # fmt: skip
    return Table(
        "Out of the class by gradient ascent (Fig. 22)",
        ("seed", "right examples", "changed class", "of these came nearer to the origin",
         "least norm over first norm, median", "norm half-way before the angle"),
        rows,
        "Until the prediction changes. Nearer: by more than 5 % of the first norm. Half-way: half "
        "of the whole fall of the norm, and of the whole rise of the angle to the own class.",
    )  # fmt: skip


def _cones(plane: Rows) -> Claim:
    listed = ", ".join(
        f"{boundary['own_angle']:.0f}° against {boundary['nearest_other_angle']:.0f}°"
        for boundary in plane
    )
    return Claim.of_runs(
        "Samples of each class concentrate in a convex cone around their class weight.",
        "Figs. 2, 8",
        f"median angle to the own class against the nearest other one, by seed: {listed}",
        [boundary["own_angle"] < boundary["nearest_other_angle"] for boundary in plane],
    )


def _overlap(spheres: Rows) -> Claim:
    ahead = [sphere["avh"] > sphere["norm"] and sphere["p"] < 0.05 for sphere in spheres]
    behind = [sphere["avh"] < sphere["norm"] and sphere["p"] < 0.05 for sphere in spheres]
    listed = ", ".join(f"{sphere['avh']:.2f} against {sphere['norm']:.2f}" for sphere in spheres)
    return Claim.of_runs(
        "AVH is high where the classes overlap; the norm has less to do with hard examples.",
        "Figs. 3, 7",
        f"|Spearman| with the probability of the other class, AVH against norm, by seed: {listed}; "
        f"AVH is ahead in {sum(ahead)} of {len(ahead)}, the norm in {sum(behind)}",
        ahead,
    )


def _growing(growth: Mapping[str, Mapping[str, Sequence[float]]]) -> Claim:
    near, far = growth["nearer"], growth["farther"]
    still = max(max(path["avh"]) - min(path["avh"]) for path in (near, far))
    up, down = np.diff(near["confidence"]), np.diff(far["confidence"])
    return Claim(
        "As the norm grows, confidence goes to 1 (or to 0 on the wrong side) while AVH stays "
        "unchanged.",
        "Fig. 20",
        f"norm {near['norm'][0]:g} to {near['norm'][-1]:g}: confidence {near['confidence'][0]:.3f} "
        f"→ {near['confidence'][-1]:.3f} and {far['confidence'][0]:.3f} → "
        f"{far['confidence'][-1]:.3f}; AVH changes by at most {still:.1e}",
        bool((up >= 0).all() and (down <= 0).all() and still < 1e-6),
    )


def _norm_then_angle(paths: Rows) -> Claim:
    says = (
        "An adversarial example first shrinks its norm towards the origin and then turns its angle."
    )
    flipped, shrunk, first = (
        sum(path[key] for path in paths) for key in ("flipped", "of", "norm_first")
    )
    if not shrunk:
        seen = f"none of {flipped} examples that changed class came nearer to the origin"
        return Claim(says, "Fig. 22, one example", seen, False if flipped else None)
    low, high = wilson_interval(first, shrunk)
    seen = (
        f"{shrunk} of {flipped} examples that changed class came nearer to the origin; of these "
        f"the norm is half-way before the angle in {first / shrunk:.0%} [{low:.0%}, {high:.0%}]"
    )
    enough = 2 * shrunk > flipped
    holds = (True if enough else None) if low > 0.5 else (False if high < 0.5 else None)
    return Claim(says, "Fig. 22, one example", seen, holds)
