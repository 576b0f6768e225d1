"""AVH, Figs. 2, 3, 20 and 22: what norm and angle stand for, in pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hardsight.data import MemorySource
from hardsight.experiments._lab import Lab, Outputs
from hardsight.experiments._plots import COLOURS, panels
from hardsight.experiments._registry import experiment
from hardsight.experiments._result import Cell, Claim, Figure, Result, Table, spread
from hardsight.heads import capture, find_head
from hardsight.run._device import borrowed
from hardsight.run._train_images import Pixels
from hardsight.run.train import TrainResult
from hardsight.scores import (
    angular_visual_hardness,
    feature_norm,
    model_confidence,
    target_angle,
)
from hardsight.stats import CorrelationComparison, compare_correlations, wilson_interval

Floats = NDArray[np.float64]

_TEN = (*COLOURS, "#1f1f1f", "#74b816")
_NEAR = 0.05  # Fig. 20: distance of the two angles from a quarter turn's half


@dataclass(frozen=True)
class GeometrySetting:
    """What is trained and attacked.

    Attributes:
        dataset: of digits.
        epochs: of the network with a plane as its embedding.
        batch_size: of its training.
        enlarge: every pixel becomes so many, in both directions.
        train_limit: train on so many examples; all by default.
        points: per Gaussian on the sphere; the paper's 1,000.
        sphere_steps: of the perceptron's training.
        attacked: examples that are pushed out of their class.
        attack_steps: at most, each of a fixed length.
        step_length: of one, as the root mean square over pixels, black to white being 1.
        seeds: one network, one sphere each.
    """

    dataset: str = "mnist"
    epochs: int = 12
    batch_size: int = 256
    enlarge: int = 1
    train_limit: int | None = None
    points: int = 1000
    sphere_steps: int = 1000
    attacked: int = 500
    attack_steps: int = 200
    step_length: float = 0.0025
    seeds: tuple[int, ...] = (0, 1, 2)


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
        "paper": GeometrySetting(),
    },
)  # fmt: skip
def avh_geometry(lab: Lab, setting: GeometrySetting) -> Result:
    """Four pictures. A network whose embedding is a plane, trained on MNIST (3 seeds, 12 epochs,
    last epoch): classes are cones. A perceptron on two Gaussians projected to the sphere, where
    the true hardness of a point, the probability of the other class, is known: which of AVH and
    norm follows it? Confidence and AVH of one point as its norm grows, by formula. And gradient
    ascent on the loss of right examples in the plane: does the norm shrink before the angle turns?
    """  # noqa: D205
    train, test = _digits(lab, setting)
    runs = [_plane(lab, setting, train, seed) for seed in setting.seeds]
    outputs = [lab.outputs(run, test) for run in runs]
    spheres = [sphere(setting, seed) for seed in setting.seeds]
    growth = {name: grown(name) for name in ("nearer", "farther")}
    paths = [_trajectories(lab, run, test, setting) for run in runs]
    return Result(
        tables=[_plane_table(outputs), _sphere_table(spheres), _path_table(paths)],
        claims=geometry_claims(outputs, spheres, growth, paths),
        figures=[
            _plane_figure(lab, outputs[0], setting),
            _sphere_figure(lab, spheres[0]),
            _growth_figure(lab, growth),
            _path_figure(lab, outputs[0], paths[0], setting),
        ],
        data={
            "plane": [_plane_numbers(one) for one in outputs],
            "sphere": [one.numbers() for one in spheres],
            "growth": growth,
            "paths": [one.numbers() for one in paths],
        },
    )


# --- the plane -------------------------------------------------------------------------------


def _digits(lab: Lab, setting: GeometrySetting) -> tuple[MemorySource, MemorySource]:
    found = (
        lab.source(setting.dataset, "train", limit=setting.train_limit),
        lab.source(setting.dataset, "test"),
    )
    if setting.enlarge == 1:
        return found
    times = setting.enlarge
    one, two = (s.with_images(s.images.repeat(times, 1).repeat(times, 2)) for s in found)
    return one, two


def _plane(lab: Lab, setting: GeometrySetting, train: MemorySource, seed: int) -> TrainResult:
    lab.step(f"a plane for {setting.dataset}, seed {seed}")
    return lab.train(
        "mnist_cnn", train, seed=seed, epochs=setting.epochs, batch_size=setting.batch_size,
        optimizer={"name": "sgd", "lr": 0.05}, schedule="cosine", validation=0.0, select="last",
    )  # fmt: skip


def _plane_numbers(outputs: Outputs) -> dict[str, float]:
    """How far the plane is one of cones: angles to the own class and to the nearest other one."""
    angles = torch.stack([
        target_angle(outputs.embeddings, torch.full_like(outputs.labels, c), outputs.class_weights)
        for c in range(len(outputs.class_weights))
    ], dim=1)  # fmt: skip
    own = angles.gather(1, outputs.labels[:, None]).squeeze(1)
    others = angles.scatter(1, outputs.labels[:, None], math.inf).amin(dim=1)
    hardness = angular_visual_hardness(outputs.embeddings, outputs.labels, outputs.class_weights)
    right = outputs.logits.argmax(1) == outputs.labels
    return {
        "accuracy": outputs.accuracy,
        "own_angle": math.degrees(float(own.median())),
        "nearest_other_angle": math.degrees(float(others.median())),
        "avh_right": float(hardness[right].mean()) if bool(right.any()) else math.nan,
        "avh_wrong": float(hardness[~right].mean()) if not bool(right.all()) else math.nan,
    }


def _plane_table(outputs: Sequence[Outputs]) -> Table:
    found = [_plane_numbers(one) for one in outputs]
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


def _plane_figure(lab: Lab, outputs: Outputs, setting: GeometrySetting) -> Figure:
    figure, (axis,) = panels(1, 1, width=5.4, height=5.0)
    _scatter_plane(axis, outputs)
    figure.legend(loc="outside right upper", fontsize=8, title="class", title_fontsize=8,
                  markerscale=3)  # fmt: skip
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


# --- two Gaussians on the sphere -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sphere:
    """Two Gaussians on the unit sphere, and a perceptron on them.

    Attributes:
        points: ``[N, 3]``, of length 1.
        labels: ``[N]``.
        doubt: probability of the other class given the point, ``[N]``.
        avh: of the trained perceptron.
        norm: of its embeddings.
        accuracy: of the perceptron.
    """

    points: Floats
    labels: NDArray[np.int64]
    doubt: Floats
    avh: Floats
    norm: Floats
    accuracy: float

    def compared(self) -> CorrelationComparison:
        """Does AVH follow the doubt more closely than the norm does? By magnitude."""
        return compare_correlations(self.avh, self.norm, self.doubt, magnitudes=True)

    def numbers(self) -> dict[str, float]:
        """What the table needs."""
        found = self.compared()
        return {
            "accuracy": self.accuracy,
            "avh": found.first,
            "norm": found.second,
            "z": found.z,
            "p": found.p,
        }


_MEANS = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, -1.0]])


def sphere(setting: GeometrySetting, seed: int) -> Sphere:
    """Draw the points, train a perceptron with a hidden layer of 3 x 2, and score the points."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(2).repeat_interleave(setting.points)
    points = _MEANS[labels] + torch.randn(len(labels), 3, generator=draw)
    points = nn.functional.normalize(points, dim=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden, head = nn.Linear(3, 2), nn.Linear(2, 2)
    parameters = [*hidden.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    for _ in range(setting.sphere_steps):
        loss = cross_entropy(head(torch.tanh(hidden(points))), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        embeddings = torch.tanh(hidden(points))
        return Sphere(
            points.double().numpy(),
            labels.numpy(),
            other_class_probability(points.double().numpy(), labels.numpy(), _MEANS.numpy()),
            angular_visual_hardness(embeddings, labels, head.weight).double().numpy(),
            feature_norm(embeddings).double().numpy(),
            float((head(embeddings).argmax(1) == labels).float().mean()),
        )


def other_class_probability(
    points: Floats, labels: NDArray[np.int64], means: NDArray[Any]
) -> Floats:
    r"""Probability that a point on the sphere came from the other Gaussian.

    A normal vector of mean :math:`\mu` and unit covariance, brought to length 1, has at :math:`u`
    a density proportional to :math:`e^{-\mu^2/2}\,[t + (1 + t^2)\,\Phi(t)/\varphi(t)]` with
    :math:`t = u^T\mu` (the projected normal distribution in three dimensions).

    Example:
        >>> means = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])
        >>> points = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        >>> other_class_probability(points, np.array([0, 0]), means).round(3)
        array([0.5  , 0.038])
    """
    from scipy.stats import norm

    t = points @ means.T.astype(np.float64)  # [N, 2]
    density = t + (1 + t**2) * norm.cdf(t) / norm.pdf(t)
    density = density * np.exp(-(means.astype(np.float64) ** 2).sum(axis=1) / 2)
    share = density / density.sum(axis=1, keepdims=True)
    found: Floats = share[np.arange(len(labels)), 1 - labels]
    return found


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


def _sphere_figure(lab: Lab, one: Sphere) -> Figure:
    figure, axes = panels(1, 3, width=3.8, height=3.2)
    across, up = one.points[:, 0] - one.points[:, 1], one.points[:, 2]
    for label in (0, 1):
        rows = one.labels == label
        axes[0].plot(across[rows], up[rows], ".", ms=2.5, color=(COLOURS[0], COLOURS[2])[label],
                     label=f"class {label}", rasterized=True)  # fmt: skip
    axes[0].legend(fontsize=7, markerscale=3)
    axes[0].set_title("points on the sphere")
    for axis, values, title in ((axes[1], one.avh, "AVH"), (axes[2], one.norm, "norm ‖x‖")):
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
    )  # fmt: skip


# --- one point, longer and longer ------------------------------------------------------------


def grown(which: str) -> dict[str, list[float]]:
    """Confidence and AVH of a point between two class weights of length 1, as its norm grows.

    Args:
        which: ``nearer`` to its own class (angles pi/4 - 0.05 and pi/4 + 0.05), or ``farther``.

    Example:
        >>> found = grown("nearer")
        >>> found["confidence"][-1] > 0.99, round(found["avh"][0], 4) == round(found["avh"][-1], 4)
        (True, True)
    """
    near = -_NEAR if which == "nearer" else _NEAR
    angle = math.pi / 4 + near
    norms = torch.linspace(0.5, 100, 200, dtype=torch.float64)
    direction = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    embeddings, weights = norms[:, None] * direction, torch.eye(2, dtype=torch.float64)
    labels = torch.zeros(len(norms), dtype=torch.int64)
    return {
        "norm": norms.tolist(),
        "confidence": model_confidence(embeddings @ weights.T, labels).double().tolist(),
        "avh": angular_visual_hardness(embeddings, labels, weights).double().tolist(),
    }


def _growth_figure(lab: Lab, growth: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    figure, axes = panels(1, 2, width=3.8, height=2.9)
    titles = {"nearer": "nearer to its own class", "farther": "nearer to the other class"}
    for axis, (which, found) in zip(axes, growth.items(), strict=True):
        axis.plot(found["norm"], found["confidence"], label="model confidence", color=COLOURS[1])
        axis.plot(found["norm"], found["avh"], label="AVH", color=COLOURS[0])
        axis.set(title=titles[which], xlabel="norm ‖x‖", ylabel="score", ylim=(-0.02, 1.05))
    axes[1].legend(fontsize=8)
    return lab.figure(
        figure, "growth",
        caption="Fig. 20: confidence and AVH of one point as its norm grows, by formula. AVH is a "
        "hardness: smaller is easier.",
        alt="Two panels: confidence rises to 1 or falls to 0 with the norm, AVH stays level.",
    )  # fmt: skip


# --- out of the class ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Paths:
    """Embeddings of right examples on their way out of their class.

    Attributes:
        places: ``[T, N, D]`` for the first few of them, for the figure; the start first.
        norms: ``[T, N]``.
        angles: to the own class weight, ``[T, N]``, radians.
        flips: the first step at which the prediction is another class, ``[N]``; -1 for never.
    """

    places: Floats
    norms: Floats
    angles: Floats
    flips: NDArray[np.int64]

    def norm_first(self) -> NDArray[np.bool_]:
        """Of the examples that changed class by a path on which both moved: norm before angle?"""
        first = [
            halfway(-self.norms[: flip + 1, at]) < halfway(self.angles[: flip + 1, at])
            for at, flip in enumerate(self.flips)
            if flip > 0 and shrinks(self.norms[: flip + 1, at])
        ]
        return np.array(first, dtype=bool)

    def numbers(self) -> dict[str, float]:
        """What the table and the claim need."""
        out = self.flips > 0
        shrunk = [self.norms[: flip + 1, at] for at, flip in enumerate(self.flips) if flip > 0]
        least = [float(path.min() / path[0]) for path in shrunk if path[0] > 0]
        first = self.norm_first()
        return {
            "examples": len(self.flips),
            "flipped": int(out.sum()),
            "shrunk": int(sum(shrinks(path) for path in shrunk)),
            "least_norm": float(np.median(least)) if least else math.nan,
            "norm_first": int(first.sum()),
            "of": len(first),
        }


def shrinks(norms: Floats, *, share: float = 0.05) -> bool:
    """Whether a path comes nearer to the origin by more than a share of its first norm."""
    return bool(norms.min() < (1 - share) * norms[0])


def halfway(values: Floats) -> int:
    """The first step at which a path has made half of its way to its largest value.

    Example:
        >>> halfway(np.array([0.0, 1.0, 5.0, 8.0, 10.0]))
        2
    """
    return int(np.argmax(values >= values[0] + 0.5 * (values.max() - values[0])))


def _trajectories(
    lab: Lab, run: TrainResult, test: MemorySource, setting: GeometrySetting
) -> Paths:
    """Gradient ascent on the loss, in steps of equal length in pixels, inside the pixels' range."""
    pixels = Pixels(run.preprocessing, channels_last=False, device=lab.device)
    images = torch.from_numpy(test.images)[:, None].float().to(lab.device) / 255
    labels = torch.from_numpy(test.labels.copy()).to(lab.device)
    with borrowed(run.model, lab.device):
        head = find_head(run.model, pixels.normalised(images[:2]))
        with torch.no_grad():
            right = (run.model(pixels.normalised(images)).argmax(1) == labels).nonzero()[:, 0]
        rows = right[torch.linspace(0, len(right) - 1, min(setting.attacked, len(right))).long()]
        with capture(run.model, head) as forward:
            found = _ascend(forward, pixels, images[rows], labels[rows], head.weight, setting)
    return found


def _ascend(
    forward: Any,
    pixels: Pixels,
    images: Tensor,
    labels: Tensor,
    weights: Tensor,
    setting: GeometrySetting,
) -> Paths:
    places, angles = [], []
    flips = torch.full_like(labels, -1)
    length = setting.step_length * math.sqrt(images[0].numel())
    for step in range(setting.attack_steps + 1):
        images = images.detach().requires_grad_()
        embeddings, logits = forward(pixels.normalised(images))
        with torch.no_grad():
            places.append(embeddings.detach().float().cpu())
            angles.append(target_angle(embeddings.detach(), labels, weights.detach()).cpu())
            out = (logits.argmax(1) != labels) & (flips < 0)
            flips = torch.where(out, step, flips)
        (slope,) = torch.autograd.grad(cross_entropy(logits, labels, reduction="sum"), images)
        unit = slope / slope.flatten(1).norm(dim=1).clamp_min(1e-12)[:, None, None, None]
        images = (images + length * unit).clamp(0, 1)
    whole = torch.stack(places).double()
    return Paths(
        whole[:, :12].numpy(),
        whole.norm(dim=2).numpy(),
        torch.stack(angles).double().numpy(),
        flips.cpu().numpy(),
    )


def _path_table(paths: Sequence[Paths]) -> Table:
    found = [one.numbers() for one in paths]
    rows: list[list[Cell]] = [
        [seed, int(one["examples"]), int(one["flipped"]), int(one["shrunk"]),
         None if math.isnan(one["least_norm"]) else one["least_norm"],
         f"{int(one['norm_first'])} of {int(one['of'])}"]
        for seed, one in enumerate(found)
    ]  # fmt: skip
    return Table(
        "Out of the class by gradient ascent (Fig. 22)",
        ("network", "right examples", "changed class", "of these came nearer to the origin",
         "least norm over first norm, median", "norm half-way before the angle"),
        rows,
        "Until the prediction changes. Nearer: by more than 5 % of the first norm. Half-way: half "
        "of the whole fall of the norm, and of the whole rise of the angle to the own class.",
    )  # fmt: skip


def _path_figure(lab: Lab, outputs: Outputs, paths: Paths, setting: GeometrySetting) -> Figure:
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
    axes[1].legend(fontsize=8)
    return lab.figure(
        figure, "adversarial",
        caption=f"Fig. 22: right test examples of {setting.dataset} pushed out of their class by "
        "gradient ascent, first seed. Left: one path in the embedding; right: norm and angle to "
        "the own class on the way.",
        alt="A path in the plane from one class to another; curves of norm and angle on the way.",
    )  # fmt: skip


# --- what holds ------------------------------------------------------------------------------


def geometry_claims(
    outputs: Sequence[Outputs],
    spheres: Sequence[Sphere],
    growth: Mapping[str, Mapping[str, Sequence[float]]],
    paths: Sequence[Paths],
) -> list[Claim]:
    """The paper's remarks on the pictures."""
    return [_cones(outputs), _overlap(spheres), _growing(growth), _norm_then_angle(paths)]


def _cones(outputs: Sequence[Outputs]) -> Claim:
    found = [_plane_numbers(one) for one in outputs]
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
