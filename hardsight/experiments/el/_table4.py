"""Encouraging Loss, Table 4: telling foreign images from the model's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from hardsight.data import MemorySource
from hardsight.errors import ConfigError, StatisticError
from hardsight.evaluate import Detection, detection, ood_indicators
from hardsight.experiments.el._recipes import (
    PAPER,
    PUBLISHED_MNIST,
    SMOKE,
    Fitted,
    LogEnd,
    Recipe,
    Task,
    encouraging,
    fitted,
    loss_name,
)
from hardsight.experiments.el._seeds import (
    accuracies_of,
    lost_in,
    lost_note,
    spread_of,
    values_of,
)
from hardsight.experiments.lab import (
    RULE,
    Lab,
    Question,
    Result,
    Table,
    experiment,
    judged,
    weakness,
)

_PAPER = {"CE": ("95.68", "20.92"), "EL": ("98.04", "8.69")}  # MNIST against Fashion-MNIST
_INDICATORS = ("min_energy", "free_energy", "max_probability")
_NORMAL = 1.0
# by indicator, one per seed; None where the run was lost, or its model tells nothing apart
Found = list[dict[str, Detection] | None]
_MEASURES: dict[str, Callable[[Detection], float]] = {
    "auroc": lambda one: 100 * one.auroc.value,
    "fpr95": lambda one: 100 * one.fpr95,
    "aupr_in": lambda one: 100 * one.aupr_in,
    "aupr_out": lambda one: 100 * one.aupr_out,
}


@dataclass(frozen=True)
class Setting(Recipe):
    """Keys of ``el-table4``.

    Attributes:
        pairs: ``DATASET/NETWORK > FOREIGN``, the foreign images as ``DATASET:SPLIT``, or
            ``rotated`` for the own test images turned by 90 degrees.
        log_ends: of Encouraging Loss, beside cross-entropy.
    """

    pairs: tuple[str, ...] = (
        "mnist/small_cnn > fashion-mnist:test",
        "cifar10/resnet18:width=32 > pacs:photo",
        "cifar10/resnet18:width=32 > mnist:test",
    )
    log_ends: tuple[float, ...] = (0.75, 1.0)


@experiment(
    "el-table4",
    title="Encouraging Loss and foreign images",
    reproduces=f"{PAPER}, Table 4",
    scales={
        "smoke": Setting(
            pairs=("builtin:digits/small_cnn > rotated",), log_ends=(0.75, 1.0), **SMOKE
        ),
        "short": Setting(),
        "paper": Setting(
            pairs=("mnist/el_mnist > fashion-mnist:test",), log_ends=(1.0,), **PUBLISHED_MNIST
        ),
    },
)
def el_table4(lab: Lab, setting: Setting) -> Result:
    """How well cross-entropy and Encouraging Loss tell foreign images from their own.

    The models are those of el-table1, of one recipe each; the paper's loss is LE = 1. The
    indicator is the paper's, the smallest conditional energy, and beside it free energy and the
    largest probability. Own images are the test split, foreign ones are brought to its size and
    colours; nothing is chosen on either. AUROC counts ties half; FPR95 is the share of foreign
    images accepted where 95 % of the own are.
    """
    tables, data = [], {}
    questions: list[Question] = []
    keys: tuple[LogEnd, ...] = (None, *setting.log_ends)
    for pair in setting.pairs:
        task, foreign = _parts(pair)
        runs = {
            key: [fitted(lab, task, setting, encouraging(key), seed=s) for s in setting.seeds]
            for key in keys
        }
        found = _detections(lab, setting, task, foreign, runs)
        title = f"{task.title}, against {foreign}"
        is_papers = pair.startswith("mnist") and foreign.startswith("fashion")
        tables.append(_table(title, found, runs, is_papers))
        weak = weakness(accuracies_of(runs[None]), task.good)
        questions += _questions(title, found, is_papers, weak)
        data[pair] = {
            loss_name(key): {
                **{
                    indicator: {what: _per_cent(each, indicator, what) for what in _MEASURES}
                    for indicator in _INDICATORS
                },
                "lost": lost_in(runs[key]),
                "tells_nothing_apart": lost_in(each) - lost_in(runs[key]),
            }
            for key, each in found.items()
        }
    return Result(tables=tables, claims=judged(questions), data=data)


def _parts(pair: str) -> tuple[Task, str]:
    name, _, foreign = (part.strip() for part in pair.partition(">"))
    if not foreign:
        raise ConfigError(
            "expected DATASET/NETWORK > FOREIGN, such as 'mnist/small_cnn > fashion-mnist:test', "
            f"got {pair!r}"
        )
    return Task.named(name), foreign


def _detections(
    lab: Lab, setting: Setting, task: Task, foreign: str, runs: dict[LogEnd, list[Fitted | None]]
) -> dict[LogEnd, Found]:
    _, test = task.data(lab, setting)
    others = foreign_images(lab, foreign, test)
    return {
        key: [None if one is None else _detected(lab, one, test, others) for one in each]
        for key, each in runs.items()
    }


def _detected(
    lab: Lab, one: Fitted, test: MemorySource, others: MemorySource
) -> dict[str, Detection] | None:
    own, strange = (ood_indicators(lab.outputs(one.run, part).logits) for part in (test, others))
    try:
        return {name: detection(own[name].numpy(), strange[name].numpy()) for name in _INDICATORS}
    except StatisticError:  # a model that says the same of every image
        return None


def foreign_images(lab: Lab, name: str, like: MemorySource) -> MemorySource:
    """Images of another kind in the size and colours of ``like``."""
    if name == "rotated":
        return like.with_images(np.ascontiguousarray(np.rot90(like.images, axes=(1, 2))))
    dataset, _, split = name.rpartition(":")
    source = lab.source(dataset, split)
    mode = "L" if like.images.ndim == 3 else "RGB"
    height, width = like.images.shape[1:3]
    pixels = [
        np.asarray(
            Image.fromarray(image).convert(mode).resize((width, height), Image.Resampling.BILINEAR)
        )
        for image in source.images
    ]
    return MemorySource(np.stack(pixels), np.zeros(len(pixels), int), classes=like.classes,
                        spec=name)  # fmt: skip


def _per_cent(each: Found, indicator: str, what: str) -> list[float | None]:
    return values_of(each, lambda one: _MEASURES[what](one[indicator]))


def _table(
    title: str,
    found: dict[LogEnd, Found],
    runs: dict[LogEnd, list[Fitted | None]],
    is_papers: bool,
) -> Table:
    columns = [f"{kind}, {what}" for kind in ("energy", "free energy", "probability")
               for what in ("AUROC ↑", "FPR95 ↓")]  # fmt: skip
    rows: list[list[Any]] = [
        [loss_name(key)]
        + [
            spread_of(_per_cent(each, indicator, what))
            for indicator in _INDICATORS
            for what in ("auroc", "fpr95")
        ]
        for key, each in found.items()
    ]
    about = (
        "The paper's text says FPR95 falls from 8.10 to 0.95 here, its table from 20.92 to 8.69; "
        "the table is shown."
        if is_papers
        else "Not a pair of the paper."
    )
    return Table(
        f"{title}: detection, %",
        ("loss", *columns),
        rows,
        note=f"Mean ± standard deviation over seeds. {RULE} {about}{_left_out(found, runs)}",
        paper=[[name, *values, *[None] * 4] for name, values in _PAPER.items()]
        if is_papers
        else None,
    )


def _left_out(found: dict[LogEnd, Found], runs: dict[LogEnd, list[Fitted | None]]) -> str:
    """Runs that were lost, and models of which there is nothing to measure, in words."""
    flat = [
        f"{lost_in(each) - lost_in(runs[key])} of {len(each)} of {loss_name(key)}"
        for key, each in found.items()
        if lost_in(each) > lost_in(runs[key])
    ]
    more = f" Left out, as the model says the same of every image: {'; '.join(flat)}."
    return lost_note({loss_name(k): each for k, each in runs.items()}) + (more if flat else "")


def _questions(
    title: str, found: dict[LogEnd, Found], is_papers: bool, weak: str
) -> list[Question]:
    ends = [key for key in found if key is not None]
    el = found[_NORMAL if _NORMAL in found else ends[-1]]
    ce = found[None]
    energy = _per_cent(el, "min_energy", "auroc")
    pairs = {
        "auroc": (energy, _per_cent(ce, "min_energy", "auroc")),
        "fpr95": (_per_cent(el, "min_energy", "fpr95"), _per_cent(ce, "min_energy", "fpr95")),
        "free": (energy, _per_cent(el, "free_energy", "auroc")),
        "probability": (energy, _per_cent(el, "max_probability", "auroc")),
    }
    text = "in the paper's appendix"
    words = {
        "auroc": ("EL has the higher AUROC", "95.68 to 98.04" if is_papers else "other data", True),
        "fpr95": ("EL has the lower FPR95", "20.92 to 8.69" if is_papers else "other data", False),
        "free": ("with EL, energy has a higher AUROC than free energy", text, True),
        "probability": ("with EL, energy has a higher AUROC than probability", text, True),
    }
    return [
        Question(f"{title}: {says}", paper, *pairs[key], larger=larger, weak=weak)
        for key, (says, paper, larger) in words.items()
    ]
