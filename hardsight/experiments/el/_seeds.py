"""Values over seeds of which some runs were lost: means, paired comparisons, and the words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hardsight.experiments.el._recipes import Fitted
from hardsight.experiments.lab import Claim, Spread, spread
from hardsight.stats import adjusted_p_values, t_test

T = TypeVar("T")
# one value per seed, in the order of the seeds; None where the run was lost
PerSeed = Sequence[float | None]
CHOICE = "chosen by the mean on validation, among those that lost the fewest runs"
_LEVEL = 0.05


def values_of(runs: Sequence[T | None], value: Callable[[T], float]) -> list[float | None]:
    """A number of each run, and ``None`` where there is no run.

    Example:
        >>> values_of(["ab", None, "abc"], len)
        [2, None, 3]
    """
    return [None if one is None else value(one) for one in runs]


def accuracies_of(runs: Sequence[Fitted | None]) -> list[float | None]:
    """Test accuracy of each run, per cent."""
    return values_of(runs, lambda one: one.test)


def validations_of(runs: Sequence[Fitted | None]) -> list[float | None]:
    """Validation accuracy of each run, per cent."""
    return values_of(runs, lambda one: one.validation)


def ended(runs: Sequence[T | None]) -> list[T]:
    """Those that were not lost."""
    return [one for one in runs if one is not None]


def lost_in(runs: Sequence[object]) -> int:
    """How many were lost."""
    return sum(one is None for one in runs)


def lost_note(runs: Mapping[str, Sequence[object]]) -> str:
    """How many runs were lost, in words, to stand under a table.

    Example:
        >>> lost_note({"CE": [91.0, 92.0], "EL": [93.0, None]})
        ' Lost, as the loss became infinite or NaN, and left out of every mean: 1 of 2 runs of EL.'
        >>> lost_note({"CE": [91.0, 92.0]})
        ' No run was lost.'
    """
    lost = [
        f"{lost_in(each)} of {len(each)} runs of {name}"
        for name, each in runs.items()
        if lost_in(each)
    ]
    if not lost:
        return " No run was lost."
    why = "Lost, as the loss became infinite or NaN, and left out of every mean"
    return f" {why}: {'; '.join(lost)}."


def spread_of(values: PerSeed) -> Spread | str:
    """Mean over the runs that ended, as a cell that says how many those are.

    Example:
        >>> print(spread_of([90.0, None, 92.0]))
        91.00 ± 1.41 (2 of 3)
        >>> spread_of([None, None])
        'none of 2 ended'
    """
    there = ended(values)
    if not there:
        return f"none of {len(values)} ended"
    return spread(there, lost=lost_in(values))


def best_of(values: Mapping[Any, PerSeed]) -> Any:
    """The key with the largest mean, of those that lost the fewest runs; the first of equal ones.

    A key that lost more runs than another is not chosen: the mean of what is left of it says
    nothing of the runs that it loses.

    Example:
        >>> best_of({0.25: [90.0, 91.0], 0.5: [92.0, 91.0], 1.0: [92.0, 91.0]})
        0.5
        >>> best_of({0.25: [90.0, 91.0], 0.5: [92.0, None]})
        0.25
    """

    def rank(key: Any) -> tuple[int, float]:
        there = ended(values[key])
        return -lost_in(values[key]), spread(there).mean if there else -math.inf

    return max(values, key=rank)


def both_ended(first: PerSeed, second: PerSeed) -> list[tuple[float, float]]:
    """The pairs of the seeds at which neither run was lost.

    Example:
        >>> both_ended([1.0, None, 3.0], [4.0, 5.0, None])
        [(1.0, 4.0)]
    """
    pairs = zip(first, second, strict=True)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


@dataclass(frozen=True)
class Compared:
    """Two recipes over the seeds at which both ended.

    Attributes:
        difference: mean of the first minus mean of the second; NaN where there is no pair.
        low: lower end of the 95 % interval of the difference; NaN for fewer than two pairs.
        high: upper end.
        p: of the paired t test, raised by Holm's method; NaN for fewer than two pairs.
        pairs: seeds at which both ended.
        seeds: all seeds.
    """

    difference: float
    low: float
    high: float
    p: float
    pairs: int
    seeds: int

    def __str__(self) -> str:
        some = f"{self.pairs} of {self.seeds} seeds"
        if self.pairs == 0:
            return f"nothing to compare: both ended at {some}"
        if math.isnan(self.p):
            return f"{self.difference:+.2f} ({'one seed' if self.seeds == 1 else some})"
        text = f"{self.difference:+.2f} [{self.low:+.2f}, {self.high:+.2f}], p = {self.p:.3f}"
        return text if self.pairs == self.seeds else f"{text} ({some})"

    @property
    def is_above(self) -> bool | None:
        """Whether the first is larger; ``None`` where that may be chance."""
        return self.difference > 0 if self.p < _LEVEL else None


def compared(pairs: Mapping[str, tuple[PerSeed, PerSeed]]) -> dict[str, Compared]:
    """Paired t tests over seeds, with Holm's correction over all of ``pairs``.

    Example:
        >>> found = compared({"a": ([3.0, 4.1, 5.0], [1.0, 2.0, 3.0]), "b": ([1, 2], [1, 2])})
        >>> str(found["a"]), found["b"].p
        ('+2.03 [+1.89, +2.18], p = 0.001', 1.0)
        >>> str(compared({"lost": ([3.0, None, 5.0], [1.0, 2.0, None])})["lost"])
        '+2.00 (1 of 3 seeds)'
    """
    raw = {name: _paired(*pair) for name, pair in pairs.items()}
    tested = [name for name, one in raw.items() if not math.isnan(one.p)]
    raised = adjusted_p_values([raw[name].p for name in tested])
    for name, p in zip(tested, raised, strict=True):
        raw[name] = replace(raw[name], p=float(p))
    return raw


def _paired(first: PerSeed, second: PerSeed) -> Compared:
    pairs = both_ended(first, second)
    counts = {"pairs": len(pairs), "seeds": len(first)}
    apart = [a - b for a, b in pairs]
    mean = sum(apart) / len(apart) if apart else math.nan
    if len(apart) < 2:
        return Compared(mean, math.nan, math.nan, math.nan, **counts)
    if max(apart) - min(apart) < 1e-12:  # nothing varies: equal, or the same step each time
        return Compared(mean, mean, mean, 1.0 if mean == 0 else 0.0, **counts)
    found = t_test([a for a, _ in pairs], [b for _, b in pairs], paired=True)
    return Compared(found.difference, found.low, found.high, found.p, **counts)


def claim_of(says: str, paper: str, found: Compared, *, larger: bool = True) -> Claim:
    """A claim that a difference is positive (or, with ``larger=False``, negative)."""
    above = found.is_above
    return Claim(says, paper, str(found), above if above is None or larger else not above)
