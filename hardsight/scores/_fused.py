"""Compute the summaries of a head with the fused kernels, instead of tile by tile."""

from __future__ import annotations

import torch
from torch import Tensor

from hardsight._checks import is_traced
from hardsight.geometry import row_norms
from hardsight.kernels import HeadStatistics, fused_inputs, head_statistics, is_fusible
from hardsight.scores._tiles import AngleSummary, LogitSummary, Summaries, TargetSummary


def can_fuse(embeddings: Tensor, class_weights: Tensor, bias: Tensor | None) -> bool:
    """Whether the fused kernels can process these tensors on this machine."""
    tensors = [embeddings, class_weights] + ([] if bias is None else [bias])
    return not any(map(is_traced, tensors)) and is_fusible(embeddings, class_weights)


def fused_summaries(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None,
    *,
    parts: tuple[str, ...],
) -> Summaries:
    """Compute the summaries of :class:`TiledHead` with a single kernel over all classes."""
    wants_logits = not {"predictions", "logits", "targets"}.isdisjoint(parts)
    x, w = fused_inputs(embeddings, class_weights)
    statistics = head_statistics(x, labels, w, bias, logits=wants_logits)
    logits = targets = None
    if wants_logits:
        logits, targets = _logit_parts(statistics)
    return Summaries(
        norms=row_norms(embeddings) if "norms" in parts else None,
        # the kernels always compute the angles, whose cost is negligible next to the product
        angles=AngleSummary(
            statistics.target_angle,
            statistics.other_angle_total,
            statistics.nearest_other,
            len(class_weights),
        ),
        predictions=logits,
        logits=logits,
        targets=targets,
    )


def _logit_parts(statistics: HeadStatistics) -> tuple[LogitSummary, TargetSummary]:
    assert statistics.logsumexp is not None
    assert statistics.largest_logit is not None
    assert statistics.prediction is not None
    assert statistics.entropy is not None
    assert statistics.target_logit is not None
    assert statistics.largest_other_logit is not None
    assert statistics.other_probability is not None
    assert statistics.other_probability_squares is not None
    log_total = statistics.logsumexp - statistics.largest_logit
    # log of the labelled probability, exact even if the probability rounds to 1
    log_prob = torch.where(
        statistics.other_probability < 0.5,
        torch.log1p(-statistics.other_probability),
        statistics.target_logit - statistics.logsumexp,
    )
    return (
        LogitSummary(
            statistics.largest_logit, statistics.prediction, log_total, statistics.entropy
        ),
        TargetSummary(
            statistics.target_logit,
            log_prob,
            statistics.largest_other_logit,
            statistics.other_probability,
            statistics.other_probability_squares,
        ),
    )
