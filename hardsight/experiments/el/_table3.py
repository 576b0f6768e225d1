"""Encouraging Loss, Table 3: long-tailed classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardsight.data import long_tailed_counts
from hardsight.errors import NonFiniteError
from hardsight.evaluate import shot_accuracy
from hardsight.experiments import lab as kit
from hardsight.experiments.el._recipes import (
    CLAMP,
    FIVE_SEEDS,
    SMOKE,
    Recipe,
    Task,
    encouraging,
)
from hardsight.run.train import TrainResult

GROUPS = ("overall", "many", "medium", "few")
_PAPER = {  # iNaturalist 2018
    "CE": (64.3, 74.1, 65.9, 59.8),
    "+ conservative bonus (LE=.5)": (65.3, 74.3, 66.6, 61.2),
    "+ normal bonus": (65.8, 74.4, 66.6, 62.4),
    "+ aggressive bonus": (66.3, 75.1, 67.4, 62.6),
    "decoupled re-training": (64.9, 71.4, 65.9, 61.9),
    "decoupled, normal bonus": (66.8, 71.7, 67.6, 64.6),
    "deferred re-weighting": (68.1, 71.0, 68.3, 67.1),
    "deferred, normal bonus": (70.3, 69.0, 70.1, 70.9),
}
_PAIRS = (  # method, what it is held against
    ("+ conservative bonus (LE=.5)", "CE"),
    ("+ normal bonus", "CE"),
    ("+ aggressive bonus", "CE"),
    ("decoupled, normal bonus", "decoupled re-training"),
    ("deferred, normal bonus", "deferred re-weighting"),
)
_NORMAL = {"log_end": 1.0, "clamp": CLAMP}


@dataclass(frozen=True)
class Setting(Recipe):
    """Keys of ``el-table3``.

    Attributes:
        tasks: ``DATASET/NETWORK``.
        imbalance: examples of the first class over those of the last one.
        tail_epochs: over the long-tailed images, of which there are few.
        head_epochs: of the head alone, for decoupled re-training.
        beta: of the effective number of examples, for deferred re-weighting.
        defer_at: share of the epochs before classes are weighted.
        defers_bonus: add the bonus of deferred re-weighting only then, too, as the published code
            does.
    """

    tasks: tuple[str, ...] = ("cifar10/resnet18:width=32", "fashion-mnist/small_cnn")
    imbalance: float = 500.0
    tail_epochs: int = 30
    head_epochs: int = 4
    beta: float = 0.9999
    defer_at: float = 0.8
    defers_bonus: bool = False

    @property
    def deferral(self) -> str:
        """What begins late in the rows of deferred re-weighting, in words."""
        what = "the weights, and the bonus with them," if self.defers_bonus else "the weights"
        return f"{what} begin after {self.defer_at:g} of the epochs"


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    tables, questions = [], []
    for name, part in data.items():
        title = Task.named(name).title
        grid = kit.Grid.read(part["accuracy"], setting.seeds, "method")
        questions += _questions(title, grid, len(part["class_counts"]))
        counts = ", ".join(str(n) for n in part["class_counts"])
        tables.append(
            grid.table(
                f"{title}, long-tailed: test accuracy, %",
                {"method": "method"},
                {group: group for group in GROUPS},
                note=setting.note(
                    part["lost"],
                    f"Training images of each class: {counts}. The paper: iNaturalist 2018, 8,142 "
                    "classes, average standard deviation 0.4.",
                ),
                paper=[[method, *values] for method, values in _PAPER.items()],
            )
        )
    return tables, questions


def _questions(title: str, grid: kit.Grid, classes: int) -> list[kit.Question]:
    def gain(method: str, base: str, group: str) -> float:
        at = GROUPS.index(group)
        return round(_PAPER[method][at] - _PAPER[base][at], 1)

    return [
        grid.question(
            f"{title}: {method} is above {base}, {group}", f"{gain(method, base, group):+.1f}",
            group, {"method": method}, {"method": base}, effect=gain(method, base, group),
            # what the network reaches with few images and a good recipe is not known
            weak=kit.below_chance(grid.values(group, method=base), classes),
        )
        for method, base in _PAIRS
        for group in ("overall", "few") if group in grid.measures
    ]  # fmt: skip


@kit.experiment(
    "el-table3",
    title="Encouraging Loss on long-tailed classes",
    reproduces="Encouraging Loss, Table 3 (there: iNaturalist 2018)",
    scales={
        "smoke": Setting(
            tasks=("builtin:digits/small_cnn",), imbalance=20.0, tail_epochs=2, head_epochs=1,
            **{**SMOKE, "limit": 400},
        ),
        "short": Setting(),
        "paper": Setting(
            tasks=("cifar10/resnet18",), imbalance=100.0, tail_epochs=200, head_epochs=30,
            defer_at=0.9, defers_bonus=True, seeds=FIVE_SEEDS,
        ),
    },
    asks=_asks,
)  # fmt: skip
def el_table3(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Tries bonuses on long tails: alone, with decoupled re-training, with deferred re-weighting.

    The number of training images falls exponentially from the first class to the last one, by a
    factor of {imbalance} (the counts are below each table). Test images stay balanced, and so does
    the tenth held out to select the epoch. Many-, medium- and few-shot are defined as in the paper:
    more than 100, 20 to 100, and fewer than 20 training images of the class.

    Training takes {tail_epochs} epochs of SGD with a cosine, in batches of 128 at half the learning
    rate of el-table1. Re-training freezes the body and trains a new head with class-balanced draws
    and cross-entropy, for {head_epochs} epochs. Re-weighting goes by the effective number of
    examples: {deferral}.
    """
    data = {}
    for name in setting.tasks:
        task = Task.named(name)
        counts = _counts(lab, setting, task)
        rows = [
            {"method": method, "seed": seed, **_shares(lab, setting, task, method, seed)}
            for seed in setting.seeds
            for method in _PAPER
        ]
        grid = kit.Grid.of(rows, "method", measures=groups_of(counts))
        lost = grid.lost("overall")
        data[name] = {"class_counts": counts, "accuracy": grid.data(), "lost": lost}
    return kit.Result(data=data)


def _counts(lab: kit.Lab, setting: Setting, task: Task) -> list[int]:
    """Training images of each class, after a tenth of each was held out."""
    source, _ = task.data(lab, setting)
    there = np.bincount(source.labels, minlength=len(source.classes))
    left = [int(n) - round(0.1 * int(n)) for n in there]
    return [int(n) for n in long_tailed_counts(left, ratio=setting.imbalance)]


def groups_of(counts: list[int]) -> list[str]:
    """Which of the groups have a class at all.

    Example:
        >>> groups_of([500, 101, 20])
        ['overall', 'many', 'medium']
    """
    named = ["many" if n > 100 else "few" if n < 20 else "medium" for n in counts]
    return [group for group in GROUPS if group == "overall" or group in named]


def _trained(lab: kit.Lab, setting: Setting, task: Task, method: str, seed: int) -> TrainResult:
    # few images: small batches, and half the learning rate with them
    settings = {**task.recipe(setting, lr_factor=0.5), "batch_size": 128}
    settings |= {"imbalance": setting.imbalance}
    model: Any = task.model
    if method.startswith("decoupled"):
        start = _trained(lab, setting, task, "+ normal bonus" if "bonus" in method else "CE", seed)
        model = {"name": task.model, "weights": str(start.folder / "model.safetensors")}
        settings |= {
            "loss": encouraging(None), "epochs": setting.head_epochs, "freeze_body": True,
            "reset_head": True, "sampling": "class_balanced",
        }  # fmt: skip
    else:
        settings |= {"loss": _loss(setting, method), "epochs": setting.tail_epochs}
    return lab.train(model, task.data(lab, setting)[0], seed=seed, **settings)


def _loss(setting: Setting, method: str) -> Any:
    if method.startswith("deferred"):
        plain: dict[str, Any] = {"name": "cross_entropy", "options": {}}
        late = {"name": "encouraging", "options": _NORMAL} if "bonus" in method else plain
        early = plain if setting.defers_bonus else late
        turn = max(1, round(setting.defer_at * setting.tail_epochs))
        return [
            {**early, "end_epoch": turn},
            {**late, "start_epoch": turn, "class_balance": setting.beta},
        ]
    if "aggressive" in method:
        return {"name": "encouraging", "options": {"bonus_start": 0.5, "clamp": CLAMP}}
    return encouraging({"CE": None, "+ normal bonus": 1.0}.get(method, 0.5))


def _shares(lab: kit.Lab, setting: Setting, task: Task, method: str, seed: int) -> dict[str, float]:
    """Accuracy in per cent on all classes and by how many images they have; none if lost."""
    lab.step(f"{task.title}, seed {seed}: {method}")
    try:
        run = _trained(lab, setting, task, method, seed)
    except NonFiniteError:
        return {}
    outputs = lab.outputs(run, task.data(lab, setting)[1])
    predicted, labels = outputs.logits.argmax(dim=1).numpy(), outputs.labels.numpy()
    shots = shot_accuracy(predicted, labels, _counts(lab, setting, task))
    each = {
        group: 100 * accuracy.value for group, accuracy in shots.items() if accuracy is not None
    }
    return {"overall": 100 * outputs.accuracy, **each}
