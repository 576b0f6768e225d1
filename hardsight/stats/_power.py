"""The number of runs needed to see a difference."""

from __future__ import annotations

import math

from hardsight.errors import OptionError

_MOST = 10**7


def pairs_needed(difference: float, std: float, *, power: float = 0.8, alpha: float = 0.05) -> int:
    r"""Return how many pairs of runs a paired t test needs to show a difference.

    This is the smallest n of at least 2 for which a two-sided test at level :math:`\alpha` rejects
    with probability ``power`` or more, if the mean difference is :math:`\delta` and single
    differences have the standard deviation :math:`\sigma`. The statistic is then noncentral t with
    n - 1 degrees of freedom and noncentrality :math:`\sqrt n\,\delta/\sigma`.

    Args:
        difference: :math:`\delta`, of either sign, not 0.
        std: :math:`\sigma`, estimated from earlier runs; an estimate from three runs is rough.
        power: probability of showing the difference, in (0, 1).
        alpha: level of the test, in (0, 1).

    Raises:
        OptionError: a value is out of its range.

    Example:
        >>> pairs_needed(0.5, 1.0), pairs_needed(1.0, 0.0)
        (34, 2)
    """
    for name, share in (("power", power), ("alpha", alpha)):
        if not 0 < share < 1:
            raise OptionError(f"expected {name} in (0, 1), got {share}")
    if not (math.isfinite(difference) and difference):
        raise OptionError(f"expected a difference other than 0, got {difference}")
    if not (math.isfinite(std) and std >= 0):
        raise OptionError(f"expected a standard deviation of 0 or more, got {std}")
    if std == 0:
        return 2
    effect = abs(difference) / std
    low, high = 1, 2  # power grows with n: double, then halve the interval
    while high < _MOST and _power(high, effect, alpha) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(middle, effect, alpha) >= power else (middle, high)
    return high


def _power(n: int, effect: float, alpha: float) -> float:
    from scipy import special

    dof, shift = n - 1, effect * math.sqrt(n)
    bound = float(special.stdtrit(dof, 1 - alpha / 2))
    above = 1 - float(special.nctdtr(dof, shift, bound))
    below = float(special.nctdtr(dof, shift, -bound))
    # nctdtr returns NaN far out in the tails, where the normal distribution is accurate enough
    if math.isnan(above):
        above = float(special.ndtr(shift - bound))
    return above + (0.0 if math.isnan(below) else below)
