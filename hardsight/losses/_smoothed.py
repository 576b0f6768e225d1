"""Smoothed labels without the N x C matrix: some rows at a time, each with all its logits."""

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
    """The loss of logits under smoothed labels, which every logit of an example has a part in.

    Rows go through one group at a time, of about a million logits, and are computed again in the
    backward pass; so the memory does not grow with N x C. With very many classes a group is a row.
    """
    _, own = kept_labels(labels, num_classes, ignore_index)

    def values(rows: Tensor, some: Tensor) -> Tensor:
        return logit_loss(
            # ignored labels stand in as class 0; logit_loss masks them again by the label itself
            curve, row_logits(rows, some.clamp_min(0)), some, weight=weight,
            ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none",
            check_finite=False,
        )  # fmt: skip

    if is_traced(embeddings):
        losses = values(embeddings, labels)
    else:
        # as many entries at once as a chunk of the linear losses has
        step = max(1, _linear.ROWS_AT_ONCE * _linear.CLASSES_AT_ONCE // num_classes)
        groups = [slice(first, first + step) for first in range(0, max(1, len(labels)), step)]
        parts = [
            # only the inputs are kept; the logits of a chunk are computed again in the backward
            # pass
            checkpoint(values, embeddings[group], labels[group], use_reentrant=False)
            for group in groups
        ]
        losses = torch.cat(parts)
    kept = labels != ignore_index
    divisor = kept.sum() if weight is None else (weight.to(losses.dtype)[own] * kept).sum()
    return reduce_loss(losses, reduction, divisor=divisor, check_finite=check_finite)
