"""AVH, Appendix D.2: hardness against how much a picture was degraded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.experiments import lab as kit
from hardsight.experiments.avh import _models as models
from hardsight.experiments.avh._models import KINDS, levels_of, say
from hardsight.report.figures import COLOURS, panels
from hardsight.run.study import DegradationStudy, degradation_study
from hardsight.run.train import TrainResult

Studies = Mapping[str, Sequence[DegradationStudy]]  # by network, one per seed

_SCORES = {"avh": True, "confidence": False, "norm": False}  # higher is harder
_TITLES = {"avh": "AVH", "confidence": "model confidence", "norm": "norm ‖x‖"}
_FIGURES = {"noise": "Fig. 17", "contrast": "Fig. 18"}


def _gates(setting: models.ModelSetting, data: Mapping[str, Any]) -> list[kit.Gate]:
    """By the accuracy on the pictures as they are, the first level."""
    clean = {model: [run["accuracy"][0] for run in of] for model, of in data["noise"].items()}
    return models.gates_of(setting.dataset, clean)


@kit.experiment(
    "avh-degradation",
    title="Hardness of noisy and of faint pictures",
    reproduces="Angular Visual Hardness, Figs. 17, 18",
    scales={"smoke": models.SMOKE, "short": models.SHORT, "paper": models.PAPER},
    gates=_gates,
)
def avh_degradation(lab: kit.Lab, setting: models.ModelSetting) -> kit.Result:
    """Scores the same pictures at the paper's levels of uniform noise and of contrast.

    The networks are those of avh-human ({networks}; {epochs} epochs) after their last epoch. The
    pictures are {degraded} test pictures of {dataset}. Each picture is its own control: we compute
    the Spearman coefficient of level and score within a picture, average it over pictures, and show
    it beside the pooled one. The networks were not trained on any of these pictures, clean or
    degraded, and nothing is selected.
    """
    subjects = models.Subjects(lab, setting)
    studies: dict[str, dict[str, list[DegradationStudy]]] = {
        kind: {model: [] for model in setting.models} for kind in KINDS
    }
    for model in setting.models:
        for seed in setting.seeds:
            done = subjects.run(model, seed)
            for kind, by_model in studies.items():
                by_model[model].append(_study(subjects, done, kind))
    return kit.Result(
        tables=[
            *(_level_table(studies[kind], kind) for kind in KINDS),
            *(_coefficient_table(studies[kind], kind) for kind in KINDS),
        ],
        claims=[degradation_claim(studies[kind], kind) for kind in KINDS],
        figures=[_figure(lab, studies[kind], kind) for kind in KINDS],
        data={
            kind: {model: [_numbers(study) for study in of] for model, of in by_model.items()}
            for kind, by_model in studies.items()
        },
    )


def _numbers(study: DegradationStudy) -> dict[str, object]:
    scores = {
        score.name: {
            "means": score.means, "stds": score.stds, "pooled": score.pooled,
            "within": score.within and score.within.value,
        }
        for score in study.scores
    }  # fmt: skip
    return {**scores, "accuracy": [accuracy.value for accuracy in study.accuracy]}


def _study(subjects: models.Subjects, done: TrainResult, kind: str) -> DegradationStudy:
    """All levels of one kind, from what was recorded in the last epoch."""
    clean = subjects.histories(done).measures
    curves = [{key: values[-1][subjects.rows] for key, values in clean.items()}]
    for level in levels_of(kind)[1:]:
        recorded = subjects.histories(done, models.set_name(kind, level)).measures
        curves.append({key: values[-1] for key, values in recorded.items()})

    def stacked(key: str) -> NDArray[np.float64]:
        return np.stack([curve[key] for curve in curves])

    return degradation_study(
        levels_of(kind), {name: stacked(name) for name in _SCORES}, stacked("correct"), kind=kind,
        higher_is_harder=_SCORES,
    )  # fmt: skip


def degradation_claim(by_model: Studies, kind: str) -> kit.Claim:
    """AVH follows the level in every network and seed."""
    is_noise = kind == "noise"
    scores = [study.score("avh") for of_seeds in by_model.values() for study in of_seeds]
    within = [score.within for score in scores if score.within is not None]
    values = [interval.value for interval in within]
    # pictures get harder to see with more noise, and with less contrast
    expected = [interval.low > 0 if is_noise else interval.high < 0 for interval in within]
    rises = sum(all(np.diff(score.means) > 0) for score in scores)
    return kit.Claim.of_runs(
        "AVH is larger where a picture is harder to recognise: with "
        f"{'more noise' if is_noise else 'less contrast'}.",
        _FIGURES[kind],
        f"Spearman of level and AVH within a picture {min(values):+.3f} to {max(values):+.3f}, its "
        f"interval on the expected side in {sum(expected)} of {len(scores)} runs; the mean rises "
        f"at every level in {rises}"
        if values
        else "AVH does not vary",
        expected,
    )


def _level_table(by_model: Studies, kind: str) -> kit.Table:
    levels = {level: f"{kind} {level:g}" for level in levels_of(kind)}
    rows = []
    for model, of_seeds in by_model.items():
        for seed, study in enumerate(of_seeds):
            curves = {"accuracy": tuple(accuracy.value for accuracy in study.accuracy)}
            curves |= {title: study.score(name).means for name, title in _TITLES.items()}
            rows += [
                {"network": say(model), "what": what, "level": level, "seed": seed, "mean": mean}
                for what, curve in curves.items()
                for level, mean in zip(levels, curve, strict=True)
            ]
    grid = kit.Grid.of(rows, "network", "what", "level")
    return grid.table(
        f"Means by level of {kind}",
        {"network": "network", "what": ""},
        grid.across("level", "mean", levels),
        note=f"Mean ± standard deviation over seeds, of {next(iter(by_model.values()))[0].n:,} "
        "pictures; the first level is the picture itself.",
    )


def _coefficient_table(by_model: Studies, kind: str) -> kit.Table:
    rows = [
        {"network": say(model), "score": title, "seed": seed, "pooled": study.score(name).pooled}
        | {"within": (within_picture := study.score(name).within) and within_picture.value}
        for model, of_seeds in by_model.items()
        for name, title in _TITLES.items()
        for seed, study in enumerate(of_seeds)
    ]
    return kit.Grid.of(rows, "network", "score").table(
        f"Spearman of score and level of {kind}",
        {"network": "network", "score": "score"},
        {"pooled": "pooled", "within a picture": "within"},
        note="Mean ± standard deviation over seeds. "
        + ("A hardness is positive." if kind == "noise" else "A hardness is negative."),
    )


def _figure(lab: kit.Lab, by_model: Studies, kind: str) -> kit.Figure:
    figure, axes = panels(1, len(by_model), width=3.4, height=2.9)
    for axis, (model, of_seeds) in zip(axes, by_model.items(), strict=True):
        levels = np.array(of_seeds[0].levels)
        mean = np.mean([study.score("avh").means for study in of_seeds], axis=0)
        std = np.mean([study.score("avh").stds for study in of_seeds], axis=0)
        right = np.mean([[accuracy.value for accuracy in s.accuracy] for s in of_seeds], axis=0)
        axis.plot(levels, mean, "o-", color=COLOURS[0], label="AVH, mean")
        axis.fill_between(levels, mean - std, mean + std, color=COLOURS[0], alpha=0.15, lw=0,
                          label="± standard deviation over pictures")  # fmt: skip
        twin = axis.twinx()
        twin.plot(levels, right, "s--", color=COLOURS[1], label="accuracy", ms=4)
        twin.set(ylim=(0, 1), ylabel="accuracy" if axis is axes[-1] else "")
        twin.grid(False)
        axis.set(title=say(model), xlabel=f"{kind} level", ylabel="AVH")
        if kind == "contrast":
            axis.invert_xaxis()
    return lab.figure(
        figure, kind,
        caption=f"{_FIGURES[kind]}: AVH by level of {kind}, mean over pictures "
        "and seeds; harder to see towards the right.",
        alt=f"Curves of AVH and accuracy against the level of {kind}, one panel per network.",
    )  # fmt: skip
