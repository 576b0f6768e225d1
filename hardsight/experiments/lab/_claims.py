"""The one rule for claims: paired over seeds, with an interval, corrected within an experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hardsight.experiments.lab._result import Claim, spread
from hardsight.stats import adjusted_p_values, t_test

# one value per seed, in the order of the seeds; None where the run was lost
PerSeed = Sequence[float | None]
RULE = (
    "Claims: differences paired over seeds, with a 95 % interval; p by Holm's method over all "
    "claims of the page that compare two recipes."
)
_LEVEL = 0.05
_SLACK = 2.0


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
        difference: mean of the first minus mean of the second; NaN if there is no pair.
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
        """Whether the first is larger; ``None`` if that may be chance."""
        return self.difference > 0 if self.p < _LEVEL else None


def compared_in_pairs(pairs: Mapping[str, tuple[PerSeed, PerSeed]]) -> dict[str, Compared]:
    """Paired t tests over seeds, with Holm's correction over all of ``pairs``.

    Example:
        >>> pairs = {"a": ([3.0, 4.1, 5.0], [1.0, 2.0, 3.0]), "b": ([1, 2], [1, 2])}
        >>> found = compared_in_pairs(pairs)
        >>> str(found["a"]), found["b"].p
        ('+2.03 [+1.89, +2.18], p = 0.001', 1.0)
        >>> str(compared_in_pairs({"lost": ([3.0, None, 5.0], [1.0, 2.0, None])})["lost"])
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


@dataclass(frozen=True)
class Question:
    """A sentence of a paper that sets one recipe above another.

    Attributes:
        says: the sentence.
        paper: the paper's own number or reference.
        first: one value per seed of the recipe that it praises.
        second: of the other one.
        larger: whether more is better; if not, the sentence says "less".
        weak: why the network is too weak to be asked, in words; empty if it is not.
    """

    says: str
    paper: str
    first: PerSeed
    second: PerSeed
    larger: bool = True
    weak: str = ""


def judged(questions: Sequence[Question]) -> list[Claim]:
    """The questions of an experiment answered, corrected over all those that are tested.

    Example:
        >>> more, less = [3.0, 4.1, 5.0], [1.0, 2.0, 3.0]
        >>> claims = judged([Question("a", "", more, less), Question("b", "", less, more)])
        >>> [claim.holds for claim in claims]
        [True, False]
        >>> judged([Question("c", "", more, less, weak="10 % instead of 99 %")])[0].holds is None
        True
    """
    fit = {str(at): (q.first, q.second) for at, q in enumerate(questions) if not q.weak}
    found = compared_in_pairs(fit)
    claims = []
    for at, question in enumerate(questions):
        if question.weak:
            one = compared_in_pairs({"": (question.first, question.second)})[""]
            seen = f"{question.weak}; uncorrected: {one}"
            claims.append(Claim(question.says, question.paper, seen, None, is_weak=True))
            continue
        one = found[str(at)]
        above = one.is_above
        holds = above if above is None or question.larger else not above
        claims.append(Claim(question.says, question.paper, str(one), holds))
    return claims


def weakness(reached: PerSeed, good: float | None) -> str:
    """Why a network is too weak to judge by, in words; empty if it is strong enough.

    Args:
        reached: accuracy per seed with the plain recipe, per cent.
        good: what the same network reaches on this data with a good recipe; ``None`` if that
            is not known, and nothing is asked.

    Example:
        >>> weakness([99.3, 99.1], 99.4), weakness([90.0, 92.0], 99.4)
        ('', '91.0 % reached, and at least 97.4 % are needed')
    """
    there = [value for value in reached if value is not None]
    if good is None or not there:
        return ""
    mean = spread(there).mean
    least = good - _SLACK
    return "" if mean >= least else f"{mean:.1f} % reached, and at least {least:.1f} % are needed"
