"""Correlate scores with how much a picture was degraded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.errors import ShapeError, StatisticError
from hardsight.run.study._tables import NONE, ShownAsTables, StudyTable, said_interval
from hardsight.stats import Estimate, wilson_interval

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ScoreByLevel:
    """A score at every level of a degradation.

    Attributes:
        name: the score.
        higher_is_harder: its direction, if known.
        means: over the pictures, one per level.
        stds: over the pictures, one per level.
        pooled: Spearman's coefficient of level and score over all pictures and levels, as in the
            paper's figures; its rows are not independent, so it has no interval. NaN if the score
            is constant.
        within: Spearman's coefficient of level and score among the versions of one picture,
            averaged over pictures, with the normal interval of that mean; ``None`` if no
            picture's score varies.
    """

    name: str
    higher_is_harder: bool | None
    means: tuple[float, ...]
    stds: tuple[float, ...]
    pooled: float
    within: Estimate | None


@dataclass(frozen=True)
class DegradationStudy(ShownAsTables):
    """Scores against the levels of one degradation.

    Attributes:
        kind: ``noise`` (larger is harder to see) or ``contrast`` (larger is easier).
        levels: in the order they were passed.
        n: pictures, each at every level.
        accuracy: share of right predictions at every level, with Wilson's interval.
        scores: an entry per score.
    """

    kind: str
    levels: tuple[float, ...]
    n: int
    accuracy: tuple[Estimate, ...]
    scores: tuple[ScoreByLevel, ...]

    def score(self, name: str) -> ScoreByLevel:
        """The entry of one score.

        Raises:
            KeyError: there is none.
        """
        return {score.name: score for score in self.scores}[name]

    def tables(self) -> list[StudyTable]:
        """Means per level and the two coefficients as a table."""
        columns = ("", "accuracy", *(score.name for score in self.scores))
        rows = [
            (
                f"{self.kind} {level:g}",
                f"{self.accuracy[at].value:.3f}",
                *(f"{score.means[at]:.4g} ± {score.stds[at]:.2g}" for score in self.scores),
            )
            for at, level in enumerate(self.levels)
        ]
        pooled = (NONE if math.isnan(s.pooled) else f"{s.pooled:.3f}" for s in self.scores)
        rows.append(("Spearman, pooled", NONE, *pooled))
        within = (said_interval(score.within) for score in self.scores)
        rows.append(("Spearman within a picture", NONE, *within))
        harder = "more is harder to see" if self.kind == "noise" else "less is harder to see"
        return [
            StudyTable(
                f"Scores by level of {self.kind}",
                columns,
                tuple(rows),
                f"Mean ± standard deviation over {self.n:,} pictures; {harder}. Within a picture: "
                "mean over pictures with its 95 % interval.",
            )
        ]


def degradation_study(
    levels: Sequence[float],
    scores: Mapping[str, ArrayLike],
    correct: ArrayLike,
    *,
    kind: str,
    higher_is_harder: Mapping[str, bool] | None = None,
) -> DegradationStudy:
    """Correlate scores with the level of a degradation.

    Args:
        levels: L different numbers.
        scores: by name, ``[L, N]``: the same N pictures at every level.
        correct: whether each prediction is right, ``[L, N]``.
        kind: ``noise`` or ``contrast``.
        higher_is_harder: direction of each score, if known.

    Raises:
        ShapeError: an array has another shape.
        StatisticError: fewer than 2 levels, or the same level twice.

    Example:
        >>> avh = np.array([[0.1, 0.2], [0.2, 0.3], [0.5, 0.25]])
        >>> study = degradation_study([0.0, 0.1, 0.2], {"avh": avh}, avh < 0.4, kind="noise")
        >>> study.score("avh").within.value, study.accuracy[2].value
        (0.75, 0.5)

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Definition 4, Figs. 17 and 18.
    """
    right = np.asarray(correct, dtype=np.float64)
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    if len(levels) < 2 or len(set(levels)) < len(levels):
        raise StatisticError(f"expected at least 2 levels, each once, got {list(levels)}")
    for name, values in {"correct": right, **columns}.items():
        if values.shape != (len(levels), right.shape[-1]):
            raise ShapeError(
                f"expected [{len(levels)}, N] values (levels, pictures) in {name}, got "
                f"{list(values.shape)}"
            )
    at = np.asarray(levels, dtype=np.float64)
    directions = dict(higher_is_harder or {})
    return DegradationStudy(
        kind=kind,
        levels=tuple(float(level) for level in levels),
        n=right.shape[1],
        accuracy=tuple(_share(row) for row in right),
        scores=tuple(
            _by_level(name, at, values, directions.get(name)) for name, values in columns.items()
        ),
    )


def within_picture(levels: Floats, values: Floats) -> Floats:
    """Spearman's coefficient of level and score for every picture, ``[N]``; NaN if constant.

    Args:
        levels: ``[L]``.
        values: ``[L, N]``.

    Example:
        >>> values = np.array([[1.0, 9.0], [2.0, 5.0], [3.0, 4.0]])
        >>> within_picture(np.array([1.0, 2.0, 3.0]), values)
        array([ 1., -1.])
    """
    from scipy.stats import rankdata

    x = rankdata(levels) - (len(levels) + 1) / 2
    y = rankdata(values, axis=0) - (len(levels) + 1) / 2
    spread = np.sqrt((x**2).sum() * (y**2).sum(axis=0))
    coefficients: Floats = np.where(spread > 0, x @ y / np.where(spread > 0, spread, 1), np.nan)
    return coefficients


def _share(right: Floats) -> Estimate:
    low, high = wilson_interval(float(right.sum()), len(right))
    return Estimate(float(right.mean()), low, high, len(right), 0.95, "wilson")


def _by_level(name: str, levels: Floats, values: Floats, direction: bool | None) -> ScoreByLevel:
    from scipy.stats import spearmanr

    finite = np.isfinite(values).all(axis=0)
    kept = values[:, finite]
    flat, at = kept.ravel(), np.repeat(levels, kept.shape[1])
    varies = flat.size > 1 and bool((flat != flat[0]).any())
    pooled = float(spearmanr(at, flat).statistic) if varies else math.nan
    each = within_picture(levels, kept)
    each = each[~np.isnan(each)]
    within = None
    if len(each) > 1:
        mean, error = float(each.mean()), float(each.std(ddof=1)) / math.sqrt(len(each))
        low, high = max(-1.0, mean - 1.96 * error), min(1.0, mean + 1.96 * error)
        within = Estimate(mean, low, high, len(each), 0.95, "normal")
    return ScoreByLevel(
        name,
        direction,
        tuple(float(row.mean()) for row in kept),
        tuple(float(row.std(ddof=1)) if len(row) > 1 else 0.0 for row in kept),
        pooled,
        within,
    )
