"""How the AMC experiments train: one place for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hardsight.data import MemorySource
from hardsight.experiments import lab as kit
from hardsight.run.train import TrainResult

CROSS_ENTROPY = "cross-entropy"
# Section 3.2: of 300 epochs, 80 ramp up and 50 ramp down
_UP, _DOWN = 80 / 300, 50 / 300
_NAMES = {"euclidean_contrastive": "+ Euclid", "amc": "+ AMC"}


@dataclass(frozen=True)
class Recipe:
    """Keys that all these experiments have.

    Attributes:
        model: to train.
        width: of ``amc13``; 0.5 is the published code's.
        similarity: what makes a pair similar; the paper's ``predictions``, or ``labels``.
        epochs: of colour images; the paper's 300.
        batch_size: the paper's 128.
        limit: examples to train on, all by default.
        seeds: one run each.
    """

    model: str = "amc13"
    width: float = 0.5
    similarity: str = "predictions"
    epochs: int = 10
    batch_size: int = 512
    limit: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def network(self) -> str:
        """The model in words, with the width if it takes one."""
        return f"{self.model} of width {self.width:g}" if self.model == "amc13" else self.model

    def gate(self, dataset: str, reached: Sequence[float | None]) -> kit.Gate:
        """What the network must reach on a dataset, and does with cross-entropy."""
        title = f"{kit.DATASETS.get(dataset, dataset)}, {self.network}"
        return kit.Gate(title, f"{dataset}/{self.model}", reached)


SMOKE: dict[str, Any] = {"model": "small_cnn", "epochs": 1, "batch_size": 64, "limit": 300}
PAPER: dict[str, Any] = {
    "width": 1.0, "epochs": 300, "batch_size": 128, "seeds": (0, 1, 2, 3, 4),
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """Cross-entropy, alone or with a contrastive loss.

    Attributes:
        loss: name of the second loss; empty for cross-entropy alone.
        weight: of the second loss at the end of its ramp: 0.1 in the text, 10 in the published
            code.
        margin: radians for ``amc``, units of the embedding for ``euclidean_contrastive``.
    """

    loss: str = ""
    weight: float = 0.0
    margin: float = 0.0

    @property
    def title(self) -> str:
        """As tables and figures call it."""
        return f"{_NAMES[self.loss]}, λ = {self.weight:g}" if self.loss else CROSS_ENTROPY

    @property
    def with_margin(self) -> str:
        """The same with the margin, and without the name of the second loss."""
        return f"λ = {self.weight:g}, m = {self.margin:g}" if self.loss else CROSS_ENTROPY

    def losses(self, epochs: int, similarity: str) -> list[Any]:
        """The table ``loss`` of a recipe."""
        if not self.loss:
            return ["cross_entropy"]
        margin = "margin_rad" if self.loss == "amc" else "margin"
        second = {
            "name": self.loss,
            "weight": self.weight,
            "ramp": "gaussian",
            "ramp_epochs": _UP * epochs,
            "options": {margin: self.margin, "similarity": similarity},
        }
        return ["cross_entropy", second]


def euclid(weight: float, margin: float = 1.0) -> Variant:
    """+ Euclid; the paper's margin is 1."""
    return Variant("euclidean_contrastive", weight, margin)


def amc(weight: float, margin_rad: float = 0.5) -> Variant:
    """+ AMC; the paper's margin is 0.5."""
    return Variant("amc", weight, margin_rad)


def variants(weights: Sequence[float]) -> list[Variant]:
    """Cross-entropy, and both contrastive losses at each weight."""
    return [Variant(), *(make(weight) for weight in weights for make in (euclid, amc))]


def trained(
    lab: kit.Lab,
    setting: Recipe,
    source: MemorySource,
    variant: Variant,
    *,
    seed: int,
    **changes: Any,
) -> TrainResult:
    """The paper's training with its ramps scaled to the epochs; the best validation epoch.

    Args:
        lab: of the experiment.
        setting: how to train.
        source: images to train on.
        variant: with which loss.
        seed: of the run.
        changes: ``model`` or ``epochs``, if they differ from the setting's.
    """
    lab.step(f"{source.spec}: {variant.title}, seed {seed}")
    epochs = changes.get("epochs", setting.epochs)
    model = {"name": "amc13", "options": {"width": setting.width}}
    return lab.train(
        changes.get("model", model if setting.model == "amc13" else setting.model),
        source,
        seed=seed,
        epochs=epochs,
        batch_size=setting.batch_size,
        loss=variant.losses(epochs, setting.similarity),
        optimizer={"name": "adam", "lr": 0.003},
        schedule={
            "name": "gaussian_ramps",
            "warmup_epochs": _UP * epochs,
            "ramp_down_epochs": _DOWN * epochs,
            "final_beta1": 0.5,
        },
    )


def accuracies(lab: kit.Lab, run: TrainResult, test: MemorySource) -> dict[str, float]:
    """In percent: of the epoch that was kept on validation images, and on test images."""
    validation = 100 * max(row["val_accuracy"] for row in run.history)
    return {"validation": validation, "test": 100 * lab.outputs(run, test).accuracy}
