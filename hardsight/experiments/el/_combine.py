"""Encouraging Loss, Section 4.6: does the bonus add to other improvements?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hardsight.evaluate import calibration_error, pgd
from hardsight.experiments.el._fig7 import Attacked
from hardsight.experiments.el._recipes import (
    PAPER,
    SMOKE,
    Recipe,
    Task,
    encouraging,
    fitted,
)
from hardsight.experiments.el._seeds import claim_of, compared, lost_in, lost_note, spread_of
from hardsight.experiments.lab import Claim, Lab, Result, Table, experiment
from hardsight.run.loop import borrowed

BASES = ("cross-entropy", "focal loss", "label smoothing", "large margin", "adversarial training")
MEASURES = {"accuracy": True, "calibration error": False, "accuracy under PGD": True}
# of every measure, one per seed; None where the run was lost
Numbers = dict[str, list[float | None]]
Pair = tuple[Numbers, Numbers]


@dataclass(frozen=True)
class Setting(Recipe):
    """Keys of ``el-combine``.

    Attributes:
        task: ``DATASET/NETWORK``.
        log_end: LE of the bonus that is added.
        smoothing: of labels.
        gamma: of focal loss.
        margin: of large-margin softmax.
        blend: of large-margin softmax.
        epsilon: of adversarial training (FGSM, half of each batch), in pixels on [0, 1].
        attack: radius in L∞ at which all are attacked.
        steps: of that attack.
        images: of the test split that are attacked.
    """

    task: str = "fashion-mnist/small_cnn"
    log_end: float = 0.75
    smoothing: float = 0.1
    gamma: float = 2.0
    margin: int = 2
    blend: float = 5.0
    epsilon: float = 0.05
    attack: float = 0.05
    steps: int = 10
    images: int = 1000

    @property
    def title(self) -> str:
        """The task in words."""
        return Task.named(self.task).title


@experiment(
    "el-combine",
    title="Does the bonus add to other improvements?",
    reproduces=f"{PAPER}, Section 4.6 and its appendix",
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", steps=3, images=100,
            **{**SMOKE, "limit": 300, "seeds": (0,)},
        ),
        "paper": Setting(),
    },
)  # fmt: skip
def el_combine(lab: Lab, setting: Setting) -> Result:
    """Trains five recipes, each without and with the bonus (LE = {log_end}), on {title}.

    Cross-entropy, focal loss (gamma {gamma}), label smoothing ({smoothing}), large-margin softmax
    (m = {margin}, blend {blend}: with less of it runs end at guessing) and adversarial training
    (FGSM of {epsilon} on half of each batch), all with the recipe of el-table1: {grey_epochs}
    epochs on grey images, {colour_epochs} on coloured ones, on {limit} training images. The bonus
    adds to focal loss as a second term, to label smoothing under the smoothed targets, to large
    margins on the harder logits. Measured on test images: accuracy, calibration error (15 equal
    bins, not rescaled), and accuracy under PGD on the margin (radius {attack}) on {images} of them,
    in pixels.
    """
    task = Task.named(setting.task)
    found = {
        base: (
            _numbers(lab, setting, task, base, has_bonus=False),
            _numbers(lab, setting, task, base, has_bonus=True),
        )
        for base in BASES
    }
    tables = [_table(task, found, measure) for measure in MEASURES]
    return Result(
        tables=tables,
        claims=_claims(found),
        data={
            **{
                base: {"original": plain, "with_bonus": bonus}
                for base, (plain, bonus) in found.items()
            },
            "lost": {name: lost_in(each) for name, each in _named(found, "accuracy").items()},
        },
    )


def recipe_of(setting: Setting, base: str, has_bonus: bool) -> dict[str, Any]:
    """What a base changes in the recipe, loss included."""
    end = setting.log_end
    if base == "focal loss":
        loss: Any = [{"name": "focal", "options": {"gamma": setting.gamma}}]
        if has_bonus:
            loss.append({"name": "encouraging_bonus", "options": {"log_end": end}})
        return {"loss": loss}
    if base == "large margin":
        options = {"margin": setting.margin, "blend": setting.blend}
        options |= {"log_end": end} if has_bonus else {}
        return {"loss": {"name": "large_margin_softmax", "options": options}}
    smoothing = {"label_smoothing": setting.smoothing} if base == "label smoothing" else {}
    changes: dict[str, Any] = {"loss": encouraging(end if has_bonus else None, **smoothing)}
    if base == "adversarial training":
        attack = {"epsilon": setting.epsilon, "attack": "fgsm", "share": 0.5}
        changes["adversarial"] = attack
    return changes


def _numbers(lab: Lab, setting: Setting, task: Task, base: str, *, has_bonus: bool) -> Numbers:
    """Each measure, one value per seed."""
    found: Numbers = {measure: [] for measure in MEASURES}
    _, test = task.data(lab, setting)
    attacked_images = lab.source(task.dataset, "test", limit=setting.images)
    attack = partial(pgd, epsilon=setting.attack, steps=setting.steps, loss="margin")
    for seed in setting.seeds:
        changes = recipe_of(setting, base, has_bonus)
        one = fitted(lab, task, setting, changes.pop("loss"), seed=seed, **changes)
        if one is None:
            for each in found.values():
                each.append(None)
            continue
        found["accuracy"].append(one.test)
        outputs = lab.outputs(one.run, test)
        sure, guess = outputs.logits.softmax(dim=1).max(dim=1)
        error = calibration_error(sure.numpy(), (guess == outputs.labels).numpy())
        found["calibration error"].append(100 * error)
        with borrowed(one.run.model, lab.device):
            own = Attacked(lab, one.run, attacked_images)
            found["accuracy under PGD"].append(100 * float(own.right(own.changed(attack)).mean()))
    return found


def _named(found: dict[str, Pair], measure: str) -> dict[str, list[float | None]]:
    plain = {base: pair[0][measure] for base, pair in found.items()}
    return plain | {f"{base} with the bonus": pair[1][measure] for base, pair in found.items()}


def _table(task: Task, found: dict[str, Pair], measure: str) -> Table:
    differences = compared(
        {base: (bonus[measure], plain[measure]) for base, (plain, bonus) in found.items()}
    )
    direction = "higher is better" if MEASURES[measure] else "lower is better"
    return Table(
        f"{task.title}: {measure}, %, {direction}",
        ("recipe", "original", "+ bonus", "difference"),
        [
            [base, spread_of(plain[measure]), spread_of(bonus[measure]), str(differences[base])]
            for base, (plain, bonus) in found.items()
        ],
        note="Mean ± standard deviation over seeds; differences paired over seeds, 95 % interval, "
        "p by Holm's method over the recipes." + lost_note(_named(found, measure)),
    )


def _claims(found: dict[str, Pair]) -> list[Claim]:
    accuracy = compared(
        {base: (bonus["accuracy"], plain["accuracy"]) for base, (plain, bonus) in found.items()}
    )
    claims = [
        claim_of(f"the bonus makes {base} more accurate", "in the appendix", accuracy[base])
        for base in BASES
    ]
    error = "calibration error"
    smooth = found["label smoothing"][1][error]
    plain = {"cross-entropy": found["cross-entropy"][0], "label smoothing": found[BASES[2]][0]}
    calibrated = compared({name: (smooth, one[error]) for name, one in plain.items()})
    claims += [
        claim_of(
            f"with label smoothing and the bonus the calibration error is below that of {name}",
            "Section 5",
            one,
            larger=False,
        )
        for name, one in calibrated.items()
    ]
    attack = "accuracy under PGD"
    attacked = compared(
        {
            base: (found[base][1][attack], found[base][0][attack])
            for base in ("large margin", "adversarial training")
        }
    )
    claims += [
        claim_of(f"the bonus makes {base} more robust (PGD)", "in the appendix", one)
        for base, one in attacked.items()
    ]
    return claims
