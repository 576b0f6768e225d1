"""AVH, Figs. 2, 3, 20 and 22: what norm and angle mean, in pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hardsight.experiments.avh._geometry_draw import (
    growth_figure,
    path_figure,
    plane_figure,
    sphere_figure,
)
from hardsight.experiments.avh._geometry_measures import (
    GeometrySetting,
    Paths,
    Sphere,
    digits,
    grown,
    plane,
    plane_numbers,
    sphere,
    trajectories,
)
from hardsight.experiments.lab import Cell, Claim, Lab, Outputs, Result, Table, experiment, spread
from hardsight.stats import wilson_interval


@experiment(
    "avh-geometry",
    title="What norm and angle stand for",
    reproduces="Angular Visual Hardness, Figs. 2, 3, 7, 8, 20, 22",
    scales={
        "smoke": GeometrySetting(
            dataset="builtin:digits", epochs=6, batch_size=32, enlarge=2, train_limit=300,
            points=200, sphere_steps=300, attacked=20, attack_steps=40, step_length=0.01,
            seeds=(0, 1),
        ),
        "short": GeometrySetting(),
    },
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
    train, test = digits(lab, setting)
    runs = [plane(lab, setting, train, seed) for seed in setting.seeds]
    outputs = [lab.outputs(run, test) for run in runs]
    spheres = [sphere(setting, seed) for seed in setting.seeds]
    growth = {name: grown(name) for name in ("nearer", "farther")}
    paths = [trajectories(lab, run, test, setting) for run in runs]
    return Result(
        tables=[_plane_table(outputs), _sphere_table(spheres), _path_table(paths, setting.seeds)],
        claims=geometry_claims(outputs, spheres, growth, paths),
        figures=[
            plane_figure(lab, outputs[0], setting),
            sphere_figure(lab, spheres[0]),
            growth_figure(lab, growth),
            path_figure(lab, outputs[0], paths[0], setting),
        ],
        data={
            "plane": [plane_numbers(one) for one in outputs],
            "sphere": [one.numbers() for one in spheres],
            "growth": growth,
            "paths": [one.numbers() for one in paths],
        },
    )


def _plane_table(outputs: Sequence[Outputs]) -> Table:
    found = [plane_numbers(one) for one in outputs]
    titles = {
        "accuracy": "accuracy", "own_angle": "angle to the own class, median, degrees",
        "nearest_other_angle": "angle to the nearest other class, median, degrees",
        "avh_right": "AVH of right examples", "avh_wrong": "AVH of wrong examples",
    }  # fmt: skip
    cells: list[Cell] = []
    for key in titles:
        values = [one[key] for one in found if not math.isnan(one[key])]
        cells.append(spread(values) if values else None)
    return Table(
        "An embedding of two dimensions (Figs. 2, 8)",
        tuple(titles.values()),
        [cells],
        "Mean ± standard deviation over seeds, on test examples.",
    )


def _sphere_table(spheres: Sequence[Sphere]) -> Table:
    found = [one.numbers() for one in spheres]
    row: list[Cell] = [
        spread([one[key] for one in found]) for key in ("accuracy", "avh", "norm", "z")
    ]
    return Table(
        "Two Gaussians on the sphere (Figs. 3, 7)",
        ("accuracy", "|Spearman| of AVH and doubt", "|Spearman| of norm and doubt",
         "z of the difference (Steiger)"),
        [row],
        "Doubt: the probability of the other class given the point, by formula. Mean ± standard "
        "deviation over seeds.",
    )  # fmt: skip


def _path_table(paths: Sequence[Paths], seeds: Sequence[int]) -> Table:
    found = [one.numbers() for one in paths]
    rows: list[list[Cell]] = [
        [seed, int(one["examples"]), int(one["flipped"]), int(one["shrunk"]),
         None if math.isnan(one["least_norm"]) else one["least_norm"],
         f"{int(one['norm_first'])} of {int(one['of'])}"]
        for seed, one in zip(seeds, found, strict=True)
    ]  # fmt: skip
    return Table(
        "Out of the class by gradient ascent (Fig. 22)",
        ("seed", "right examples", "changed class", "of these came nearer to the origin",
         "least norm over first norm, median", "norm half-way before the angle"),
        rows,
        "Until the prediction changes. Nearer: by more than 5 % of the first norm. Half-way: half "
        "of the whole fall of the norm, and of the whole rise of the angle to the own class.",
    )  # fmt: skip


def geometry_claims(
    outputs: Sequence[Outputs],
    spheres: Sequence[Sphere],
    growth: Mapping[str, Mapping[str, Sequence[float]]],
    paths: Sequence[Paths],
) -> list[Claim]:
    """The paper's remarks on the pictures."""
    return [_cones(outputs), _overlap(spheres), _growing(growth), _norm_then_angle(paths)]


def _cones(outputs: Sequence[Outputs]) -> Claim:
    found = [plane_numbers(one) for one in outputs]
    nearer = [one["own_angle"] < one["nearest_other_angle"] for one in found]
    listed = ", ".join(
        f"{one['own_angle']:.0f}° against {one['nearest_other_angle']:.0f}°" for one in found
    )
    return Claim(
        "Samples of each class concentrate in a convex cone around their class weight.",
        "Figs. 2, 8",
        f"median angle to the own class against the nearest other one, by seed: {listed}",
        True if all(nearer) else (False if not any(nearer) else None),
    )


def _overlap(spheres: Sequence[Sphere]) -> Claim:
    found = [one.compared() for one in spheres]
    ahead = sum(one.difference > 0 and one.p < 0.05 for one in found)
    behind = sum(one.difference < 0 and one.p < 0.05 for one in found)
    listed = ", ".join(f"{one.first:.2f} against {one.second:.2f}" for one in found)
    return Claim(
        "AVH is high where the classes overlap; the norm has less to do with hard examples.",
        "Figs. 3, 7",
        f"|Spearman| with the probability of the other class, AVH against norm, by seed: {listed}; "
        f"AVH is ahead in {ahead} of {len(found)}, the norm in {behind}",
        True if ahead == len(found) else (False if ahead == 0 else None),
    )


def _growing(growth: Mapping[str, Mapping[str, Sequence[float]]]) -> Claim:
    near, far = growth["nearer"], growth["farther"]
    still = max(max(one["avh"]) - min(one["avh"]) for one in (near, far))
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


def _norm_then_angle(paths: Sequence[Paths]) -> Claim:
    says = (
        "An adversarial example first shrinks its norm towards the origin and then turns its angle."
    )
    first = np.concatenate([one.norm_first() for one in paths])
    flipped = sum(int((one.flips > 0).sum()) for one in paths)
    if not len(first):
        seen = f"none of {flipped} examples that changed class came nearer to the origin"
        return Claim(says, "Fig. 22, one example", seen, False if flipped else None)
    low, high = wilson_interval(int(first.sum()), len(first))
    seen = (
        f"{len(first)} of {flipped} examples that changed class came nearer to the origin; of "
        f"these the norm is half-way before the angle in {first.mean():.0%} "
        f"[{low:.0%}, {high:.0%}]"
    )
    enough = 2 * len(first) > flipped
    holds = (True if enough else None) if low > 0.5 else (False if high < 0.5 else None)
    return Claim(says, "Fig. 22, one example", seen, holds)
