"""Encouraging Loss, Figure 7: accuracy under attack, and whether the attack can be believed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardsight.experiments import lab as kit
from hardsight.experiments.el import _attacks as attacks
from hardsight.experiments.el import _recipes as recipes
from hardsight.experiments.el._recipes import Fitted, Task
from hardsight.report.figures import COLOURS, panels
from hardsight.run.train import TrainResult

KINDS = ("FGSM", "PGD, L∞", "PGD, L2")
_ON_MARGIN = ("PGD on the margin, L∞", "PGD on the margin, L2")
# accuracies at radii 0 to 0.3 in steps of 0.05 of one model each, from the published code
_THEIRS = {
    "CE": (99.33, 98.35, 96.28, 93.14, 88.75, 83.12, 77.44),
    "EL": (99.55, 99.03, 97.82, 95.88, 92.12, 85.77, 77.60),
}
_HIDDEN = 5.0  # points that a stronger attack must take off to speak of hidden gradients
# by loss, one per seed; None if the run was lost
Found = Mapping[str, Sequence[Mapping[str, Any] | None]]


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of ``el-fig7``.

    Attributes:
        task: ``DATASET/NETWORK``; the paper's is MNIST.
        log_ends: of Encouraging Loss, in addition to cross-entropy.
        linf: radii of FGSM and PGD in pixels on the scale [0, 1].
        l2: radii of PGD in L2.
        steps: of PGD.
        images: of the test split that are attacked, the same share of each class.
        check_at: radius in L∞ of the checks for hidden gradients.
        kinds: of attack, at all radii.
        published: radii of the attack in the published code on all test images: one step along the
            gradient of minus the logit of the label, in units of the normalised input, without a
            clamp.
        ensemble_steps: of APGD on cross-entropy and on DLR, before Square with 50 queries for each
            of them, as one more check; 0 for none.
    """

    task: str = "mnist/small_cnn"
    log_ends: tuple[float, ...] = (0.75, 1.0)
    linf: tuple[float, ...] = (0.0, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
    l2: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
    steps: int = 20
    images: int = 1000
    check_at: float = 0.1
    kinds: tuple[str, ...] = KINDS
    published: tuple[float, ...] = ()
    ensemble_steps: int = 0

    def radii(self, kind: str) -> tuple[float, ...]:
        """Of a kind of attack."""
        if kind in attacks.PUBLISHED:
            return self.published
        return self.l2 if "L2" in kind else self.linf

    @property
    def ensemble(self) -> str:
        """That check in words; empty if it is not done."""
        if not self.ensemble_steps:
            return ""
        return f", and with APGD on two losses ({self.ensemble_steps} steps) followed by Square"

    @property
    def published_attack(self) -> str:
        """That attack in words; empty if it is not done."""
        if not self.published:
            return ""
        return (
            " The attack of the published code is also run, on all test images. It takes one step "
            "along the gradient of minus the logit of the label. Its radius is in units of the "
            "normalised input and there is no clamp, so pixels leave their valid range. The same "
            "attack is also run with a clamp."
        )


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    task, lost = Task.named(setting.task), data["lost"]
    curves = _grid(setting, setting.kinds, data["curves"])
    rows = (
        {"loss": loss, "seed": seed, **(check or {})}
        for loss, each in data["checks"].items()
        for seed, check in zip(setting.seeds, each, strict=True)
    )
    checks = kit.Grid.of(rows, "loss", measures=["PGD", attacks.STRONGEST])
    tables = [_checks_table(setting, task, checks, lost), _curves_table(setting, curves, lost)]
    if data.get("published"):
        published = _grid(setting, tuple(attacks.PUBLISHED), data["published"])
        tables.append(_published_table(setting, published, lost))
        curves = curves.joined(published)
    gate = task.gate(_reached(setting, data, curves))
    return [*tables, kit.networks_table([gate])], _asked(setting, curves, checks, gate.weak)


def _reached(setting: Setting, data: Mapping[str, Any], curves: kit.Grid) -> Sequence[float]:
    """Accuracy of cross-entropy: of all test images or, if that is not stored, of the attacked."""
    if "accuracy" in data:
        reached: Sequence[float] = data["accuracy"]["CE"]
        return reached
    kind = setting.kinds[0]
    is_known = setting.radii(kind)[0] == 0
    return curves.values("accuracy", attack=kind, loss="CE", radius=0.0) if is_known else []


def _grid(setting: Setting, kinds: Sequence[str], curves: Found) -> kit.Grid:
    """Accuracy by attack, loss and radius."""
    rows = [
        {"attack": kind, "loss": loss, "radius": radius, "seed": seed}
        | {"accuracy": math.nan if accuracies is None else accuracies[kind][at]}
        for kind in kinds
        for loss, each in curves.items()
        for at, radius in enumerate(setting.radii(kind))
        for seed, accuracies in zip(setting.seeds, each, strict=True)
    ]
    return kit.Grid.of(rows, "attack", "loss", "radius")


@kit.experiment(
    "el-fig7",
    title="Encouraging Loss under attack",
    reproduces="Encouraging Loss, Figure 7",
    measures_by_seed=True,
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", log_ends=(1.0,), linf=(0.0, 0.1, 0.2), l2=(0.0, 0.5),
            steps=2, images=40, ensemble_steps=2, **recipes.SMOKE,
        ),
        "short": Setting(ensemble_steps=100),
        "paper": Setting(
            ensemble_steps=100, task="mnist/el_mnist", log_ends=(1.0,), kinds=(*KINDS, *_ON_MARGIN),
            linf=(0.0, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3),
            published=(0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3), **recipes.PUBLISHED_MNIST,
        ),
    },
    asks=_asks,
)  # fmt: skip
def el_fig7(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Shows accuracy against the radius of an attack ({kinds}), in pixels on [0, 1].

    The models are those of el-table1 ({networks}); {images} test images are attacked. If a model is
    very sure, the gradient of its cross-entropy rounds to nothing, and an attack along it finds
    nothing. That hides gradients, and is not robustness. At one radius, the same images are
    therefore also attacked with the margin, a difference of logits, as objective, with more steps
    and random starts, and with images made against the other loss's model of the same
    seed{ensemble}. The strongest of all attacks counts.{published_attack}
    """
    return _attacked(lab, setting)


_SMALL: dict[str, Any] = {
    "task": "mnist/el_attack", "log_ends": (1.0,), "kinds": (*KINDS, *_ON_MARGIN),
    "linf": (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3), "l2": (0.0, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0),
    **recipes.PUBLISHED_ATTACK,
}  # fmt: skip


@kit.experiment(
    "el-fig7-small",
    title="The small network of the published attacks",
    reproduces="Encouraging Loss, Figure 7, the second experiment of its published code",
    measures_by_seed=True,
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", log_ends=(1.0,), linf=(0.0, 0.1), l2=(0.0, 0.5),
            steps=2, images=40, **{**recipes.SMOKE, **recipes.PUBLISHED_ATTACK, "grey_epochs": 2},
        ),
        "short": Setting(images=1000, ensemble_steps=100, **_SMALL),
        "paper": Setting(
            images=2000, steps=40, ensemble_steps=100, **_SMALL, seeds=tuple(range(10))
        ),
    },
    asks=_asks,
)  # fmt: skip
def el_fig7_small(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Shows accuracy against the radius of an attack ({kinds}), in pixels on [0, 1].

    Data and network are {networks}, trained for {recipes}, without normalising the pixels. The
    model kept is that of the last epoch. {images} test images are attacked with {steps} steps, each
    2.5 times the radius over the number of steps. (The published steps have a fixed length, which
    in L2 cannot reach the larger radii.) The published code does not shuffle and keeps one of ten
    models; here every seed counts. The checks for hidden gradients are those of el-fig7.
    """
    return _attacked(lab, setting)


def _attacked(lab: kit.Lab, setting: Setting) -> kit.Result:
    task = Task.named(setting.task)
    test = lab.source(task.dataset, "test", limit=setting.images)
    whole = lab.source(task.dataset, "test")
    runs = recipes.fitted_by_loss(lab, task, setting, setting.log_ends)
    data: dict[str, Any] = {"curves": {}, "published": {}, "checks": {}}

    def measured(run: TrainResult, rival: TrainResult | None) -> dict[str, Any]:
        return {
            "curves": {
                kind: attacks.curve(lab, run, test, kind, setting.radii(kind), setting.steps)
                for kind in setting.kinds
            },
            "published": {
                kind: attacks.published_curve(lab, run, whole, kind, setting.published)
                for kind in attacks.PUBLISHED if setting.published
            },
            "checks": attacks.checks(
                lab, run, rival, test, radius=setting.check_at, steps=setting.steps,
                ensemble_steps=setting.ensemble_steps,
            ),
        }  # fmt: skip

    for loss, each in runs.items():
        per_seed = [
            {} if fit is None else measured(fit.run, _rival(runs, loss, at))
            for at, fit in enumerate(each)
        ]
        for part, by_loss in data.items():
            if part != "published" or setting.published:
                by_loss[loss] = [measures.get(part) for measures in per_seed]
    data["accuracy"] = {loss: [fit and fit.test for fit in each] for loss, each in runs.items()}
    data["lost"] = {loss: each.count(None) for loss, each in runs.items()}
    return kit.Result(figures=[_figure(lab, setting, data["curves"], data["checks"])], data=data)


def _rival(runs: Mapping[str, list[Fitted | None]], loss: str, at: int) -> TrainResult | None:
    """The model of the same seed whose images are carried over: CE, or the last loss for CE."""
    others = [each[at] for other, each in runs.items() if other != loss]
    rival = others[-1] if loss == "CE" else others[0]
    return None if rival is None else rival.run


def _checks_table(
    setting: Setting, task: Task, checks: kit.Grid, lost: Mapping[str, int]
) -> kit.Table:
    carried, strongest = attacks.CARRIED, attacks.STRONGEST
    is_empty = checks.frame[strongest].isna().all()
    is_whole = carried in checks.measures and checks.lost(carried) == checks.lost(strongest)
    about = (
        "A stronger attack that takes off much more than plain PGD shows that plain PGD was blind, "
        "not that the model is robust."
    )
    if not is_whole and not is_empty:
        about += (
            f" If the other loss's run of a seed was lost, none of its images are in “{strongest}”."
        )
    return checks.table(
        f"{task.title}: accuracy, %, under attacks of radius {setting.check_at:g} (L∞)",
        {"loss": "loss"},
        {name: name for name in checks.measures if not is_empty or name == strongest},
        note=setting.note(lost, about),
    )


def _curves_table(setting: Setting, curves: kit.Grid, lost: Mapping[str, int]) -> kit.Table:
    def cell(runs: kit.Grid, *_: str) -> str:
        points, seeds = runs.series("accuracy", "radius"), len(setting.seeds)
        if not points:
            return f"none of {seeds} ended"
        text = ", ".join(f"{radius:g}: {point.mean:.1f}" for radius, point in points.items())
        ended = next(iter(points.values())).n
        return text if ended == seeds else f"{text} ({ended} of {seeds})"

    return curves.table(
        "Accuracy, %, at each radius",
        {"attack": "attack", "loss": "loss"},
        {"radius: accuracy": cell},
        note=setting.note(lost, "Only means are shown. The paper's figure has no numbers."),
    )


def _published_table(setting: Setting, published: kit.Grid, lost: Mapping[str, int]) -> kit.Table:
    frame = published.frame.assign(row=published.frame["loss"] + ", " + published.frame["attack"])
    is_theirs = setting.published == tuple(round(0.05 * at, 2) for at in range(7))
    factor = f", {setting.pixels[1]:g}" if setting.pixels else ""
    return kit.Grid(frame.drop(columns=["loss", "attack"]), ("row", "radius")).table(
        "The published attack: accuracy, %, by radius in units of the normalised input",
        {"row": "loss and attack"},
        published.across(
            "radius", "accuracy", {radius: f"{radius:g}" for radius in setting.published}
        ),
        note=setting.note(
            lost,
            "All test images. To get a radius in pixels on [0, 1], multiply it by the deviation "
            f"that the images were normalised with{factor}.",
        ),
        paper=[[name, *values] for name, values in _THEIRS.items() if is_theirs],
    )


def _asked(
    setting: Setting, curves: kit.Grid, checks: kit.Grid, weak: str
) -> list[kit.Question | kit.Claim]:
    el = recipes.normal_or_last(checks.names("loss"))
    pair = ({"loss": el}, {"loss": "CE"})
    questions: list[kit.Question | kit.Claim] = []
    for kind in curves.names("attack"):
        is_published = kind in attacks.PUBLISHED
        words = f"the published attack ({kind})" if is_published else kind
        paper = "Figure 7" if is_published or kind in KINDS else "not in the paper"
        larger = curves.at(attack=kind).only(radius=setting.radii(kind)[1:]).mean_over("radius")
        says = f"{el} is more accurate under {words}, mean over the radii"
        questions.append(larger.question(says, paper, "accuracy", *pair, weak=weak))
    says = f"{el} is more accurate under the strongest of all attacks, radius {setting.check_at:g}"
    strongest = checks.question(says, "not in the paper", attacks.STRONGEST, *pair, weak=weak)
    return [*questions, strongest, _hidden(el, checks.at(loss=el))]


def _hidden(loss: str, checks: kit.Grid) -> kit.Claim:
    """Whether plain PGD can be believed for this loss."""
    gaps = (checks.frame["PGD"] - checks.frame[attacks.STRONGEST]).dropna()
    seeds = len(checks.frame)
    seen = f"none of {seeds} runs ended"
    if len(gaps):
        some = f"; {len(gaps)} of {seeds} runs ended" if len(gaps) < seeds else ""
        seen = f"{gaps.mean():.1f} points more (worst seed {gaps.max():.1f}{some})"
    return kit.Claim(
        f"plain PGD is not blind to {loss}: stronger attacks take off less than {_HIDDEN:g} points "
        "more",
        "not in the paper",
        seen,
        bool(gaps.mean() < _HIDDEN) if len(gaps) else None,
    )


def _figure(lab: kit.Lab, setting: Setting, curves: Found, checks: Found) -> kit.Figure:
    figure, axes = panels(1, len(setting.kinds), width=3.4, ylabel="accuracy, %")
    for place, kind in zip(axes, setting.kinds, strict=True):
        for colour, (loss, each) in zip(COLOURS, curves.items(), strict=False):
            values = [accuracies[kind] for accuracies in each if accuracies is not None]
            kit.band(place, setting.radii(kind), values, colour, loss, marker="o", ms=3)
            if "∞" in kind and values:
                worst = np.mean(
                    [check[attacks.STRONGEST] for check in checks[loss] if check is not None]
                )
                place.plot([setting.check_at], [worst], "x", color=colour, ms=8, mew=2)
        place.set(title=kind, xlabel="radius, pixels in [0, 1]")
    return lab.figure(
        figure, "attacks",
        caption=f"Accuracy against the radius of an attack; {kit.BANDS}. Crosses: the strongest of "
        "all attacks at one radius; far below the line, the plain attack was blind.",
        alt="A panel per attack of falling accuracy against radius, one line per loss.",
    )  # fmt: skip
