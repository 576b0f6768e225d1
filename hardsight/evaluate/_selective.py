"""Selective prediction: a model refuses examples about which it is unsure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.errors import NonFiniteError, OptionError, ShapeError
from hardsight.evaluate._accuracy import counted
from hardsight.stats import Estimate

_STEPS = 20  # thresholds that are tried; they accept 5 %, 10 %, ... of the examples


@dataclass(frozen=True)
class RiskCoverage:
    """The error rate of a model on the examples that it does not refuse.

    Attributes:
        coverage: shares of examples that are accepted, ascending, ``[K]``.
        risk: share of the accepted examples that is wrong, ``[K]``.
        aurc: area under the curve: the mean risk over all numbers of accepted examples. Lower is
            better.
        best: the area if every error were refused first; no order has a smaller one.
        n: number of examples.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]
    aurc: float
    best: float
    n: int


@dataclass(frozen=True)
class Rejection:
    """A threshold that keeps the error rate below a wanted rate.

    Attributes:
        threshold: an example is accepted if its uncertainty is at most this; ``None`` if no
            threshold that was tried can guarantee the error rate.
        wanted: the wanted error rate.
        level: the probability with which the guarantee holds.
        bound: upper bound of the error rate among accepted examples; ``None`` without a threshold.
        coverage: share that is accepted of the examples on which the threshold was chosen.
        n: number of examples on which the threshold was chosen.
    """

    threshold: float | None
    wanted: float
    level: float
    bound: float | None
    coverage: float
    n: int


def risk_coverage(uncertainty: ArrayLike, right: ArrayLike, *, points: int = 50) -> RiskCoverage:
    r"""Return the error rate against the share of accepted examples, most certain first.

    .. math:: \mathrm{AURC} = \frac{1}{N} \sum_{i=1}^{N} \frac{e_i}{i}

    where :math:`e_i` is the number of errors among the :math:`i` most certain examples. Examples of
    equal uncertainty share their errors evenly, so their order does not matter.

    Args:
        uncertainty: uncertainty of each example, ``[N]``; larger is refused first. It may be any
            score that does not need the label, with the sign that makes larger less certain.
        right: whether the prediction is right, ``[N]``. A foreign example is never right, which
            makes this the curve of open-set recognition.
        points: number of points of the curve.

    Raises:
        ShapeError: the columns differ in length, or are empty.
        NonFiniteError: an uncertainty is NaN.

    Example:
        >>> curve = risk_coverage([0.1, 0.2, 0.9, 0.3], [1, 1, 0, 1])
        >>> round(curve.aurc, 4), round(curve.best, 4), float(curve.risk[-1])
        (0.0625, 0.0625, 0.25)

    Reference:
        Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers, ICLR 2019,
        Section 2.
    """
    values, hits = _checked(uncertainty, right)
    n = len(values)
    accepted, errors = np.arange(1, n + 1), _errors_among_first(values, hits)
    wrong = int((~hits).sum())
    # if all errors are refused first, there is no error until only errors are left
    best = np.maximum(0, accepted - (n - wrong))
    at = np.unique(np.linspace(1, n, min(points, n)).round().astype(np.int64)) - 1
    return RiskCoverage(
        coverage=accepted[at] / n,
        risk=errors[at] / accepted[at],
        aurc=float((errors / accepted).mean()),
        best=float((best / accepted).mean()),
        n=n,
    )


def rejection_threshold(
    uncertainty: ArrayLike, right: ArrayLike, *, wanted: float, level: float = 0.95
) -> Rejection:
    r"""Return the threshold that accepts most while the error rate stays below a wanted rate.

    Thresholds that accept 5 %, 10 %, ..., 100 % of the examples are tried. For each of them, the
    method of Clopper and Pearson bounds the error rate of accepted examples from above at
    :math:`1 - \delta/20`, so that all twenty bounds hold together with probability
    :math:`1 - \delta` over the draw of the examples. The most generous threshold whose bound is at
    most ``wanted`` is returned. The guarantee is for new examples of the same kind, not for others.

    Args:
        uncertainty: uncertainty of each example, ``[N]``; larger is refused first. These examples
            must play no part in training or in judging the result.
        right: whether the prediction is right, ``[N]``.
        wanted: the largest error rate among accepted examples, in (0, 1).
        level: :math:`1 - \delta`.

    Raises:
        OptionError: ``wanted`` or ``level`` is outside (0, 1).
        ShapeError: the columns differ in length, or are empty.
        NonFiniteError: an uncertainty is NaN.

    Example:
        >>> rows = np.arange(2000)
        >>> found = rejection_threshold(rows, rows < 1500, wanted=0.05)
        >>> found.threshold, round(found.bound, 4)
        (1499.0, 0.004)

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural Networks, NeurIPS 2017,
        Algorithm 1. Deviation: a fixed grid of coverages instead of a binary search, corrected by
        Bonferroni.
    """
    for name, value in (("wanted", wanted), ("level", level)):
        if not 0 < value < 1:
            raise OptionError(f"expected {name} in (0, 1), got {value}")
    values, hits = _checked(uncertainty, right)
    # Bonferroni: the chance of a wrong bound is divided among the thresholds
    ordered, chance = np.sort(values), (1 - level) / _STEPS
    best = Rejection(None, wanted, level, None, 0.0, len(values))
    for step in range(1, _STEPS + 1):
        threshold = float(ordered[max(0, math.ceil(step / _STEPS * len(values)) - 1)])
        accepted = values <= threshold
        bound = _upper_bound(int((accepted & ~hits).sum()), int(accepted.sum()), chance)
        if bound <= wanted:
            share = float(accepted.mean())
            best = Rejection(threshold, wanted, level, bound, share, len(values))
    return best


def accepted_risk(
    uncertainty: ArrayLike, right: ArrayLike, threshold: float, *, level: float = 0.95
) -> tuple[Estimate, Estimate | None]:
    """Return the coverage of a threshold and the error rate among accepted, other examples.

    Args:
        uncertainty: uncertainty of each example, ``[N]``.
        right: whether the prediction is right, ``[N]``.
        threshold: an example is accepted if its uncertainty is at most this.
        level: confidence level of the intervals (Wilson).

    Returns:
        both, in [0, 1]; the error rate is ``None`` if nothing is accepted.

    Example:
        >>> coverage, risk = accepted_risk([0.1, 0.2, 0.9], [1, 0, 0], 0.5)
        >>> round(coverage.value, 4), risk.value
        (0.6667, 0.5)
    """
    values, hits = _checked(uncertainty, right)
    accepted = values <= threshold
    count = int(accepted.sum())
    coverage = counted(count, len(values), level)
    return coverage, counted(int((accepted & ~hits).sum()), count, level) if count else None


def _errors_among_first(
    values: NDArray[np.float64], hits: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the errors among the 1, 2, ... most certain examples; ties share errors evenly."""
    order = np.argsort(values, kind="stable")
    total = np.concatenate([[0], np.cumsum(~hits[order])])
    ends = np.flatnonzero(np.diff(values[order], append=np.inf)) + 1  # after each run of ties
    ends = np.unique(np.concatenate([[0], ends, [len(values)]]))
    # interpolating between the ends of runs spreads the errors of a run evenly over it
    among: NDArray[np.float64] = np.interp(np.arange(1, len(values) + 1), ends, total[ends])
    return among


def _upper_bound(errors: int, trials: int, chance: float) -> float:
    """Return Clopper and Pearson's bound: above it, so few errors are rarer than ``chance``."""
    from scipy import special

    if errors >= trials:
        return 1.0
    return float(special.betaincinv(errors + 1, trials - errors, 1 - chance))


def _checked(
    uncertainty: ArrayLike, right: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, hits = np.asarray(uncertainty, np.float64), np.asarray(right).astype(bool)
    if values.ndim != 1 or values.shape != hits.shape or not len(values):
        raise ShapeError(
            f"expected uncertainty and right to be [N] with N >= 1, got {list(values.shape)} and "
            f"{list(hits.shape)}"
        )
    if np.isnan(values).any():
        raise NonFiniteError("expected an uncertainty without NaN; leave such examples out")
    return values, hits
