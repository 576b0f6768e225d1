"""Encouraging Loss, Table 1 and Figure 4: accuracy on images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hardsight.experiments import lab as kit
from hardsight.experiments.el import _recipes as recipes
from hardsight.experiments.el._recipes import Task, loss_name
from hardsight.report.figures import panels

_PAPER = {  # CE and EL; ResNet-50 and EfficientNet-B0 on CIFAR-10
    "mnist/el_mnist": ("99.42 ± 0.06", "99.56 ± 0.05"),
    "mnist/small_cnn": ("99.42 ± 0.06", "99.56 ± 0.05"),
    "cifar10/resnet18": ("92.34 ± 0.70", "92.97 ± 0.42"),
    "cifar10/efficientnet_small": ("93.21 ± 0.40", "94.24 ± 0.17"),
}
_WORSE = 1.0
_NORMAL, _UNCLAMPED = loss_name(1.0), loss_name(recipes.EXACT)


@dataclass(frozen=True)
class Setting(recipes.Recipe):
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
    exact_tasks: tuple[str, ...] = tasks[:3]

    @property
    def choice(self) -> str:
        """How LE is chosen, in words; it needs more than one to choose from."""
        return " LE is chosen in the same way." if len(self.log_ends) > 1 else ""


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    losses = {name: part["losses"] for name, part in data.items()}
    grid = kit.Grid.read(losses, setting.seeds, "task", "loss")
    chosen = {name: part["chosen_log_end"] for name, part in data.items()}
    titles = {name: Task.named(name).title for name in data}
    gates = {
        name: Task.named(name).gate(grid.values("test", task=name, loss="CE")) for name in data
    }
    how = ", chosen on validation" if len(setting.log_ends) > 1 else ""
    questions = [
        grid.at(task=name).question(
            f"{titles[name]}: Encouraging Loss is more accurate (LE = {end:g}{how})",
            _paper_difference(name), "test", {"loss": loss_name(end)}, {"loss": "CE"},
            weak=gates[name].weak, effect=_paper_effect(name),
        )
        for name, end in chosen.items()
    ]  # fmt: skip
    clamps = [claim for name in data for claim in _clamp_claim(titles[name], grid.at(task=name))]
    tables = [_table(setting, grid, chosen), *recipes.best_test_table(grid, "task", titles)]
    return [*tables, kit.networks_table(list(gates.values()))], [*questions, *clamps]


@kit.experiment(
    "el-table1",
    title="Encouraging Loss against cross-entropy on images",
    reproduces="Encouraging Loss, Table 1 and Figure 4",
    scales={
        "smoke": Setting(
            tasks=("builtin:digits/small_cnn",), log_ends=(0.75, 1.0), exact_tasks=(),
            **recipes.SMOKE,
        ),
        "short": Setting(),
        "paper": Setting(
            tasks=("mnist/el_mnist",), log_ends=(1.0,), exact_tasks=(), **recipes.PUBLISHED_MNIST
        ),
    },
    asks=_asks,
)  # fmt: skip
def el_table1(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Compares cross-entropy with Encouraging Loss, whose log ends at LE = {log_ends}.

    Data and networks: {networks}. Each network is trained with each loss under the same recipe,
    which was made for cross-entropy: {recipes}, on {limit} training images. The model kept is that
    of {selection}.{choice}

    The paper reports the best test accuracy of a run. It uses the CNN that is called el_mnist here
    on MNIST, and ResNet-50 and EfficientNet-B0 on CIFAR-10. Its normal bonus, LE = 1, is trained as
    the paper says, with 1 - p clamped at 1e-5. It is also trained unclamped on: {exact_tasks}.
    """
    rows = []
    for name in setting.tasks:
        ends = (*setting.log_ends, *((recipes.EXACT,) if name in setting.exact_tasks else ()))
        runs = recipes.fitted_by_loss(lab, Task.named(name), setting, ends)
        rows += [
            {"task": name, "loss": loss, "seed": seed, **recipes.accuracies(fit)}
            for loss, each in runs.items()
            for seed, fit in zip(setting.seeds, each, strict=True)
        ]
    grid = kit.Grid.of(rows, "task", "loss", measures=recipes.ACCURACIES)
    forms = {loss_name(end): end for end in setting.log_ends}  # the paper's
    data = {
        name: {
            "chosen_log_end": forms[grid.at(task=name).only(loss=forms).best("loss", "validation")],
            "losses": grid.at(task=name).data(lost="test"),
        }
        for name in setting.tasks
    }
    return kit.Result(figures=[_figure(lab, grid, forms)], data=data)


def _clamp_claim(title: str, grid: kit.Grid) -> list[kit.Claim]:
    """Whether the equation trains as well as its clamped form: no seed, or every seed, is worse."""
    if not {_UNCLAMPED, _NORMAL} <= set(grid.names("loss")):
        return []
    both = (grid.values("test", loss=loss) for loss in (_UNCLAMPED, _NORMAL))
    pairs = list(zip(*both, strict=True))
    says = f"{title}: the normal bonus trains as well without its clamp (no seed lost, or worse by "
    return [
        kit.Claim.of_runs(
            f"{says}more than {_WORSE:g} point)",
            "clamped at 1e-5 “to avoid numerical instability”",
            f"unclamped minus clamped, by seed: {', '.join(_apart(*pair) for pair in pairs)}",
            # a lost run trains worse than one that ends, whichever accuracy that one has
            [exact - clamped >= -_WORSE for exact, clamped in pairs if not math.isnan(clamped)],
        )
    ]


def _apart(exact: float, clamped: float) -> str:
    if math.isnan(clamped):
        return "both lost" if math.isnan(exact) else "clamped lost"
    return "unclamped lost" if math.isnan(exact) else f"{exact - clamped:+.1f}"


def _table(setting: Setting, grid: kit.Grid, chosen: Mapping[str, float]) -> kit.Table:
    titles = {name: Task.named(name).title for name in chosen}
    theirs = [_PAPER.get(name.partition(":width")[0]) for name in chosen]
    lost = {f"{loss} ({titles[task]})": count for (task, loss), count in grid.lost("test").items()}
    is_choice = len(setting.log_ends) > 1
    about = "The paper has its CNN on MNIST, and ResNet-50 and EfficientNet-B0 on CIFAR-10."
    table = grid.table(
        "Test accuracy, %",
        {"loss": "loss"},
        grid.across("task", "test", titles),
        note=setting.note(lost, f"{about} LE is {recipes.CHOICE}." if is_choice else about),
        paper=[
            [label, *(None if pair is None else pair[at] for pair in theirs)]
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
    return f"{_paper_effect(name):+.2f} ({theirs[0]} to {theirs[1]})"


def _paper_effect(name: str) -> float:
    """Points that the paper's Encouraging Loss is above its cross-entropy; 0 if it is not there."""
    ce, el = (
        float(text.partition(" ")[0])
        for text in _PAPER.get(name.partition(":width")[0], ("0", "0"))
    )
    return el - ce


def _figure(lab: kit.Lab, grid: kit.Grid, forms: Mapping[str, float]) -> kit.Figure:
    names = grid.names("task")
    figure, axes = panels(1, len(names), width=3.2, ylabel="test accuracy, %")
    for place, name in zip(axes, names, strict=True):
        points = grid.at(task=name).series("test", "loss")
        el = {end: points[loss] for loss, end in forms.items() if loss in points}
        means, stds = ([getattr(point, part) for point in el.values()] for part in ("mean", "std"))
        place.errorbar(list(el), means, stds, marker="o", capsize=3, label="EL")
        if "CE" in points:
            mean, std = points["CE"].mean, points["CE"].std
            place.axhline(mean, color="#1971c2", linestyle="--", label="CE")
            place.axhspan(mean - std, mean + std, color="#1971c2", alpha=0.12, lw=0)
        place.set(title=Task.named(name).title.replace(", ", ",\n", 1), xticks=list(el),
                  xlabel="LE, where the log of the bonus ends")  # fmt: skip
    return lab.figure(
        figure, "accuracy",
        caption="Test accuracy against LE; bars and band are one standard deviation over seeds. "
        "The paper's Figure 4 shows peaks between .5 and .75.",
        alt="One panel per task: accuracy of Encouraging Loss at each LE, and of cross-entropy as "
        "a dashed line.",
    )  # fmt: skip
