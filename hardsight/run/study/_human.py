"""Compare scores with people: the AVH paper's four hypotheses, for any columns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.errors import OptionError, ShapeError, StatisticError
from hardsight.run.study._galleries import Gallery, galleries_of, gallery_tables
from hardsight.run.study._tables import (
    NONE,
    ShownAsTables,
    StudyTable,
    histogram,
    said_bin,
    said_interval,
    said_p,
)
from hardsight.stats import (
    HUMAN_BINS,
    BinCorrelation,
    Correlation,
    CorrelationComparison,
    adjusted_p_values,
    binned_correlations,
    compare_correlations,
    correlation,
    partial_correlation,
    quantile_edges,
)

Floats = NDArray[np.float64]

AVH, CONFIDENCE, NORM = "avh", "model_confidence", "feature_norm"
NORM_IN_CLASS = "class_normalized_feature_norm"
METHODS = ("spearman", "pearson", "kendall")


@dataclass(frozen=True)
class ScoreAgainstPeople:
    """The correlation of a score with human selection frequency.

    Attributes:
        name: the column.
        higher_is_harder: its direction; a hardness should correlate negatively.
        n: examples with a finite score and a known frequency.
        correlations: by method; empty if the score is constant.
        p_adjusted: of Spearman's coefficient, raised by Holm's method over all scores.
        bins: Spearman within the paper's bins of human frequency.
        quantile_bins: Spearman within bins that hold about the same number of examples.
        within_class: Spearman among examples of the same class; ``None`` if undefined.
        reason: why there is no correlation; empty if there is one.
    """

    name: str
    higher_is_harder: bool | None
    n: int
    correlations: dict[str, Correlation]
    p_adjusted: float | None
    bins: tuple[BinCorrelation, ...]
    quantile_bins: tuple[BinCorrelation, ...]
    within_class: Correlation | None
    reason: str = ""


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis of the paper, and its test on these data.

    Attributes:
        name: ``H1`` to ``H4``.
        says: the hypothesis.
        rejected: whether its null hypothesis is rejected; ``None`` if it was not tested.
        outcome: the result in words, with the numbers.
        paper: the paper's outcome.
        p: of the test; for H3 of the dependent one.
        p_adjusted: raised by Holm's method over the hypotheses tested.
    """

    name: str
    says: str
    rejected: bool | None
    outcome: str
    paper: str
    p: float | None
    p_adjusted: float | None


@dataclass(frozen=True)
class HumanStudy(ShownAsTables):
    """Scores against human selection frequency.

    Attributes:
        n: examples with a known frequency.
        left_out: examples without one.
        alpha: level of every decision.
        test: the dependent test between two correlations.
        scores: each score, the strongest by Spearman first.
        comparisons: AVH against model confidence, per method: the dependent test, then the
            paper's independent one.
        hypotheses: H1 to H4.
        histograms: counts over frequency and score, by score.
        galleries: examples on which people and the network disagree most, by AVH.
    """

    n: int
    left_out: int
    alpha: float
    test: str
    scores: tuple[ScoreAgainstPeople, ...]
    comparisons: tuple[CorrelationComparison, ...]
    hypotheses: tuple[Hypothesis, ...]
    histograms: dict[str, Any] = field(repr=False)
    galleries: tuple[Gallery, ...] = ()

    def score(self, name: str) -> ScoreAgainstPeople:
        """The entry of one score.

        Raises:
            KeyError: there is none.
        """
        return {score.name: score for score in self.scores}[name]

    def tables(self) -> list[StudyTable]:
        """Correlations, bins, comparison and hypotheses as tables."""
        return [
            _correlation_table(self),
            _bin_table(self, "bins", "the paper's bins of human frequency"),
            _bin_table(self, "quantile_bins", "quantile bins of human frequency"),
            *([_comparison_table(self)] if self.comparisons else []),
            _hypothesis_table(self),
            *gallery_tables(self.galleries),
        ]


def human_study(
    scores: Mapping[str, ArrayLike],
    frequency: ArrayLike,
    *,
    labels: ArrayLike,
    higher_is_harder: Mapping[str, bool] | None = None,
    test: str = "steiger",
    bins: Sequence[float] = HUMAN_BINS,
    quantiles: int = 5,
    alpha: float = 0.05,
    gallery: int = 12,
) -> HumanStudy:
    """Correlate every score with the share of people who chose the label.

    Args:
        scores: by name, ``[N]`` each. ``avh``, ``model_confidence`` and ``feature_norm`` are used
            for the hypotheses; for H4 the norm is scaled to [0, 1] within each class, as in the
            paper.
        frequency: human selection frequency in [0, 1], NaN if unknown, ``[N]``.
        labels: class of each example, ``[N]``.
        higher_is_harder: direction of each score, if known.
        test: between two correlations: ``"steiger"``, ``"meng"`` or ``"bootstrap"``. The paper's
            ``"fisher"`` is always computed as well.
        bins: edges of the bins of frequency; half-open, the last one closed.
        quantiles: number of quantile bins; fewer result if many frequencies are equal.
        alpha: level of every decision.
        gallery: number of examples that are hard for people and easy for the network, and of the
            reverse; needs a score ``avh``.

    Raises:
        ShapeError: the columns differ in length.
        OptionError: a frequency is outside [0, 1], ``alpha`` outside (0, 1), ``gallery`` negative,
            or ``test`` is independent.
        StatisticError: fewer than 4 frequencies are known, or all are equal.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> people = draw.uniform(size=400)
        >>> study = human_study(
        ...     {"avh": 0.3 - 0.2 * people + 0.1 * draw.normal(size=400)},
        ...     people, labels=np.arange(400) % 4, higher_is_harder={"avh": True},
        ... )
        >>> study.hypotheses[0].rejected, study.score("avh").correlations["spearman"].value < -0.3
        (True, True)

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Section 4, Tables 1 and 2. Their linear
        scaling of AVH to [0, 1] changes none of these coefficients and is left out.
        Deviation: the two correlations of H3 share the people's column, so the dependent test
        decides.
    """
    if test not in ("steiger", "meng", "bootstrap"):
        raise OptionError(
            f"expected test to be 'steiger', 'meng' or 'bootstrap', got {test!r}; the paper's "
            "'fisher' is always given beside it"
        )
    if not 0 < alpha < 1:
        raise OptionError(f"expected alpha in (0, 1), got {alpha}")
    if gallery < 0:
        raise OptionError(f"expected gallery of at least 0, got {gallery}")
    people, classes = np.asarray(frequency, dtype=np.float64), np.asarray(labels)
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    _check(people, classes, columns)
    if NORM in columns and NORM_IN_CLASS not in columns:
        columns[NORM_IN_CLASS] = min_max_in_class(columns[NORM], classes)
    known = np.isfinite(people)
    directions = dict(higher_is_harder or {})
    if NORM in directions:
        directions.setdefault(NORM_IN_CLASS, directions[NORM])
    edges = quantile_edges(people[known], quantiles)
    scored = [
        _against_people(name, values, people, classes, directions.get(name), bins, edges)
        for name, values in columns.items()
    ]
    scored = _adjusted(scored)
    comparisons = _comparisons(columns, people, test)
    shown = [name for name in (AVH, CONFIDENCE, NORM_IN_CLASS) if name in columns]
    return HumanStudy(
        n=int(known.sum()),
        left_out=int((~known).sum()),
        alpha=alpha,
        test=test,
        scores=tuple(sorted(scored, key=_strength, reverse=True)),
        comparisons=tuple(comparisons),
        hypotheses=_hypotheses({score.name: score for score in scored}, comparisons, alpha),
        histograms={name: _histogram(people, columns[name]) for name in shown},
        galleries=galleries_of(
            columns[AVH], people, classes, by=AVH, harder=directions.get(AVH, True), most=gallery
        )
        if AVH in columns and gallery
        else (),
    )


def min_max_in_class(values: ArrayLike, labels: ArrayLike) -> Floats:
    """Scale values to [0, 1] within each class; NaN if a class has a single value.

    Example:
        >>> min_max_in_class([1, 3, 2, 10, 30], [0, 0, 0, 1, 1])
        array([0. , 1. , 0.5, 0. , 1. ])
    """
    numbers, classes = np.asarray(values, dtype=np.float64), np.asarray(labels)
    scaled = np.full(len(numbers), np.nan)
    for label in np.unique(classes):
        rows = (classes == label) & np.isfinite(numbers)
        if rows.any():
            low, high = numbers[rows].min(), numbers[rows].max()
            if high > low:
                scaled[rows] = (numbers[rows] - low) / (high - low)
    return scaled


def _check(people: Floats, classes: NDArray[Any], columns: Mapping[str, Floats]) -> None:
    lengths = {"frequency": people.shape, "labels": classes.shape}
    lengths |= {name: values.shape for name, values in columns.items()}
    if len(set(lengths.values())) > 1 or people.ndim != 1:
        got = ", ".join(f"{name} {list(shape)}" for name, shape in lengths.items())
        raise ShapeError(f"expected one value per example in every column, got {got}")
    known = people[np.isfinite(people)]
    if len(known) < 4:
        raise StatisticError(
            f"expected at least 4 examples whose human frequency is known, got {len(known)}"
        )
    if known.min() < 0 or known.max() > 1:
        raise OptionError(
            f"expected human frequencies in [0, 1], got {known.min():g} to {known.max():g}; divide "
            "counts by the number of people"
        )
    if (known == known[0]).all():
        raise StatisticError(
            f"all {len(known):,} human frequencies are {known[0]:g}, so nothing can vary with them"
        )


def _against_people(
    name: str,
    values: Floats,
    people: Floats,
    classes: NDArray[Any],
    direction: bool | None,
    bins: Sequence[float],
    edges: Floats,
) -> ScoreAgainstPeople:
    rows = np.isfinite(values) & np.isfinite(people)
    x, y, group = values[rows], people[rows], classes[rows]
    plain = ScoreAgainstPeople(name, direction, len(x), {}, None, (), (), None)
    try:
        if len(x) and (x == x[0]).all():  # checked here already, where the column's name is known
            raise StatisticError(f"{name} is constant: all {len(x):,} values are {x[0]:g}")
        by_method = {method: correlation(x, y, method=method) for method in METHODS}
    except StatisticError as err:
        return dataclasses.replace(plain, reason=str(err))
    try:
        within = partial_correlation(x, y, group)
    except StatisticError:  # fewer examples than classes, or one value per class
        within = None
    return dataclasses.replace(
        plain,
        correlations=by_method,
        bins=tuple(binned_correlations(x, y, y, edges=bins)),
        quantile_bins=tuple(binned_correlations(x, y, y, edges=edges)),
        within_class=within,
    )


def _adjusted(scored: Sequence[ScoreAgainstPeople]) -> list[ScoreAgainstPeople]:
    tested = [score for score in scored if score.correlations]
    # by Spearman alone, as the hypotheses are tested
    raised = adjusted_p_values([score.correlations["spearman"].p for score in tested])
    by_name = {score.name: float(p) for score, p in zip(tested, raised, strict=True)}
    return [dataclasses.replace(score, p_adjusted=by_name.get(score.name)) for score in scored]


def _strength(score: ScoreAgainstPeople) -> float:
    return abs(score.correlations["spearman"].value) if score.correlations else -1.0


def _comparisons(
    columns: Mapping[str, Floats], people: Floats, test: str
) -> list[CorrelationComparison]:
    """AVH against confidence by every method; empty if it is undefined."""
    if AVH not in columns or CONFIDENCE not in columns:
        return []
    rows = np.isfinite(columns[AVH]) & np.isfinite(columns[CONFIDENCE]) & np.isfinite(people)
    x1, x2, y = columns[AVH][rows], columns[CONFIDENCE][rows], people[rows]
    try:
        return [
            compare_correlations(x1, x2, y, method=method, test=kind, magnitudes=True)
            for method in METHODS
            # the paper's own test, for comparison: it takes the coefficients for independent
            for kind in (test, "fisher")
        ]
    except StatisticError:
        return []


def _hypotheses(
    scores: Mapping[str, ScoreAgainstPeople],
    comparisons: Sequence[CorrelationComparison],
    alpha: float,
) -> tuple[Hypothesis, ...]:
    subjects = {"H1": AVH, "H2": CONFIDENCE, "H4": NORM_IN_CLASS}
    p: dict[str, float] = {
        key: scores[name].correlations["spearman"].p
        for key, name in subjects.items()
        if name in scores and scores[name].correlations
    }
    if comparisons:
        p["H3"] = comparisons[0].p
    keys = sorted(p)
    raised = dict(zip(keys, adjusted_p_values([p[key] for key in keys]).tolist(), strict=True))
    made = []
    for key, (says, paper) in _SAYS.items():
        rejected: bool | None = None
        if key not in p:
            name = subjects.get(key, f"{AVH} or {CONFIDENCE}")
            score = scores.get(name)
            reason = score.reason if score else f"there is no usable column {name}"
            outcome = f"Not tested: {reason}."
        elif key == "H3":
            rejected = raised[key] < alpha
            outcome = _compared_in_words(comparisons, rejected, raised[key])
            # the hypothesis is one-sided: a stronger confidence is no evidence for it
            rejected = rejected and comparisons[0].difference > 0
        else:
            rejected = raised[key] < alpha
            outcome = _tested_in_words(scores[subjects[key]], rejected, raised[key])
        made.append(Hypothesis(key, says, rejected, outcome, paper, p.get(key), raised.get(key)))
    return tuple(made)


_REJECTED, _KEPT = "Null hypothesis rejected", "Failure to reject the null hypothesis"
_SAYS = {
    "H1": ("AVH has a correlation with human selection frequency.", _REJECTED),
    "H2": ("Model confidence has a correlation with human selection frequency.", _REJECTED),
    "H3": (
        "AVH has a stronger correlation with human selection frequency than model confidence.",
        _REJECTED,
    ),
    "H4": ("The norm ‖x‖ has a correlation with human selection frequency.", _KEPT),
}


def _tested_in_words(score: ScoreAgainstPeople, rejected: bool, p: float) -> str:
    estimate = score.correlations["spearman"]
    numbers = f"Spearman {said_interval(estimate)}, adjusted p {said_p(p)}, n {estimate.n:,}"
    if not rejected:
        return f"{_KEPT}: {numbers}."
    harder = score.higher_is_harder
    if harder is None or (estimate.value < 0) == harder:
        return f"{_REJECTED}: {numbers}."
    return f"{_REJECTED}, but in the direction opposite to the expected one: {numbers}."


def _compared_in_words(
    comparisons: Sequence[CorrelationComparison], differs: bool, p: float
) -> str:
    ours, paper = comparisons[0], comparisons[1]
    numbers = (
        f"|Spearman| {ours.first:.3f} for AVH and {ours.second:.3f} for confidence, difference "
        f"{ours.difference:+.3f} [{ours.low:+.3f}, {ours.high:+.3f}], {ours.test} z {ours.z:.2f}, "
        f"adjusted p {said_p(p)}; the paper's independent test gives z {paper.z:.2f}, "
        f"p {said_p(paper.p)}"
    )
    if not differs:
        return f"{_KEPT}: no difference is shown. {numbers}."
    if ours.difference > 0:
        return f"{_REJECTED}: AVH is the stronger. {numbers}."
    return f"{_KEPT}: model confidence is the stronger. {numbers}."


def _histogram(people: Floats, values: Floats) -> dict[str, Any]:
    rows = np.isfinite(people) & np.isfinite(values)
    return histogram(people[rows], values[rows]) if rows.any() else {}


def _correlation_table(study: HumanStudy) -> StudyTable:
    rows = []
    for score in study.scores:
        by = score.correlations
        kendall = said_interval(by.get("kendall"))
        cells = [said_interval(by.get(method)) for method in ("spearman", "pearson")]
        last = score.reason or said_interval(score.within_class)
        rows.append((score.name, f"{score.n:,}", *cells, kendall, said_p(score.p_adjusted), last))
    return StudyTable(
        "Scores against human selection frequency",
        ("score", "n", "Spearman", "Pearson", "Kendall", "p (Holm)", "Spearman within classes"),
        tuple(rows),
        "95 % intervals. A hardness is expected to be negative, a confidence positive. "
        f"{study.left_out:,} examples have no human frequency and are left out.",
    )


def _bin_table(study: HumanStudy, which: str, title: str) -> StudyTable:
    tested = [score for score in study.scores if score.correlations]
    bins: Sequence[BinCorrelation] = getattr(tested[0], which) if tested else ()
    rows = [("examples", *(f"{part.n:,}" for part in bins))]
    for score in tested:
        entries: Sequence[BinCorrelation] = getattr(score, which)
        rows.append((score.name, *(_value(entry) for entry in entries)))
    return StudyTable(
        f"Spearman within {title}",
        ("score", *(said_bin(bins, place) for place in range(len(bins)))),
        tuple(rows),
        f"Bins are half-open, the last one is closed. {NONE}: too few examples, or equal ones.",
    )


def _value(entry: BinCorrelation) -> str:
    return NONE if entry.correlation is None else f"{entry.correlation.value:.3f}"


def _comparison_table(study: HumanStudy) -> StudyTable:
    rows = tuple(
        (
            comparison.method,
            comparison.test + (" (the paper's)" if comparison.test == "fisher" else ""),
            f"{comparison.first:.3f}",
            f"{comparison.second:.3f}",
            f"{comparison.difference:+.3f} [{comparison.low:+.3f}, {comparison.high:+.3f}]",
            f"{comparison.z:.2f}" if math.isfinite(comparison.z) else NONE,
            said_p(comparison.p),
        )
        for comparison in study.comparisons
    )
    return StudyTable(
        "AVH against model confidence",
        ("coefficient", "test", "|AVH|", "|confidence|", "difference", "z", "p"),
        rows,
        "Two-sided. Both coefficients share the human column, which the paper's test ignores.",
    )


def _hypothesis_table(study: HumanStudy) -> StudyTable:
    rows = tuple(
        (hypothesis.name, hypothesis.says, hypothesis.outcome, hypothesis.paper)
        for hypothesis in study.hypotheses
    )
    return StudyTable(
        "Hypotheses",
        ("", "hypothesis", "outcome here", "outcome in the paper"),
        rows,
        f"Level {study.alpha:g}, p-values raised by Holm's method over the hypotheses tested.",
    )
