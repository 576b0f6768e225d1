"""What the experiments on Encouraging Loss share: tasks, losses, runs, paired comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardsight.data import MemorySource
from hardsight.errors import NonFiniteError
from hardsight.experiments._lab import Lab
from hardsight.experiments._result import Claim, Spread, spread
from hardsight.run.train import TrainResult
from hardsight.stats import adjusted_p_values, t_test

PAPER = "Encouraging Loss"
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
NETWORKS = {"small_cnn": "small CNN", "resnet18": "ResNet-18", "efficientnet_small": "EfficientNet"}
_COLOUR = ("cifar10",)
_LEVEL = 0.05
LOST = " A run whose loss became infinite has no model and counts as guessing."


@dataclass(frozen=True)
class Recipe:
    """Keys that all these experiments have; runs of equal ones are trained once.

    Attributes:
        grey_epochs: on MNIST, Fashion-MNIST and the embedded digits.
        colour_epochs: on CIFAR-10.
        grey_batch: examples per step there.
        colour_batch: likewise.
        grey_lr: learning rate of SGD there.
        colour_lr: likewise.
        limit: training images, validation included; ``None`` for all.
        seeds: one run each; they decide weights, validation split, order and augmentation.
    """

    grey_epochs: int = 6
    colour_epochs: int = 10
    grey_batch: int = 256
    colour_batch: int = 512
    grey_lr: float = 0.1
    colour_lr: float = 0.2
    limit: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)


SMOKE: dict[str, Any] = {"grey_epochs": 2, "grey_batch": 32, "limit": 500, "seeds": (0, 1)}


@dataclass(frozen=True)
class Task:
    """A dataset and a network, as ``DATASET/NETWORK``.

    Attributes:
        dataset: as :meth:`Lab.source` takes it.
        model: as a recipe takes it, options after a colon.
    """

    dataset: str
    model: str

    @classmethod
    def named(cls, name: str) -> Task:
        """The task of a setting's key."""
        dataset, _, model = name.partition("/")
        return cls(dataset, model)

    @property
    def is_colour(self) -> bool:
        """Whether images are coloured photos."""
        return self.dataset in _COLOUR

    @property
    def title(self) -> str:
        """For headings, such as ``CIFAR-10, ResNet-18 (width=32)``."""
        kind, _, options = self.model.partition(":")
        data = NAMES.get(self.dataset, self.dataset.removeprefix("builtin:"))
        return f"{data}, {NETWORKS.get(kind, kind)}" + (f" ({options})" if options else "")

    def data(self, lab: Lab, setting: Recipe) -> tuple[MemorySource, MemorySource]:
        """Images to train on, and test images."""
        train = lab.source(self.dataset, "train", limit=setting.limit)
        return train, lab.source(self.dataset, "test")

    def recipe(self, setting: Recipe, *, lr_factor: float = 1.0) -> dict[str, Any]:
        """Everything but loss and seed: SGD with momentum, a warm-up epoch, then a cosine."""
        colour = self.is_colour
        return {
            "epochs": setting.colour_epochs if colour else setting.grey_epochs,
            "batch_size": setting.colour_batch if colour else setting.grey_batch,
            "optimizer": {
                "name": "sgd",
                "lr": lr_factor * (setting.colour_lr if colour else setting.grey_lr),
                "nesterov": True,
            },
            "schedule": {"name": "cosine", "warmup_epochs": 1.0},
            "augment": {"crop_padding": 4, "flip": True} if colour else {},
        }


Loss = dict[str, Any] | list[dict[str, Any]]
LogEnd = float | str | None
EXACT = "exact"
CLAMP = 1e-5


def encouraging(log_end: LogEnd, **options: Any) -> Loss:
    """The loss of a recipe.

    Args:
        log_end: ``None`` for cross-entropy, else LE of Encouraging Loss. 1 is the normal bonus as
            the paper trains it, with 1 - p clamped at 1e-5; ``EXACT`` is its Eq. (6), unclamped.
        options: more of the loss's own.
    """
    if log_end is None:
        return {"name": "cross_entropy", "options": options}
    if log_end == EXACT:
        return {"name": "encouraging", "options": {"log_end": 1.0, **options}}
    clamp = {"clamp": CLAMP} if log_end == 1 else {}
    return {"name": "encouraging", "options": {"log_end": log_end, **clamp, **options}}


def loss_name(log_end: LogEnd) -> str:
    """For rows of a table."""
    if log_end is None:
        return "CE"
    return "EL, LE=1 unclamped" if log_end == EXACT else f"EL, LE={log_end:g}"


@dataclass(frozen=True, eq=False)
class Fitted:
    """One trained model.

    Attributes:
        run: ``None`` where the loss became infinite and there is no model.
        validation: accuracy in per cent of the selected epoch on the held-out part.
        test: accuracy in per cent on the test split; that of guessing where there is no model.
    """

    run: TrainResult | None
    validation: float
    test: float


def fitted(
    lab: Lab, task: Task, setting: Recipe, loss: Loss, *, seed: int, lr_factor: float = 1.0,
    **changes: Any,
) -> Fitted:  # fmt: skip
    """Train a task with a loss, or find the model; ``changes`` go over its recipe."""
    train, test = task.data(lab, setting)
    settings = {**task.recipe(setting, lr_factor=lr_factor), "loss": loss, **changes}
    model = settings.pop("model", task.model)
    lab.step(f"{task.title}, seed {seed}: {loss}")
    try:
        run = lab.train(model, train, seed=seed, **settings)
        accuracy = lab.outputs(run, test).accuracy
    except NonFiniteError:
        guessing = 100 / len(train.classes)
        return Fitted(None, guessing, guessing)
    chosen = run.history[run.best_epoch - 1]
    return Fitted(run, 100 * chosen["val_accuracy"], 100 * accuracy)


@dataclass(frozen=True)
class Compared:
    """Two recipes over the same seeds.

    Attributes:
        difference: mean of the first minus mean of the second.
        low: lower end of the 95 % interval of the difference; NaN for one seed.
        high: upper end.
        p: of the paired t test, raised by Holm's method; NaN for one seed.
    """

    difference: float
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        if math.isnan(self.p):
            return f"{self.difference:+.2f} (one seed)"
        return f"{self.difference:+.2f} [{self.low:+.2f}, {self.high:+.2f}], p = {self.p:.3f}"

    @property
    def is_above(self) -> bool | None:
        """Whether the first is larger; ``None`` where that may be chance."""
        return self.difference > 0 if self.p < _LEVEL else None


def compared(
    pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> dict[str, Compared]:
    """Paired t tests over seeds, with Holm's correction over all of ``pairs``.

    Example:
        >>> found = compared({"a": ([3.0, 4.1, 5.0], [1.0, 2.0, 3.0]), "b": ([1, 2], [1, 2])})
        >>> str(found["a"]), found["b"].p
        ('+2.03 [+1.89, +2.18], p = 0.001', 1.0)
    """
    raw = {name: _paired(*pair) for name, pair in pairs.items()}
    tested = [name for name, one in raw.items() if not math.isnan(one.p)]
    raised = adjusted_p_values([raw[name].p for name in tested])
    for name, p in zip(tested, raised, strict=True):
        one = raw[name]
        raw[name] = Compared(one.difference, one.low, one.high, float(p))
    return raw


def _paired(first: Sequence[float], second: Sequence[float]) -> Compared:
    apart = [a - b for a, b in zip(first, second, strict=True)]
    mean = sum(apart) / len(apart)
    if len(apart) < 2:
        return Compared(mean, math.nan, math.nan, math.nan)
    if max(apart) - min(apart) < 1e-12:  # nothing varies: equal, or the same step each time
        return Compared(mean, mean, mean, 1.0 if mean == 0 else 0.0)
    found = t_test(first, second, paired=True)
    return Compared(found.difference, found.low, found.high, found.p)


def claim_of(says: str, paper: str, found: Compared, *, larger: bool = True) -> Claim:
    """A claim that a difference is positive (or, with ``larger=False``, negative)."""
    above = found.is_above
    return Claim(says, paper, str(found), above if above is None or larger else not above)


def lost_claim(says: str, paper: str) -> Claim:
    """A claim that nothing can be said about: one of the runs gave no usable model."""
    seen = "a run was lost: its loss became infinite, or it says the same of every image"
    return Claim(says, paper, seen, None)


def spread_of(values: Sequence[float]) -> Spread | None:
    """Mean over the seeds there are; ``None`` where every run was lost."""
    return spread(values) if values else None


def best_of(values: Mapping[Any, Sequence[float]]) -> Any:
    """The key with the largest mean; the first of equal ones.

    Example:
        >>> best_of({0.25: [90.0, 91.0], 0.5: [92.0, 91.0], 1.0: [92.0, 91.0]})
        0.5
    """
    return max(values, key=lambda key: spread(values[key]).mean)
