r"""Losses whose class weights are split over ranks, without the N x C matrix on any rank.

Every rank gathers the embeddings of all ranks and compares them with its own classes. For an
example with label y, rank r contributes the logit of y, if it holds class y, and the log-sum-exp of
its other classes. Together these are the log-odds

.. math:: m = z_y - \log\sum_r \exp\Bigl(\log\sum_{j \in C_r, j \ne y} e^{z_j}\Bigr)

So a pass exchanges the embeddings once, and then two numbers per example and rank. The backward
pass adds up the gradients of embeddings over ranks; gradients of class weights stay on their rank.
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
    """The logits of a loss for the classes of one shard.

    Attributes:
        plain: logit of one class for each example.
        log_odds: log-odds of that class against the other classes of the shard, which the fused
            kernels compute.
        own: logit of the labelled class, which a margin makes smaller than the plain one.
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
    """Return ``curve`` over the log-odds of all ranks' rows, reduced as in ``cross_entropy``.

    Args:
        curve: from log-odds to a loss.
        logits: of a shard.
        embeddings: rows of this rank, ``[n, D]``; ranks may have different numbers of rows.
        labels: of these rows, ``[n]``, counted over the classes of all ranks.
        class_weights: of the classes of this rank, ``[c, D]``, which follow those of the rank
            before.
        weight: one factor per class of all ranks, ``[C]``.
        ignore_index: label of examples to ignore.
        reduction: over the rows of all ranks; ``"none"`` returns only this rank's own values.
        check_finite: raise on a non-finite value.
        group: the ranks.

    Returns:
        The same scalar on every rank, or ``[n]``.
    """
    check_rows(embeddings=embeddings, labels=labels)
    if labels.ndim != 1 or labels.is_floating_point():
        raise LabelError(
            f"expected labels to be class indices [N], got {labels.dtype} {list(labels.shape)}; "
            "soft labels cannot be used with classes that are split over ranks"
        )
    spread = spread_of(embeddings, class_weights, group)
    if spread.num_classes < 2:
        raise ShapeError(f"expected at least 2 classes on all ranks, got {spread.num_classes}")
    # in the backward pass, the gradient of a row is the sum over all shards
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
    """Raise if ``label_smoothing`` is set, which would need every logit on one rank.

    Raises:
        OptionError: ``label_smoothing`` is not 0.
    """
    if label_smoothing:
        raise OptionError(
            f"expected no label_smoothing with process_group, got {label_smoothing}; leave one "
            "of the two out"
        )


def _log_odds(
    logits: ShardLogits, embeddings: Tensor, labels: Tensor, class_weights: Tensor, spread: Spread
) -> Tensor:
    # here: rows whose class this rank holds; other rows get an arbitrary place and are masked
    here, place = spread.places(labels)
    own, others = _of_shard(logits, embeddings, place, class_weights, here)
    both = spread.stacked(torch.stack([own, others]))
    # exactly one rank has the labelled logit and the others have 0, so the sum picks it
    return both[:, 0].sum(dim=0) - both[:, 1].logsumexp(dim=0)


def _of_shard(
    logits: ShardLogits, embeddings: Tensor, place: Tensor, class_weights: Tensor, here: Tensor
) -> tuple[Tensor, Tensor]:
    """The labelled logit, 0 if on another rank, and the log-sum-exp of this rank's other logits."""
    if len(class_weights) == 0:
        # zeros that depend on the inputs: this rank too must join the collectives of the backward
        # pass, or the others would wait for ever
        nothing = widen(embeddings)[:, :0].sum(dim=1) + class_weights.sum()
        return nothing, nothing - torch.inf
    plain = logits.plain(embeddings, place, class_weights)
    own = torch.where(here, logits.own(embeddings, place, class_weights), 0.0)
    # a single class has no others, and its log-odds would be infinite
    if len(class_weights) == 1:
        return own, plain.masked_fill(here, -torch.inf)
    log_odds = logits.log_odds(embeddings, place, class_weights)
    # log_odds = plain - others. A row labelled elsewhere needs log(e^plain + e^others), which is
    # plain + softplus(-log_odds)
    return own, torch.where(here, plain - log_odds, plain + F.softplus(-log_odds))
