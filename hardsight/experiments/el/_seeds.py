"""Values over seeds of which some runs were lost: means, paired comparisons, and the words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hardsight.experiments.el._recipes import Fitted
from hardsight.experiments.lab import Claim, Compared, PerSeed, Spread, Table, spread

T = TypeVar("T")
CHOICE = "chosen by the mean on validation, among those that lost the fewest runs"


def values_of(runs: Sequence[T | None], value: Callable[[T], float]) -> list[float | None]:
    """A number of each run, or ``None`` if there is no run.

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


def best_of_test(runs: Sequence[Fitted | None]) -> list[float | None]:
    """The largest test accuracy of any epoch of each run, per cent."""
    return values_of(runs, lambda one: one.best_test)


def best_test_table(
    columns: Sequence[str], rows: Mapping[str, Sequence[Sequence[Fitted | None] | None]]
) -> list[Table]:
    """What the paper reports, if the runs know it: the best epoch on the test split.

    Args:
        columns: headings of the runs.
        rows: by name, the runs of every column; ``None`` if there are none.
    """
    known = [one for row in rows.values() for runs in row for one in ended(runs or [])]
    if not known or any(math.isnan(one.best_test) for one in known):
        return []
    return [
        Table(
            "Test accuracy of the best epoch on the test split, %",
            ("loss", *columns),
            [
                [name, *(None if runs is None else spread_of(best_of_test(runs)) for runs in row)]
                for name, row in rows.items()
            ],
            note="What the paper reports. The test split chose the epoch, so these numbers are "
            "too high for what they say, for every loss; no claim is judged by them.",
        )
    ]


def ended(runs: Sequence[T | None]) -> list[T]:
    """Those that were not lost."""
    return [one for one in runs if one is not None]


def lost_in(runs: Sequence[object]) -> int:
    """How many were lost."""
    return sum(one is None for one in runs)


def lost_note(runs: Mapping[str, Sequence[object]]) -> str:
    """How many runs were lost, in words, to put under a table.

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


def claim_of(says: str, paper: str, found: Compared, *, larger: bool = True) -> Claim:
    """A claim that a difference is positive (or, with ``larger=False``, negative)."""
    above = found.is_above
    return Claim(says, paper, str(found), above if above is None or larger else not above)
