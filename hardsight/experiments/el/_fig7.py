"""Encouraging Loss, Figure 7: accuracy under attack, and whether the attack can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data import MemorySource
from hardsight.evaluate import Normalisation, fgsm, pgd
from hardsight.experiments.el._recipes import (
    PAPER,
    PUBLISHED_ATTACK,
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
    ended,
    lost_in,
    lost_note,
    spread_of,
    values_of,
)
from hardsight.experiments.lab import (
    Claim,
    Figure,
    Lab,
    Question,
    Result,
    Table,
    experiment,
    judged,
    weakness,
)
from hardsight.heads import logits_of
from hardsight.report.figures import COLOURS, legend, panels
from hardsight.run.loop import borrowed, generator
from hardsight.run.train import Pixels, TrainResult

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
    f" Where the other loss's run of a seed was lost, none of its images are in “{_STRONGEST}”."
)
# one per seed; None where the run was lost
Curves = dict[LogEnd, list[dict[str, Any] | None]]
Checks = dict[LogEnd, list[dict[str, float] | None]]


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

    @property
    def title(self) -> str:
        """The task in words."""
        return Task.named(self.task).title

    @property
    def recipe(self) -> str:
        """How it is trained, in words."""
        return self.recipes_of(self.task)

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
)  # fmt: skip
def el_fig7(lab: Lab, setting: Setting) -> Result:
    """Accuracy against the radius of an attack ({kinds}), in pixels on [0, 1].

    The models are those of el-table1 ({title}); {images} test images are attacked. A model that is
    very sure has a cross-entropy whose gradient rounds to nothing, so an attack along it finds
    nothing: that hides gradients, and is no robustness. So at one radius the same images are
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
)  # fmt: skip
def el_fig7_small(lab: Lab, setting: Setting) -> Result:
    """Accuracy against the radius of an attack ({kinds}), in pixels on [0, 1].

    Data and network: {title}, trained {recipe}, without normalising the pixels; kept is the last
    epoch. {images} test images are attacked with {steps} steps, each 2.5 times the radius over
    the number of steps (the published ones have a fixed length, which in L2 cannot reach the larger
    radii). The published code does not shuffle and keeps one of ten models; here every seed counts.
    The checks for hidden gradients are those of el-fig7.
    """
    return _attacks(lab, setting)


def _attacks(lab: Lab, setting: Setting) -> Result:
    task = Task.named(setting.task)
    keys: tuple[LogEnd, ...] = (None, *setting.log_ends)
    test = lab.source(task.dataset, "test", limit=setting.images)
    runs = {
        key: [fitted(lab, task, setting, encouraging(key), seed=s) for s in setting.seeds]
        for key in keys
    }
    curves: Curves = {
        key: [None if one is None else _curves(lab, setting, one.run, test) for one in each]
        for key, each in runs.items()
    }
    published: Curves = {
        key: [None if one is None else _published(lab, setting, one.run, task) for one in each]
        for key, each in runs.items()
        if setting.published
    }
    checks: Checks = {
        key: [
            None if one is None else _checks(lab, setting, one.run, _rival(runs, key, at), test)
            for at, one in enumerate(each)
        ]
        for key, each in runs.items()
    }
    weak = weakness(accuracies_of(runs[None]), task.good)
    tables = [_checks_table(setting, task, checks), _curves_table(setting, curves)]
    return Result(
        tables=[*tables, *([_published_table(setting, published)] if published else [])],
        claims=_claims(setting, curves, checks, published, weak),
        figures=[_figure(lab, setting, curves, checks)],
        data={
            "accuracy": {loss_name(key): accuracies_of(each) for key, each in runs.items()},
            "curves": {loss_name(key): each for key, each in curves.items()},
            "published": {loss_name(key): each for key, each in published.items()},
            "checks": {loss_name(key): each for key, each in checks.items()},
            "lost": {loss_name(key): lost_in(each) for key, each in runs.items()},
        },
    )


def _rival(runs: dict[LogEnd, list[Fitted | None]], key: LogEnd, at: int) -> TrainResult | None:
    """The model of the same seed whose images are carried over."""
    others = [one[at] for other, one in runs.items() if other != key]
    rival = others[-1] if key is None else others[0]
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
        images = torch.from_numpy(source.images)
        images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
        pixels = Pixels(how, channels_last=False, device=lab.device)
        self.inputs = pixels.normalised(images)
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


def _radii(setting: Setting, kind: str) -> tuple[float, ...]:
    return setting.l2 if "L2" in kind else setting.linf


def _curves(lab: Lab, setting: Setting, run: TrainResult, test: MemorySource) -> dict[str, Any]:
    """Accuracy in per cent at each radius, by kind of attack."""

    def curve(kind: str) -> list[float]:
        with borrowed(run.model, lab.device):
            attacked = Attacked(lab, run, test)
            return [
                100 * float(attacked.right(attacked.changed(
                    _attack(kind, radius, setting.steps))).mean())
                for radius in _radii(setting, kind)
            ]  # fmt: skip

    return {
        kind: lab.measured(
            run,
            {"attack": kind, "radii": _radii(setting, kind), "steps": setting.steps, "on": test},
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
            masks[_CARRIED] = own.right((made - own._mean) / own._std)
        far = own.right(own.changed(partial(pgd, epsilon=1.0, steps=steps, loss="margin")))
    strongest = np.logical_and.reduce(list(masks.values()))
    return {
        **{name: 100 * float(mask.mean()) for name, mask in masks.items()},
        _STRONGEST: 100 * float(strongest.mean()),
        "any image allowed (radius 1)": 100 * float(far.mean()),
    }


def _checks_table(setting: Setting, task: Task, checks: Checks) -> Table:
    tried = [one for each in checks.values() for one in ended(each)]
    names = max((list(one) for one in tried), key=len, default=[_STRONGEST])
    return Table(
        f"{task.title}: accuracy, %, under attacks of radius {setting.check_at:g} (L∞)",
        ("loss", *names),
        [
            [loss_name(key), *(spread_of([(one or {}).get(name) for one in each])
                               for name in names)]
            for key, each in checks.items()
        ],
        note="Mean ± standard deviation over seeds. A stronger attack that takes off much more "
        "than plain PGD shows that plain PGD was blind, not that the model is robust."
        + lost_note(_named(checks))
        + (_NO_RIVAL if any(_CARRIED not in one for one in tried) else ""),
    )  # fmt: skip


def _named(each: Curves | Checks) -> dict[str, Sequence[object]]:
    return {loss_name(key): runs for key, runs in each.items()}


def _curves_table(setting: Setting, curves: Curves) -> Table:
    rows: list[list[Any]] = []
    for kind in setting.kinds:
        radii = _radii(setting, kind)
        for key, each in curves.items():
            there = [one[kind] for one in ended(each)]
            if there:
                means = np.mean(there, axis=0)
                cells = ", ".join(f"{r:g}: {m:.1f}" for r, m in zip(radii, means, strict=True))
                cells += f" ({len(there)} of {len(each)})" if lost_in(each) else ""
            else:
                cells = f"none of {len(each)} ended"
            rows.append([kind, loss_name(key), cells])
    return Table(
        "Accuracy, %, at each radius",
        ("attack", "loss", "radius: accuracy"),
        rows,
        note=f"Means over seeds. The paper's figure has no numbers.{lost_note(_named(curves))}",
    )


def _published_table(setting: Setting, published: Curves) -> Table:
    rows: list[list[Any]] = [
        [f"{loss_name(key)}, {name}"]
        + [
            spread_of(values_of(each, lambda one, at=at, name=name: one[name][at]))  # type: ignore[misc]
            for at in range(len(setting.published))
        ]
        for name in _PUBLISHED.values()
        for key, each in published.items()
    ]
    theirs = setting.published == tuple(round(0.05 * at, 2) for at in range(7))
    return Table(
        "The published attack: accuracy, %, by radius in units of the normalised input",
        ("loss and attack", *(f"{radius:g}" for radius in setting.published)),
        rows,
        note="Mean ± standard deviation over seeds, all test images. In pixels on [0, 1] a radius "
        "is its product with the deviation that the images were normalised with"
        + (f", {setting.pixels[1]:g}." if setting.pixels else ".")
        + lost_note(_named(published)),
        paper=[[name, *values] for name, values in _THEIRS.items()] if theirs else None,
    )


def _claims(
    setting: Setting, curves: Curves, checks: Checks, published: Curves, weak: str
) -> list[Claim]:
    el = 1.0 if 1.0 in curves else list(curves)[-1]

    def under(found: Curves, key: LogEnd, kind: str) -> list[float | None]:
        return values_of(found[key], lambda one: float(np.mean(one[kind][1:])))

    def asked(found: Curves, kind: str, words: str, paper: str) -> Question:
        says = f"{loss_name(el)} is more accurate under {words}, mean over the radii"
        return Question(says, paper, under(found, el, kind), under(found, None, kind), weak=weak)

    questions = [
        asked(curves, kind, kind, "Figure 7" if kind in KINDS else "not in the paper")
        for kind in setting.kinds
    ]
    if published:
        questions += [
            asked(published, name, f"the published attack ({name})", "Figure 7")
            for name in _PUBLISHED.values()
        ]
    questions.append(
        Question(
            f"it is more accurate under the strongest of all attacks, radius {setting.check_at:g}",
            "not in the paper",
            _strongest(checks[el]),
            _strongest(checks[None]),
            weak=weak,
        )
    )
    return [*judged(questions), _hidden(el, checks[el])]


def _strongest(checks: list[dict[str, float] | None]) -> list[float | None]:
    return values_of(checks, lambda one: one[_STRONGEST])


def _hidden(key: LogEnd, checks: list[dict[str, float] | None]) -> Claim:
    """Whether plain PGD can be believed for this loss."""
    gaps = [one["PGD"] - one[_STRONGEST] for one in ended(checks)]
    seen = f"none of {len(checks)} runs ended"
    if gaps:
        some = f"; {len(gaps)} of {len(checks)} runs ended" if lost_in(checks) else ""
        seen = f"{np.mean(gaps):.1f} points more (worst seed {max(gaps):.1f}{some})"
    return Claim(
        f"plain PGD is not blind to {loss_name(key)}: stronger attacks take off less than "
        f"{_HIDDEN:g} points more",
        "not in the paper",
        seen,
        bool(np.mean(gaps) < _HIDDEN) if gaps else None,
    )


def _figure(lab: Lab, setting: Setting, curves: Curves, checks: Checks) -> Figure:
    figure, axes = panels(1, len(setting.kinds), width=3.4)
    for place, kind in zip(axes, setting.kinds, strict=True):
        radii = _radii(setting, kind)
        for number, (key, each) in enumerate(curves.items()):
            if not ended(each):
                continue
            values = np.array([one[kind] for one in ended(each)])
            mean, std = values.mean(axis=0), values.std(axis=0)
            place.plot(radii, mean, marker="o", ms=3, color=COLOURS[number], label=loss_name(key))
            place.fill_between(radii, mean - std, mean + std, color=COLOURS[number], alpha=0.15,
                               lw=0)  # fmt: skip
            if "∞" in kind:
                worst = np.mean(ended(_strongest(checks[key])))
                place.plot([setting.check_at], [worst], "x", color=COLOURS[number], ms=8, mew=2)
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
