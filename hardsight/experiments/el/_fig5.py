"""Encouraging Loss, Figures 1 and 5 and Section 4.3: energy, and what the features are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.errors import ConfigError
from hardsight.experiments import lab as kit
from hardsight.experiments.el import _recipes as recipes
from hardsight.experiments.el._recipes import Task
from hardsight.registry import unknown_name
from hardsight.report.figures import COLOURS, panels

_NEW_HEAD = 92.98 - 91.69  # points that the paper gains by a new head
_MEASURES = {
    "sharpness": "sharpness, logits",
    "scaled_sharpness": "sharpness, deviations",
    "new_head": "test accuracy of a new head, %",
}


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of ``el-fig5``.

    Attributes:
        task: ``DATASET/NETWORK``.
        targets: classes whose examples are looked at; the paper's cat (Figure 5), dog (Figure 1).
        log_ends: of Encouraging Loss, in addition to cross-entropy.
        head_epochs: of the new head on frozen features.
    """

    task: str = "cifar10/resnet18"
    targets: tuple[str, ...] = ("cat", "dog")
    log_ends: tuple[float, ...] = (0.75, 1.0)
    head_epochs: int = 3
    colour_epochs: int = 30
    seeds: tuple[int, ...] = recipes.FIVE_SEEDS


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    grid = kit.Grid.read(data, setting.seeds, "loss")
    el = recipes.normal_or_last(grid.names("loss"))
    lost = {loss: part["lost"] for loss, part in data.items()}
    lost |= {f"a new head on {loss}": part["lost_heads"] for loss, part in data.items()}
    asked = {
        "sharpness": (f"{el} makes the energy sharper, in logits", "Figure 5"),
        "scaled_sharpness": (
            f"{el} makes the energy sharper, in standard deviations of the energies",
            "not in the paper",
        ),
        "new_head": (
            f"A new head on the features of {el} is more accurate",
            "91.69 ± 0.04 to 92.98 ± 0.01",
        ),
    }
    table = grid.table(
        f"{Task.named(setting.task).title}: sharpness of the energy, and a new head",
        {"loss": "loss"},
        {title: measure for measure, title in _MEASURES.items()},
        note=setting.note(lost),
        paper=[["CE", None, None, "91.69 ± 0.04"], ["EL, LE=1", None, None, "92.98 ± 0.01"]],
    )
    # a new head on cross-entropy's own features is as accurate as the network
    gate = Task.named(setting.task).gate(grid.values("new_head", loss="CE"))
    return [table, kit.networks_table([gate])], [
        grid.question(
            *words, measure, {"loss": el}, {"loss": "CE"}, weak=gate.weak,
            effect=_NEW_HEAD if measure == "new_head" else 0.0,
        )
        for measure, words in asked.items()
    ]  # fmt: skip


@kit.experiment(
    "el-fig5",
    title="Conditional energy, and a new head on frozen features",
    reproduces="Encouraging Loss, Figures 1 and 5, Section 4.3",
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn",
            targets=("3",),
            log_ends=(1.0,),
            head_epochs=1,
            **recipes.SMOKE,
        ),
        "short": Setting(),
        "paper": Setting(
            task="cifar10/resnet50", log_ends=(1.0,), head_epochs=90, **recipes.PUBLISHED_CIFAR
        ),
    },
    asks=_asks,
)
def el_fig5(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Shows the mean energy E(y|x) = -z_y of each class over the test examples of one class.

    The models are {networks}, trained for {recipes} (the paper: LE = 1, ResNet-50). Sharpness is
    the mean energy of the other classes minus that of the labelled one, over all test examples. It
    is given in logits, and divided by the standard deviation of all energies, which distinguishes a
    sharper surface from larger logits.

    Then the body of each model is frozen, and a new head is trained on it with cross-entropy for
    {head_epochs} epochs. This shows what the features are worth without the head that the loss
    trained.
    """
    task = Task.named(setting.task)
    _, test = task.data(lab, setting)
    for target in setting.targets:
        if target not in test.classes:
            raise ConfigError(unknown_name("class", target, list(test.classes)))
    data: dict[str, Any] = {}
    energies: dict[str, list[Tensor]] = {}
    for loss, runs in recipes.fitted_by_loss(lab, task, setting, setting.log_ends).items():
        outputs = [None if fit is None else lab.outputs(fit.run, test) for fit in runs]
        sharp = [(None, None) if output is None else sharpness(output) for output in outputs]
        heads = [
            None if fit is None else _new_head(lab, setting, task, fit, seed)
            for seed, fit in zip(setting.seeds, runs, strict=True)
        ]
        energies[loss] = [mean_energies(output) for output in outputs if output is not None]
        there = iter(energies[loss])
        data[loss] = {
            "sharpness": [raw for raw, _ in sharp],
            "scaled_sharpness": [scaled for _, scaled in sharp],
            "new_head": heads,
            "energy": [None if fit is None else next(there).numpy().round(4) for fit in runs],
            "lost": runs.count(None),
            "lost_heads": heads.count(None) - runs.count(None),
        }
    return kit.Result(figures=[_figure(lab, setting, test.classes, energies)], data=data)


def _new_head(
    lab: kit.Lab, setting: Setting, task: Task, fit: recipes.Fitted, seed: int
) -> float | None:
    """Test accuracy in per cent of a new head on frozen features."""
    started = {"name": task.model, "weights": str(fit.run.folder / "model.safetensors")}
    again = recipes.fitted(
        lab, task, setting, recipes.encouraging(None), seed=seed, model=started,
        epochs=setting.head_epochs, freeze_body=True, reset_head=True,
    )  # fmt: skip
    return None if again is None else again.test


def sharpness(outputs: kit.Outputs) -> tuple[float, float]:
    """Mean energy of other classes minus that of the own; and in deviations of all energies."""
    energy, labels = -outputs.logits.double(), outputs.labels
    own = energy.gather(1, labels[:, None]).squeeze(1)
    others = (energy.sum(dim=1) - own) / (energy.shape[1] - 1)
    apart = float((others - own).mean())
    return apart, apart / max(float(energy.std()), 1e-12)  # a model may say nothing at all


def mean_energies(outputs: kit.Outputs) -> Tensor:
    """Mean energy of class ``column`` over the examples of class ``row``, ``[C, C]``."""
    classes = outputs.logits.shape[1]
    return torch.stack([-outputs.logits[outputs.labels == c].mean(dim=0) for c in range(classes)])


def _figure(
    lab: kit.Lab, setting: Setting, classes: Sequence[str], energies: Mapping[str, Sequence[Tensor]]
) -> kit.Figure:
    figure, axes = panels(1, len(setting.targets), width=4.8, ylabel="mean energy E(y|x)")
    places = np.arange(len(classes))
    for place, target in zip(axes, setting.targets, strict=True):
        row = classes.index(target)
        for colour, (loss, each) in zip(COLOURS, energies.items(), strict=False):
            levels = [energy[row].numpy() for energy in each]
            kit.band(place, places, levels, colour, loss, marker="o")
        place.axvline(row, color="grey", lw=0.8, linestyle=":")
        place.set_xticks(places, classes, rotation=45, ha="right")
        place.set_title(f"examples of class “{target}”")
    return lab.figure(
        figure, "energy",
        caption="Mean conditional energy of each class over the test examples of one class (dotted "
        f"line); lower is more likely; {kit.BANDS}.",
        alt="Energy against class, one line per loss, with a dip at the examples' own class.",
    )  # fmt: skip
