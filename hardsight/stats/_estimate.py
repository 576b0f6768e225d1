"""A number with its confidence interval."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A value, its confidence interval, and how both were made.

    Attributes:
        value: the estimate.
        low: lower end of the interval.
        high: upper end of the interval.
        n: number of values it is based on, without NaN.
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
