"""Encouraging Loss, Table 1 and Figure 4: accuracy on images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hardsight.experiments.el._recipes import (
    ACCURACIES,
    CHOICE,
    EXACT,
    MEANS,
    PAPER,
    PUBLISHED_MNIST,
    SMOKE,
    Recipe,
    Task,
    accuracies,
    best_test_table,
    fitted_by_loss,
    loss_name,
    lost_note,
)
from hardsight.experiments.lab import (
    Claim,
    Figure,
    Grid,
    Lab,
    Result,
    Table,
    experiment,
    in_every_run,
    judged,
    weakness,
)
from hardsight.report.figures import legend, panels

_PAPER = {  # CE and EL; ResNet-50 and EfficientNet-B0 on CIFAR-10
    "mnist/el_mnist": ("99.42 ± 0.06", "99.56 ± 0.05"),
    "mnist/small_cnn": ("99.42 ± 0.06", "99.56 ± 0.05"),
    "cifar10/resnet18": ("92.34 ± 0.70", "92.97 ± 0.42"),
    "cifar10/efficientnet_small": ("93.21 ± 0.40", "94.24 ± 0.17"),
}
_WORSE = 1.0
_NORMAL, _UNCLAMPED = loss_name(1.0), loss_name(EXACT)


@dataclass(frozen=True)
class Setting(Recipe):
    """Keys of ``el-table1``.

    Attributes:
        tasks: ``DATASET/NETWORK``.
        log_ends: LE of Encouraging Loss.
        exact_tasks: those that are also trained with the normal bonus unclamped.
    """

    tasks: tuple[str, ...] = (
        "mnist/small_cnn",
        "fashion-mnist/small_cnn",
        "cifar10/resnet18:width=32",
        "cifar10/efficientnet_small:width=0.5",
    )
    log_ends: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    exact_tasks: tuple[str, ...] = (
        "mnist/small_cnn",
        "fashion-mnist/small_cnn",
        "cifar10/resnet18:width=32",
    )

    @property
    def choice(self) -> str:
        """How LE is chosen, in words; it needs more than one to choose from."""
        return " LE is chosen in the same way." if len(self.log_ends) > 1 else ""


def _judge(setting: Setting, data: Mapping[str, Any]) -> tuple[list[Table], list[Claim]]:
    losses = {name: part["losses"] for name, part in data.items()}
    grid = Grid.read(losses, setting.seeds, "task", "loss")
    chosen = {name: part["chosen_log_end"] for name, part in data.items()}
    titles = {name: Task.named(name).title for name in data}
    how = ", chosen on validation" if len(setting.log_ends) > 1 else ""
    questions = [
        grid.at(task=name).question(
            f"{titles[name]}: Encouraging Loss is more accurate (LE = {end:g}{how})",
            _paper_difference(name),
            "test",
            {"loss": loss_name(end)},
            {"loss": "CE"},
            weak=weakness(grid.values("test", task=name, loss="CE"), Task.named(name).good),
        )
        for name, end in chosen.items()
    ]
    tables = [_table(setting, grid, chosen), *best_test_table(grid, "task", titles)]
    return tables, [*judged(questions), *_exact_claims(grid)]


@experiment(
    "el-table1",
    title="Encouraging Loss against cross-entropy on images",
    reproduces=f"{PAPER}, Table 1 and Figure 4",
    scales={
        "smoke": Setting(
            tasks=("builtin:digits/small_cnn",), log_ends=(0.75, 1.0), exact_tasks=(), **SMOKE
        ),
        "short": Setting(),
        "paper": Setting(
            tasks=("mnist/el_mnist",), log_ends=(1.0,), exact_tasks=(), **PUBLISHED_MNIST
        ),
    },
    judge=_judge,
)
def el_table1(lab: Lab, setting: Setting) -> Result:
    """Cross-entropy, and Encouraging Loss with its log ending at LE = {log_ends}.

    Data and networks: {networks}. Each network is trained with each loss under the same recipe,
    made for cross-entropy: {recipes}, on {limit} training images. Kept is {selection}.{choice} The
    paper reports the best test accuracy of a run, with the CNN that is ours by the name el_mnist
    on MNIST, and ResNet-50 and EfficientNet-B0 on CIFAR-10. Its normal bonus, LE = 1, is trained as
    it says, with 1 - p clamped at 1e-5; also unclamped: {exact_tasks}.
    """
    rows = []
    for name in setting.tasks:
        exact = (EXACT,) if name in setting.exact_tasks else ()
        runs = fitted_by_loss(lab, Task.named(name), setting, (*setting.log_ends, *exact))
        rows += [
            {"task": name, "loss": loss, "seed": seed, **accuracies(one)}
            for loss, each in runs.items()
            for seed, one in zip(setting.seeds, each, strict=True)
        ]
    grid = Grid.of(rows, "task", "loss", measures=ACCURACIES)
    ends = {loss_name(end): end for end in setting.log_ends}  # the paper's forms only
    data = {
        name: {
            "chosen_log_end": ends[grid.at(task=name).only(loss=ends).best("loss", "validation")],
            "losses": grid.at(task=name).data(lost="test"),
        }
        for name in setting.tasks
    }
    return Result(figures=[_figure(lab, grid, ends)], data=data)


def _exact_claims(grid: Grid) -> list[Claim]:
    """Whether the equation trains as well as its clamped form: no seed, or every seed, is worse."""
    claims = []
    for name in grid.names("task"):
        one = grid.at(task=name)
        if not {_UNCLAMPED, _NORMAL} <= set(one.names("loss")):
            continue
        pairs = list(
            zip(*(one.values("test", loss=loss) for loss in (_UNCLAMPED, _NORMAL)), strict=True)
        )
        # a lost run trains worse than one that ends, whichever accuracy that one has
        fine = [exact - clamped >= -_WORSE for exact, clamped in pairs if not math.isnan(clamped)]
        claims.append(
            Claim(
                f"{Task.named(name).title}: the normal bonus trains as well without its clamp "
                f"(no seed lost, or worse by more than {_WORSE:g} point)",
                "clamped at 1e-5 “to avoid numerical instability”",
                f"unclamped minus clamped, by seed: {', '.join(_apart(*pair) for pair in pairs)}",
                in_every_run(fine),
            )
        )
    return claims


def _apart(exact: float, clamped: float) -> str:
    if math.isnan(clamped):
        return "both lost" if math.isnan(exact) else "clamped lost"
    return "unclamped lost" if math.isnan(exact) else f"{exact - clamped:+.1f}"


def _table(setting: Setting, grid: Grid, chosen: Mapping[str, float]) -> Table:
    titles = {name: Task.named(name).title for name in chosen}
    theirs = [_PAPER.get(name.partition(":width")[0]) for name in chosen]
    lost = {f"{loss} ({titles[task]})": count for (task, loss), count in grid.lost("test").items()}
    is_choice = len(setting.log_ends) > 1
    table = grid.table(
        "Test accuracy, %",
        {"loss": "loss"},
        grid.across("task", "test", titles),
        note=f"{MEANS} The paper's columns are its CNN on MNIST, and ResNet-50 and EfficientNet-B0 "
        "on CIFAR-10."
        + (f" LE is {CHOICE}." if is_choice else "")
        + lost_note(lost, setting.seeds),
        paper=[
            [label, *(None if one is None else one[at] for one in theirs)]
            for at, label in enumerate(("CE", "EL"))
            if any(theirs)
        ],
    )
    if not is_choice:
        return table
    cells = (
        f"{grid.cell('test', task=name, loss=loss_name(end))} (LE={end:g})"
        for name, end in chosen.items()
    )
    return replace(table, rows=[*table.rows, ["EL, LE by validation", *cells]])


def _paper_difference(name: str) -> str:
    theirs = _PAPER.get(name.partition(":width")[0])
    if theirs is None:
        return "not in the paper"
    ce, el = (float(text.partition(" ")[0]) for text in theirs)
    return f"{el - ce:+.2f} ({theirs[0]} to {theirs[1]})"


def _figure(lab: Lab, grid: Grid, ends: Mapping[str, float]) -> Figure:
    names = grid.names("task")
    figure, axes = panels(1, len(names), width=3.2)
    for place, name in zip(axes, names, strict=True):
        points = grid.at(task=name).series("test", "loss")
        el = {end: points[loss] for loss, end in ends.items() if loss in points}
        means, stds = ([getattr(one, part) for one in el.values()] for part in ("mean", "std"))
        place.errorbar(list(el), means, stds, marker="o", capsize=3, label="EL")
        if "CE" in points:
            mean, std = points["CE"].mean, points["CE"].std
            place.axhline(mean, color="#1971c2", linestyle="--", label="CE")
            place.axhspan(mean - std, mean + std, color="#1971c2", alpha=0.12, lw=0)
        place.set_title(Task.named(name).title.replace(", ", ",\n", 1))
        place.set_xlabel("LE, where the log of the bonus ends")
        place.set_xticks(list(el))
    axes[0].set_ylabel("test accuracy, %")
    legend(figure)
    return lab.figure(
        figure,
        "accuracy",
        caption="Test accuracy against LE; bars and band are one standard deviation over seeds. "
        "The paper's Figure 4 shows peaks between .5 and .75.",
        alt="One panel per task: accuracy of Encouraging Loss at each LE, and of cross-entropy as "
        "a dashed line.",
    )
