"""The one rule for claims: paired over seeds, with an interval, corrected within an experiment.

``docs/papers/claims.md`` says it in words.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hardsight.experiments.lab._result import Claim
from hardsight.stats import adjusted_p_values, pairs_needed, t_test

# one value per seed, in the order of the seeds; NaN if the run was lost
PerSeed = Sequence[float]
K = TypeVar("K")
_LEVEL = 0.05
POWER = 0.8  # with which a number of seeds would show the paper's effect


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
        std: standard deviation of the differences; NaN for fewer than two pairs.
    """

    difference: float
    low: float
    high: float
    p: float
    pairs: int
    seeds: int
    std: float = math.nan

    def __str__(self) -> str:
        return self._said(", p < 0.001" if self.p < 0.001 else f", p = {self.p:.3f}")

    @property
    def interval(self) -> str:
        """The difference and its interval in words, without p."""
        return self._said("")

    def _said(self, p: str) -> str:
        some = f"{self.pairs} of {self.seeds} seeds"
        if not self.pairs:
            return f"nothing to compare: both ended at {some}"
        is_tested = not math.isnan(self.p)
        numbers = [self.difference, *([self.low, self.high] if is_tested else [])]
        # small differences, such as those of shares, need more digits than points of accuracy
        digits = 4 if 0 < max(map(abs, numbers)) < 0.1 else 2
        mean, *ends = (f"{number:+.{digits}f}" for number in numbers)
        if not is_tested:
            return f"{mean} ({'one seed' if self.seeds == 1 else some})"
        text = f"{mean} [{', '.join(ends)}]{p}"
        return text if self.pairs == self.seeds else f"{text} ({some})"

    @property
    def is_above(self) -> bool | None:
        """Whether the first is larger; ``None`` if that may be chance."""
        return self.difference > 0 if self.p < _LEVEL else None

    def seeds_for(self, effect: float, *, tests: int) -> int | None:
        """Seeds that would show an effect with 80 % power; ``None`` if no spread is known.

        Args:
            effect: the size of the difference to be seen.
            tests: comparisons of the page. The first of them has to pass the level divided by so
                many, by Holm's method, and any may be the first.
        """
        if math.isnan(self.std) or not effect:
            return None
        return pairs_needed(effect, self.std, power=POWER, alpha=_LEVEL / max(tests, 1))


def compared_in_pairs(pairs: Mapping[K, tuple[PerSeed, PerSeed]]) -> dict[K, Compared]:
    """Paired t tests over seeds, with Holm's correction over all of ``pairs``.

    Example:
        >>> pairs = {"a": ([3.0, 4.1, 5.0], [1.0, 2.0, 3.0]), "b": ([1, 2], [1, 2])}
        >>> found = compared_in_pairs(pairs)
        >>> str(found["a"]), found["b"].p
        ('+2.03 [+1.89, +2.18], p < 0.001', 1.0)
        >>> nan = math.nan
        >>> str(compared_in_pairs({"lost": ([3.0, nan, 5.0], [1.0, 2.0, nan])})["lost"])
        '+2.00 (1 of 3 seeds)'
    """
    return corrected({name: _paired(*pair) for name, pair in pairs.items()})


def corrected(comparisons: Mapping[K, Compared]) -> dict[K, Compared]:
    """The same comparisons with p-values raised by Holm's method over those that were tested."""
    tested = [name for name, compared in comparisons.items() if not math.isnan(compared.p)]
    raised = adjusted_p_values([comparisons[name].p for name in tested])
    changed = {n: replace(comparisons[n], p=float(p)) for n, p in zip(tested, raised, strict=True)}
    return {**comparisons, **changed}


def _paired(first: PerSeed, second: PerSeed, within: float = 0.0) -> Compared:
    """One comparison; with ``within``, p is that of a difference as large as the nearest bound."""
    both = zip(first, second, strict=True)
    apart = [a - b for a, b in both if not math.isnan(a) and not math.isnan(b)]
    counts = {"pairs": len(apart), "seeds": len(first)}
    mean = sum(apart) / len(apart) if apart else math.nan
    if len(apart) < 2:
        return Compared(mean, math.nan, math.nan, math.nan, **counts)
    bound = math.copysign(within, mean)
    if max(apart) - min(apart) < 1e-12:  # nothing varies: equal, or the same step each time
        return Compared(mean, mean, mean, 1.0 if mean == bound else 0.0, **counts)
    test = t_test(apart, [0.0] * len(apart), paired=True)
    p = t_test(apart, [bound] * len(apart), paired=True).p if within else test.p
    std = statistics.stdev(apart)
    return Compared(test.difference, test.low, test.high, p, **counts, std=std)


@dataclass(frozen=True)
class Question:
    """A sentence that sets one recipe above another, or says that two are alike.

    Attributes:
        says: the sentence.
        paper: the paper's own number or reference.
        first: one value per seed of the recipe that it speaks of.
        second: of the other one; or of several by name, above each of which the first is said
            to be.
        larger: whether the sentence says "more"; if not, it says "less".
        within: the sentence says that the two differ by less than this.
        weak: why the network is too weak to be asked, in words; empty if it is not.
        effect: how large the difference is in the paper, in the units of the values; 0 if it gives
            no number. Too few seeds to see it, and the verdict says how many it takes.
        told: what was seen, with ``{}`` for the comparison; or a function from the comparisons by
            name, of which a single one has the name "".
    """

    says: str
    paper: str
    first: PerSeed
    second: PerSeed | Mapping[str, PerSeed]
    larger: bool = True
    within: float = 0.0
    weak: str = ""
    effect: float = 0.0
    told: str | Callable[[Mapping[str, Compared]], str] = "{}"

    @property
    def rivals(self) -> Mapping[str, PerSeed]:
        """What the first is compared with, by name."""
        return self.second if isinstance(self.second, Mapping) else {"": self.second}

    def claim(self, comparisons: Mapping[str, Compared], *, tests: int = 1) -> Claim:
        """The sentence with the outcome of its comparisons.

        Args:
            comparisons: by rival.
            tests: comparisons of the whole page.
        """
        listed = "; ".join(
            f"{name}: {compared}" if name else str(compared)
            for name, compared in comparisons.items()
        )
        seen = self.told(comparisons) if callable(self.told) else self.told.format(listed)
        if self.weak:
            seen = f"{self.weak}; uncorrected: {seen}"
            return Claim(self.says, self.paper, seen, None, is_weak=True)
        holds = all_of([self._outcome(compared) for compared in comparisons.values()])
        needs = self._needs(comparisons, tests) if holds is None else None
        return Claim(self.says, self.paper, seen, holds, needs_seeds=needs)

    def _needs(self, comparisons: Mapping[str, Compared], tests: int) -> int | None:
        """Seeds that the paper's effect needs, if there are fewer."""
        if self.within:  # the effect is that there is none
            return None
        open_ones = [one for one in comparisons.values() if self._outcome(one) is None]
        needed = [one.seeds_for(self.effect, tests=tests) or 0 for one in open_ones]
        fewest = min((one.pairs for one in open_ones), default=0)
        most = max(needed, default=0)
        return most if most > fewest else None

    def _outcome(self, compared: Compared) -> bool | None:
        if self.within:
            return abs(compared.difference) < self.within if compared.p < _LEVEL else None
        above = compared.is_above
        return above if above is None or self.larger else not above


def judged(asked: Sequence[Question | Claim]) -> list[Claim]:
    """The questions of an experiment answered, corrected over all those that are tested.

    A sentence about several rivals holds if the first is above each of them, and does not if it is
    below one. A claim that is there already keeps its place.

    Example:
        >>> more, less = [3.0, 4.1, 5.0], [1.0, 2.0, 3.0]
        >>> claims = judged([Question("a", "", more, less), Question("b", "", less, more)])
        >>> [claim.holds for claim in claims]
        [True, False]
        >>> judged([Question("c", "", more, less, weak="10 % instead of 99 %")])[0].holds is None
        True
        >>> judged([Question("alike", "", more, less, within=3.0)])[0].holds
        True
    """
    alone = {
        (at, name): _paired(question.first, rival, question.within)
        for at, question in enumerate(asked)
        if isinstance(question, Question)
        for name, rival in question.rivals.items()
    }
    fit = {
        key: compared for key, compared in alone.items() if not getattr(asked[key[0]], "weak", "")
    }
    comparisons = {**alone, **corrected(fit)}
    return [
        question.claim({name: comparisons[at, name] for name in question.rivals}, tests=len(fit))
        if isinstance(question, Question)
        else question
        for at, question in enumerate(asked)
    ]


def all_of(outcomes: Sequence[bool | None]) -> bool | None:
    """Whether each of several comparisons came out: no if one did not, undecided if one is.

    Example:
        >>> all_of([True, True]), all_of([True, None, False]), all_of([True, None]) is None
        (True, False, True)
    """
    if False in outcomes:
        return False
    return None if None in outcomes or not outcomes else True
