"""Detect foreign examples: indicators, and how well they work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hardsight._checks import check_rows
from hardsight.errors import NonFiniteError, OptionError, ShapeError, StatisticError
from hardsight.scores import TiledHead, logit_summary
from hardsight.stats import Estimate, auroc, average_precision


@dataclass(frozen=True)
class Detection:
    """How well an indicator separates foreign examples from own examples.

    Attributes:
        auroc: probability that a foreign example has the larger indicator; ties count half.
        aupr_in: average precision with own examples as positives.
        aupr_out: average precision with foreign examples as positives.
        fpr95: share of foreign examples that are accepted when 95 % of own examples are.
        own: number of own examples.
        foreign: number of foreign examples.
    """

    auroc: Estimate
    aupr_in: float
    aupr_out: float
    fpr95: float
    own: int
    foreign: int


def ood_indicators(
    logits: Tensor, embeddings: Tensor | None = None, class_weights: Tensor | None = None
) -> dict[str, Tensor]:
    r"""Return four indicators per example; a larger value means more foreign.

    ===================  ======================================================================
    ``min_energy``       :math:`\min_y E(y|x) = -\max_y z_y`
    ``free_energy``      :math:`-\log \sum_y e^{z_y}`
    ``max_probability``  :math:`-\max_y p_y`, as its logarithm, which keeps the order near 1
    ``avc``              :math:`-\max_y \mathrm{AVC}(y|x)`; only with embeddings and weights
    ===================  ======================================================================

    Args:
        logits: ``[N, C]``.
        embeddings: penultimate features, ``[N, D]``.
        class_weights: rows of the head, ``[C, D]``.

    Returns:
        ``[N]`` each; a full N by C matrix of angles is never held in memory.

    Raises:
        ShapeError: the tensors differ in length or width.

    Example:
        >>> result = ood_indicators(torch.tensor([[2.0, 0.0], [0.1, 0.0]]))
        >>> {name: bool(values[1] > values[0]) for name, values in result.items()}
        {'min_energy': True, 'free_energy': True, 'max_probability': True}

    Reference:
        Zhao et al., Well-classified Examples are Underestimated, AAAI 2022, section on OOD; Liu et
        al., Energy-based Out-of-distribution Detection, NeurIPS 2020; Chen et al., Angular Visual
        Hardness, ICML 2020, Eq. (3).
    """
    summary = logit_summary(logits)
    indicators = {
        "min_energy": -summary.largest,
        "free_energy": -summary.logsumexp,
        "max_probability": summary.log_total,  # -log of the largest probability
    }
    if embeddings is not None and class_weights is not None:
        check_rows(logits=logits, embeddings=embeddings)
        head = TiledHead(class_weights, parts=("angles",))
        angles = head.summaries(embeddings, summary.prediction).angles
        assert angles is not None
        nearest = torch.minimum(angles.target, angles.nearest_other)
        # the sum over classes of pi minus the angle
        total = angles.num_classes * torch.pi - angles.total
        indicators["avc"] = -(torch.pi - nearest) / total
    return indicators


def detection(own: ArrayLike, foreign: ArrayLike, *, level: float = 0.95) -> Detection:
    """Return how well an indicator separates foreign examples from own examples.

    Equal values are never put in an order: the areas count them as one step, so the result does
    not depend on the order of the examples.

    Args:
        own: indicator of examples that the model knows, ``[N]``; larger means more foreign.
        foreign: indicator of the foreign examples, ``[M]``.
        level: confidence level of the AUROC's interval (DeLong).

    Raises:
        ShapeError: a column is not one-dimensional.
        NonFiniteError: a value is NaN.
        StatisticError: fewer than 2 examples of either kind, or all values equal.

    Example:
        >>> result = detection([0.1, 0.2, 0.3, 0.4], [0.35, 0.5, 0.6])
        >>> round(result.auroc.value, 4), round(result.fpr95, 4)
        (0.9167, 0.3333)
    """
    known, others = _column(own, "own"), _column(foreign, "foreign")
    values = np.concatenate([known, others])
    if values.min() == values.max():
        raise StatisticError(
            f"all {len(values):,} values of the indicator are equal ({values[0]:g}), so it tells "
            "nothing apart; check that the model's outputs differ between examples"
        )
    is_foreign = np.concatenate([np.zeros(len(known), bool), np.ones(len(others), bool)])
    return Detection(
        auroc=auroc(values, is_foreign, level=level),
        aupr_in=_precision(-values, ~is_foreign),
        aupr_out=_precision(values, is_foreign),
        fpr95=false_positive_rate(known, others),
        own=len(known),
        foreign=len(others),
    )


def false_positive_rate(own: ArrayLike, foreign: ArrayLike, *, recall: float = 0.95) -> float:
    r"""Return the share of foreign examples below the strictest threshold that accepts enough own.

    .. math:: \Pr(s^{\mathrm{foreign}} \le t), \qquad
        t = \min\{t : \Pr(s^{\mathrm{own}} \le t) \ge \mathrm{recall}\}

    Args:
        own: indicator of own examples, ``[N]``; larger means more foreign.
        foreign: indicator of foreign examples, ``[M]``.
        recall: share of own examples to accept, in (0, 1].

    Returns:
        In [0, 1]; 0 if every foreign example is told apart.

    Raises:
        OptionError: ``recall`` is outside (0, 1].

    Example:
        >>> false_positive_rate([1, 2, 3, 4], [2, 5, 6, 7], recall=0.5)
        0.25
    """
    if not 0 < recall <= 1:
        raise OptionError(f"expected recall in (0, 1], got {recall}")
    known, others = _column(own, "own"), _column(foreign, "foreign")
    # the smallest k with k / N >= recall; recall * N could be rounded up past a whole number
    k = int(np.searchsorted(np.arange(1, len(known) + 1) / len(known), recall)) + 1
    threshold = np.partition(known, k - 1)[k - 1]
    return float((others <= threshold).mean())


def _precision(values: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    # only the value is used and not its interval, so the fewest resamples that are allowed will do
    return average_precision(values, positive, resamples=2).value


def _column(values: ArrayLike, name: str) -> NDArray[np.float64]:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or len(column) < 1:
        raise ShapeError(f"expected {name} to be [N] with N >= 1, got {list(column.shape)}")
    if np.isnan(column).any():
        raise NonFiniteError(f"expected an indicator without NaN, got NaN in {name}")
    return column
