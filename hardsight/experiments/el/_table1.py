"""Encouraging Loss, Table 1 and Figure 4: accuracy on images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hardsight.experiments.el._recipes import (
    EXACT,
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
    CHOICE,
    accuracies_of,
    best_of,
    best_of_test,
    best_test_table,
    ended,
    lost_in,
    lost_note,
    spread_of,
    validations_of,
)
from hardsight.experiments.lab import (
    RULE,
    Claim,
    Figure,
    Lab,
    Question,
    Result,
    Table,
    experiment,
    judged,
    spread,
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
Runs = dict[LogEnd, list[Fitted | None]]


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
    def networks(self) -> str:
        """What is trained on what, in words."""
        return "; ".join(Task.named(name).title for name in self.tasks)

    @property
    def recipes(self) -> str:
        """How, in words."""
        return self.recipes_of(*self.tasks)

    @property
    def choice(self) -> str:
        """How LE is chosen, in words; it needs more than one to choose from."""
        return " LE is chosen in the same way." if len(self.log_ends) > 1 else ""


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
)
def el_table1(lab: Lab, setting: Setting) -> Result:
    """Cross-entropy, and Encouraging Loss with its log ending at LE = {log_ends}.

    Data and networks: {networks}. Each network is trained with each loss under the same recipe,
    made for cross-entropy: {recipes}, on {limit} training images. Kept is {selection}.{choice} The
    paper reports the best test accuracy of a run, with the CNN that is ours by the name el_mnist
    on MNIST, and ResNet-50 and EfficientNet-B0 on CIFAR-10. Its normal bonus, LE = 1, is trained as
    it says, with 1 - p clamped at 1e-5; also unclamped: {exact_tasks}.
    """
    found = {name: _runs(lab, setting, name) for name in setting.tasks}
    chosen = {name: _chosen(runs) for name, runs in found.items()}
    how = ", chosen on validation" if len(setting.log_ends) > 1 else ""
    questions = [
        Question(
            f"{Task.named(name).title}: Encouraging Loss is more accurate (LE = "
            f"{chosen[name]:g}{how})",
            _paper_difference(name),
            accuracies_of(runs[chosen[name]]),
            accuracies_of(runs[None]),
            weak=weakness(accuracies_of(runs[None]), Task.named(name).good),
        )
        for name, runs in found.items()
    ]
    titles = [Task.named(name).title for name in found]
    best = {loss_name(loss): [runs.get(loss) for runs in found.values()] for loss in _losses(found)}
    return Result(
        tables=[_table(found, chosen), *best_test_table(titles, best)],
        claims=[*judged(questions), *_exact_claims(found)],
        figures=[_figure(lab, found)],
        data={name: _data(runs, chosen[name]) for name, runs in found.items()},
    )


def _exact_claims(found: dict[str, Runs]) -> list[Claim]:
    """Whether the equation trains as well as its clamped form: no seed, or every seed, is worse."""
    claims = []
    for name, runs in found.items():
        if EXACT not in runs or 1.0 not in runs:
            continue
        pairs = list(zip(accuracies_of(runs[EXACT]), accuracies_of(runs[1.0]), strict=True))
        # a lost run trains worse than one that ends, whatever that one's accuracy
        worse = [e is None or e - c < -_WORSE for e, c in pairs if c is not None]
        claims.append(
            Claim(
                f"{Task.named(name).title}: the normal bonus trains as well without its clamp "
                f"(no seed lost, or worse by more than {_WORSE:g} point)",
                "clamped at 1e-5 “to avoid numerical instability”",
                f"unclamped minus clamped, by seed: {', '.join(_apart(*pair) for pair in pairs)}",
                None if not worse else True if not any(worse) else False if all(worse) else None,
            )
        )
    return claims


def _apart(exact: float | None, clamped: float | None) -> str:
    if clamped is None:
        return "clamped lost" if exact is not None else "both lost"
    return "unclamped lost" if exact is None else f"{exact - clamped:+.1f}"


def _runs(lab: Lab, setting: Setting, name: str) -> Runs:
    task = Task.named(name)
    exact = (EXACT,) if name in setting.exact_tasks else ()
    losses: tuple[LogEnd, ...] = (None, *setting.log_ends, *exact)
    return {
        log_end: [
            fitted(lab, task, setting, encouraging(log_end), seed=seed) for seed in setting.seeds
        ]
        for log_end in losses
    }


def _chosen(runs: Runs) -> float:
    """The LE with the best mean accuracy on validation; the paper's forms only."""
    found: float = best_of({
        key: validations_of(each) for key, each in runs.items() if isinstance(key, float)
    })  # fmt: skip
    return found


def _losses(found: dict[str, Runs]) -> list[LogEnd]:
    return max((list(runs) for runs in found.values()), key=len)


def _table(found: dict[str, Runs], chosen: dict[str, float]) -> Table:
    losses = _losses(found)
    rows: list[list[Any]] = [
        [loss_name(loss)]
        + [
            spread_of(accuracies_of(runs[loss])) if loss in runs else None
            for runs in found.values()
        ]
        for loss in losses
    ]
    is_choice = sum(isinstance(loss, float) for loss in losses) > 1
    if is_choice:
        rows.append(
            ["EL, LE by validation"]
            + [f"{spread_of(accuracies_of(runs[chosen[name]]))} (LE={chosen[name]:g})"
               for name, runs in found.items()]
        )  # fmt: skip
    named = {
        f"{loss_name(loss)} ({Task.named(name).title})": each
        for name, runs in found.items()
        for loss, each in runs.items()
    }
    theirs = [_PAPER.get(name.partition(":width")[0]) for name in found]
    paper = [
        [label, *(None if one is None else one[at] for one in theirs)]
        for at, label in enumerate(("CE", "EL"))
    ]
    return Table(
        "Test accuracy, %",
        ("loss", *(Task.named(name).title for name in found)),
        rows,
        note=f"Mean ± standard deviation over seeds. {RULE} The paper's columns are its CNN on "
        "MNIST, and ResNet-50 and EfficientNet-B0 on CIFAR-10."
        + (f" LE is {CHOICE}." if is_choice else "")
        + lost_note(named),
        paper=paper if any(theirs) else None,
    )


def _paper_difference(name: str) -> str:
    theirs = _PAPER.get(name.partition(":width")[0])
    if theirs is None:
        return "not in the paper"
    ce, el = (float(text.partition(" ")[0]) for text in theirs)
    return f"{el - ce:+.2f} ({theirs[0]} to {theirs[1]})"


def _figure(lab: Lab, found: dict[str, Runs]) -> Figure:
    figure, axes = panels(1, len(found), width=3.2)
    for place, (name, runs) in zip(axes, found.items(), strict=True):
        ends = [key for key in runs if isinstance(key, float) and ended(runs[key])]
        means = [spread(ended(accuracies_of(runs[key]))) for key in ends]
        place.errorbar(
            ends, [one.mean for one in means], [one.std for one in means], marker="o", capsize=3,
            label="EL",
        )  # fmt: skip
        if ended(runs[None]):
            ce = spread(ended(accuracies_of(runs[None])))
            place.axhline(ce.mean, color="#1971c2", linestyle="--", label="CE")
            place.axhspan(ce.mean - ce.std, ce.mean + ce.std, color="#1971c2", alpha=0.12, lw=0)
        place.set_title(Task.named(name).title.replace(", ", ",\n", 1))
        place.set_xlabel("LE, where the log of the bonus ends")
        place.set_xticks(ends)
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


def _data(runs: Runs, chosen: float) -> dict[str, Any]:
    return {
        "chosen_log_end": chosen,
        "losses": {
            loss_name(key): {
                "validation": validations_of(each),
                "test": accuracies_of(each),
                "best_test": best_of_test(each),
                "lost": lost_in(each),
            }
            for key, each in runs.items()
        },
    }
