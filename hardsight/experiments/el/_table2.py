"""Encouraging Loss, Table 2: learning rate and loss; and which learning rates are safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardsight.experiments.el._recipes import (
    EXACT,
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
from hardsight.experiments.el._seeds import (
    CHOICE,
    accuracies_of,
    best_of,
    claim_of,
    ended,
    lost_in,
    lost_note,
    spread_of,
    validations_of,
)
from hardsight.experiments.lab import (
    Claim,
    Figure,
    Lab,
    Result,
    Table,
    compared_in_pairs,
    experiment,
    spread,
)
from hardsight.report.figures import legend, panels

_PAPER = {  # CIFAR-10, ResNet-50; the paper's loss is LE = 1
    ("CE", 1.0): "92.34 ± 0.70", ("CE", 2.0): "91.53 ± 0.19",
    ("EL, LE=1", 1.0): "92.74 ± 0.38", ("EL, LE=1", 0.5): "93.69 ± 0.25",
}  # fmt: skip
_FAILED = 5.0  # points below cross-entropy at which a run counts as failed
Grid = dict[float, list[Fitted | None]]


@dataclass(frozen=True)
class Setting(Recipe):
    """Keys of ``el-table2``.

    Attributes:
        task: ``DATASET/NETWORK`` of the table.
        ce_factors: of the learning rate, for cross-entropy.
        el_factors: for Encouraging Loss with LE = 1.
        adam_task: for the second table, with AdamW.
        adam_lrs: its learning rates.
        adam_epochs: its epochs.
        adam_log_ends: its losses beside cross-entropy and the unclamped normal bonus.
    """

    task: str = "cifar10/resnet18:width=32"
    ce_factors: tuple[float, ...] = (0.5, 1.0, 2.0)
    el_factors: tuple[float, ...] = (0.25, 0.5, 1.0)
    adam_task: str = "builtin:digits/small_cnn"
    adam_lrs: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2)
    adam_epochs: int = 8
    adam_log_ends: tuple[float, ...] = (0.75, 1.0)


@experiment(
    "el-table2",
    title="Learning rate and loss: Encouraging Loss wants a smaller one",
    reproduces=f"{PAPER}, Table 2",
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", ce_factors=(1.0,), el_factors=(0.5, 1.0),
            adam_lrs=(1e-3, 1e-2), adam_epochs=1, adam_log_ends=(), **SMOKE,
        ),
        "short": Setting(),
    },
)  # fmt: skip
def el_table2(lab: Lab, setting: Setting) -> Result:
    """Cross-entropy and Encouraging Loss (LE = 1) at fractions of one learning rate.

    The gradient of Encouraging Loss does not fade as examples become right, so the paper lowers
    the learning rate for it. The first table repeats that with the recipe of el-table1 (SGD;
    {grey_epochs} epochs on grey images, {colour_epochs} on coloured ones); the learning rate of
    each loss is chosen on validation. The second looks for the learning rates of AdamW (one cycle,
    gradients not clipped) that are safe: it trains {adam_task} for {adam_epochs} epochs and counts
    the runs that fail: lost, as their loss became infinite or NaN, or more than 5 points below
    cross-entropy at the same learning rate. It has the normal bonus unclamped as in Eq. (6), and
    beside it LE = {adam_log_ends}, of which 1 is the normal bonus as the paper trains it, with
    1 - p clamped at 1e-5.
    """
    task = Task.named(setting.task)
    grids: dict[LogEnd, Grid] = {
        log_end: _grid(lab, setting, task, log_end, factors)
        for log_end, factors in ((None, setting.ce_factors), (1.0, setting.el_factors))
    }
    chosen: dict[LogEnd, float] = {key: _chosen(grid) for key, grid in grids.items()}
    adam = _adam_runs(lab, setting)
    return Result(
        tables=[_table(setting, grids, chosen), _safe_table(setting, adam)],
        claims=[*_claims(grids, chosen), *_safe_claims(adam)],
        figures=[_figure(lab, adam)],
        data={
            "sgd": {loss_name(key): _data(grid) for key, grid in grids.items()},
            "adamw": {loss_name(key): _data(grid) for key, grid in adam.items()},
        },
    )


def _grid(
    lab: Lab, setting: Setting, task: Task, log_end: LogEnd, factors: Sequence[float]
) -> Grid:
    return {
        factor: [
            fitted(lab, task, setting, encouraging(log_end), seed=seed, lr_factor=factor)
            for seed in setting.seeds
        ]
        for factor in factors
    }


def _adam_runs(lab: Lab, setting: Setting) -> dict[LogEnd, Grid]:
    task = Task.named(setting.adam_task)
    return {
        log_end: {
            lr: [
                fitted(
                    lab, task, setting, encouraging(log_end), seed=seed,
                    optimizer={"name": "adamw", "lr": lr}, schedule={"name": "one_cycle"},
                    epochs=setting.adam_epochs, batch_size=min(128, setting.grey_batch),
                    augment={"crop_padding": 1}, select="last",
                )
                for seed in setting.seeds
            ]
            for lr in setting.adam_lrs
        }
        for log_end in (None, *setting.adam_log_ends, EXACT)
    }  # fmt: skip


def _chosen(grid: Grid) -> float:
    found: float = best_of({key: validations_of(each) for key, each in grid.items()})
    return found


def _table(setting: Setting, grids: dict[LogEnd, Grid], chosen: dict[LogEnd, float]) -> Table:
    factors = sorted({factor for grid in grids.values() for factor in grid})
    rows: list[list[Any]] = []
    for key, grid in grids.items():
        cells = [spread_of(accuracies_of(grid[f])) if f in grid else None for f in factors]
        rows.append([loss_name(key), *cells, f"× {chosen[key]:g}"])
    paper: list[list[Any]] = [
        [name, *(_PAPER.get((name, factor)) for factor in factors), ""]
        for name in ("CE", "EL, LE=1")
    ]
    base = setting.colour_lr if Task.named(setting.task).is_colour else setting.grey_lr
    return Table(
        f"Test accuracy, %, at fractions of the learning rate {base:g} "
        f"({Task.named(setting.task).title})",
        ("loss", *(f"× {factor:g}" for factor in factors), "chosen on validation"),
        rows,
        note="Mean ± standard deviation over seeds. The paper: ResNet-50 on CIFAR-10. The learning "
        f"rate is {CHOICE}.{lost_note(_named(grids, '× '))}",
        paper=paper,
    )


def _claims(grids: dict[LogEnd, Grid], chosen: dict[LogEnd, float]) -> list[Claim]:
    ce, el = grids[None], grids[1.0]
    pairs, words = {}, {}
    if 2.0 in ce and 1.0 in ce:
        pairs["ce"] = (accuracies_of(ce[2.0]), accuracies_of(ce[1.0]))
        words["ce"] = ("Twice the learning rate makes CE worse", "92.34 to 91.53", False)
    if 0.5 in el and 1.0 in el:
        pairs["el"] = (accuracies_of(el[0.5]), accuracies_of(el[1.0]))
        words["el"] = ("Half the learning rate makes EL (LE=1) better", "92.74 to 93.69", True)
    pairs["both"] = (accuracies_of(el[chosen[1.0]]), accuracies_of(ce[chosen[None]]))
    words["both"] = (
        "EL (LE=1) beats CE, each at its learning rate chosen on validation",
        "+1.35 (its EL at half against CE)",
        True,
    )
    return [
        claim_of(words[name][0], words[name][1], found, larger=words[name][2])
        for name, found in compared_in_pairs(pairs).items()
    ]


def _named(grids: dict[LogEnd, Grid], sign: str) -> dict[str, list[Fitted | None]]:
    return {
        f"{loss_name(key)} at {sign}{rate:g}": each
        for key, grid in grids.items()
        for rate, each in grid.items()
    }


def failed(grid: Grid, reference: Grid) -> dict[float, int]:
    """Runs at each learning rate that were lost, or end 5 points below the mean of ``reference``.

    If every run of ``reference`` was lost, there is no mean, and only lost runs count.
    """
    means = {
        lr: spread(ended(accuracies_of(each))).mean for lr, each in reference.items() if ended(each)
    }
    return {
        lr: sum(
            value is None or (lr in means and value < means[lr] - _FAILED)
            for value in accuracies_of(each)
        )
        for lr, each in grid.items()
    }


def _safe_table(setting: Setting, adam: dict[LogEnd, Grid]) -> Table:
    rows: list[list[Any]] = []
    for key, grid in adam.items():
        gone = failed(grid, adam[None])
        rows.append([loss_name(key), *(_safe_cell(each, gone[lr]) for lr, each in grid.items())])
    return Table(
        f"Which learning rates of AdamW are safe ({Task.named(setting.adam_task).title}): test "
        "accuracy, %",
        ("loss", *(f"{lr:g}" for lr in setting.adam_lrs)),
        rows,
        note=f"Mean over {len(setting.seeds)} seeds, the worst seed, and how many runs failed: "
        "lost, or more than 5 points below the mean of CE at the same learning rate. Not in the "
        "paper." + lost_note(_named(adam, "")),
    )


def _safe_cell(each: list[Fitted | None], count: int) -> str:
    values, lost = ended(accuracies_of(each)), lost_in(each)
    if not values:
        return f"none of {len(each)} ended ({count} failed)"
    some = f"{len(values)} of {len(each)} ended; " if lost else ""
    return f"{np.mean(values):.1f} ({some}worst {min(values):.1f}; {count} failed)"


def _safe_claims(adam: dict[LogEnd, Grid]) -> list[Claim]:
    claims = []
    for key, grid in adam.items():
        if key is None:
            continue
        gone = failed(grid, adam[None])
        bad = [lr for lr, count in gone.items() if count]
        unknown = [lr for lr in gone if lr not in bad and not ended(adam[None][lr])]
        safe = [lr for lr in gone if lr not in (*bad, *unknown)]
        claims.append(
            Claim(
                f"{loss_name(key)} is safe at every learning rate of AdamW tried",
                "not in the paper; its limitations advise a smaller one",
                f"safe: {_listed(safe)}; runs failed at: {_listed(bad)}"
                + (f"; no run of CE ended at: {_listed(unknown)}" if unknown else ""),
                False if bad else None if unknown else True,
            )
        )
    return claims


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values) or "none"


def _figure(lab: Lab, adam: dict[LogEnd, Grid]) -> Figure:
    figure, (axes,) = panels(1, 1, width=4.6)
    for key, grid in adam.items():
        dots = {lr: ended(accuracies_of(each)) for lr, each in grid.items()}
        means = [np.mean(values) if values else np.nan for values in dots.values()]
        (line,) = axes.plot(list(dots), means, marker="o", label=loss_name(key))
        for lr, values in dots.items():
            axes.plot([lr] * len(values), values, ".", color=line.get_color(), alpha=0.5, ms=4)
        gone = [lr for lr, each in grid.items() if lost_in(each)]
        if gone:
            axes.plot(gone, [0.02] * len(gone), "x", color=line.get_color(),
                      transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("largest learning rate of AdamW")
    axes.set_ylabel("test accuracy, %")
    legend(figure)
    return lab.figure(
        figure,
        "learning-rates",
        caption="Accuracy at the end of training against the learning rate of AdamW; lines are "
        "means, dots are seeds; a cross at the foot: a run was lost there.",
        alt="Accuracy against learning rate on a log axis, one line per loss.",
    )


def _data(grid: Grid) -> dict[str, Any]:
    return {
        f"{key:g}": {
            "validation": validations_of(each),
            "test": accuracies_of(each),
            "lost": lost_in(each),
        }
        for key, each in grid.items()
    }
