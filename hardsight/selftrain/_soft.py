"""Soft pseudo-labels of CRST-LRENT."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hardsight._checks import check_matrix
from hardsight.errors import OptionError, ShapeError
from hardsight.geometry import widen
from hardsight.selftrain._rows import Matrix, as_tensor

LRENT_ALPHA = 0.25


def soft_pseudo_labels(probs: Matrix, thresholds: Matrix, *, alpha: float = LRENT_ALPHA) -> Tensor:
    r"""Pseudo-labels that keep some doubt: probability over threshold, with a temperature.

    .. math:: \hat y_c = \frac{(p_c / \lambda_c)^{1/\alpha}}{\sum_k (p_k / \lambda_k)^{1/\alpha}}

    Call it on the rows of a batch: one row does not depend on another, and for many classes the
    labels of a whole dataset need as much memory as its probabilities.

    Args:
        probs: ``[N, C]``, rows sum to 1; a torch tensor or a numpy array.
        thresholds: one positive threshold per class, ``[C]``, such as ``Selection.thresholds``.
        alpha: temperature, positive; towards 0 the label becomes one-hot.

    Returns:
        ``[N, C]``, float32 or wider, rows sum to 1; the largest entry is the class that
        :func:`pseudo_labels` gives.

    Raises:
        ShapeError: ``probs`` is not a matrix or ``thresholds`` does not fit its classes.
        OptionError: ``alpha`` or a threshold is not positive.

    Example:
        >>> soft_pseudo_labels(torch.tensor([[0.6, 0.4]]), torch.tensor([0.6, 0.4]))
        tensor([[0.5000, 0.5000]])

    Reference:
        Zou et al., Confidence regularized self-training, ICCV 2019, LRENT; alpha = .25 there.
    """
    probs, thresholds = as_tensor("probs", probs), as_tensor("thresholds", thresholds)
    check_matrix(probs=probs)
    check_alpha(alpha)
    if list(thresholds.shape) != [probs.shape[1]]:
        raise ShapeError(
            f"expected one threshold per class, got probs {list(probs.shape)}, thresholds "
            f"{list(thresholds.shape)}"
        )
    if not (thresholds > 0).all():
        raise OptionError(f"expected positive thresholds, got {float(thresholds.min()):g}")
    log_ratios = (widen(probs) / thresholds.to(probs.device)).log()
    return torch.softmax(log_ratios / alpha, dim=1)


def check_alpha(alpha: float) -> None:
    """Raise unless ``alpha`` is positive and finite."""
    if not (math.isfinite(alpha) and alpha > 0):
        raise OptionError(f"expected alpha to be positive, got {alpha!r}")
