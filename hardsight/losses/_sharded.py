r"""Losses whose class weights are split over ranks: no rank holds all of them, none forms N x C.

Every rank gathers the embeddings of all, and compares them with its own classes. For an example
with label y, rank r gives the logit of y, if y is of its classes, and the log-sum-exp of its other
classes; together these are the log-odds

.. math:: m = z_y - \log\sum_r \exp\Bigl(\log\sum_{j \in C_r, j \ne y} e^{z_j}\Bigr)

So a pass costs one exchange of embeddings and one of two numbers per example and rank. The
backward pass adds up the gradients of embeddings; those of class weights stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight._checks import check_rows
from hardsight.errors import LabelError, OptionError, ShapeError
from hardsight.geometry import widen
from hardsight.losses._logits import Curve, kept_labels
from hardsight.losses._reduce import reduce_loss
from hardsight.ranks import Group, Spread, spread_of

# embeddings [N, D], places of classes [N], class weights [c, D] -> [N]
OfOneClass = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ShardLogits:
    """What a loss makes of embeddings and some of the classes.

    Attributes:
        plain: logit of one class for each example.
        log_odds: of that class against the other classes of the shard; the fused kernels give it.
        own: logit of an example's own class, which a margin makes smaller than the plain one.
    """

    plain: OfOneClass
    log_odds: OfOneClass
    own: OfOneClass


def sharded_loss(
    curve: Curve,
    logits: ShardLogits,
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    *,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    check_finite: bool,
    group: Group,
) -> Tensor:
    """``curve`` over the log-odds of the rows of all ranks, reduced as in ``cross_entropy``.

    Args:
        curve: from log-odds to a loss.
        logits: of a shard.
        embeddings: rows of this rank, ``[n, D]``; ranks may have different numbers of them.
        labels: of these rows, ``[n]``, among the classes of all ranks.
        class_weights: classes of this rank, ``[c, D]``, which follow those of the rank before.
        weight: one factor per class of all ranks, ``[C]``.
        ignore_index: label of examples that take no part.
        reduction: of the rows of all ranks; ``"none"`` gives this rank's own.
        check_finite: raise on a non-finite value.
        group: the ranks.

    Returns:
        The same scalar on every rank, or ``[n]``.
    """
    check_rows(embeddings=embeddings, labels=labels)
    if labels.ndim != 1 or labels.is_floating_point():
        raise LabelError(
            f"expected labels to be class indices [N], got {labels.dtype} {list(labels.shape)}; "
            "classes that are split over ranks take no soft labels"
        )
    spread = spread_of(embeddings, class_weights, group)
    if spread.num_classes < 2:
        raise ShapeError(f"expected at least 2 classes on all ranks, got {spread.num_classes}")
    # backward, the gradient of a row is the sum over all shards
    everyone = spread.gathered_for_shards(embeddings)
    # labels count classes of all ranks
    kept, own = kept_labels(spread.gathered(labels.long()), spread.num_classes, ignore_index)
    log_odds = _log_odds(logits, everyone, own, class_weights, spread)
    values = torch.where(kept, curve(log_odds), 0.0)
    divisor = kept.sum()
    if weight is not None:
        if list(weight.shape) != [spread.num_classes]:
            raise ShapeError(
                f"expected one weight per class of all ranks, [{spread.num_classes}], got "
                f"{list(weight.shape)}"
            )
        own_weight = weight.to(log_odds.dtype)[own] * kept
        values, divisor = own_weight * values, own_weight.sum()
    reduced = reduce_loss(values, reduction, divisor=divisor, check_finite=check_finite)
    # each rank gets the values of its own rows; a mean or sum is the same on all ranks
    return spread.own(reduced) if reduction == "none" else reduced


def refuse_smoothing(label_smoothing: float) -> None:
    """Raise if labels are to be smoothed, for which every logit would have to be seen.

    Raises:
        OptionError: they are.
    """
    if label_smoothing:
        raise OptionError(
            f"expected no label_smoothing beside process_group, got {label_smoothing}; leave one "
            "of the two out"
        )


def _log_odds(
    logits: ShardLogits, embeddings: Tensor, labels: Tensor, class_weights: Tensor, spread: Spread
) -> Tensor:
    # "here" tells the rows whose class this rank holds; the others get any place, and are masked
    here, place = spread.places(labels)
    own, others = _of_shard(logits, embeddings, place, class_weights, here)
    both = spread.stacked(torch.stack([own, others]))
    # exactly one rank has the own logit, the others 0; the others' log-sum-exps are merged
    return both[:, 0].sum(dim=0) - both[:, 1].logsumexp(dim=0)


def _of_shard(
    logits: ShardLogits, embeddings: Tensor, place: Tensor, class_weights: Tensor, here: Tensor
) -> tuple[Tensor, Tensor]:
    """The own logit if the class is of this rank, else 0; log-sum-exp of the rank's others."""
    if len(class_weights) == 0:
        # zeros that depend on the inputs, so that backward this rank meets the others too
        nothing = widen(embeddings)[:, :0].sum(dim=1) + class_weights.sum()
        return nothing, nothing - torch.inf
    plain = logits.plain(embeddings, place, class_weights)
    own = torch.where(here, logits.own(embeddings, place, class_weights), 0.0)
    # one class has no others: its log-odds would be infinite
    if len(class_weights) == 1:
        return own, plain.masked_fill(here, -torch.inf)
    log_odds = logits.log_odds(embeddings, place, class_weights)
    # log-odds are plain - others, so with the class itself log(e^plain + e^others) is
    return own, torch.where(here, plain - log_odds, plain + F.softplus(-log_odds))
