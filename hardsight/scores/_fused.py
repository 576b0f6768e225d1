"""The summaries of a head by its fused kernels, instead of tile by tile."""

from __future__ import annotations

import torch
from torch import Tensor

from hardsight._checks import is_traced
from hardsight.geometry import row_norms
from hardsight.kernels import HeadStatistics, fused_inputs, head_statistics, is_fusible
from hardsight.scores._tiles import AngleSummary, LogitSummary, Summaries, TargetSummary


def can_fuse(embeddings: Tensor, class_weights: Tensor, bias: Tensor | None) -> bool:
    """Whether the fused kernels can take these tensors here."""
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
    """What :class:`TiledHead` computes, by one kernel over all classes."""
    wants_logits = not {"predictions", "logits", "targets"}.isdisjoint(parts)
    x, w = fused_inputs(embeddings, class_weights)
    found = head_statistics(x, labels, w, bias, logits=wants_logits)
    logits = targets = None
    if wants_logits:
        logits, targets = _logit_parts(found)
    return Summaries(
        norms=row_norms(embeddings) if "norms" in parts else None,
        angles=AngleSummary(
            found.target_angle, found.other_angle_total, found.nearest_other, len(class_weights)
        ),
        predictions=logits,
        logits=logits,
        targets=targets,
    )


def _logit_parts(found: HeadStatistics) -> tuple[LogitSummary, TargetSummary]:
    assert found.logsumexp is not None
    assert found.largest_logit is not None
    assert found.prediction is not None
    assert found.entropy is not None
    assert found.target_logit is not None
    assert found.largest_other_logit is not None
    assert found.other_probability is not None
    assert found.other_probability_squares is not None
    log_total = found.logsumexp - found.largest_logit
    # the log of the own probability, exact also where that rounds to 1
    log_prob = torch.where(
        found.other_probability < 0.5,
        torch.log1p(-found.other_probability),
        found.target_logit - found.logsumexp,
    )
    return (
        LogitSummary(found.largest_logit, found.prediction, log_total, found.entropy),
        TargetSummary(
            found.target_logit,
            log_prob,
            found.largest_other_logit,
            found.other_probability,
            found.other_probability_squares,
        ),
    )
