"""The interval of a share."""

from __future__ import annotations

import math

from hardsight.errors import OptionError, StatisticError
from hardsight.stats._inputs import two_sided_z


def wilson_interval(successes: float, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    r"""Return the interval of a share by Wilson's score method.

    .. math:: \frac{p + z^2/2n \pm z\sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}

    Args:
        successes: how often it happened, in ``[0, trials]``.
        trials: how often it could have happened.
        level: confidence level.

    Returns:
        The two ends, in [0, 1].

    Raises:
        StatisticError: there are no trials.
        OptionError: ``successes`` is outside ``[0, trials]``.

    Example:
        >>> low, high = wilson_interval(90, 100)
        >>> round(low, 4), round(high, 4)
        (0.8256, 0.9448)
    """
    if trials < 1:
        raise StatisticError(f"expected at least 1 trial, got trials={trials}")
    if not 0 <= successes <= trials:
        raise OptionError(f"expected successes in [0, {trials}], got {successes}")
    z = two_sided_z(level)
    share, scale = successes / trials, 1 + z**2 / trials
    middle = (share + z**2 / (2 * trials)) / scale
    spread = z * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2)) / scale
    # with no successes, or only successes, rounding may exceed [0, 1] by one ulp
    return max(0.0, middle - spread), min(1.0, middle + spread)
