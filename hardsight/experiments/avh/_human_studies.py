"""What the studies of ``avh-human`` say of one score, over networks and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.experiments.lab import Grid
from hardsight.run.study import HumanStudy
from hardsight.stats import HUMAN_BINS

Floats = NDArray[np.float64]
Studies = dict[str, list[HumanStudy]]

AVH, CONFIDENCE, NORM = "avh", "model_confidence", "class_normalized_feature_norm"
TITLES = {AVH: "AVH", CONFIDENCE: "Model confidence", NORM: "‖x‖ within class"}
BINS = ("[0, .2)", "[.2, .4)", "[.4, .6)", "[.6, .8)", "[.8, 1]")
METHODS = {"spearman": "Spearman", "pearson": "Pearson", "kendall": "Kendall"}
assert len(BINS) == len(HUMAN_BINS) - 1


def every_run(studies: Studies) -> list[HumanStudy]:
    """The studies of all networks and seeds in one list."""
    return [study for of_seeds in studies.values() for study in of_seeds]


def spearman_of(studies: Sequence[HumanStudy], name: str) -> list[float]:
    """Spearman of a score with the frequency, one for each study in which it is defined."""
    found = [study.score(name).correlations.get("spearman") for study in studies]
    return [correlation.value for correlation in found if correlation is not None]


def bin_values(studies: Sequence[HumanStudy], name: str, which: str, place: int) -> list[float]:
    """|Spearman| within one of the bins (``which``: ``bins`` or ``quantile_bins``), by study."""
    every = [getattr(study.score(name), which) for study in studies]
    found = [bins[place].correlation for bins in every if place < len(bins)]
    return [abs(correlation.value) for correlation in found if correlation is not None]


def coefficients(studies: Studies) -> dict[str, Any]:
    """Every coefficient of every score by network, one per seed."""
    rows = [
        {"model": model, "score": score.name, "seed": seed}
        | {key: correlation.value for key, correlation in score.correlations.items()}
        | ({"within_class": within.value} if score.correlations and within else {})
        for model, of_seeds in studies.items()
        for seed, study in enumerate(of_seeds)
        for score in study.scores
        for within in [score.within_class]
    ]
    measures = (*METHODS, "within_class")
    grid = Grid.of(rows, "model", "score", measures=measures)
    return {
        measure: {
            model: {name: grid.values(measure, model=model, score=name)
                    for name in grid.names("score")}
            for model in studies
        }
        for measure in measures
    }  # fmt: skip
