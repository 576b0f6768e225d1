"""How the experiments on acting by hardness train: one place for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardsight.data import MemorySource, with_label_errors
from hardsight.experiments import lab as kit
from hardsight.run.train import TrainResult


@dataclass(frozen=True)
class Recipe:
    """Keys that all these experiments have.

    Attributes:
        dataset: to learn.
        model: to train.
        limit: take so many training examples; all by default.
        test_limit: take so many test examples; all by default.
        epochs: over all training examples; fewer examples are gone through more often, so that all
            runs have as many steps.
        batch_size: of training.
        optimizer: ``adamw`` or ``sgd``.
        lr: largest learning rate.
        crop_padding: of random crops.
        flip: mirror half of the images.
        seeds: of what is drawn, of the weights and of the order.
    """

    dataset: str = "builtin:digits"
    model: str = "small_cnn"
    limit: int | None = None
    test_limit: int | None = None
    epochs: int = 8
    batch_size: int = 64
    optimizer: str = "adamw"
    lr: float = 0.01
    crop_padding: int = 0
    flip: bool = False
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def on(self) -> str:
        """The data in words."""
        return kit.DATASETS.get(self.dataset, self.dataset)

    def gate(self, reached: Sequence[float | None]) -> kit.Gate:
        """What the network must reach, and does with all examples and their own labels."""
        return kit.Gate(f"{self.on}, {self.model}", f"{self.dataset}/{self.model}", reached)


# seconds on a CPU
SMOKE: dict[str, Any] = {"limit": 200, "test_limit": 100, "epochs": 2, "seeds": (0, 1)}
# of CIFAR-10 on a GPU, as benchmarks/good_networks.py trains
PAPER: dict[str, Any] = {
    "dataset": "cifar10", "model": "resnet18", "epochs": 40, "batch_size": 128, "optimizer": "sgd",
    "lr": 0.1, "crop_padding": 4, "flip": True,
}  # fmt: skip


def splits(lab: kit.Lab, setting: Recipe) -> tuple[MemorySource, MemorySource]:
    """What is learned from, and what is tested on."""
    return (
        lab.source(setting.dataset, "train", limit=setting.limit),
        lab.source(setting.dataset, "test", limit=setting.test_limit),
    )


def with_noise(source: MemorySource, share: float, seed: int) -> MemorySource:
    """The same pictures, with a share of the labels made wrong at random."""
    if not share:
        return source
    labels, _ = with_label_errors(
        source.labels, num_classes=len(source.classes), share=share, seed=seed
    )
    return source.relabelled(labels)


def trained(
    lab: kit.Lab, setting: Recipe, source: MemorySource, *, seed: int, whole: int, **more: Any
) -> TrainResult:
    """A network after as many steps as the recipe takes over ``whole`` examples.

    Args:
        lab: of the experiment.
        setting: how to train.
        source: to train on.
        seed: of the run.
        whole: examples of the training split.
        more: other settings of training, such as ``track``.
    """
    optimizer: dict[str, Any] = {"name": setting.optimizer, "lr": setting.lr}
    if setting.optimizer == "sgd":
        optimizer["nesterov"] = True
    epochs = max(1, round(setting.epochs * whole / len(source)))
    return lab.train(
        setting.model, source, seed=seed, epochs=epochs,
        batch_size=min(setting.batch_size, len(source)), optimizer=optimizer, schedule="one_cycle",
        augment={"crop_padding": setting.crop_padding, "flip": setting.flip}, validation=0.0,
        select="last", **more,
    )  # fmt: skip


def accuracy(lab: kit.Lab, run: TrainResult, test: MemorySource) -> float:
    """On the test split, per cent."""
    predicted = lab.outputs(run, test).logits.argmax(dim=1).numpy()
    return 100 * float(np.mean(predicted == test.labels))


def noise_in_words(share: float) -> str:
    """A share of wrong labels as tables name it.

    Example:
        >>> noise_in_words(0.0), noise_in_words(0.4)
        ('none', '40 %')
    """
    return f"{100 * share:g} %" if share else "none"


def noise_told(share: float, seed: int) -> str:
    """What a person is told when a trial with wrong labels begins."""
    return f"wrong labels: {noise_in_words(share)}, seed {seed}"
