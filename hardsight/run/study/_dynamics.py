"""Follow norm, angle, confidence and accuracy along training; test the AVH paper's observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.errors import MissingDataError, OptionError, ShapeError, StatisticError, TableError
from hardsight.run.study._tables import (
    ShownAsTables,
    StudyTable,
    said_interval,
    said_p,
    titles_of,
)
from hardsight.run_folder import read_parquet
from hardsight.stats import HUMAN_BINS, Correlation, bin_index, correlation
from hardsight.table import ScoreTable, TableFile

Floats = NDArray[np.float64]

MEASURES = ("norm", "avh", "confidence", "loss", "correct")
SETTLED_SHARE = 0.1
"""A curve has settled when at most this share of its change from first to last is left."""
LEARNED_ACCURACY = 0.5
"""Accuracy from which a run is tested for whether its AVH follows people."""


@dataclass(frozen=True, eq=False)
class Histories:
    """Measures of some examples in every epoch.

    Attributes:
        name: of the run, for tables and legends.
        measures: ``[E, N]`` each: ``norm``, ``avh``, ``confidence``, ``loss``, ``correct``.
        rows: position of each example in the data, ``[N]``.
        examples: index, id and label of each, if they are known.
    """

    name: str
    measures: dict[str, Floats]
    rows: NDArray[np.int64]
    examples: ScoreTable | None = None

    @property
    def epochs(self) -> int:
        """Number of recorded epochs."""
        return len(self.measures["avh"])


def read_histories(run: Path, *, examples: str = "test", name: str | None = None) -> Histories:
    """Read the recorded epochs of a training run.

    Args:
        run: folder of ``hardsight train``.
        examples: ``train`` (recorded with ``track = true``), ``test`` (``track_test = true``) or
            another name from ``track_on``.
        name: of the run in tables; by default the name of its folder.

    Raises:
        MissingDataError: nothing was recorded there.
        TableError: an epoch is missing, unreadable or of another length.
        StatisticError: no example was seen in every epoch.
    """
    folder = run / "dynamics" if examples == "train" else run / "tracked" / examples
    files = sorted(folder.glob("epoch-*.parquet"))
    if not files:
        raise MissingDataError(_nothing_recorded(run, examples))
    columns: dict[str, list[Floats]] = {key: [] for key in MEASURES}
    seen: list[NDArray[np.bool_]] = []
    for epoch, file in enumerate(files, start=1):
        if file.name != f"epoch-{epoch:05d}.parquet":
            raise TableError(f"epoch {epoch} is missing in {folder}; train the run again")
        rows = TableFile(file).read()
        label, prediction = rows["label"].to_numpy(), rows["prediction"].to_numpy()
        if seen and len(label) != len(seen[0]):
            raise TableError(
                f"expected {len(seen[0]):,} examples in {file}, as in the epoch before, got "
                f"{len(label):,}"
            )
        seen.append(label >= 0)
        for key in MEASURES:
            values = (label == prediction) if key == "correct" else rows[key].to_numpy()
            columns[key].append(values.astype(np.float64))
    always = np.flatnonzero(np.logical_and.reduce(seen))
    if not len(always):
        raise StatisticError(f"no example of {folder} was seen in all {len(files)} epochs")
    measures = {key: np.stack(values)[:, always] for key, values in columns.items()}
    listed = folder / "examples.parquet"
    table = ScoreTable(read_parquet(listed), path=listed) if listed.exists() else None
    return Histories(name or run.name, measures, always, table)


def _nothing_recorded(run: Path, examples: str) -> str:
    if not run.is_dir():
        return f"no training run at {run}; make one with `hardsight train`"
    wanted = "track = true" if examples == "train" else "track_test = true and a test_split"
    there = sorted(folder.name for folder in (run / "tracked").glob("*") if folder.is_dir())
    there += ["train"] if (run / "dynamics").is_dir() else []
    hint = f"; recorded there: {', '.join(there)} (--examples)" if there else ""
    return (
        f"{run} holds no recorded epochs of its {examples} examples; train with {wanted} in the "
        f"recipe{hint}"
    )


@dataclass(frozen=True)
class Curves:
    """Means of a group of examples along training.

    Attributes:
        group: which examples, in words.
        n: number of examples.
        means: by measure, a value per epoch.
        stds: standard deviations over the examples, in the same order.
    """

    group: str
    n: int
    means: dict[str, tuple[float, ...]]
    stds: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class RunDynamics:
    """A run along its epochs.

    Attributes:
        name: of the run.
        epochs: number of epochs; they count from 1.
        overall: curves of all examples.
        groups: curves by human frequency, or of other groups that a caller made.
        settled: by measure, the epoch of :func:`settled_epoch`.
        human: Spearman's coefficient of AVH, confidence and norm with human frequency in every
            epoch.
    """

    name: str
    epochs: int
    overall: Curves
    groups: tuple[Curves, ...]
    settled: dict[str, int]
    human: dict[str, tuple[Correlation, ...]]


@dataclass(frozen=True)
class Observation:
    """An observation of the paper, tested on these runs.

    Attributes:
        name: ``O1`` to ``O4``.
        says: the observation.
        seen: the evidence, with numbers.
        holds: whether it holds; ``None`` if these runs do not decide it.
    """

    name: str
    says: str
    seen: str
    holds: bool | None


@dataclass(frozen=True)
class DynamicsStudy(ShownAsTables):
    """Runs along their epochs.

    Attributes:
        runs: an entry per run.
        observations: O1 to O4.
    """

    runs: tuple[RunDynamics, ...]
    observations: tuple[Observation, ...]

    def tables(self) -> list[StudyTable]:
        """First, last and settling epoch of each measure, and the observations."""
        return [_curve_table(self.runs), _observation_table(self.observations)]


def run_dynamics(
    histories: Histories,
    *,
    frequency: ArrayLike | None = None,
    groups: Mapping[str, ArrayLike] | None = None,
    bins: Sequence[float] = HUMAN_BINS,
) -> RunDynamics:
    """Curves of a run.

    Args:
        histories: from :func:`read_histories`.
        frequency: human selection frequency of the examples, ``[N]``, NaN where unknown.
        groups: other groups: by name, whether each example is in it, ``[N]``.
        bins: edges of the bins of human frequency.

    Raises:
        ShapeError: ``frequency`` or a group has another length.
    """
    measures, length = histories.measures, len(histories.rows)
    made = {name: np.asarray(rows, bool) for name, rows in (groups or {}).items()}
    human: dict[str, tuple[Correlation, ...]] = {}
    if frequency is not None:
        people = np.asarray(frequency, dtype=np.float64)
        if people.shape != (length,):
            raise ShapeError(f"expected {length} human frequencies, got {list(people.shape)}")
        known = np.isfinite(people)
        index = np.full(length, -1)  # no bin for examples without human labels
        index[known] = bin_index(people[known], bins)
        made |= {_bin_name(bins, b): index == b for b in range(len(bins) - 1)}
        human = _human(measures, people, known)
    for name, rows in made.items():
        if rows.shape != (length,):
            raise ShapeError(f"expected {length} values in the group {name!r}, got {rows.shape}")
    overall = _curves("all", measures, np.ones(length, bool))
    return RunDynamics(
        name=histories.name,
        epochs=histories.epochs,
        overall=overall,
        groups=tuple(_curves(name, measures, rows) for name, rows in made.items() if rows.any()),
        settled={key: settled_epoch(overall.means[key]) for key in MEASURES},
        human=human,
    )


def settled_epoch(means: Sequence[float], *, share: float = SETTLED_SHARE) -> int:
    """The first epoch, counted from 1, from which at most a share of a curve's change is left.

    The change is the difference between the first and the last epoch, and the rest in an epoch is
    its difference to the last value. A curve beyond its last value has nothing left: if it falls
    early and rises again a little, it has settled when it has fallen. A curve that ends where it
    began has settled once it stays within that share of its range.

    Example:
        >>> settled_epoch([1.0, 0.4, 0.05, 0.1, 0.0]), settled_epoch([1.0, 2.0, 3.0])
        (3, 3)
        >>> settled_epoch([1.0, 0.0, 0.1, 0.3])
        2
    """
    values = np.asarray(means, dtype=np.float64)
    way, change = values[-1] - values, values[-1] - values[0]
    left = way * np.sign(change) if change else np.abs(way)
    is_open = left > share * (abs(change) or np.ptp(values)) + 1e-12
    return int(np.flatnonzero(is_open)[-1]) + 2 if is_open.any() else 1


def observations(
    runs: Sequence[RunDynamics], *, accuracy: float = LEARNED_ACCURACY
) -> tuple[Observation, ...]:
    """Test the paper's four observations on runs.

    - O1 holds if in every run the mean norm correlates with the epoch (Spearman > 0, p < 0.05),
      and does not hold if in some run the norm falls just as clearly.
    - O2 holds if in every run AVH settles before accuracy or the loss does: when at most a tenth
      of its change from the first epoch to the last is left (:func:`settled_epoch`), more than a
      tenth of theirs still is.
    - O3 holds if AVH correlates negatively with human frequency (the 95 % interval is below 0) in
      every epoch of every run from the first in which ``accuracy`` is reached. Before that, the
      network has not learned the task that people were given.
    - O4 compares runs: it holds if in every pair the more accurate run has the lower mean AVH.

    Args:
        runs: along their epochs.
        accuracy: from which a run is judged by O3.

    Raises:
        OptionError: there is no run.

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Section 3.2.
    """
    if not runs:
        raise OptionError("expected at least one run, got none")
    people = _with_people(runs, accuracy)
    return (_rising_norm(runs), _early_plateau(runs), people, _better_models(runs))


def _rising_norm(runs: Sequence[RunDynamics]) -> Observation:
    says = "The norm of feature embeddings keeps increasing during training."
    verdicts: list[bool | None] = []
    parts = []
    for run in runs:
        means = run.overall.means["norm"]
        trend = trend_of(means)
        steps = np.diff(means)
        said = f"{run.name}: ‖x‖ {means[0]:.3g} → {means[-1]:.3g}"
        if trend is None:
            verdicts.append(None)
        else:
            verdicts.append(None if trend.p >= 0.05 else trend.value > 0)
            said += f", Spearman with the epoch {trend.value:+.2f} (p {said_p(trend.p)})"
        said += f", rose in {int((steps > 0).sum())} of {len(steps)} steps"
        parts.append(said)
    return Observation("O1", says, "; ".join(parts), _joint(verdicts))


def trend_of(means: Sequence[float]) -> Correlation | None:
    """Spearman of a curve with the epoch; ``None`` for fewer than 4 epochs or a flat curve."""
    try:
        return correlation(np.arange(len(means)), means)
    except StatisticError:
        return None


def _early_plateau(runs: Sequence[RunDynamics]) -> Observation:
    says = "AVH hits a plateau very early even when the accuracy or loss is still improving."
    verdicts: list[bool | None] = []
    parts = []
    for run in runs:
        at = run.settled
        verdicts.append(None if run.epochs < 4 else at["avh"] < max(at["correct"], at["loss"]))
        parts.append(
            f"{run.name}: settled from epoch {at['avh']} (AVH), {at['correct']} (accuracy), "
            f"{at['loss']} (loss), {at['norm']} (norm) of {run.epochs}"
        )
    return Observation("O2", says, "; ".join(parts), _joint(verdicts))


def _with_people(runs: Sequence[RunDynamics], accuracy: float) -> Observation:
    says = (
        "AVH's correlation with human selection frequency consistently holds across models "
        "throughout the training process."
    )
    tested = [run for run in runs if run.human]
    if not tested:
        return Observation("O3", says, "not tested: no human frequencies were given", None)
    parts: list[str] = []
    verdicts: list[bool | None] = []
    for run in tested:
        correlations = run.human["avh"]
        ends = f"{correlations[0].value:.3f} in epoch 1, {correlations[-1].value:.3f} in the last"
        part = f"{run.name}: Spearman {ends}"
        learned = learned_epoch(run, accuracy)
        if learned is None:
            verdicts.append(None)
            parts.append(f"{part}, not judged: accuracy stays below {100 * accuracy:g} %")
            continue
        later = correlations[learned - 1 :]
        verdicts.append(all(interval.high < 0 for interval in later))
        weakest = max(later, key=lambda interval: interval.value)
        parts.append(
            f"{part}, weakest from epoch {learned} on (accuracy of at least {100 * accuracy:g} %) "
            f"{said_interval(weakest)}"
        )
    return Observation("O3", says, "; ".join(parts), _joint(verdicts))


def learned_epoch(run: RunDynamics, accuracy: float = LEARNED_ACCURACY) -> int | None:
    """The first epoch, counted from 1, in which an accuracy is reached; ``None`` if in none."""
    reached = np.flatnonzero(np.asarray(run.overall.means["correct"]) >= accuracy)
    return int(reached[0]) + 1 if len(reached) else None


def _better_models(runs: Sequence[RunDynamics]) -> Observation:
    says = "Better models (higher accuracy) have lower average AVH."
    points = [(run.overall.means["correct"][-1], run.overall.means["avh"][-1]) for run in runs]
    listed = "; ".join(
        f"{run.name}: accuracy {accuracy:.3f}, AVH {avh:.4f}"
        for run, (accuracy, avh) in zip(runs, points, strict=True)
    )
    agree, pairs = concordance(points)
    if not pairs:
        return Observation("O4", says, f"needs two runs of different accuracy; {listed}", None)
    holds = True if agree == pairs else (False if 2 * agree < pairs else None)
    return Observation("O4", says, f"{agree} of {pairs} pairs of runs agree; {listed}", holds)


def concordance(points: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Count pairs whose larger first number has the smaller second; returns it with the total.

    Pairs with equal first numbers do not count.

    Example:
        >>> concordance([(0.9, 0.05), (0.8, 0.07), (0.7, 0.06)])
        (2, 3)
    """
    agree = pairs = 0
    for at, (x1, y1) in enumerate(points):
        for x2, y2 in points[at + 1 :]:
            if x1 != x2:
                pairs += 1
                agree += (x1 > x2) == (y1 < y2) and y1 != y2
    return agree, pairs


def _joint(verdicts: Sequence[bool | None]) -> bool | None:
    """True if all are true, False if any is false, else undecided."""
    if all(verdicts):
        return True
    return False if any(verdict is False for verdict in verdicts) else None


def _human(
    measures: Mapping[str, Floats], people: Floats, known: NDArray[np.bool_]
) -> dict[str, tuple[Correlation, ...]]:
    correlations = {}
    for key in ("avh", "confidence", "norm"):
        try:
            correlations[key] = tuple(
                correlation(row[known], people[known]) for row in measures[key]
            )
        except StatisticError:  # constant frequencies or scores, or too few of them
            continue
    return correlations if "avh" in correlations else {}


def _curves(name: str, measures: Mapping[str, Floats], rows: NDArray[np.bool_]) -> Curves:
    ddof = 1 if rows.sum() > 1 else 0
    return Curves(
        name,
        int(rows.sum()),
        {key: tuple(measures[key][:, rows].mean(axis=1).tolist()) for key in MEASURES},
        {key: tuple(measures[key][:, rows].std(axis=1, ddof=ddof).tolist()) for key in MEASURES},
    )


def _bin_name(bins: Sequence[float], b: int) -> str:
    return f"people [{bins[b]:g}, {bins[b + 1]:g}{']' if b == len(bins) - 2 else ')'}"


def _curve_table(runs: Sequence[RunDynamics]) -> StudyTable:
    titles = titles_of(["norm", "avh", "confidence", "correct"])
    rows = []
    for run in runs:
        for curves in (run.overall, *run.groups):
            cells = []
            for key in titles:
                means = curves.means[key]
                cells.append(f"{means[0]:.4g} → {means[-1]:.4g}")
            settled = [str(settled_epoch(curves.means[key])) for key in ("avh", "correct")]
            rows.append((run.name, curves.group, f"{curves.n:,}", *cells, ", ".join(settled)))
    return StudyTable(
        "First epoch → last epoch",
        ("run", "examples", "n", *titles.values(), "settled"),
        tuple(rows),
        "Means over examples; epochs count from 1. Settled: the first epoch from which no more "
        f"than {SETTLED_SHARE:.0%} of the change from first to last is left, of the mean of AVH "
        "and of that of accuracy.",
    )


def _observation_table(observed: Sequence[Observation]) -> StudyTable:
    words = {True: "yes", False: "no", None: "undecided"}
    return StudyTable(
        "The paper's observations",
        ("", "the paper says", "seen here", "holds"),
        tuple(
            (observation.name, observation.says, observation.seen, words[observation.holds])
            for observation in observed
        ),
    )
