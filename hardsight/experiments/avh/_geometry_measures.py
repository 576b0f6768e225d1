"""What ``avh-geometry`` measures: the plane, the sphere, one growing point, ways out of a class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hardsight.data import MemorySource
from hardsight.experiments import lab as kit
from hardsight.geometry import pairwise_angles
from hardsight.heads import capture, find_head
from hardsight.run.loop import borrowed, seeded
from hardsight.run.train import Pixels, TrainResult
from hardsight.scores import angular_visual_hardness, feature_norm, model_confidence, target_angle
from hardsight.stats import compare_correlations

Floats = NDArray[np.float64]
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


# --- the plane -------------------------------------------------------------------------------


def digits(lab: kit.Lab, setting: GeometrySetting) -> tuple[MemorySource, MemorySource]:
    """Images to train on and test images, enlarged as the setting says."""
    splits = (
        lab.source(setting.dataset, "train", limit=setting.train_limit),
        lab.source(setting.dataset, "test"),
    )
    if setting.enlarge == 1:
        return splits
    times = setting.enlarge
    train, test = (s.with_images(s.images.repeat(times, 1).repeat(times, 2)) for s in splits)
    return train, test


def plane(lab: kit.Lab, setting: GeometrySetting, train: MemorySource, seed: int) -> TrainResult:
    """A network whose embedding has two dimensions."""
    lab.step(f"a plane for {setting.dataset}, seed {seed}")
    return lab.train(
        "mnist_cnn", train, seed=seed, epochs=setting.epochs, batch_size=setting.batch_size,
        optimizer={"name": "sgd", "lr": 0.05}, schedule="cosine", validation=0.0, select="last",
    )  # fmt: skip


def plane_numbers(outputs: kit.Outputs) -> dict[str, float]:
    """How far the plane is one of cones: angles to the own class and to the nearest other one."""
    angles = pairwise_angles(outputs.embeddings, outputs.class_weights)
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

    def numbers(self) -> dict[str, float]:
        """Does AVH follow the doubt more closely than the norm does? By magnitude."""
        compared = compare_correlations(self.avh, self.norm, self.doubt, magnitudes=True)
        numbers = {"avh": compared.first, "norm": compared.second, "z": compared.z, "p": compared.p}
        return {"accuracy": self.accuracy, **numbers}


_MEANS = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, -1.0]])


def sphere(setting: GeometrySetting, seed: int) -> Sphere:
    """Draw the points, train a perceptron with a hidden layer of 3 x 2, and score the points."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(2).repeat_interleave(setting.points)
    points = _MEANS[labels] + torch.randn(len(labels), 3, generator=draw)
    points = nn.functional.normalize(points, dim=1)
    with seeded(seed):
        hidden, head = nn.Linear(3, 2), nn.Linear(2, 2)
    optimizer = torch.optim.Adam([*hidden.parameters(), *head.parameters()], lr=0.02)
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
    doubt: Floats = share[np.arange(len(labels)), 1 - labels]
    return doubt


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
    angle = math.pi / 4 + (-_NEAR if which == "nearer" else _NEAR)
    norms = torch.linspace(0.5, 100, 200, dtype=torch.float64)
    direction = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    embeddings, weights = norms[:, None] * direction, torch.eye(2, dtype=torch.float64)
    labels = torch.zeros(len(norms), dtype=torch.int64)
    return {
        "norm": norms.tolist(),
        "confidence": model_confidence(embeddings @ weights.T, labels).double().tolist(),
        "avh": angular_visual_hardness(embeddings, labels, weights).double().tolist(),
    }


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

    def numbers(self) -> dict[str, float]:
        """Of the examples that changed class: how many came nearer to the origin, and when."""
        left = [(self.norms[: at + 1, n], self.angles[: at + 1, n])
                for n, at in enumerate(self.flips) if at > 0]  # fmt: skip
        least = [float(norms.min() / norms[0]) for norms, _ in left if norms[0] > 0]
        first = [halfway(-norms) < halfway(angles) for norms, angles in left if shrinks(norms)]
        return {
            "examples": len(self.flips),
            "flipped": len(left),
            "shrunk": len(first),
            "least_norm": float(np.median(least)) if least else math.nan,
            "norm_first": sum(first),
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


def trajectories(
    lab: kit.Lab, run: TrainResult, test: MemorySource, setting: GeometrySetting
) -> Paths:
    """Ways of right examples out of their class, by gradient ascent on the loss."""
    pixels = Pixels(run.preprocessing, channels_last=False, device=lab.device)
    images = kit.channels_first(test).float().to(lab.device) / 255
    labels = torch.from_numpy(test.labels.copy()).to(lab.device)
    with borrowed(run.model, lab.device):
        head = find_head(run.model, pixels.normalised(images[:2]))
        with torch.no_grad():
            right = (run.model(pixels.normalised(images)).argmax(1) == labels).nonzero()[:, 0]
        rows = right[torch.linspace(0, len(right) - 1, min(setting.attacked, len(right))).long()]
        with capture(run.model, head) as forward:
            return ascended(
                lambda some: forward(pixels.normalised(some)),
                images[rows], labels[rows], head.weight, setting,
            )  # fmt: skip


def ascended(
    forward: Any, images: Tensor, labels: Tensor, weights: Tensor, setting: GeometrySetting
) -> Paths:
    """Gradient ascent on the loss, in steps of equal length in pixels, inside the pixels' range.

    Args:
        forward: from pixels in [0, 1] to embeddings and logits.
        images: to start from, ``[N, C, H, W]``.
        labels: ``[N]``.
        weights: of the classes, ``[C, D]``.
        setting: how many steps, of which length.
    """
    places, angles = [], []
    flips = torch.full_like(labels, -1)
    length = setting.step_length * math.sqrt(images[0].numel())
    for step in range(setting.attack_steps + 1):
        images = images.detach().requires_grad_()
        embeddings, logits = forward(images)
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
