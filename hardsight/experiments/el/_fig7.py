"""Encouraging Loss, Figure 7: accuracy under attack, and whether the attack can be believed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data import MemorySource
from hardsight.evaluate import Normalisation, fgsm, pgd
from hardsight.experiments.el._recipes import (
    MEANS,
    PAPER,
    PUBLISHED_ATTACK,
    PUBLISHED_MNIST,
    SMOKE,
    Fitted,
    Recipe,
    Task,
    fitted_by_loss,
    lost_note,
    normal_or_last,
)
from hardsight.experiments.lab import (
    Claim,
    Figure,
    Grid,
    Lab,
    Question,
    Result,
    Table,
    band,
    experiment,
    judged,
    spread,
    weakness,
)
from hardsight.heads import logits_of
from hardsight.report.figures import COLOURS, legend, panels
from hardsight.run.loop import borrowed, generator
from hardsight.run.train import TrainResult

KINDS = ("FGSM", "PGD, L∞", "PGD, L2")
_ON_MARGIN = ("PGD on the margin, L∞", "PGD on the margin, L2")
_PUBLISHED = {False: "as published: no clamp", True: "clamped to valid pixels"}
# accuracies at radii 0 to 0.3 in steps of 0.05 of one model each, from the published code
_THEIRS = {
    "CE": (99.33, 98.35, 96.28, 93.14, 88.75, 83.12, 77.44),
    "EL": (99.55, 99.03, 97.82, 95.88, 92.12, 85.77, 77.60),
}
_HIDDEN = 5.0  # points that a stronger attack must take off to speak of hidden gradients
_CARRIED, _STRONGEST = "images made against the other loss", "strongest of all"
_NO_RIVAL = (
    f" If the other loss's run of a seed was lost, none of its images are in “{_STRONGEST}”."
)
# by loss, one per seed; None if the run was lost
Curves = Mapping[str, list[dict[str, Any] | None]]


@dataclass(frozen=True)
class Setting(Recipe):
    """Keys of ``el-fig7``.

    Attributes:
        task: ``DATASET/NETWORK``; the paper's is MNIST.
        log_ends: of Encouraging Loss, beside cross-entropy.
        linf: radii of FGSM and PGD in pixels on the scale [0, 1].
        l2: radii of PGD in L2.
        steps: of PGD.
        images: of the test split that are attacked, the same share of each class.
        check_at: radius in L∞ of the checks for hidden gradients.
        kinds: of attack, at all radii.
        published: radii of the attack in the published code on all test images: one step along the
            gradient of minus the own logit, in units of the normalised input, without a clamp.
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

    def radii(self, kind: str) -> tuple[float, ...]:
        """Of a kind of attack."""
        if kind in _PUBLISHED.values():
            return self.published
        return self.l2 if "L2" in kind else self.linf

    @property
    def published_attack(self) -> str:
        """That attack in words; empty if it is not done."""
        if not self.published:
            return ""
        return (
            " The attack of the published code is done as well, on all test images: one step along "
            "the gradient of minus the own logit, its radius in units of the normalised input and "
            "without a clamp, so that pixels leave their valid range; and the same with a clamp."
        )


def _judge(setting: Setting, data: Mapping[str, Any]) -> tuple[list[Table], list[Claim]]:
    task = Task.named(setting.task)
    lost = lost_note(data["lost"], setting.seeds)
    curves = _grid(setting, setting.kinds, data["curves"])
    checks = Grid.of(
        (
            {"loss": loss, "seed": seed, **(one or {})}
            for loss, each in data["checks"].items()
            for seed, one in zip(setting.seeds, each, strict=True)
        ),
        "loss",
        measures=["PGD", _STRONGEST],
    )
    tables = [_checks_table(setting, task, checks, lost), _curves_table(curves, lost)]
    if data.get("published"):
        published = _grid(setting, tuple(_PUBLISHED.values()), data["published"])
        tables.append(_published_table(setting, published, lost))
        curves = curves.joined(published)
    weak = weakness(data.get("accuracy", {}).get("CE", []), task.good)
    return tables, _claims(setting, curves, checks, weak)


def _grid(setting: Setting, kinds: tuple[str, ...], curves: Curves) -> Grid:
    """Accuracy by attack, loss and radius."""
    rows = [
        {"attack": kind, "loss": loss, "radius": radius, "seed": seed}
        | {"accuracy": math.nan if one is None else one[kind][at]}
        for kind in kinds
        for loss, each in curves.items()
        for at, radius in enumerate(setting.radii(kind))
        for seed, one in zip(setting.seeds, each, strict=True)
    ]
    return Grid.of(rows, "attack", "loss", "radius")


@experiment(
    "el-fig7",
    title="Encouraging Loss under attack",
    reproduces=f"{PAPER}, Figure 7",
    measures_by_seed=True,
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", log_ends=(1.0,), linf=(0.0, 0.1, 0.2), l2=(0.0, 0.5),
            steps=2, images=60, **SMOKE,
        ),
        "short": Setting(),
        "paper": Setting(
            task="mnist/el_mnist", log_ends=(1.0,), kinds=(*KINDS, *_ON_MARGIN),
            linf=(0.0, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3),
            published=(0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3), **PUBLISHED_MNIST,
        ),
    },
    judge=_judge,
)  # fmt: skip
def el_fig7(lab: Lab, setting: Setting) -> Result:
    """Accuracy against the radius of an attack ({kinds}), in pixels on [0, 1].

    The models are those of el-table1 ({networks}); {images} test images are attacked. A model that
    is very sure has a cross-entropy whose gradient rounds to nothing, so an attack along it finds
    nothing: that hides gradients, and is not robustness. So at one radius the same images are
    attacked with the margin, a difference of logits, as objective, with more steps and random
    starts, and with images made against the other loss's model of the same seed; the strongest of
    all is what counts.{published_attack}
    """
    return _attacks(lab, setting)


@experiment(
    "el-fig7-small",
    title="The small network of the published attacks",
    reproduces=f"{PAPER}, Figure 7, the second experiment of its published code",
    measures_by_seed=True,
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", log_ends=(1.0,), linf=(0.0, 0.1), l2=(0.0, 0.5),
            steps=2, images=60, **{**SMOKE, **PUBLISHED_ATTACK, "grey_epochs": 2},
        ),
        "short": Setting(
            task="mnist/el_attack", log_ends=(1.0,), images=1000, kinds=(*KINDS, *_ON_MARGIN),
            linf=(0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3), l2=(0.0, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0),
            **PUBLISHED_ATTACK, seeds=(0, 1, 2),
        ),
        "paper": Setting(
            task="mnist/el_attack", log_ends=(1.0,), images=2000, kinds=(*KINDS, *_ON_MARGIN),
            linf=(0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3), l2=(0.0, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0),
            steps=40, **PUBLISHED_ATTACK, seeds=tuple(range(10)),
        ),
    },
    judge=_judge,
)  # fmt: skip
def el_fig7_small(lab: Lab, setting: Setting) -> Result:
    """Accuracy against the radius of an attack ({kinds}), in pixels on [0, 1].

    Data and network: {networks}, trained {recipes}, without normalising the pixels; kept is the
    last epoch. {images} test images are attacked with {steps} steps, each 2.5 times the radius over
    the number of steps (the published ones have a fixed length, which in L2 cannot reach the larger
    radii). The published code does not shuffle and keeps one of ten models; here every seed counts.
    The checks for hidden gradients are those of el-fig7.
    """
    return _attacks(lab, setting)


def _attacks(lab: Lab, setting: Setting) -> Result:
    task = Task.named(setting.task)
    test = lab.source(task.dataset, "test", limit=setting.images)
    runs = fitted_by_loss(lab, task, setting, setting.log_ends)

    def measured(measure: Any) -> dict[str, list[Any]]:
        return {
            loss: [
                None if one is None else measure(one.run, loss, at) for at, one in enumerate(each)
            ]
            for loss, each in runs.items()
        }

    def checks(run: TrainResult, loss: str, at: int) -> dict[str, float]:
        return _checks(lab, setting, run, rival_of(runs, loss, at), test)

    curves = measured(lambda run, *_: _curves(lab, setting, run, test))
    data: dict[str, Any] = {
        "accuracy": {loss: [one and one.test for one in each] for loss, each in runs.items()},
        "curves": curves,
        "published": measured(lambda run, *_: _published(lab, setting, run, task))
        if setting.published
        else {},
        "checks": measured(checks),
        "lost": {loss: each.count(None) for loss, each in runs.items()},
    }
    return Result(figures=[_figure(lab, setting, curves, data["checks"])], data=data)


def rival_of(runs: Mapping[str, list[Fitted | None]], loss: str, at: int) -> TrainResult | None:
    """The model of the same seed whose images are carried over: CE, or the last loss for CE."""
    others = [each[at] for other, each in runs.items() if other != loss]
    rival = others[-1] if loss == "CE" else others[0]
    return None if rival is None else rival.run


class Attacked:
    """One model, on the device, and test images to be changed.

    Args:
        lab: gives the device.
        run: the trained model.
        source: images and labels.
    """

    def __init__(self, lab: Lab, run: TrainResult, source: MemorySource) -> None:
        how = run.preprocessing
        self.model, self.normalisation = run.model, Normalisation(how.mean, how.std)
        self.inputs = lab.inputs(run, source)
        self.labels = torch.from_numpy(source.labels.copy()).to(lab.device)
        # no number depends on it; a GPU takes more at once
        self._batch = 2000 if lab.device.type == "cuda" else 500
        self._mean = torch.tensor(how.mean, device=lab.device).view(-1, 1, 1)
        self._std = torch.tensor(how.std, device=lab.device).view(-1, 1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits in float32."""
        return logits_of(self.model(inputs)).float()

    def changed(self, attack: Any) -> Tensor:
        """Inputs after an attack on this model."""
        parts = [
            attack(self.forward, some, own, normalisation=self.normalisation)
            for some, own in zip(
                self.inputs.split(self._batch), self.labels.split(self._batch), strict=True
            )
        ]
        return torch.cat(parts)

    def stepped(self, radius: float, *, clamps: bool) -> Tensor:
        """Inputs after the published attack, a step in units of the normalised input."""
        parts = []
        for some, own in zip(
            self.inputs.split(self._batch), self.labels.split(self._batch), strict=True
        ):
            tracked = some.clone().requires_grad_()
            score = self.forward(tracked).gather(1, own[:, None]).sum()
            (gradient,) = torch.autograd.grad(-score, tracked)
            parts.append(some + radius * gradient.sign())
        changed = torch.cat(parts)
        low, high = (-self._mean) / self._std, (1 - self._mean) / self._std
        return torch.minimum(torch.maximum(changed, low), high) if clamps else changed

    def pixels(self, inputs: Tensor) -> Tensor:
        """Inputs of this model on the scale of pixels."""
        return inputs * self._std + self._mean

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels as inputs of this model."""
        return (pixels - self._mean) / self._std

    @torch.no_grad()
    def right(self, inputs: Tensor) -> Any:
        """Which of the changed images are still classified rightly, ``[N]``."""
        logits = torch.cat([self.forward(some) for some in inputs.split(self._batch)])
        return (logits.argmax(dim=1) == self.labels).cpu().numpy()


def _attack(kind: str, epsilon: float, steps: int) -> Any:
    if kind == "FGSM":
        return partial(fgsm, epsilon=epsilon)
    norm, loss = "l2" if "L2" in kind else "linf", "margin" if "margin" in kind else "cross_entropy"
    return partial(pgd, epsilon=epsilon, steps=steps, norm=norm, loss=loss)


def _curves(lab: Lab, setting: Setting, run: TrainResult, test: MemorySource) -> dict[str, Any]:
    """Accuracy in per cent at each radius, by kind of attack."""

    def curve(kind: str) -> list[float]:
        with borrowed(run.model, lab.device):
            attacked = Attacked(lab, run, test)
            return [
                100 * float(attacked.right(attacked.changed(
                    _attack(kind, radius, setting.steps))).mean())
                for radius in setting.radii(kind)
            ]  # fmt: skip

    return {
        kind: lab.measured(
            run,
            {"attack": kind, "radii": setting.radii(kind), "steps": setting.steps, "on": test},
            partial(curve, kind),
        )
        for kind in setting.kinds
    }


def _published(lab: Lab, setting: Setting, run: TrainResult, task: Task) -> dict[str, Any]:
    """Accuracy in per cent at each radius of the published attack, without and with a clamp."""
    test = lab.source(task.dataset, "test")

    def curve(clamps: bool) -> list[float]:
        with borrowed(run.model, lab.device):
            attacked = Attacked(lab, run, test)
            clean = attacked.right(attacked.inputs)  # what was wrong before stays wrong
            return [
                100 * float((clean & attacked.right(attacked.stepped(r, clamps=clamps))).mean())
                for r in setting.published
            ]

    return {
        name: lab.measured(
            run, {"attack": name, "radii": setting.published, "on": test}, partial(curve, clamps)
        )
        for clamps, name in _PUBLISHED.items()
    }


def _checks(
    lab: Lab, setting: Setting, run: TrainResult, rival: TrainResult | None, test: MemorySource
) -> dict[str, float]:
    """Accuracy in per cent under ever stronger attacks of one radius, and under all of them."""
    key = {
        "attack": "checks",
        "radius": setting.check_at,
        "steps": setting.steps,
        "rival": None if rival is None else rival.folder.name,
        "on": test,
    }
    found: dict[str, float] = lab.measured(
        run, key, partial(_checked, lab, setting, run, rival, test)
    )
    return found


def _checked(
    lab: Lab, setting: Setting, run: TrainResult, rival: TrainResult | None, test: MemorySource
) -> dict[str, float]:
    epsilon, steps = setting.check_at, setting.steps
    with borrowed(run.model, lab.device):
        own = Attacked(lab, run, test)
        attacks = {
            "PGD": partial(pgd, epsilon=epsilon, steps=steps),
            "PGD on the margin": partial(pgd, epsilon=epsilon, steps=steps, loss="margin"),
            "5 times the steps, 3 starts": partial(
                pgd, epsilon=epsilon, steps=5 * steps, restarts=3, loss="margin",
                generator=generator(0, "el-fig7"),
            ),
        }  # fmt: skip
        masks = {name: own.right(own.changed(attack)) for name, attack in attacks.items()}
        if rival is not None:
            with borrowed(rival.model, lab.device):
                other = Attacked(lab, rival, test)
                made = other.pixels(other.changed(attacks["PGD on the margin"]))
            masks[_CARRIED] = own.right(own.normalised(made))
        far = own.right(own.changed(partial(pgd, epsilon=1.0, steps=steps, loss="margin")))
    strongest = np.logical_and.reduce(list(masks.values()))
    return {
        **{name: 100 * float(mask.mean()) for name, mask in masks.items()},
        _STRONGEST: 100 * float(strongest.mean()),
        "any image allowed (radius 1)": 100 * float(far.mean()),
    }


def _checks_table(setting: Setting, task: Task, checks: Grid, lost: str) -> Table:
    is_whole = _CARRIED in checks.measures and checks.lost(_CARRIED) == checks.lost(_STRONGEST)
    is_empty = checks.frame[_STRONGEST].isna().all()
    return checks.table(
        f"{task.title}: accuracy, %, under attacks of radius {setting.check_at:g} (L∞)",
        {"loss": "loss"},
        {name: name for name in checks.measures if not is_empty or name == _STRONGEST},
        note=f"{MEANS} A stronger attack that takes off much more than plain PGD shows that plain "
        f"PGD was blind, not that the model is robust.{lost}"
        + ("" if is_whole or is_empty else _NO_RIVAL),
    )


def _curves_table(curves: Grid, lost: str) -> Table:
    def cell(runs: Grid, *_: str) -> str:
        points, seeds = runs.series("accuracy", "radius"), len(runs.names("seed"))
        if not points:
            return f"none of {seeds} ended"
        text = ", ".join(f"{radius:g}: {one.mean:.1f}" for radius, one in points.items())
        ended = next(iter(points.values())).n
        return text if ended == seeds else f"{text} ({ended} of {seeds})"

    return curves.table(
        "Accuracy, %, at each radius",
        {"attack": "attack", "loss": "loss"},
        {"radius: accuracy": cell},
        note=f"Means over seeds. The paper's figure has no numbers.{lost}",
    )


def _published_table(setting: Setting, published: Grid, lost: str) -> Table:
    frame = published.frame.assign(row=published.frame["loss"] + ", " + published.frame["attack"])
    is_theirs = setting.published == tuple(round(0.05 * at, 2) for at in range(7))
    return Grid(frame.drop(columns=["loss", "attack"]), ("row", "radius")).table(
        "The published attack: accuracy, %, by radius in units of the normalised input",
        {"row": "loss and attack"},
        published.across("radius", "accuracy", {one: f"{one:g}" for one in setting.published}),
        note=f"{MEANS[:-1]}, all test images. In pixels on [0, 1] a radius is its product with the "
        "deviation that the images were normalised with"
        + (f", {setting.pixels[1]:g}." if setting.pixels else ".")
        + lost,
        paper=[[name, *values] for name, values in _THEIRS.items() if is_theirs],
    )


def _claims(setting: Setting, curves: Grid, checks: Grid, weak: str) -> list[Claim]:
    el = normal_or_last(checks.names("loss"))
    questions: list[Question] = []
    for kind in curves.names("attack"):
        is_published = kind in _PUBLISHED.values()
        words = f"the published attack ({kind})" if is_published else kind
        larger = curves.at(attack=kind).only(radius=setting.radii(kind)[1:]).mean_over("radius")
        questions.append(
            larger.question(
                f"{el} is more accurate under {words}, mean over the radii",
                "Figure 7" if is_published or kind in KINDS else "not in the paper",
                "accuracy",
                {"loss": el},
                {"loss": "CE"},
                weak=weak,
            )
        )
    questions.append(
        checks.question(
            f"it is more accurate under the strongest of all attacks, radius {setting.check_at:g}",
            "not in the paper",
            _STRONGEST,
            {"loss": el},
            {"loss": "CE"},
            weak=weak,
        )
    )
    return [*judged(questions), _hidden(el, checks.at(loss=el))]


def _hidden(loss: str, checks: Grid) -> Claim:
    """Whether plain PGD can be believed for this loss."""
    gaps = checks.frame["PGD"] - checks.frame[_STRONGEST]
    found = spread(gaps.tolist())
    seen = f"none of {len(gaps)} runs ended"
    if found.n:
        some = f"; {found.n} of {len(gaps)} runs ended" if found.lost else ""
        seen = f"{found.mean:.1f} points more (worst seed {gaps.max():.1f}{some})"
    return Claim(
        f"plain PGD is not blind to {loss}: stronger attacks take off less than {_HIDDEN:g} points "
        "more",
        "not in the paper",
        seen,
        found.mean < _HIDDEN if found.n else None,
    )


def _figure(lab: Lab, setting: Setting, curves: Curves, checks: Curves) -> Figure:
    figure, axes = panels(1, len(setting.kinds), width=3.4)
    for place, kind in zip(axes, setting.kinds, strict=True):
        for colour, (loss, each) in zip(COLOURS, curves.items(), strict=False):
            values = [one[kind] for one in each if one is not None]
            band(place, setting.radii(kind), values, colour, loss, marker="o", ms=3)
            if "∞" in kind and values:
                worst = np.mean([one[_STRONGEST] for one in checks[loss] if one is not None])
                place.plot([setting.check_at], [worst], "x", color=colour, ms=8, mew=2)
        place.set_title(kind)
        place.set_xlabel("radius, pixels in [0, 1]")
    axes[0].set_ylabel("accuracy, %")
    legend(figure)
    return lab.figure(
        figure,
        "attacks",
        caption="Accuracy against the radius of an attack; bands are one standard deviation over "
        "seeds. Crosses: the strongest of all attacks at one radius; far below the line, the plain "
        "attack was blind.",
        alt="A panel per attack of falling accuracy against radius, one line per loss.",
    )
