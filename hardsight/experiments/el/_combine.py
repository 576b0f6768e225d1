"""Encouraging Loss, Section 4.6: does the bonus add to other improvements?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hardsight.evaluate import calibration_error, pgd
from hardsight.experiments import lab as kit
from hardsight.experiments.el import _recipes as recipes
from hardsight.experiments.el._attacks import Attacked
from hardsight.experiments.el._recipes import Task
from hardsight.run.loop import borrowed

BASES = ("cross-entropy", "focal loss", "label smoothing", "large margin", "adversarial training")
MEASURES = {"accuracy": True, "calibration error": False, "accuracy under PGD": True}
_BONUS = {"original": "original", "with_bonus": "+ bonus"}


@dataclass(frozen=True)
class Setting(recipes.Recipe):
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
    def blended(self) -> str:
        """The blend in words."""
        start = f"{self.blend:g} parts of the plain logit blended in"
        return start if self.blend_decay == 1 else f"{start}, times {self.blend_decay:g} every step"


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    bases = {base: data[base] for base in setting.bases}
    grid = kit.Grid.read(bases, setting.seeds, "base", "bonus")
    note = setting.note(data["lost"], "Differences are paired over seeds, with 95 % intervals.")
    task = Task.named(setting.task)
    tables = [_table(task.title, grid, measure, note) for measure in MEASURES]
    plain = {"base": "cross-entropy", "bonus": "original"}
    gate = task.gate(grid.values("accuracy", **plain) if plain["base"] in bases else [])
    return [*tables, kit.networks_table([gate])], _questions(grid, gate.weak)


def _table(title: str, grid: kit.Grid, measure: str, note: str) -> kit.Table:
    def difference(runs: kit.Grid, *_: str) -> str:
        pair = ({"bonus": "with_bonus"}, {"bonus": "original"})
        return runs.compared(measure, {"": pair})[""].interval

    direction = "higher is better" if MEASURES[measure] else "lower is better"
    columns = {**grid.across("bonus", measure, _BONUS), "difference": difference}
    return grid.table(f"{title}: {measure}, %, {direction}", {"base": "recipe"}, columns, note=note)


def _questions(grid: kit.Grid, weak: str) -> list[kit.Question]:
    bases, plain, smooth = grid.names("base"), "cross-entropy", "label smoothing"
    asked = [  # what is said, paper, measure, base, base to compare with
        *((f"the bonus makes {base} more accurate", "in the appendix", "accuracy", base, base)
          for base in bases),
        *((f"with {smooth} and the bonus the calibration error is below that of {other}",
           "Section 5", "calibration error", smooth, other) for other in (plain, smooth)),
        *((f"the bonus makes {base} more robust (PGD)", "in the appendix", "accuracy under PGD",
           base, base) for base in ("large margin", "adversarial training")),
    ]  # fmt: skip
    return [
        grid.question(
            says, paper, measure, {"base": base, "bonus": "with_bonus"},
            {"base": other, "bonus": "original"}, larger=MEASURES[measure], weak=weak,
        )
        for says, paper, measure, base, other in asked
        if {base, other} <= set(bases)
    ]  # fmt: skip


@kit.experiment(
    "el-combine",
    title="Does the bonus add to other improvements?",
    reproduces="Encouraging Loss, Section 4.6 and its appendix",
    measures_by_seed=True,
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", steps=3, images=40,
            **{**recipes.SMOKE, "seeds": (0,)},
        ),
        "short": Setting(),
        "paper": Setting(
            task="mnist/el_mnist", log_end=1.0, blend=100.0, blend_decay=0.99, epsilon=0.1,
            attack=0.1, steps=20, **recipes.PUBLISHED_MNIST,
        ),
    },
    asks=_asks,
)  # fmt: skip
def el_combine(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Trains recipes without and with the bonus (LE = {log_end}), on {networks}: {bases}.

    They are focal loss with gamma {gamma}, label smoothing of {smoothing}, large-margin softmax
    with m = {margin} ({blended}; with too little of it, runs end at guessing) and adversarial
    training by FGSM of {epsilon} on half of each batch. All use the recipe of el-table1: {recipes},
    on {limit} training images. The model kept is that of {selection}.

    The bonus is added to focal loss as a second term, to label smoothing under the smoothed
    targets, and to large margins on the harder logits. We measure on test images: accuracy,
    calibration error (15 equal bins, not rescaled), and accuracy under PGD on the margin (radius
    {attack}, in pixels) on {images} of them.
    """
    rows = [
        {"base": base, "bonus": bonus, "seed": seed}
        | _measured(lab, setting, recipe_of(setting, base, bonus == "with_bonus"), seed)
        for base in setting.bases
        for bonus in _BONUS
        for seed in setting.seeds
    ]
    grid = kit.Grid.of(rows, "base", "bonus", measures=tuple(MEASURES))
    words = {"original": "", "with_bonus": " with the bonus"}
    lost = {
        f"{base}{words[bonus]}": count for (base, bonus), count in grid.lost("accuracy").items()
    }
    return kit.Result(data={**grid.data(), "lost": lost})


def recipe_of(setting: Setting, base: str, has_bonus: bool) -> dict[str, Any]:
    """What a base changes in the recipe, loss included."""
    end = setting.log_end
    bonus = {"log_end": end, **({"clamp": recipes.CLAMP} if end == 1 else {})}
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
    changes: dict[str, Any] = {"loss": recipes.encouraging(end if has_bonus else None, **smoothing)}
    if base == "adversarial training":
        attack = {"epsilon": setting.epsilon, "attack": "fgsm", "share": 0.5}
        changes["adversarial"] = attack
    return changes


def _measured(
    lab: kit.Lab, setting: Setting, recipe: Mapping[str, Any], seed: int
) -> dict[str, float]:
    """Each measure of one model, in per cent; nothing if its run was lost."""
    task = Task.named(setting.task)
    fit = recipes.fitted(lab, task, setting, seed=seed, **recipe)
    if fit is None:
        return {}
    outputs = lab.outputs(fit.run, task.data(lab, setting)[1])
    sure, guess = outputs.logits.softmax(dim=1).max(dim=1)
    error = calibration_error(sure.numpy(), (guess == outputs.labels).numpy())
    images = lab.source(task.dataset, "test", limit=setting.images)
    key = {"attack": "PGD on the margin", "radius": setting.attack, "steps": setting.steps}

    def under_attack() -> float:
        with borrowed(fit.run.model, lab.device):
            attack = partial(pgd, epsilon=setting.attack, steps=setting.steps, loss="margin")
            return Attacked(lab, fit.run, images).accuracy_under(attack)

    under = lab.measured(fit.run, {**key, "on": images}, under_attack)
    return dict(zip(MEASURES, (fit.test, 100 * error, under), strict=True))
