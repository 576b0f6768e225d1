"""What the experiments on Encouraging Loss train: tasks, losses, runs; and what all pages say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardsight.data import MemorySource
from hardsight.errors import ConfigError, NonFiniteError
from hardsight.experiments import lab as kit
from hardsight.run.train import TrainResult

NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
NETWORKS = {
    "small_cnn": "small CNN",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "efficientnet_small": "EfficientNet",
    "el_mnist": "the paper's CNN",
    "el_attack": "small net of the published attacks",
}
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
CHOICE = "chosen by the mean on validation, among those that lost the fewest runs"
_COLOUR = ("cifar10",)
_COSINE = {"name": "cosine", "warmup_epochs": 1.0}

Loss = dict[str, Any] | list[dict[str, Any]]
LogEnd = float | str | None
EXACT, CLAMP = "exact", 1e-5


@dataclass(frozen=True)
class Recipe:
    """Keys that all these experiments have; runs of equal ones are trained once.

    Attributes:
        grey_epochs: on MNIST, Fashion-MNIST and the embedded digits.
        colour_epochs: on CIFAR-10.
        grey_batch: examples per step on the grey data.
        colour_batch: examples per step on CIFAR-10.
        grey_lr: learning rate on the grey data.
        colour_lr: learning rate on CIFAR-10.
        colour_decay: weight decay on CIFAR-10.
        colour_drops: epochs on CIFAR-10, as ``grey_drops``.
        grey_optimizer: on the grey data, ``sgd`` with momentum .9 or ``adam``.
        grey_decay: weight decay on the grey data.
        grey_drops: epochs on the grey data, counted from 1, at each of which the rate is divided by
            ten again; none for a warm-up epoch and a cosine (SGD), or a constant rate (Adam).
        held_out: share of the training images that chooses the epoch; with 0 all are trained on,
            the last epoch is kept, and the test split is watched after every epoch.
        pixels: mean and deviation that grey images are normalised with; none to measure them.
        limit: training images, validation included; ``None`` for all.
        seeds: one run each; they decide weights, validation split, order and augmentation.
    """

    grey_epochs: int = 6
    colour_epochs: int = 10
    grey_batch: int = 256
    colour_batch: int = 512
    grey_lr: float = 0.1
    colour_lr: float = 0.2
    colour_decay: float = 5e-4
    colour_drops: tuple[int, ...] = ()
    grey_optimizer: str = "sgd"
    grey_decay: float = 5e-4
    grey_drops: tuple[int, ...] = ()
    held_out: float = 0.1
    pixels: tuple[float, ...] = ()
    limit: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def trained(self) -> list[Task]:
        """What the key ``tasks`` or ``task`` names."""
        names = getattr(self, "tasks", None) or (getattr(self, "task", None),)
        return [Task.named(name) for name in names if name is not None]

    @property
    def networks(self) -> str:
        """What is trained on what, in words."""
        return "; ".join(task.title for task in self.trained)

    @property
    def recipes(self) -> str:
        """How, in words."""
        said = []
        if any(not task.is_colour for task in self.trained):
            said.append(
                f"{self.grey_epochs} epochs on grey images ({self.grey_recipe}; batch "
                f"{self.grey_batch}, learning rate {self.grey_lr:g})"
            )
        if any(task.is_colour for task in self.trained):
            said.append(
                f"{self.colour_epochs} epochs on colour images (SGD with momentum .9, weight decay "
                f"{self.colour_decay:g}, {_falling(self.colour_drops)}; batch {self.colour_batch}, "
                f"learning rate {self.colour_lr:g}, crop and flip)"
            )
        return " and ".join(said)

    @property
    def grey_recipe(self) -> str:
        """How grey images are trained on, in words."""
        decay = f"weight decay {self.grey_decay:g}" if self.grey_decay else "no weight decay"
        kind = "Adam" if self.grey_optimizer == "adam" else "SGD with momentum .9"
        is_constant = kind == "Adam" and not self.grey_drops
        ramp = "a constant rate" if is_constant else _falling(self.grey_drops)
        return f"{kind}, {decay}, {ramp}"

    @property
    def selection(self) -> str:
        """Which epoch is kept, in words."""
        if self.held_out:
            return f"the best epoch on a held-out share of {self.held_out:g} of the training images"
        return (
            "the last epoch, after training on all training images; the best epoch on the test "
            "split, which the paper reports, is shown beside it and decides nothing"
        )

    def note(self, lost: Mapping[str, int], text: str = "") -> str:
        """What to put under a table of means, with the number of runs that were lost.

        Example:
            >>> Recipe(seeds=(0, 1)).note({"CE": 0, "EL": 1}).partition(": ")[2]
            '1 of 2 runs of EL.'
        """
        of = len(self.seeds)
        some = "; ".join(f"{count} of {of} runs of {name}" for name, count in lost.items() if count)
        why = "Lost because the loss became infinite or NaN, and left out of every mean"
        ending = f"{why}: {some}." if some else "No run was lost."
        return " ".join(filter(None, ["Mean ± standard deviation over seeds.", text, ending]))


def _falling(drops: Sequence[int]) -> str:
    """How the learning rate of SGD falls, in words."""
    if not drops:
        return "a warm-up epoch and a cosine"
    return f"the rate divided by ten from epochs {', '.join(map(str, drops))} on"


FIVE_SEEDS = (0, 1, 2, 3, 4)
SMOKE: dict[str, Any] = {"grey_epochs": 2, "grey_batch": 32, "limit": 160, "seeds": (0, 1)}
# the published recipe on MNIST; its option of a weight decay never reaches the optimizer
PUBLISHED_MNIST: dict[str, Any] = {
    "grey_epochs": 100,
    "grey_decay": 0.0,
    "grey_drops": (51, 65),
    "held_out": 0.0,
    "pixels": (MNIST_MEAN, MNIST_STD),
    "seeds": FIVE_SEEDS,
}
# of MNIST alone and with one end of the log, as the paper's largest tables have it
MNIST_ALONE: dict[str, Any] = {"tasks": ("mnist/el_mnist",), **PUBLISHED_MNIST}
DIGITS_ALONE: dict[str, Any] = {"tasks": ("builtin:digits/small_cnn",), **SMOKE}
# the paper's recipe on CIFAR-10, but for its images, which it enlarges to 224 pixels, and its
# choices, which it makes by the test split
PUBLISHED_CIFAR: dict[str, Any] = {
    "colour_epochs": 90,
    "colour_batch": 64,
    "colour_lr": 0.025,
    "colour_decay": 1e-4,
    "colour_drops": (30, 60, 80),
    "seeds": FIVE_SEEDS,
}
# of the small network in the published attacks; there the images are not shuffled, here they are
PUBLISHED_ATTACK: dict[str, Any] = {
    "grey_epochs": 5,
    "grey_batch": 128,
    "grey_optimizer": "adam",
    "grey_lr": 1e-3,
    "grey_decay": 0.0,
    "held_out": 0.0,
    "pixels": (0.0, 1.0),
}


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
        """The task of a setting's key.

        Raises:
            ConfigError: it does not name a dataset and a network.
        """
        dataset, _, model = name.partition("/")
        if not dataset or not model:
            raise ConfigError(f"expected DATASET/NETWORK, such as mnist/small_cnn, got {name!r}")
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

    def gate(self, reached: Sequence[float | None]) -> kit.Gate:
        """What the network must reach to be judged by, and does with cross-entropy."""
        return kit.Gate(self.title, f"{self.dataset}/{self.model}", reached)

    def data(self, lab: kit.Lab, setting: Recipe) -> tuple[MemorySource, MemorySource]:
        """Images to train on, and test images."""
        train = lab.source(self.dataset, "train", limit=setting.limit)
        return train, lab.source(self.dataset, "test")

    def recipe(self, setting: Recipe, *, lr_factor: float = 1.0) -> dict[str, Any]:
        """Everything but loss, seed and what is held out."""
        if self.is_colour:
            drops = {"name": "step", "drop_epochs": list(setting.colour_drops)}
            return {
                "epochs": setting.colour_epochs,
                "batch_size": setting.colour_batch,
                "optimizer": {
                    "name": "sgd",
                    "lr": lr_factor * setting.colour_lr,
                    "nesterov": True,
                    "weight_decay": setting.colour_decay,
                },
                "schedule": drops if setting.colour_drops else _COSINE,
                "augment": {"crop_padding": 4, "flip": True},
            }
        optimizer = {
            "name": setting.grey_optimizer,
            "lr": lr_factor * setting.grey_lr,
            "weight_decay": setting.grey_decay,
        }
        schedule: dict[str, Any] = {"name": "step", "drop_epochs": list(setting.grey_drops)}
        if not setting.grey_drops:
            is_adam = setting.grey_optimizer == "adam"
            schedule = {"name": "constant"} if is_adam else _COSINE
            optimizer |= {} if is_adam else {"nesterov": True}
        made = {
            "epochs": setting.grey_epochs,
            "batch_size": setting.grey_batch,
            "optimizer": optimizer,
            "schedule": schedule,
            "augment": {},
        }
        if setting.pixels:
            mean, std = setting.pixels
            made |= {"mean": [mean], "std": [std]}
        return made


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


def normal_or_last(losses: Sequence[str]) -> str:
    """The loss that claims speak of: LE = 1 if it was trained, as in the paper."""
    return loss_name(1.0) if loss_name(1.0) in losses else losses[-1]


@dataclass(frozen=True, eq=False)
class Fitted:
    """One trained model.

    Attributes:
        run: its folder, weights and history.
        validation: accuracy in per cent of the selected epoch on the held-out part; NaN if
            nothing was held out.
        test: accuracy in per cent on the test split.
        best_test: of the best epoch on the test split; NaN if it was not watched.
    """

    run: TrainResult
    validation: float
    test: float
    best_test: float = math.nan


ACCURACIES = ("validation", "test", "best_test")


def accuracies(fit: Fitted | None) -> dict[str, float]:
    """What a trained model reaches; nothing if its run was lost."""
    return {} if fit is None else {name: getattr(fit, name) for name in ACCURACIES}


def fitted(
    lab: kit.Lab, task: Task, setting: Recipe, loss: Loss, *, seed: int, lr_factor: float = 1.0,
    **changes: Any,
) -> Fitted | None:  # fmt: skip
    """Train a task with a loss, or find the model; ``changes`` go over its recipe.

    Returns:
        The model; ``None`` if the run is lost, because its loss became infinite or NaN.
    """
    train, test = task.data(lab, setting)
    settings = {**task.recipe(setting, lr_factor=lr_factor), "loss": loss, **changes}
    model = settings.pop("model", task.model)
    if setting.held_out:
        settings.setdefault("validation", setting.held_out)
    else:
        settings |= {"validation": test, "select": "last"}
    lab.step(f"{task.title}, seed {seed}: {kit.loss_in_words(loss)}")
    try:
        run = lab.train(model, train, seed=seed, **settings)
        accuracy = lab.outputs(run, test).accuracy
    except NonFiniteError:
        return None
    watched = [100 * row["val_accuracy"] for row in run.history]
    if setting.held_out:
        return Fitted(run, watched[run.best_epoch - 1], 100 * accuracy)
    return Fitted(run, math.nan, 100 * accuracy, max(watched))


def fitted_by_loss(
    lab: kit.Lab, task: Task, setting: Recipe, log_ends: Sequence[LogEnd]
) -> dict[str, list[Fitted | None]]:
    """Cross-entropy and Encouraging Loss by name, one model per seed."""
    return {
        loss_name(end): [
            fitted(lab, task, setting, encouraging(end), seed=seed) for seed in setting.seeds
        ]
        for end in (None, *log_ends)
    }


def best_test_table(grid: kit.Grid, key: str, titles: Mapping[str, str]) -> list[kit.Table]:
    """What the paper reports, if the runs know it: the best epoch on the test split.

    Args:
        grid: with ``best_test`` by ``loss`` and ``key``.
        key: whose settings are columns.
        titles: of these.
    """
    if "best_test" not in grid.measures or grid.frame["best_test"].isna().all():
        return []
    return [
        grid.table(
            "Test accuracy of the best epoch on the test split, %",
            {"loss": "loss"},
            grid.across(key, "best_test", titles),
            note="This is what the paper reports. The test split chose the epoch, so these numbers "
            "are too high for every loss, and no claim is judged by them.",
        )
    ]
