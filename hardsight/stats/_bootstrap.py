r"""The bootstrap, computed from how often each example was drawn.

A resample is a vector of counts ``[N]`` that sum to N. A statistic here is a function of a block
of such vectors, ``[B, N]`` to ``[B]``. A thousand resamples then take a few array operations, and
leaving out an example is a vector of counts as well. Blocks are bounded in size, which does not
change the result; only the seed does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import TypeAlias

import numpy as np

from hardsight.errors import OptionError, StatisticError
from hardsight.stats._inputs import Floats, check_choice, check_level

Statistic: TypeAlias = Callable[[Floats], Floats]

BOOTSTRAP_INTERVALS = ("percentile", "bca")
_ENTRIES_AT_ONCE = 1 << 21  # 16 MiB of counts
_MOST_LEFT_OUT_BLOCKS = 2000  # evaluations of the jackknife at most, in blocks of examples


def replicates(statistic: Statistic, n: int, *, resamples: int, seed: int) -> Floats:
    """Return the statistic of every resample in which it is defined.

    Args:
        statistic: counts ``[B, N]`` to values ``[B]``, NaN if undefined.
        n: number of examples.
        resamples: number of resamples.
        seed: the same seed gives the same resamples.

    Raises:
        OptionError: fewer than 2 resamples.
        StatisticError: the statistic is undefined in more than half of the resamples.
    """
    if resamples < 2:
        raise OptionError(f"expected at least 2 resamples, got resamples={resamples}")
    values = np.concatenate([statistic(counts) for counts in _draws(n, resamples, seed)])
    defined: Floats = values[~np.isnan(values)]
    # an interval over fewer than half of the resamples would be biased
    if 2 * len(defined) < resamples:
        raise StatisticError(
            f"the statistic is undefined in {resamples - len(defined):,} of {resamples:,} "
            f"resamples of {n:,} values: too few values, or too many equal ones, for a bootstrap"
        )
    return defined


def bootstrap_interval(
    statistic: Statistic, n: int, *, kind: str, level: float, resamples: int, seed: int
) -> tuple[float, float]:
    r"""Return the percentile or BCa interval of a statistic.

    The percentile interval consists of the quantiles :math:`\alpha` and :math:`1 - \alpha` of the
    replicates. BCa moves them to

    .. math:: \Phi\left(z_0 + \frac{z_0 + z_\alpha}{1 - a(z_0 + z_\alpha)}\right)

    with the bias :math:`z_0` from the share of replicates below the estimate (those equal to it
    count half) and the acceleration :math:`a` from the jackknife, which leaves out one example at
    a time, or blocks of a seeded shuffle if there are more than 2,000 examples.

    Reference:
        Efron, Better bootstrap confidence intervals, JASA 1987.
    """
    check_choice("interval", kind, BOOTSTRAP_INTERVALS)
    check_level(level)
    values = replicates(statistic, n, resamples=resamples, seed=seed)
    # the two tails of the interval, before any correction
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    if kind == "bca":
        tails = _bca_tails(statistic, values, n, tails, seed)
    low, high = np.quantile(values, tails)
    return float(low), float(high)


def _bca_tails(statistic: Statistic, values: Floats, n: int, tails: Floats, seed: int) -> Floats:
    estimate = statistic(np.ones((1, n)))[0]
    if (values == estimate).all():  # nothing varies, nothing to correct
        return tails
    normal = NormalDist()
    # ties count half, as in a mid-rank, or discrete statistics would seem biased
    below = float(np.mean((values < estimate) + 0.5 * (values == estimate)))
    # with all replicates on one side the correction would be infinite, so stop half a replicate
    # before the edge
    edge = 0.5 / len(values)
    z0 = normal.inv_cdf(min(max(below, edge), 1 - edge))
    a = _acceleration(statistic, n, seed)
    shifted = [z0 + normal.inv_cdf(tail) for tail in tails]
    # Efron (1987): shift by the bias z0, stretch by the acceleration a
    return np.array([normal.cdf(z0 + z / (1 - a * z)) for z in shifted])


def _acceleration(statistic: Statistic, n: int, seed: int) -> float:
    values = np.concatenate([statistic(counts) for counts in _leave_out(n, seed)])
    # a block whose removal leaves the statistic undefined says nothing about its influence
    apart = np.nanmean(values) - values[~np.isnan(values)]
    spread = float((apart**2).sum())
    return float((apart**3).sum() / (6 * spread**1.5)) if spread > 0 else 0.0


def _draws(n: int, resamples: int, seed: int) -> Iterator[Floats]:
    generator = np.random.default_rng(seed)
    at_once = max(1, _ENTRIES_AT_ONCE // n)
    for first in range(0, resamples, at_once):
        size = min(at_once, resamples - first)
        # the offset gives each resample its own bins, so that one bincount counts all of them
        drawn = generator.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)


def _leave_out(n: int, seed: int) -> Iterator[Floats]:
    # shuffled, because neighbours in the data may be similar; [seed, 1] is independent of the draws
    order = np.random.default_rng([seed, 1]).permutation(n) if n > _MOST_LEFT_OUT_BLOCKS else None
    blocks = np.array_split(np.arange(n) if order is None else order, min(n, _MOST_LEFT_OUT_BLOCKS))
    at_once = max(1, _ENTRIES_AT_ONCE // n)
    for first in range(0, len(blocks), at_once):
        part = blocks[first : first + at_once]
        # all but one block, expressed as counts, which the statistic already takes
        counts = np.ones((len(part), n))
        for row, block in enumerate(part):
            counts[row, block] = 0
        yield counts
