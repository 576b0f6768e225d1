"""A number with the interval that belongs to it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A value, its confidence interval, and how both were made.

    Attributes:
        value: the estimate.
        low: lower end of the interval.
        high: upper end of the interval.
        n: number of values it is based on, after NaN were left out.
        level: confidence level of the interval.
        interval: how the interval was made: ``"fisher-z"``, ``"delong"``, ``"wilson"``, ``"t"``,
            ``"percentile"`` or ``"bca"``.
    """

    value: float
    low: float
    high: float
    n: int
    level: float
    interval: str
