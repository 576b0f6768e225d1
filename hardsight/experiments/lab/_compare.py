"""Two sets of runs against each other, and what may be said of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hardsight.errors import StatisticError
from hardsight.experiments.lab._result import said, spread
from hardsight.stats import TTest, adjusted_p_values, t_test


def compared(first: Sequence[float], second: Sequence[float]) -> TTest | None:
    """Welch's t test over seeds with a value; None with a single seed, or without any spread.

    Example:
        >>> compared([1.0], [2.0]) is None
        True
        >>> compared([1.0, math.nan], [2.0, 3.0]) is None
        True
    """
    known = ([value for value in values if not math.isnan(value)] for values in (first, second))
    try:
        return t_test(*known)
    except StatisticError:
        return None


def corrected(tests: Sequence[TTest | None]) -> list[TTest | None]:
    """The same tests with p-values raised by Holm's method over those there are.

    Differences and intervals stay those of each test by itself.

    Example:
        >>> sure = compared([3.0, 3.1, 3.2], [1.0, 1.1, 1.2])
        >>> raised = corrected([sure, None, sure])
        >>> raised[1] is None, round(raised[0].p / sure.p, 6), round(raised[2].p / sure.p, 6)
        (True, 2.0, 2.0)
    """
    raised = iter(adjusted_p_values([test.p for test in tests if test is not None]))
    return [None if test is None else replace(test, p=float(next(raised))) for test in tests]


def verdict(test: TTest | None, *, level: float = 0.05) -> bool | None:
    """Whether the first is larger: yes, no, or undecided at this level.

    Example:
        >>> verdict(compared([3.0, 3.1, 3.2], [1.0, 1.1, 1.2]))
        True
        >>> verdict(compared([1.0, 1.1, 1.2], [3.0, 3.1, 3.2]))
        False
        >>> verdict(compared([1.0, 5.0], [2.0, 3.0])) is None
        True
    """
    if test is None or test.p >= level:
        return None
    return test.difference > 0


def in_words(
    name: str, first: Sequence[float], other: str, second: Sequence[float], test: TTest | None
) -> str:
    """Two means and the test between them.

    Example:
        >>> in_words("A", [2.0], "B", [1.0], None)
        'A 2.00, B 1.00, no test'
    """
    p = "no test" if test is None else f"p = {test.p:.4f}"
    return f"{name} {said(spread(first))}, {other} {said(spread(second))}, {p}"
