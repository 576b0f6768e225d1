"""What the studies of ``avh-human`` say of one score, over networks and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.experiments.lab import Outputs
from hardsight.registry import SCORES
from hardsight.run.study import HumanStudy
from hardsight.stats import HUMAN_BINS

Floats = NDArray[np.float64]
Studies = dict[str, list[HumanStudy]]

AVH, CONFIDENCE, NORM = "avh", "model_confidence", "class_normalized_feature_norm"
TITLES = {AVH: "AVH", CONFIDENCE: "Model confidence", NORM: "‖x‖ within class"}
BINS = ("[0, .2)", "[.2, .4)", "[.4, .6)", "[.6, .8)", "[.8, 1]")
assert len(BINS) == len(HUMAN_BINS) - 1


def all_scores(outputs: Outputs) -> dict[str, Floats]:
    """Every score of the registry that gives one number per example."""
    return {
        name: spec.function(*(getattr(outputs, key) for key in spec.inputs)).double().numpy()
        for name, spec in SCORES.items()
        if not spec.per_class
    }


def every_run(studies: Studies) -> list[HumanStudy]:
    """The studies of all networks and seeds in one list."""
    return [study for of_seeds in studies.values() for study in of_seeds]


def spearman_of(studies: Sequence[HumanStudy], name: str) -> list[float]:
    """Spearman of a score with the frequency, one for each study in which it is defined."""
    found = [study.score(name).correlations.get("spearman") for study in studies]
    return [one.value for one in found if one is not None]


def bin_values(studies: Sequence[HumanStudy], name: str, which: str, place: int) -> list[float]:
    """|Spearman| within one of the bins (``which``: ``bins`` or ``quantile_bins``), by study."""
    found = []
    for study in studies:
        bins = getattr(study.score(name), which)
        inner = bins[place].correlation if place < len(bins) else None
        if inner is not None:
            found.append(abs(inner.value))
    return found


def by_score(
    studies: Studies, value: Callable[[Any], float | None]
) -> dict[str, dict[str, list[float | None]]]:
    """A value of every score, by network, one per seed."""
    names = [one.name for one in every_run(studies)[0].scores]
    return {
        model: {
            name: [value(study.score(name)) if study.score(name).correlations else None
                   for study in of_seeds]
            for name in names
        }
        for model, of_seeds in studies.items()
    }  # fmt: skip
