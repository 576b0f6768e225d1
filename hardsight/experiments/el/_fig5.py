"""Encouraging Loss, Figures 1 and 5 and Section 4.3: energy, and what the features are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.errors import ConfigError
from hardsight.experiments.el._recipes import (
    PAPER,
    SMOKE,
    Fitted,
    LogEnd,
    Recipe,
    Task,
    encouraging,
    fitted,
    loss_name,
)
from hardsight.experiments.el._seeds import claim_of, ended, lost_in, lost_note, spread_of
from hardsight.experiments.lab import (
    Claim,
    Figure,
    Lab,
    Outputs,
    PerSeed,
    Result,
    Table,
    compared_in_pairs,
    experiment,
)
from hardsight.registry import unknown_name
from hardsight.report.figures import COLOURS, legend, panels

_NORMAL = 1.0
# one per seed; None where the run was lost
Found = dict[LogEnd, list[Outputs | None]]


@dataclass(frozen=True)
class Setting(Recipe):
    """Keys of ``el-fig5``.

    Attributes:
        task: ``DATASET/NETWORK``.
        targets: classes whose examples are looked at; the paper's cat (Figure 5), dog (Figure 1).
        log_ends: of Encouraging Loss, beside cross-entropy.
        head_epochs: of the new head on frozen features.
    """

    task: str = "cifar10/resnet18:width=32"
    targets: tuple[str, ...] = ("cat", "dog")
    log_ends: tuple[float, ...] = (0.75, 1.0)
    head_epochs: int = 3


@experiment(
    "el-fig5",
    title="Conditional energy, and a new head on frozen features",
    reproduces=f"{PAPER}, Figures 1 and 5, Section 4.3",
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", targets=("3",), log_ends=(1.0,), head_epochs=1, **SMOKE
        ),
        "short": Setting(),
    },
)
def el_fig5(lab: Lab, setting: Setting) -> Result:
    """The energy E(y|x) = -z_y of each class, averaged over the test examples of one class.

    The models are those of el-table1 (the paper: LE = 1, ResNet-50). Sharpness is the mean energy
    of the other classes minus that of the own one, over all test examples: in logits, and divided
    by the standard deviation of all energies, which tells a sharper surface from larger logits.
    Then the body of each model is frozen and a new head is trained on it with cross-entropy for
    {head_epochs} epochs: what the features are worth without the loss's own head.
    """
    task = Task.named(setting.task)
    _check_targets(setting, lab.source(task.dataset, "test").classes)
    keys: tuple[LogEnd, ...] = (None, *setting.log_ends)
    runs = {
        key: [fitted(lab, task, setting, encouraging(key), seed=seed) for seed in setting.seeds]
        for key in keys
    }
    found = {key: _outputs(lab, setting, task, each) for key, each in runs.items()}
    sharp = {
        key: [(None, None) if one is None else sharpness(one) for one in each]
        for key, each in found.items()
    }
    heads = {key: _new_heads(lab, setting, task, each) for key, each in runs.items()}
    el = _NORMAL if _NORMAL in found else keys[-1]
    raw, scaled = ({k: [one[at] for one in v] for k, v in sharp.items()} for at in (0, 1))
    named: dict[str, Sequence[object]] = {loss_name(key): each for key, each in runs.items()}
    named |= {f"a new head on {loss_name(key)}": _known(heads[key], runs[key]) for key in keys}
    table = Table(
        f"{task.title}: sharpness of the energy, and a new head",
        ("loss", "sharpness, logits", "sharpness, deviations", "test accuracy of a new head, %"),
        [
            [loss_name(k), spread_of(raw[k]), spread_of(scaled[k]), spread_of(heads[k])]
            for k in keys
        ],
        note=f"Mean ± standard deviation over seeds.{lost_note(named)}",
        paper=[["CE", None, None, "91.69 ± 0.04"], ["EL, LE=1", None, None, "92.98 ± 0.01"]],
    )
    return Result(
        tables=[table],
        claims=_claims(el, raw, scaled, heads),
        figures=[_figure(lab, setting, task, found)],
        data={
            loss_name(key): {
                "sharpness": raw[key],
                "scaled_sharpness": scaled[key],
                "new_head": heads[key],
                "energy": [
                    None if one is None else _energies(one).numpy().round(4) for one in found[key]
                ],
                "lost": lost_in(runs[key]),
                "lost_heads": lost_in(heads[key]) - lost_in(runs[key]),
            }
            for key in keys
        },
    )


def _check_targets(setting: Setting, classes: Sequence[str]) -> None:
    for target in setting.targets:
        if target not in classes:
            raise ConfigError(unknown_name("class", target, list(classes)))


def _claims(
    el: LogEnd,
    raw: Mapping[LogEnd, PerSeed],
    scaled: Mapping[LogEnd, PerSeed],
    heads: Mapping[LogEnd, PerSeed],
) -> list[Claim]:
    words = {
        "raw": (f"{loss_name(el)} makes the energy sharper, in logits", "Figure 5"),
        "scaled": (
            f"{loss_name(el)} makes the energy sharper, in standard deviations of the energies",
            "not in the paper",
        ),
        "head": (
            f"A new head on the features of {loss_name(el)} is more accurate",
            "91.69 ± 0.04 to 92.98 ± 0.01",
        ),
    }
    values = {"raw": raw, "scaled": scaled, "head": heads}
    found = compared_in_pairs({name: (one[el], one[None]) for name, one in values.items()})
    return [claim_of(*words[name], one) for name, one in found.items()]


def _outputs(
    lab: Lab, setting: Setting, task: Task, runs: list[Fitted | None]
) -> list[Outputs | None]:
    _, test = task.data(lab, setting)
    return [None if one is None else lab.outputs(one.run, test) for one in runs]


def _new_heads(
    lab: Lab, setting: Setting, task: Task, runs: list[Fitted | None]
) -> list[float | None]:
    """Test accuracy in per cent of a new head on frozen features, per seed."""
    found: list[float | None] = []
    for seed, one in zip(setting.seeds, runs, strict=True):
        if one is None:
            found.append(None)
            continue
        started = {"name": task.model, "weights": str(one.run.folder / "model.safetensors")}
        again = fitted(
            lab, task, setting, encouraging(None), seed=seed, model=started,
            epochs=setting.head_epochs, freeze_body=True, reset_head=True,
        )  # fmt: skip
        found.append(None if again is None else again.test)
    return found


def _known(heads: list[float | None], runs: list[Fitted | None]) -> list[float | None]:
    """Those of the heads whose body there is."""
    return [head for head, run in zip(heads, runs, strict=True) if run is not None]


def sharpness(outputs: Outputs) -> tuple[float, float]:
    """Mean energy of other classes minus that of the own; and in deviations of all energies."""
    energy, labels = -outputs.logits.double(), outputs.labels
    own = energy.gather(1, labels[:, None]).squeeze(1)
    others = (energy.sum(dim=1) - own) / (energy.shape[1] - 1)
    apart = float((others - own).mean())
    return apart, apart / max(float(energy.std()), 1e-12)  # a model may say nothing at all


def _energies(outputs: Outputs) -> Tensor:
    """Mean energy of class ``column`` over the examples of class ``row``, ``[C, C]``."""
    classes = outputs.logits.shape[1]
    return torch.stack([-outputs.logits[outputs.labels == c].mean(dim=0) for c in range(classes)])


def _figure(lab: Lab, setting: Setting, task: Task, found: Found) -> Figure:
    classes = lab.source(task.dataset, "test").classes
    figure, axes = panels(1, len(setting.targets), width=4.8)
    places = np.arange(len(classes))
    for place, target in zip(axes, setting.targets, strict=True):
        row = classes.index(target)
        for number, (key, each) in enumerate(found.items()):
            if not ended(each):
                continue
            values: Any = torch.stack([_energies(one)[row] for one in ended(each)]).numpy()
            place.plot(places, values.mean(axis=0), marker="o", color=COLOURS[number],
                       label=loss_name(key))  # fmt: skip
            if len(values) > 1:
                low, high = (values.mean(axis=0) + s * values.std(axis=0) for s in (-1, 1))
                place.fill_between(places, low, high, color=COLOURS[number], alpha=0.15, lw=0)
        place.axvline(row, color="grey", lw=0.8, linestyle=":")
        place.set_xticks(places, classes, rotation=45, ha="right")
        place.set_title(f"examples of class “{target}”")
    axes[0].set_ylabel("mean energy E(y|x)")
    legend(figure)
    return lab.figure(
        figure,
        "energy",
        caption="Mean conditional energy of each class over the test examples of one class (dotted "
        "line); lower is more likely. Bands are one standard deviation over seeds.",
        alt="Energy against class, one line per loss, with a dip at the examples' own class.",
    )
