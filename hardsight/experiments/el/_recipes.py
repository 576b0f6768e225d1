"""What the experiments on Encouraging Loss train: tasks, losses, runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hardsight.data import MemorySource
from hardsight.errors import ConfigError, NonFiniteError
from hardsight.experiments.lab import Lab
from hardsight.run.train import TrainResult

PAPER = "Encouraging Loss"
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
NETWORKS = {"small_cnn": "small CNN", "resnet18": "ResNet-18", "efficientnet_small": "EfficientNet"}
_COLOUR = ("cifar10",)


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
        """The task of a setting's key.

        Raises:
            ConfigError: it names no dataset, or no network.
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


def loss_in_words(loss: Loss) -> str:
    """What a person reads while it is trained.

    Example:
        >>> loss_in_words(encouraging(0.75))
        'encouraging (log_end 0.75)'
        >>> loss_in_words([{"name": "focal", "options": {}}, encouraging(None)])
        'focal + cross_entropy'
    """
    terms = []
    for term in loss if isinstance(loss, list) else [loss]:
        options = ", ".join(f"{key} {value}" for key, value in term["options"].items())
        terms.append(f"{term['name']} ({options})" if options else term["name"])
    return " + ".join(terms)


@dataclass(frozen=True, eq=False)
class Fitted:
    """One trained model.

    Attributes:
        run: its folder, weights and history.
        validation: accuracy in per cent of the selected epoch on the held-out part.
        test: accuracy in per cent on the test split.
    """

    run: TrainResult
    validation: float
    test: float


def fitted(
    lab: Lab, task: Task, setting: Recipe, loss: Loss, *, seed: int, lr_factor: float = 1.0,
    **changes: Any,
) -> Fitted | None:  # fmt: skip
    """Train a task with a loss, or find the model; ``changes`` go over its recipe.

    Returns:
        The model; ``None`` where the run is lost, because its loss became infinite or NaN.
    """
    train, test = task.data(lab, setting)
    settings = {**task.recipe(setting, lr_factor=lr_factor), "loss": loss, **changes}
    model = settings.pop("model", task.model)
    lab.step(f"{task.title}, seed {seed}: {loss_in_words(loss)}")
    try:
        run = lab.train(model, train, seed=seed, **settings)
        accuracy = lab.outputs(run, test).accuracy
    except NonFiniteError:
        return None
    chosen = run.history[run.best_epoch - 1]
    return Fitted(run, 100 * chosen["val_accuracy"], 100 * accuracy)
