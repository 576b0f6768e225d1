"""Smoothed labels without the N x C matrix, a few rows at a time with all their logits."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hardsight._checks import is_traced
from hardsight.losses import _linear
from hardsight.losses._logits import Curve, kept_labels, logit_loss
from hardsight.losses._reduce import reduce_loss

# Logits of some rows against all classes: rows [r, D], their labels [r] -> [r, C].
RowLogits = Callable[[Tensor, Tensor], Tensor]


def smoothed_loss(
    curve: Curve,
    row_logits: RowLogits,
    embeddings: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    check_finite: bool,
) -> Tensor:
    """Return the loss of logits under smoothed labels, which needs all logits of an example.

    Rows go through in groups of about a million logits, which the backward pass recomputes, so the
    memory does not grow with N x C. With very many classes a group is a single row.
    """
    _, own = kept_labels(labels, num_classes, ignore_index)

    def values(rows: Tensor, row_labels: Tensor) -> Tensor:
        return logit_loss(
            # class 0 stands in for ignored labels; logit_loss masks them by the label itself
            curve, row_logits(rows, row_labels.clamp_min(0)), row_labels, weight=weight,
            ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none",
            check_finite=False,
        )  # fmt: skip

    if is_traced(embeddings):
        losses = values(embeddings, labels)
    else:
        # as many logits at once as in a chunk of the linear losses
        step = max(1, _linear.ROWS_AT_ONCE * _linear.CLASSES_AT_ONCE // num_classes)
        groups = [slice(first, first + step) for first in range(0, max(1, len(labels)), step)]
        parts = [
            # keeps only the inputs; the backward pass recomputes the logits of a group
            checkpoint(values, embeddings[group], labels[group], use_reentrant=False)
            for group in groups
        ]
        losses = torch.cat(parts)
    kept = labels != ignore_index
    divisor = kept.sum() if weight is None else (weight.to(losses.dtype)[own] * kept).sum()
    return reduce_loss(losses, reduction, divisor=divisor, check_finite=check_finite)
