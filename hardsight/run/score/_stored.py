"""Prepare stored embeddings for scoring, with the head they feed or with a fitted head per fold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardsight.data import EmbeddingSource
from hardsight.errors import OptionError, ShapeError
from hardsight.heads import Head
from hardsight.run.loop import stated_classes
from hardsight.run.score._arguments import Ready, ScoreArguments, refuse, refuse_pixel_options
from hardsight.run.score._embeddings import EmbeddingScorer
from hardsight.run.score._refit import Refit
from hardsight.run.score._rows import ScorePlan
from hardsight.run_folder import tensors_digest


def by_stored_head(
    options: ScoreArguments, source: EmbeddingSource, plan: ScorePlan, place: torch.device
) -> Ready:
    """Prepare stored embeddings with their own head, or with heads that are fitted to them."""
    refuse_pixel_options(options)
    refuse(
        "stored embeddings, which need no model; leave it out (their head is class_weights=, "
        "--class-weights)",
        head=options.head if isinstance(options.head, str) else None, output=options.output,
        weights=options.weights, trust_remote_code=options.trust_remote_code or None,
    )  # fmt: skip
    names = stated_classes(options.model_classes)
    if options.out_of_sample is None:
        head = _stored_head(options.model, options.head, source)
        scorer = EmbeddingScorer(source, [head], plan, device=place, batch_size=options.batch_size)
        parts = [tensor for tensor in (head.weight, head.bias) if tensor is not None]
        facts = {"spec": "stored head", "digest": tensors_digest(*parts)}
        about = {"model": facts, "bias": scorer.bias_facts()}
        return Ready(source, scorer, plan, names, options.class_order, about)
    refuse(
        "out_of_sample, which fits a head for each fold; leave it out, or leave out_of_sample out "
        "to score with that head",
        model=options.model, head=options.head, class_weights=options.class_weights,
        bias=options.bias,
    )  # fmt: skip
    refit = Refit(source, options.out_of_sample, device=place, seed=options.seed)
    scorer = refit.scorer(plan, batch_size=options.batch_size)
    about = {"model": refit.model_facts()}
    return Ready(source, scorer, plan, names, options.class_order, about, refit)


def _stored_head(model: Any, head: str | Head | None, source: EmbeddingSource) -> Head:
    """The head of stored embeddings: an argument, or stored beside them."""
    head_or_weights = head if isinstance(head, Head) else model
    if isinstance(head_or_weights, Head):
        stored = head_or_weights
    elif isinstance(head_or_weights, Tensor):
        stored = Head(name="stored", weight=head_or_weights.detach(), bias=None)
    elif head_or_weights is not None:
        raise OptionError(
            f"{source.spec} holds embeddings, which need no model; pass their head as "
            "class_weights=FILE (--class-weights), a Head or a tensor"
        )
    elif source.class_weights is None:
        raise OptionError(
            f"{source.spec} holds embeddings but no class weights; pass class_weights=FILE "
            "(--class-weights), the weights of the classifier layer they feed, or fit a head for "
            "each of five folds: out_of_sample=5 (--out-of-sample 5)"
        )
    else:
        bias = None if source.bias is None else torch.tensor(source.bias)
        stored = Head(name="stored", weight=torch.tensor(source.class_weights), bias=bias)
    if stored.width != source.width:
        raise ShapeError(
            f"expected embeddings [N, D] and class_weights [C, D] of the same width D, got "
            f"embeddings {[len(source), source.width]}, class_weights {list(stored.weight.shape)}"
        )
    return stored
