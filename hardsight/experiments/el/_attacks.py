"""Attacks of Figure 7: accuracy by radius, the published attack, and checks of the attacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data import MemorySource
from hardsight.evaluate import Normalisation, ensemble_attack, fgsm, pgd
from hardsight.experiments import lab as kit
from hardsight.heads import logits_of
from hardsight.run.loop import borrowed, generator
from hardsight.run.train import TrainResult

PUBLISHED = {"as published: no clamp": False, "clamped to valid pixels": True}
CARRIED, STRONGEST = "images made against the other loss", "strongest of all"
_MARGIN = "PGD on the margin"
ENSEMBLE = "APGD-CE, APGD-DLR, Square"
QUERIES_PER_STEP = 50  # 5,000 queries and 100 steps, as published


class Attacked:
    """One model, on the device, and test images to be changed.

    Args:
        lab: gives the device.
        run: the trained model.
        source: images and labels.
    """

    def __init__(self, lab: kit.Lab, run: TrainResult, source: MemorySource) -> None:
        how = run.preprocessing
        self.model, self.normalisation = run.model, Normalisation(how.mean, how.std)
        self.inputs = lab.inputs(run, source)
        self.labels = torch.from_numpy(source.labels.copy()).to(lab.device)
        # no number depends on it; a GPU takes more at once
        self._batch = 2000 if lab.device.type == "cuda" else 500
        self._mean = torch.tensor(how.mean, device=lab.device).view(-1, 1, 1)
        self._std = torch.tensor(how.std, device=lab.device).view(-1, 1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits in float32."""
        return logits_of(self.model(inputs)).float()

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.inputs.split(self._batch), self.labels.split(self._batch), strict=True)

    def changed(self, attack: Callable[..., Tensor]) -> Tensor:
        """Inputs after an attack on this model."""
        change = partial(attack, self.forward, normalisation=self.normalisation)
        return torch.cat([change(some, own) for some, own in self._batches()])

    def stepped(self, radius: float, *, clamps: bool) -> Tensor:
        """Inputs after the published attack, a step in units of the normalised input."""
        parts = []
        for some, own in self._batches():
            tracked = some.clone().requires_grad_()
            score = self.forward(tracked).gather(1, own[:, None]).sum()
            (gradient,) = torch.autograd.grad(-score, tracked)
            parts.append(some + radius * gradient.sign())
        changed = torch.cat(parts)
        low, high = (-self._mean) / self._std, (1 - self._mean) / self._std
        return torch.minimum(torch.maximum(changed, low), high) if clamps else changed

    def pixels(self, inputs: Tensor) -> Tensor:
        """Inputs of this model on the scale of pixels."""
        return inputs * self._std + self._mean

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels as inputs of this model."""
        return (pixels - self._mean) / self._std

    @torch.no_grad()
    def right(self, inputs: Tensor) -> Any:
        """Which of the changed images are still classified rightly, ``[N]``."""
        logits = torch.cat([self.forward(some) for some in inputs.split(self._batch)])
        return (logits.argmax(dim=1) == self.labels).cpu().numpy()

    def accuracy_under(self, attack: Callable[..., Tensor]) -> float:
        """Per cent of the images that stay right under an attack."""
        return 100 * float(self.right(self.changed(attack)).mean())


def curve(
    lab: kit.Lab,
    run: TrainResult,
    test: MemorySource,
    kind: str,
    radii: Sequence[float],
    steps: int,
) -> list[float]:
    """Accuracy in per cent at each radius of one kind of attack."""
    norm, loss = "l2" if "L2" in kind else "linf", "margin" if "margin" in kind else "cross_entropy"
    attack = fgsm if kind == "FGSM" else partial(pgd, steps=steps, norm=norm, loss=loss)

    def measure() -> list[float]:
        with borrowed(run.model, lab.device):
            attacked = Attacked(lab, run, test)
            return [attacked.accuracy_under(partial(attack, epsilon=radius)) for radius in radii]

    accuracies: list[float] = lab.measured(
        run, {"attack": kind, "radii": radii, "steps": steps, "on": test}, measure
    )
    return accuracies


def published_curve(
    lab: kit.Lab, run: TrainResult, test: MemorySource, kind: str, radii: Sequence[float]
) -> list[float]:
    """Accuracy in per cent at each radius of the published attack, without or with a clamp."""

    def measure() -> list[float]:
        with borrowed(run.model, lab.device):
            attacked = Attacked(lab, run, test)
            clean = attacked.right(attacked.inputs)  # what was wrong before stays wrong
            changed = (attacked.stepped(radius, clamps=PUBLISHED[kind]) for radius in radii)
            return [100 * float((clean & attacked.right(images)).mean()) for images in changed]

    accuracies: list[float] = lab.measured(
        run, {"attack": kind, "radii": radii, "on": test}, measure
    )
    return accuracies


def checks(
    lab: kit.Lab, run: TrainResult, rival: TrainResult | None, test: MemorySource, *, radius: float,
    steps: int, ensemble_steps: int = 0,
) -> dict[str, float]:  # fmt: skip
    """Accuracy in per cent under ever stronger attacks of one radius, and under all of them.

    Args:
        lab: of the experiment.
        run: the model that is attacked.
        rival: whose images are carried over; none if its run was lost.
        test: images to attack.
        radius: in L∞, pixels on [0, 1].
        steps: of PGD.
        ensemble_steps: of each APGD in the ensemble; 0 for no ensemble.
    """
    on_margin = partial(pgd, epsilon=radius, loss="margin")
    attacks = {
        "PGD": partial(pgd, epsilon=radius, steps=steps),
        _MARGIN: partial(on_margin, steps=steps),
        "5 times the steps, 3 starts": partial(
            on_margin, steps=5 * steps, restarts=3, generator=generator(0, "el-fig7")
        ),
    }

    def ensemble(*args: Any, **options: Any) -> Tensor:
        queries = QUERIES_PER_STEP * ensemble_steps
        found = ensemble_attack(
            *args, epsilon=radius, steps=ensemble_steps, queries=queries,
            generator=generator(0, "el-fig7 ensemble"), **options,
        )  # fmt: skip
        return found.inputs

    def measure() -> dict[str, float]:
        with borrowed(run.model, lab.device):
            own = Attacked(lab, run, test)
            masks = {name: own.right(own.changed(attack)) for name, attack in attacks.items()}
            if ensemble_steps:
                masks[ENSEMBLE] = own.right(own.changed(ensemble))
            if rival is not None:
                with borrowed(rival.model, lab.device):
                    other = Attacked(lab, rival, test)
                    made = other.pixels(other.changed(attacks[_MARGIN]))
                masks[CARRIED] = own.right(own.normalised(made))
            far = own.accuracy_under(partial(pgd, epsilon=1.0, steps=steps, loss="margin"))
        strongest = np.logical_and.reduce(list(masks.values()))
        return {
            **{name: 100 * float(mask.mean()) for name, mask in masks.items()},
            STRONGEST: 100 * float(strongest.mean()),
            "any image allowed (radius 1)": far,
        }

    key = {"attack": "checks", "radius": radius, "steps": steps, "on": test}
    if ensemble_steps:
        key["ensemble_steps"] = ensemble_steps
    key["rival"] = None if rival is None else rival.folder.name
    accuracies: dict[str, float] = lab.measured(run, key, measure)
    return accuracies
