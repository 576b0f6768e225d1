"""The networks that the AVH experiments share: trained once, watched on the test split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.data import (
    CONTRAST_LEVELS,
    NOISE_LEVELS,
    MemorySource,
    human_frequency,
    reduced_contrast,
    with_uniform_noise,
)
from hardsight.errors import StatisticError
from hardsight.experiments import lab as kit
from hardsight.report import figures
from hardsight.run.study import Histories, read_histories
from hardsight.run.train import TrainResult
from hardsight.stats import correlation

Floats = NDArray[np.float64]
KINDS = ("noise", "contrast")  # of degradation

TITLES = {
    "alexnet": "AlexNet",
    "vgg19": "VGG-19",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "densenet121": "DenseNet-121",
    "small_cnn": "SmallCNN",
    "small_cnn:embedding_width=12": "SmallCNN, 12-D",
}
# The paper has 0.01 for AlexNet and VGG-19 and 0.1 for the others, over 90 epochs of ImageNet. In a
# few hundred times fewer steps AlexNet would hardly leave its start at 0.01.
_RATES = {"resnet18": 0.1, "resnet50": 0.1, "densenet121": 0.1}
_OTHER_RATE = 0.05


@dataclass(frozen=True)
class ModelSetting:
    """What the shared networks are trained on; the same in every experiment that uses them.

    Attributes:
        dataset: with the splits train and test; its test split has human counts, or annotators
            are simulated.
        models: names of networks.
        epochs: passes over the training data.
        schedule: ``step``: the learning rate falls to a tenth after each third of the epochs, as
            after 30 and 60 of the paper's 90; ``cosine``: it rises for two epochs and then falls
            to 0 along a cosine, which gives better networks in few epochs.
        batch_size: of training.
        train_limit: train on so many examples; all by default.
        test_limit: watch so many test examples; all by default.
        degraded: test pictures that are also watched at every level of noise and contrast.
        seeds: one network each.
    """

    dataset: str = "cifar10"
    models: tuple[str, ...] = ("alexnet", "vgg19", "resnet18", "densenet121")
    epochs: int = 15
    schedule: str = "step"
    batch_size: int = 256
    train_limit: int | None = None
    test_limit: int | None = None
    degraded: int = 1000
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def rates(self) -> str:
        """The course of the learning rate in words."""
        if self.schedule == "step":
            return "is divided by 10 after each third of them"
        return "rises for two of them, then falls to 0 along a cosine"

    @property
    def networks(self) -> str:
        """The models in words."""
        return ", ".join(say(model) for model in self.models)


SMOKE = ModelSetting(
    dataset="builtin:digits", models=("small_cnn:embedding_width=12", "small_cnn"),
    epochs=2, batch_size=32, train_limit=200, test_limit=150, degraded=20, seeds=(0, 1),
)  # fmt: skip
SHORT = ModelSetting()
# The paper's four networks, long enough to be good at CIFAR-10, which is far smaller than ImageNet.
PAPER = ModelSetting(
    models=("alexnet", "vgg19", "resnet50", "densenet121"), epochs=24, schedule="cosine",
    degraded=500, seeds=(0, 1, 2, 3, 4),
)  # fmt: skip


def gates_of(dataset: str, accuracy: Mapping[str, Sequence[float]]) -> list[kit.Gate]:
    """What the networks must reach on a dataset, and do; accuracies are shares, one per seed."""
    return [
        kit.Gate(f"{kit.DATASETS.get(dataset, dataset)}, {say(model)}", f"{dataset}/{model}",
                 [100 * share for share in shares])
        for model, shares in accuracy.items()
    ]  # fmt: skip


class Subjects:
    """Data and trained networks.

    Args:
        lab: of the experiment.
        setting: what to train.

    Attributes:
        test: the pictures that are never trained on.
        frequency: share of annotators who chose the label of each, ``[N]``.
        annotators: who they are, in words: ``people``, or ``simulated annotators``.
        rows: which test pictures are watched at every level of degradation.
    """

    def __init__(self, lab: kit.Lab, setting: ModelSetting) -> None:
        self._lab, self._setting = lab, setting
        name = setting.dataset
        self._train = lab.source(name, "train", limit=setting.train_limit)
        test = lab.source(name, "test", limit=setting.test_limit)
        self.annotators = "people" if test.human_counts is not None else "simulated annotators"
        if test.human_counts is None:
            test = with_simulated_annotators(lab.source(name, "train"), test)
        self.test = test
        self.frequency: Floats = human_frequency(self.test)
        count = min(setting.degraded, len(self.test))
        self.rows = np.linspace(0, len(self.test) - 1, count).round().astype(np.int64)
        self._watched = {"test": self.test, **degraded_sets(self.test.subset(self.rows))}

    def run(self, model: str, seed: int) -> TrainResult:
        """A trained network, from this experiment or one before."""
        setting, is_colour = self._setting, self.test.images.ndim == 4
        self._lab.step(f"{TITLES.get(model, model)}, seed {seed}")
        return self._lab.train(
            model, self._train, seed=seed, epochs=setting.epochs, batch_size=setting.batch_size,
            optimizer={"name": "sgd", "lr": _RATES.get(model, _OTHER_RATE), "weight_decay": 5e-4},
            schedule=self._schedule(),
            augment={"crop_padding": 4, "flip": True} if is_colour else {}, validation=0.0,
            select="last", track_on=self._watched,
        )  # fmt: skip

    def _schedule(self) -> dict[str, Any]:
        if self._setting.schedule == "cosine":
            return {"name": "cosine", "warmup_epochs": 2}
        return {"name": "step", "step_epochs": max(1, self._setting.epochs // 3), "gamma": 0.1}

    def histories(self, run: TrainResult, watched: str = "test") -> Histories:
        """What was recorded of a watched set in every epoch."""
        return read_histories(Path(run.folder), examples=watched)


def levels_of(kind: str) -> tuple[float, ...]:
    """The paper's levels of ``noise`` or ``contrast``, the clean one first."""
    return NOISE_LEVELS if kind == "noise" else CONTRAST_LEVELS


def set_name(kind: str, level: float) -> str:
    """Name of the watched set of one level; the clean level is part of ``test``."""
    return f"{kind}-{level:g}"


def degraded_sets(clean: MemorySource) -> dict[str, MemorySource]:
    """The pictures at every level but the clean one, rounded to 8 bits."""
    return {
        set_name(kind, level): clean.with_images(degraded(clean.images, **{kind: level}))  # type: ignore[arg-type]
        for kind in KINDS
        for level in levels_of(kind)[1:]
    }


def degraded(
    images: NDArray[np.uint8], *, noise: float = 0.0, contrast: float = 1.0, invert: bool = False
) -> NDArray[np.uint8]:
    """Pictures inverted, with less contrast, and noisy (Definition 4), in this order."""
    pixels = images.astype(np.float32) / np.float32(255)
    pale = reduced_contrast(1 - pixels if invert else pixels, level=contrast)
    noisy = [
        with_uniform_noise(image, width=noise, seed=0, index=index)
        for index, image in enumerate(pale)
    ]
    made: NDArray[np.uint8] = np.rint(np.stack(noisy) * 255).astype(np.uint8)
    return made


def with_simulated_annotators(
    train: MemorySource, test: MemorySource, *, annotators: int = 40
) -> MemorySource:
    """Test pictures with counts of simulated annotators, who are not people.

    Each of them knows a random tenth of the training pictures, looks at a noisy copy of the test
    picture (uniform noise of width 0.5) and gives the label of the nearest picture it knows.
    """
    known, seen = (s.images.reshape(len(s), -1) / np.float32(255) for s in (train, test))
    counts = np.zeros((len(seen), len(test.classes)), dtype=np.int64)
    for annotator in range(annotators):
        draw = np.random.default_rng([0, annotator])
        mine = draw.choice(len(known), size=max(10, len(known) // 10), replace=False)
        noisy = np.clip(seen + draw.uniform(-0.5, 0.5, size=seen.shape), 0, 1)
        distance = (known[mine] ** 2).sum(axis=1) - 2 * noisy @ known[mine].T
        answers = train.labels[mine][distance.argmin(axis=1)]
        counts[np.arange(len(seen)), answers] += 1
    return MemorySource(
        test.images, test.labels, classes=test.classes,
        spec=f"{test.spec} with simulated annotators", human_counts=counts,
    )  # fmt: skip


def say(model: str) -> str:
    """A network's name as tables show it."""
    return TITLES.get(model, model)


def agreement_of_networks(agree: int, pairs: int) -> bool | None:
    """Whether better networks have more of something: in all pairs; no if in fewer than half.

    Example:
        >>> agreement_of_networks(3, 3), agreement_of_networks(1, 3), agreement_of_networks(2, 3)
        (True, False, None)
    """
    if not pairs or agree < pairs <= 2 * agree:
        return None
    return bool(agree == pairs)


def density(figure: Any, axis: Any, x: Floats, y: Floats, *, title: str, bins: int = 25) -> None:
    """A two-dimensional histogram of shares, in [0, 1], against a score; Spearman in its title."""
    edges = np.linspace(0, 1, bins + 1), np.linspace(y.min(), y.max() + 1e-12, bins + 1)
    figures.density(figure, axis, *np.histogram2d(x, y, bins=edges))
    try:
        axis.set_title(f"{title}: Spearman {correlation(x, y).value:.3f}")
    except StatisticError:
        axis.set_title(f"{title}: constant, or too few")
