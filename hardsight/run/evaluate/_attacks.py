"""The attacks of a card: accuracy over epsilon, and whether gradients can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight.data import ExampleSource
from hardsight.evaluate import Normalisation, ensemble_attack, fgsm, pgd
from hardsight.run.evaluate._pass import inputs_at
from hardsight.run.evaluate._subjects import Subject
from hardsight.run.loop import Outputs
from hardsight.stats import mcnemar, wilson_interval

QUERIES_PER_STEP = 50  # of Square for every step of APGD: published are 5,000 queries, 100 steps
_MOST_KEPT = 1 << 28  # bytes of inputs that are kept between attacks
_FAR = 1.0  # an epsilon that allows any image, so nearly no prediction should survive
_CLEARLY, _MATERIAL = 0.05, 0.05  # p-value and share of examples that count as masked gradients
Mask: TypeAlias = NDArray[np.bool_]
Batched: TypeAlias = tuple[NDArray[np.int64], Tensor]


@dataclass(frozen=True, eq=False)
class Masks:
    """Which examples are still right under each attack.

    Attributes:
        positions: in the source, of the attacked examples, ``[n]``, ascending.
        right: by attack and epsilon, ``[n]`` each; empty if the model was not attacked.
    """

    positions: NDArray[np.int64]
    right: dict[tuple[str, float], Mask]


class AttackRun:
    """Attacks on one model and the same examples.

    Args:
        subject: the model; its normalisation must be known.
        source: the data.
        outputs: its outputs on the clean data.
        positions: examples to attack.
        steps: of PGD.
        at_once: examples per batch.
        seed: of random starts.
    """

    def __init__(
        self,
        subject: Subject,
        source: ExampleSource,
        outputs: Outputs,
        positions: NDArray[np.int64],
        *,
        steps: int,
        at_once: int,
        seed: int,
    ) -> None:
        self.subject, self._source, self._seed, self._steps = subject, source, seed, steps
        self._at_once = at_once
        self._kept: list[Batched] | None = None
        # only examples that could be read and have finite outputs
        read = outputs.positions
        places = np.searchsorted(read, positions)
        there = (places < len(read)) & (read[np.minimum(places, len(read) - 1)] == positions)
        there[there] = outputs.usable[places[there]]
        self.positions, self._rows = positions[there], places[there]
        self.clean: Mask = outputs.right[self._rows]
        self._labels = outputs.labels.numpy()[self._rows]
        how = subject.preprocessing
        self.normalisation = Normalisation(how.mean, how.std)

    def right(self, attack: str, epsilon: float, **options: Any) -> Mask:
        """Which examples are right both clean and attacked, ``[n]``."""
        if epsilon == 0:
            return self.clean
        survived = []
        for positions, inputs in self._batches():
            changed = self._changed(self, attack, inputs, positions, epsilon, **options)
            survived.append(self._is_right(changed, positions))
        return self.clean & np.concatenate(survived)

    def right_after_ensemble(self, epsilon: float, steps: int) -> Mask:
        """Which examples survive APGD on two losses and Square, ``[n]``."""
        survived = []
        for positions, inputs in self._batches():
            found = ensemble_attack(
                self.subject.logits, inputs, self._labels_of(positions), epsilon=epsilon,
                normalisation=self.normalisation, steps=steps, queries=QUERIES_PER_STEP * steps,
                generator=torch.Generator().manual_seed(self._seed + int(positions[0])),
            )  # fmt: skip
            survived.append(found.right.cpu().numpy())
        left: Mask = self.clean & np.concatenate(survived)
        return left

    def right_after_transfer(self, other: AttackRun, epsilon: float) -> Mask:
        """Which examples survive images made against another model, ``[n]``."""
        survived = []
        for (positions, inputs), (_, theirs) in zip(self._batches(), other._batches(),
                                                    strict=True):  # fmt: skip
            changed = self._changed(other, "pgd_linf", theirs, positions, epsilon)
            change = other.normalisation.pixels(changed) - other.normalisation.pixels(theirs)
            if self.subject.preprocessing.bgr != other.subject.preprocessing.bgr:
                change = change.flip(1)
            pixels = (self.normalisation.pixels(inputs) + change).clamp(0, 1)
            mean, std = (
                self.normalisation.per_channel(values, inputs)
                for values in (self.normalisation.mean, self.normalisation.std)
            )
            survived.append(self._is_right((pixels - mean) / std, positions))
        return self.clean & np.concatenate(survived)

    def _batches(self) -> Iterable[Batched]:
        """The inputs in batches, kept in memory if they are small, else read again every time."""
        if self._kept is not None:
            return self._kept
        read = inputs_at(self.subject, self._source, self.positions, at_once=self._at_once)
        if 4 * len(self.positions) * math.prod(self.subject.shape or ()) > _MOST_KEPT:
            return read
        self._kept = list(read)
        return self._kept

    def _changed(
        self,
        attacked: AttackRun,
        attack: str,
        inputs: Tensor,
        positions: NDArray[np.int64],
        epsilon: float,
        **options: Any,
    ) -> Tensor:
        labels = self._labels_of(positions)
        forward, how = attacked.subject.logits, attacked.normalisation
        if attack == "fgsm":
            return fgsm(forward, inputs, labels, epsilon=epsilon, normalisation=how, **options)
        options.setdefault("steps", self._steps)
        # a seed per batch, so the random starts do not depend on earlier draws
        draws = torch.Generator().manual_seed(self._seed + int(positions[0]))
        return pgd(
            forward, inputs, labels, epsilon=epsilon, normalisation=how, generator=draws,
            norm=attack.removeprefix("pgd_"), **options,
        )  # fmt: skip

    def _labels_of(self, positions: NDArray[np.int64]) -> Tensor:
        rows = np.searchsorted(self.positions, positions)
        return torch.from_numpy(self._labels[rows]).to(self.subject.device)

    @torch.no_grad()
    def _is_right(self, inputs: Tensor, positions: NDArray[np.int64]) -> Mask:
        guessed = self.subject.logits(inputs).argmax(dim=1)
        right: Mask = (guessed == self._labels_of(positions)).cpu().numpy()
        return right


def attack_part(
    run: AttackRun, linf: tuple[float, ...], l2: tuple[float, ...]
) -> tuple[dict[str, Any], Masks]:
    """Accuracy over epsilon for every attack, and the masks it is computed from."""
    plan = {"fgsm": linf, "pgd_linf": linf, "pgd_l2": l2}
    masks = {
        (attack, epsilon): run.right(attack, epsilon)
        for attack, radii in plan.items()
        for epsilon in radii
    }
    curves = {
        attack: [{"epsilon": e, "accuracy": share(masks[attack, e])} for e in radii]
        for attack, radii in plan.items()
    }
    return {"n": len(run.clean), "curves": curves}, Masks(run.positions, masks)


def masking_part(
    run: AttackRun, others: list[AttackRun], masks: Masks, *, ensemble_steps: int = 0
) -> dict[str, Any] | None:
    """Stronger searches at the epsilon where PGD comes closest to halving the accuracy."""
    right = masks.right
    radii = [e for attack, e in right if attack == "pgd_linf" and e > 0]
    if not radii:
        return None
    goal = run.clean.mean() / 2
    epsilon = min(radii, key=lambda e: abs(right["pgd_linf", e].mean() - goal))
    base = right["pgd_linf", epsilon]
    steps = run._steps
    stronger = {
        f"{5 * steps} steps instead of {steps}": run.right("pgd_linf", epsilon, steps=5 * steps),
        "4 starts, 3 of them random": run.right("pgd_linf", epsilon, restarts=4),
        "margin instead of cross-entropy": run.right("pgd_linf", epsilon, loss="margin"),
        "one step only (FGSM)": right["fgsm", epsilon],
    }
    if ensemble_steps:
        name = f"APGD on two losses and Square, {ensemble_steps} steps"
        stronger[name] = run.right_after_ensemble(epsilon, ensemble_steps)
    for other in others:
        if other.subject.shape == run.subject.shape and np.array_equal(
            other.positions, run.positions
        ):
            name = f"images made against {other.subject.name}"
            stronger[name] = run.right_after_transfer(other, epsilon)
    checks = [_check(name, base, mask) for name, mask in stronger.items()]
    far = run.right("pgd_linf", _FAR, loss="margin")
    far_check = {
        "name": f"epsilon {_FAR:g}: any image is allowed",
        "accuracy": share(far),
        "p": None,
        "helps_attacker": bool(far.mean() > _MATERIAL),
    }
    worst = np.logical_and.reduce([base, *stronger.values()])
    return {
        "epsilon": epsilon,
        "base": share(base),
        "worst": share(worst),
        "checks": [*checks, far_check],
        "suspicious": any(check["helps_attacker"] for check in [*checks, far_check]),
    }


def share(mask: Mask) -> dict[str, Any]:
    """A share with its interval, as plain values."""
    low, high = wilson_interval(int(mask.sum()), len(mask))
    return {"value": float(mask.mean()), "low": low, "high": high, "n": len(mask),
            "level": 0.95, "interval": "wilson"}  # fmt: skip


def _check(name: str, base: Mask, mask: Mask) -> dict[str, Any]:
    test = mcnemar(base, mask)
    return {
        "name": name,
        "accuracy": share(mask),
        "p": test.p,
        "helps_attacker": bool(test.difference > _MATERIAL and test.p < _CLEARLY),
    }
