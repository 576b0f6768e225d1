"""How the AMC experiments train, and how they compare: one place for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardsight.data import MemorySource
from hardsight.experiments.lab import Lab
from hardsight.run.train import TrainResult

CROSS_ENTROPY = "cross-entropy"
# Section 3.2: of 300 epochs, 80 ramp up and 50 ramp down
_UP, _DOWN = 80 / 300, 50 / 300
_NAMES = {"euclidean_contrastive": "+ Euclid", "amc": "+ AMC"}


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
    lab: Lab,
    model: str | Mapping[str, Any],
    source: MemorySource,
    variant: Variant,
    *,
    seed: int,
    epochs: int,
    batch_size: int,
    similarity: str,
) -> TrainResult:
    """The paper's training with its ramps scaled to ``epochs``; the best validation epoch."""
    lab.step(f"{source.spec}: {variant.title}, seed {seed}")
    return lab.train(
        model,
        source,
        seed=seed,
        epochs=epochs,
        batch_size=batch_size,
        loss=variant.losses(epochs, similarity),
        optimizer={"name": "adam", "lr": 0.003},
        schedule={
            "name": "gaussian_ramps",
            "warmup_epochs": _UP * epochs,
            "ramp_down_epochs": _DOWN * epochs,
            "final_beta1": 0.5,
        },
    )


def network(name: str, width: float) -> str | dict[str, Any]:
    """A model by name; the paper's 13 layers take a width."""
    return {"name": name, "options": {"width": width}} if name == "amc13" else name


def network_title(name: str, width: float) -> str:
    """A model as a sentence calls it, with the width if it takes one."""
    return f"{name} of width {width:g}" if name == "amc13" else name


def validation_accuracy(run: TrainResult) -> float:
    """Of the epoch that was kept, in percent."""
    return 100 * max(row["val_accuracy"] for row in run.history)
