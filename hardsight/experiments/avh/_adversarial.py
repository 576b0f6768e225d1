"""AVH, Appendix G and Fig. 22 b, c: adversarial training, and adversarial images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight.data import MemorySource
from hardsight.evaluate import Normalisation, pgd
from hardsight.experiments import lab as kit
from hardsight.geometry import pairwise_angles
from hardsight.heads import capture, find_head
from hardsight.report.figures import COLOURS, panels
from hardsight.run.loop import borrowed
from hardsight.run.study import read_histories
from hardsight.run.train import TrainResult
from hardsight.scores import angular_visual_hardness

Floats = NDArray[np.float64]
_PLAIN, _ADVERSARIAL = "plain training", "adversarial training"
_CNN, _SPHERE = "CNN", "decoupled SphereNet"
_BATCH = 500
_TEN = (*COLOURS, "#1f1f1f", "#74b816")  # a colour for each class


@dataclass(frozen=True)
class Setting:
    """Keys of ``avh-adversarial``.

    Attributes:
        dataset: of digits.
        model: that is trained on images as they are, and on changed ones.
        epochs: of its training.
        plane_epochs: of the networks whose embedding is a plane.
        batch_size: of training.
        lr: learning rate of SGD, which rises for an epoch and falls to 0 along a cosine.
        enlarge: every pixel becomes so many, in both directions.
        limit: train on so many images; all by default.
        test_limit: watch so many test images; all by default.
        epsilon: radius of the attacks in L∞, pixels on [0, 1].
        steps: of PGD while training.
        attack_steps: of PGD on test images.
        attacked: test images that are attacked.
        seeds: one network of each kind.
    """

    dataset: str = "mnist"
    model: str = "small_cnn"
    epochs: int = 6
    plane_epochs: int = 3
    batch_size: int = 32
    lr: float = 0.1
    enlarge: int = 1
    limit: int | None = 6000
    test_limit: int | None = 2000
    epsilon: float = 0.1
    steps: int = 3
    attack_steps: int = 20
    attacked: int = 500
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    speeds = kit.Grid.of(_speeds(setting, data["curves"]), "training", "curve")
    images = kit.Grid.read(data["images"], setting.seeds, "training", "images")
    planes = kit.Grid.read(data["planes"], setting.seeds, "network")
    title = f"{setting.dataset}, {setting.model}"
    reached = [100 * curve["correct"][-1] for curve in data["curves"][_PLAIN]]
    gate = kit.Gate(title, f"{setting.dataset}/{setting.model}", reached)
    tables = [
        _speed_table(speeds, data["curves"]),
        _image_table(images, setting),
        _plane_table(planes),
        kit.networks_table([gate]),
    ]
    return tables, [*_slower(speeds, gate.weak), *_worse(images, gate.weak)]


def _speeds(setting: Setting, curves: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"training": training, "curve": measure, "seed": seed,
         "mean over images": travelled(np.array(curve[measure])),
         "single images": curve["travelled"][measure]}
        for training, of_seeds in curves.items()
        for seed, curve in zip(setting.seeds, of_seeds, strict=True)
        for measure in ("norm", "avh")
    ]  # fmt: skip


def travelled(curve: Floats) -> float:
    r"""How far a curve goes from epoch to epoch, both ways counted, relative to its mean.

    .. math:: \frac{\sum_t |v_{t+1} - v_t|}{\bar v}

    A factor has no influence, so norms and angles can be compared.

    Args:
        curve: ``[E]``, or ``[E, N]`` for the mean over examples.

    Example:
        >>> travelled(np.array([1.0, 2.0, 3.0])), travelled(np.array([10.0, 20.0, 30.0]))
        (1.0, 1.0)
    """
    ways, means = np.abs(np.diff(curve, axis=0)).sum(axis=0), np.asarray(curve.mean(axis=0))
    return float(np.mean(ways[means > 0] / means[means > 0])) if (means > 0).any() else math.nan


def _slower(speeds: kit.Grid, weak: str) -> list[kit.Question]:
    during = speeds.at(training=_ADVERSARIAL)
    return [
        during.question(
            f"AVH changes more slowly than the norm during adversarial training ({which})",
            "Appendix G, no number", which, {"curve": "avh"}, {"curve": "norm"}, larger=False,
            names=("AVH", "norm"), weak=weak,
        )
        for which in ("mean over images", "single images")
    ]  # fmt: skip


def _worse(images: kit.Grid, weak: str) -> list[kit.Question]:
    questions = []
    for training in images.names("training"):
        grid = images.at(training=training)
        questions.append(
            grid.question(
                f"an adversarial image has a worse AVH than the original ({training})",
                "Appendix G, no number", "avh", {"images": "changed"}, {"images": "original"},
                names=("changed", "original"), weak=weak,
            )
        )  # fmt: skip
        survivors = [{"images": f"{kind}, still right"} for kind in ("changed", "original")]
        questions.append(
            grid.question(
                "an adversarial image whose class is still recognised also has a worse AVH "
                f"({training})", "not in the paper",
                "avh", *survivors, names=("changed", "original"), weak=weak,
            )
        )  # fmt: skip
    return questions


def _speed_table(speeds: kit.Grid, curves: Mapping[str, Any]) -> kit.Table:
    titles = {"norm": "norm", "avh": "AVH"}

    def last(_: kit.Grid, training: str, measure: str) -> str:
        first, end = (np.mean([run[measure][at] for run in curves[training]]) for at in (0, -1))
        return f"{first:.4g} → {end:.4g}"

    rows = speeds.table(
        "Change from epoch to epoch, relative to the mean",
        {"training": "training", "curve": "measure"},
        {"mean over images": "mean over images", "single images": "single images",
         "mean, first → last epoch": last},
        note="Sum of |change| over epochs, divided by the mean of all epochs; ± is the standard "
        "deviation over seeds. Mean over images: for the mean over unchanged test images. Single "
        "images: for each image by itself, then averaged.",
    )  # fmt: skip
    named = [[row[0], titles[str(row[1])], *row[2:]] for row in rows.rows]
    return kit.Table(rows.title, rows.columns, named, rows.note)


def _image_table(images: kit.Grid, setting: Setting) -> kit.Table:
    return images.table(
        f"Test images before and after the attack (PGD, L∞ {setting.epsilon:g})",
        {"training": "training", "images": "images"},
        {"share of all": "share", "accuracy": "accuracy", "AVH": "avh", "norm": "norm"},
        note="Mean ± standard deviation over seeds. AVH is relative to the true class. Still "
        "right: images whose class is right before and after the change.",
    )


def _plane_table(planes: kit.Grid) -> kit.Table:
    return planes.table(
        "Successful adversarial examples in the plane (Fig. 22 b, c)",
        {"network": "network"},
        {"accuracy": "accuracy", "share of right images that succeed": "fooled",
         "norm, changed over original": "norm_ratio",
         "angle to the own class before, degrees": "own_before",
         "angle to the own class after, degrees": "own_after",
         "angle to the new class after, degrees": "new_after"},
        note="Mean ± standard deviation over seeds of medians over the successful examples. The "
        "paper shows pictures of one run and gives no numbers.",
    )  # fmt: skip


@kit.experiment(
    "avh-adversarial",
    title="AVH and norm under attack",
    reproduces="Angular Visual Hardness, Appendix G and Fig. 22 b, c",
    scales={
        "smoke": Setting(
            dataset="builtin:digits", epochs=2, plane_epochs=1, batch_size=32, enlarge=2, limit=100,
            test_limit=60, epsilon=0.2, steps=2, attack_steps=2, attacked=30, seeds=(0, 1),
        ),
        "short": Setting(),
        "paper": Setting(
            epochs=40, plane_epochs=20, batch_size=128, limit=None, test_limit=None, steps=7,
            attacked=10_000,
        ),
    },
    asks=_asks,
)  # fmt: skip
def avh_adversarial(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Watches AVH and norm during adversarial training, and looks at adversarial images.

    {model} is trained on {limit} images of {dataset} for {epochs} epochs with seeds {seeds}: once
    on the original images, and once on images that PGD ({steps} steps, L∞ {epsilon}) has changed to
    mislead the current network. After every epoch, norm and AVH of {test_limit} unchanged test
    images are recorded. Then {attacked} test images are changed to attack each network (PGD,
    {attack_steps} steps). Is their AVH worse?

    Two networks with a two-dimensional embedding, one of them a decoupled SphereNet, show where
    successful adversarial examples end up. The paper does not name its network or attack. Nothing
    is selected: the last epoch counts.
    """
    train, test = _digits(lab, setting)
    curves: dict[str, list[Any]] = {_PLAIN: [], _ADVERSARIAL: []}
    images: dict[str, list[Any]] = {_PLAIN: [], _ADVERSARIAL: []}
    for training in curves:
        for seed in setting.seeds:
            run = _trained(lab, setting, train, test, training, seed)
            curves[training].append(_curves(run))
            images[training].append(_images(_changed(lab, run, test, setting)))
    found = {
        name: [
            _changed(lab, _plane(lab, setting, train, name, seed), test, setting)
            for seed in setting.seeds
        ]
        for name in (_CNN, _SPHERE)
    }
    data = {
        "curves": curves,
        "images": {training: _by_images(of_seeds) for training, of_seeds in images.items()},
        "planes": {name: _over_seeds([_in_plane(one) for one in of]) for name, of in found.items()},
    }
    first = {name: of[0] for name, of in found.items()}
    return kit.Result(
        figures=[_dynamics_figure(lab, curves), _planes_figure(lab, first)], data=data
    )


def _digits(lab: kit.Lab, setting: Setting) -> tuple[MemorySource, MemorySource]:
    splits = [
        lab.source(setting.dataset, split, limit=limit)
        for split, limit in (("train", setting.limit), ("test", setting.test_limit))
    ]
    times = setting.enlarge
    train, test = (s.with_images(s.images.repeat(times, 1).repeat(times, 2)) for s in splits)
    return train, test


def _recipe(setting: Setting, epochs: int) -> dict[str, Any]:
    return {
        "epochs": epochs,
        "batch_size": setting.batch_size,
        "optimizer": {"name": "sgd", "lr": setting.lr, "nesterov": True},
        "schedule": {"name": "cosine", "warmup_epochs": 1},
        "validation": 0.0,
        "select": "last",
    }


def _trained(
    lab: kit.Lab,
    setting: Setting,
    train: MemorySource,
    test: MemorySource,
    training: str,
    seed: int,
) -> TrainResult:
    lab.step(f"{setting.model}, seed {seed}: {training}")
    attack = {"epsilon": setting.epsilon, "steps": setting.steps}
    changed = {"adversarial": attack} if training == _ADVERSARIAL else {}
    return lab.train(
        setting.model, train, seed=seed, track_on={"test": test}, **changed,
        **_recipe(setting, setting.epochs),
    )  # fmt: skip


def _plane(
    lab: kit.Lab, setting: Setting, train: MemorySource, name: str, seed: int
) -> TrainResult:
    lab.step(f"a plane by a {name}, seed {seed}")
    model = "mnist_cnn:decoupled=true" if name == _SPHERE else "mnist_cnn"
    return lab.train(model, train, seed=seed, **_recipe(setting, setting.plane_epochs))


def _curves(run: TrainResult) -> dict[str, Any]:
    """Means over the watched images by epoch, and how far single images travel."""
    measures = read_histories(Path(run.folder), examples="test").measures
    kept = ("norm", "avh", "correct")
    return {
        **{name: measures[name].mean(axis=1).tolist() for name in kept},
        "travelled": {name: travelled(measures[name]) for name in ("norm", "avh")},
    }


@dataclass(frozen=True, eq=False)
class Changed:
    """Test images before and after an attack, as one network sees them.

    Attributes:
        before: embeddings of the images as they are, ``[N, D]``.
        after: of the changed ones.
        guesses: predicted classes before and after, ``[2, N]``.
        labels: ``[N]``.
        weights: of the classes, ``[C, D]``.
    """

    before: Tensor
    after: Tensor
    guesses: Tensor
    labels: Tensor
    weights: Tensor


def _changed(lab: kit.Lab, run: TrainResult, test: MemorySource, setting: Setting) -> Changed:
    """Attack the first images with PGD, and keep what the network says of both."""
    some = test.subset(np.arange(min(setting.attacked, len(test))))
    inputs = lab.inputs(run, some)
    labels = torch.from_numpy(some.labels.copy()).to(lab.device)
    how = Normalisation(run.preprocessing.mean, run.preprocessing.std)
    attack = partial(pgd, epsilon=setting.epsilon, steps=setting.attack_steps, normalisation=how)
    parts: list[list[Tensor]] = [[], [], [], []]
    with borrowed(run.model, lab.device):
        head = find_head(run.model, inputs[:2])
        with capture(run.model, head) as forward:
            for batch, own in zip(inputs.split(_BATCH), labels.split(_BATCH), strict=True):
                made = attack(lambda images: forward(images)[1].float(), batch, own)
                with torch.no_grad():
                    for at, images in enumerate((batch, made)):
                        embeddings, logits = forward(images)
                        parts[2 * at].append(embeddings.float().cpu())
                        parts[2 * at + 1].append(logits.argmax(dim=1).cpu())
        weights = head.weight.detach().float().cpu()
    before, guessed, after, guessed_after = (torch.cat(part) for part in parts)
    return Changed(before, after, torch.stack([guessed, guessed_after]), labels.cpu(), weights)


def _images(found: Changed) -> dict[str, dict[str, float]]:
    """Means over images before and after the attack, and over those that stay right."""
    right = found.guesses == found.labels
    both = right.all(dim=0)
    rows = {"": torch.ones_like(both), ", still right": both}
    numbers = {}
    for which, chosen in rows.items():
        for at, (name, embeddings) in enumerate(
            (("original", found.before), ("changed", found.after))
        ):
            some, labels = embeddings[chosen], found.labels[chosen]
            hardness = angular_visual_hardness(some, labels, found.weights)
            numbers[f"{name}{which}"] = {
                "share": float(chosen.float().mean()),
                "accuracy": _mean(right[at][chosen].float()),
                "avh": _mean(hardness),
                "norm": _mean(some.norm(dim=1)),
            }
    return numbers


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else math.nan


def _by_images(of_seeds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    return {name: _over_seeds([one[name] for one in of_seeds]) for name in of_seeds[0]}


def _over_seeds(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {measure: [row[measure] for row in rows] for measure in rows[0]}


def _in_plane(found: Changed) -> dict[str, float]:
    """Where successful adversarial examples lie: medians over them."""
    was_right = found.guesses[0] == found.labels
    fooled = was_right & (found.guesses[1] != found.labels)
    own, new = found.labels[fooled, None], found.guesses[1][fooled, None]
    before, after = (
        pairwise_angles(embeddings[fooled], found.weights).rad2deg()
        for embeddings in (found.before, found.after)
    )
    norms = found.after[fooled].norm(dim=1) / found.before[fooled].norm(dim=1)
    medians = {
        "norm_ratio": norms,
        "own_before": before.gather(1, own)[:, 0],
        "own_after": after.gather(1, own)[:, 0],
        "new_after": after.gather(1, new)[:, 0],
    }
    return {
        "accuracy": _mean(was_right.float()),
        "fooled": float(fooled.sum()) / max(int(was_right.sum()), 1),
        **{name: float(v.median()) if len(v) else math.nan for name, v in medians.items()},
    }


def _dynamics_figure(lab: kit.Lab, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> kit.Figure:
    figure, axes = panels(1, len(curves), width=3.6, ylabel="over the mean of all epochs")
    for axis, (training, of_seeds) in zip(axes, curves.items(), strict=True):
        epochs = np.arange(1, len(of_seeds[0]["norm"]) + 1)
        for colour, (measure, title) in zip(
            COLOURS, (("norm", "norm"), ("avh", "AVH")), strict=False
        ):
            relative = [np.array(run[measure]) / np.mean(run[measure]) for run in of_seeds]
            kit.band(axis, epochs, relative, colour, title, marker="o", ms=3)
        axis.set(title=training, xlabel="epoch")
    return lab.figure(
        figure, "dynamics",
        caption="Norm and AVH of test images during training, each divided by its mean; "
        f"{kit.BANDS}.",
        alt="Two panels, plain and adversarial training, with a line for the norm and one for AVH.",
    )  # fmt: skip


def _planes_figure(lab: kit.Lab, found: Mapping[str, Changed]) -> kit.Figure:
    figure, axes = panels(1, len(found), width=3.6, height=3.4, ylabel="second dimension")
    for axis, (name, seen) in zip(axes, found.items(), strict=True):
        for label, colour in zip(range(len(seen.weights)), _TEN, strict=False):
            own = seen.before[seen.labels == label]
            axis.scatter(*own.T, s=3, color=colour, alpha=0.5, lw=0, label=str(label))
        fooled = (seen.guesses[0] == seen.labels) & (seen.guesses[1] != seen.labels)
        axis.scatter(*seen.after[fooled].T, s=8, color="#9c36b5", marker="x", lw=0.6,
                     label="adversarial")  # fmt: skip
        axis.set(title=name, xlabel="first dimension")
    return lab.figure(
        figure, "planes",
        caption="Embeddings of test images by class, and of successful adversarial examples "
        "(crosses), first seed (as Fig. 22 b, c).",
        alt="Two scatter plots of ten classes as rays from the origin; crosses of adversarial "
        "examples lie between and on the rays.",
    )  # fmt: skip
