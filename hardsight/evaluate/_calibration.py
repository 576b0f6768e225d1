"""Measure calibration by bins, errors and proper scores, and fit a temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hardsight._checks import check_labels, check_matrix, check_rows
from hardsight.errors import NonFiniteError, OptionError, ProbabilityError, ShapeError
from hardsight.geometry import widen
from hardsight.scores import logit_summaries


@dataclass(frozen=True)
class CalibrationBin:
    """Examples of similar confidence.

    Attributes:
        low: lower end of the bin.
        high: upper end of the bin.
        count: number of examples in the bin.
        confidence: their mean confidence; NaN if there are none.
        accuracy: share of them that is right; NaN if there are none.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def calibration_bins(
    confidence: ArrayLike, right: ArrayLike, *, bins: int = 15, adaptive: bool = False
) -> list[CalibrationBin]:
    r"""Return confidence and accuracy of examples in bins of confidence.

    Bins of equal width are :math:`[0, 1/B), \dots, [(B-1)/B, 1]`. The last one is closed, so it
    contains a confidence of exactly 1. Adaptive bins hold equally many examples instead; equal
    confidences stay together, so the order of the examples does not matter.

    Args:
        confidence: largest probability of each example, ``[N]`` in [0, 1].
        right: whether the prediction is right, ``[N]``.
        bins: B.
        adaptive: whether bins have equal counts instead of equal widths.

    Returns:
        The bins from low to high. Adaptive bins are never empty, so there may be fewer than B.

    Raises:
        ShapeError: the columns differ in length, or are empty.
        ProbabilityError: a confidence is outside [0, 1].
        OptionError: ``bins`` is below 1.

    Example:
        >>> result = calibration_bins([0.3, 0.9, 1.0], [0, 1, 1], bins=2)
        >>> [(b.count, b.accuracy) for b in result]
        [(1, 0.0), (2, 1.0)]

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017, Eq. (2).
    """
    values, hits = _checked(confidence, right)
    if bins < 1:
        raise OptionError(f"expected at least 1 bin, got bins={bins}")
    if adaptive:
        return _equal_counts(values, hits, bins)
    # only inner edges, so that 1.0 falls into the last bin
    place = np.searchsorted(np.arange(1, bins) / bins, values, side="right")
    return [_bin(k / bins, (k + 1) / bins, values[place == k], hits[place == k])
            for k in range(bins)]  # fmt: skip


def calibration_error(
    confidence: ArrayLike, right: ArrayLike, *, bins: int = 15, adaptive: bool = False
) -> float:
    r"""Return the expected calibration error, the mean gap of confidence and accuracy over bins.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{N}\,|\mathrm{acc}(b) - \mathrm{conf}(b)|

    Args:
        confidence: largest probability of each example, ``[N]`` in [0, 1].
        right: whether the prediction is right, ``[N]``.
        bins: number of bins.
        adaptive: whether bins have equal counts; see :func:`calibration_bins`.

    Returns:
        A value in [0, 1]; 0 is calibrated.

    Example:
        >>> round(calibration_error([0.8, 0.8, 0.8, 0.8], [1, 1, 1, 0]), 4)
        0.05
    """
    filled = [b for b in calibration_bins(confidence, right, bins=bins, adaptive=adaptive)
              if b.count]  # fmt: skip
    total = sum(b.count for b in filled)
    return sum(b.count / total * abs(b.accuracy - b.confidence) for b in filled)


def brier_score(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the squared distance of the softmax from the one-hot label, per example.

    .. math:: \sum_c (p_c - [c = y])^2

    Args:
        logits: ``[N, C]``.
        labels: class indices, ``[N]``.

    Returns:
        ``[N]`` in [0, 2]; 0 is a certain and right prediction.

    Example:
        >>> brier_score(torch.zeros(1, 2), torch.tensor([0]))
        tensor([0.5000])

    Reference:
        Brier, Verification of forecasts expressed in terms of probability, 1950.
    """
    targets = logit_summaries(logits, labels)[1]
    return targets.others_prob**2 + targets.others_square


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the cross-entropy of the softmax, per example, in nats: :math:`-\log p_y`.

    Args:
        logits: ``[N, C]``.
        labels: class indices, ``[N]``.

    Returns:
        ``[N]``, at least 0.

    Example:
        >>> negative_log_likelihood(torch.zeros(1, 2), torch.tensor([0]))
        tensor([0.6931])
    """
    return -logit_summaries(logits, labels)[1].log_prob


def fitted_temperature(
    logits: Tensor, labels: Tensor, *, low: float = 1e-3, high: float = 1e3
) -> float:
    r"""Return the T for which :math:`\mathrm{softmax}(z / T)` is most likely on these examples.

    It is found by bisection of the derivative of the mean negative log-likelihood in :math:`1/T`.
    The likelihood is convex in it, so there is only one such T.

    Args:
        logits: logits of a validation part on which no reported number is based, ``[N, C]``.
        labels: class indices, ``[N]``.
        low: smallest temperature, which is the result if all examples are right.
        high: largest temperature.

    Returns:
        T in ``[low, high]``; above 1, the model was too sure.

    Raises:
        ShapeError: there is no example.
        NonFiniteError: a logit is NaN or infinite.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0]] * 4)
        >>> round(fitted_temperature(logits, torch.tensor([0, 0, 0, 1])), 3)  # 4 / ln 3
        3.641

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017, section 4.2.
    """
    check_matrix(logits=logits)
    check_rows(logits=logits, labels=labels)
    check_labels(labels, logits.shape[1])
    if not len(labels):
        raise ShapeError("expected at least 1 example to fit a temperature on, got none")
    wide = widen(logits)
    if not bool(torch.isfinite(wide).all()):
        raise NonFiniteError("expected finite logits to fit a temperature on, got NaN or infinity")
    # a shift of all logits of an example changes nothing, and keeps the products below small
    wide = (wide - wide.amax(dim=1, keepdim=True)).double()
    own = wide.gather(1, labels[:, None]).squeeze(1)
    cold, hot = math.log(low), math.log(high)
    for _ in range(60):  # after 60 halvings, the interval is below the precision of a float
        middle = (cold + hot) / 2
        expected = ((wide * math.exp(-middle)).softmax(dim=1) * wide).sum(dim=1)
        if float((expected - own).mean()) > 0:  # a larger 1/T would be less likely
            cold = middle
        else:
            hot = middle
    return math.exp((cold + hot) / 2)


def _checked(
    confidence: ArrayLike, right: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, hits = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=bool)
    if values.shape != hits.shape or values.ndim != 1 or not len(values):
        raise ShapeError(
            "expected one row per example in every tensor and at least 1 row, got confidence "
            f"{list(values.shape)}, right {list(hits.shape)}"
        )
    if not bool(((values >= 0) & (values <= 1 + 1e-6)).all()):
        raise ProbabilityError(
            f"expected confidences in [0, 1], got values from {values.min()} to {values.max()}"
        )
    return np.minimum(values, 1.0), hits


def _equal_counts(
    values: NDArray[np.float64], hits: NDArray[np.bool_], bins: int
) -> list[CalibrationBin]:
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    # cuts move to the first of equal confidences, so that these stay in one bin
    cuts = np.searchsorted(ordered, ordered[(np.arange(1, bins) * len(values)) // bins])
    edges = np.unique(np.concatenate([[0], cuts, [len(values)]]))
    return [
        _bin(float(ordered[a]), float(ordered[b - 1]), ordered[a:b], hits[order[a:b]])
        for a, b in pairwise(edges.tolist())
    ]


def _bin(
    low: float, high: float, values: NDArray[np.float64], hits: NDArray[np.bool_]
) -> CalibrationBin:
    if not len(values):
        return CalibrationBin(low, high, 0, math.nan, math.nan)
    return CalibrationBin(low, high, len(values), float(values.mean()), float(hits.mean()))
