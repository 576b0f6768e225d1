"""Encouraging Loss, Section 4.6: does the bonus add to other improvements?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hardsight.data import MemorySource
from hardsight.evaluate import calibration_error, pgd
from hardsight.experiments.el._fig7 import Attacked
from hardsight.experiments.el._recipes import (
    CLAMP,
    PAPER,
    PUBLISHED_MNIST,
    SMOKE,
    Recipe,
    Task,
    encouraging,
    fitted,
)
from hardsight.experiments.el._seeds import lost_in, lost_note, spread_of
from hardsight.experiments.lab import (
    RULE,
    Lab,
    Question,
    Result,
    Table,
    compared_in_pairs,
    experiment,
    judged,
    weakness,
)
from hardsight.run.loop import borrowed
from hardsight.run.train import TrainResult

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
        bases: what the bonus is added to.
        log_end: LE of the bonus that is added; 1 is clamped as the paper says.
        smoothing: of labels.
        gamma: of focal loss.
        margin: of large-margin softmax.
        blend: of large-margin softmax, at the start.
        blend_decay: factor of it with every step; 1 leaves it as it is.
        epsilon: of adversarial training (FGSM, half of each batch), in pixels on [0, 1].
        attack: radius in L∞ at which all are attacked.
        steps: of that attack.
        images: of the test split that are attacked.
    """

    task: str = "fashion-mnist/small_cnn"
    bases: tuple[str, ...] = BASES
    log_end: float = 0.75
    smoothing: float = 0.1
    gamma: float = 2.0
    margin: int = 2
    blend: float = 5.0
    blend_decay: float = 1.0
    epsilon: float = 0.05
    attack: float = 0.05
    steps: int = 10
    images: int = 1000

    @property
    def title(self) -> str:
        """The task in words."""
        return Task.named(self.task).title

    @property
    def recipes(self) -> str:
        """How it is trained, in words."""
        return self.recipes_of(self.task)

    @property
    def blended(self) -> str:
        """The blend in words."""
        start = f"{self.blend:g} parts of the plain logit blended in"
        return start if self.blend_decay == 1 else f"{start}, times {self.blend_decay:g} every step"


@experiment(
    "el-combine",
    title="Does the bonus add to other improvements?",
    reproduces=f"{PAPER}, Section 4.6 and its appendix",
    measures_by_seed=True,
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", steps=3, images=100,
            **{**SMOKE, "limit": 300, "seeds": (0,)},
        ),
        "short": Setting(),
        "paper": Setting(
            task="mnist/el_mnist", log_end=1.0, blend=100.0, blend_decay=0.99, epsilon=0.1,
            attack=0.1, steps=20, **PUBLISHED_MNIST,
        ),
    },
)  # fmt: skip
def el_combine(lab: Lab, setting: Setting) -> Result:
    """Trains recipes without and with the bonus (LE = {log_end}), on {title}: {bases}.

    They are focal loss with gamma {gamma}, label smoothing of {smoothing}, large-margin softmax
    with m = {margin} ({blended}; with too little of it runs end at guessing) and adversarial
    training by FGSM of {epsilon} on half of each batch, all with the recipe of el-table1:
    {recipes}, on {limit} training images; kept is {selection}. The bonus
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
        for base in setting.bases
    }
    tables = [_table(task, found, measure) for measure in MEASURES]
    return Result(
        tables=tables,
        claims=judged(_questions(found, task)),
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
    bonus = {"log_end": end, **({"clamp": CLAMP} if end == 1 else {})}
    if base == "focal loss":
        loss: Any = [{"name": "focal", "options": {"gamma": setting.gamma}}]
        if has_bonus:
            loss.append({"name": "encouraging_bonus", "options": bonus})
        return {"loss": loss}
    if base == "large margin":
        options: dict[str, Any] = {"margin": setting.margin, "blend": setting.blend}
        options |= bonus if has_bonus else {}
        large: dict[str, Any] = {"name": "large_margin_softmax", "options": options}
        if setting.blend_decay < 1:
            large["decays"] = {"blend": setting.blend_decay}
        return {"loss": large}
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
        key = {"attack": "PGD on the margin", "radius": setting.attack, "steps": setting.steps}
        found["accuracy under PGD"].append(
            lab.measured(
                one.run,
                {**key, "on": attacked_images},
                partial(_under, lab, one.run, attacked_images, attack),
            )
        )
    return found


def _under(lab: Lab, run: TrainResult, images: MemorySource, attack: Any) -> float:
    """Accuracy in per cent under an attack."""
    with borrowed(run.model, lab.device):
        own = Attacked(lab, run, images)
        return 100 * float(own.right(own.changed(attack)).mean())


def _named(found: dict[str, Pair], measure: str) -> dict[str, list[float | None]]:
    plain = {base: pair[0][measure] for base, pair in found.items()}
    return plain | {f"{base} with the bonus": pair[1][measure] for base, pair in found.items()}


def _table(task: Task, found: dict[str, Pair], measure: str) -> Table:
    differences = compared_in_pairs(
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
        f"p by Holm's method over the rows. {RULE}" + lost_note(_named(found, measure)),
    )


def _questions(found: dict[str, Pair], task: Task) -> list[Question]:
    plain = found.get("cross-entropy")
    weak = "" if plain is None else weakness(plain[0]["accuracy"], task.good)

    def asked(
        base: str, measure: str, says: str, paper: str, other: str = "", larger: bool = True
    ) -> Question:
        second = found[other or base][0][measure]
        return Question(says, paper, found[base][1][measure], second, larger=larger, weak=weak)

    questions = [
        asked(base, "accuracy", f"the bonus makes {base} more accurate", "in the appendix")
        for base in found
    ]
    smooth = "label smoothing"
    questions += [
        asked(
            smooth, "calibration error",
            f"with {smooth} and the bonus the calibration error is below that of {other}",
            "Section 5", other, larger=False,
        )
        for other in ("cross-entropy", smooth)
        if smooth in found and other in found
    ]  # fmt: skip
    questions += [
        asked(
            base, "accuracy under PGD", f"the bonus makes {base} more robust (PGD)",
            "in the appendix",
        )
        for base in ("large margin", "adversarial training")
        if base in found
    ]  # fmt: skip
    return questions
