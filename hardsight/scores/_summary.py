"""Summarise a head's outputs in one pass; all scores are computed from the summaries.

The scores of an example are functions of a few numbers: the angle to its class, the sum of its
angles, the log-sum-exp of its logits, and so on. The passes here compute these numbers in tiles of
some examples by some classes, so that no N by C matrix is in memory, and merge them over the
classes. The result depends on the tile size only by rounding.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn.functional import logsigmoid

from hardsight._checks import check_labels, check_matrix, check_rows, check_width, is_traced
from hardsight.errors import OptionError, ShapeError
from hardsight.geometry import (
    angle_between,
    angles_from_cosines,
    unit_cosines,
    unit_target_angles,
    unit_vectors,
    units_and_norms,
    widen,
    widen_together,
)
from hardsight.kernels import autocast_dtype, linear_inputs
from hardsight.scores._fused import can_fuse, fused_summaries
from hardsight.scores._tiles import (
    AngleSummary,
    LogitSummary,
    OwnColumns,
    PredictionSummary,
    Scratch,
    Summaries,
    TargetSummary,
    all_columns,
    angle_tile,
    floored,
    logit_tile,
    or_zero_,
    own_columns,
    scratch_logit_tile,
    scratch_prediction_tile,
    with_exact_target,
)

IMPLS = ("auto", "torch", "triton")
PARTS = ("norms", "angles", "predictions", "logits", "targets")
# with 8,192 columns and 256 rows, a tile is large enough for a fast product and fits the cache
CLASSES_AT_ONCE = 8192
_LOGIT_PARTS = {"predictions", "logits", "targets"}
_TILE_ENTRIES = 1 << 21  # 8 MiB of float32: two such tiles stay in the last cache of a CPU


_Decision = tuple[PredictionSummary | None, LogitSummary | None, TargetSummary | None]


def _is_autocast(embeddings: Tensor) -> bool:
    """Whether autocast is on here, and embeddings have its dtype."""
    return autocast_dtype(embeddings) == embeddings.dtype


def angle_summary(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, *, impl: str = "auto"
) -> AngleSummary:
    """Reduce the angles of examples ``[N, D]`` to class weights ``[C, D]`` over classes."""
    head = TiledHead(class_weights, parts=("angles",), impl=impl)
    angles = head.summaries(embeddings, labels).angles
    assert angles is not None
    return angles


def logit_summary(logits: Tensor) -> LogitSummary:
    """Reduce logits ``[N, C]`` over classes."""
    check_matrix(logits=logits)
    # label -1 is in no column, so no class is treated as the label
    no_labels = torch.full((len(logits),), -1, device=logits.device)
    columns = own_columns(no_labels, 0, logits.shape[1])
    return logit_tile(widen(logits), columns, first_class=0)[0]


def target_summary(logits: Tensor, labels: Tensor) -> TargetSummary:
    """Reduce logits ``[N, C]`` over classes, with the own class separate from the others."""
    return logit_summaries(logits, labels)[1]


def logit_summaries(logits: Tensor, labels: Tensor) -> tuple[LogitSummary, TargetSummary]:
    """Compute both reductions of logits ``[N, C]`` in a single pass."""
    check_matrix(logits=logits)
    check_rows(logits=logits, labels=labels)
    check_labels(labels, logits.shape[1])
    return logit_tile(widen(logits), all_columns(labels), first_class=0)


def head_summaries(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None = None,
    *,
    parts: tuple[str, ...] = PARTS,
    classes_at_once: int = CLASSES_AT_ONCE,
    rows_at_once: int | None = None,
    impl: str = "auto",
) -> Summaries:
    """Compute all summaries from embeddings and a linear head with a single matrix product.

    Args:
        embeddings: ``[N, D]``.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: rows of the head, ``[C, D]``.
        bias: of the head, ``[C]``; angles ignore it.
        parts: which fields of :class:`Summaries` to fill.
        classes_at_once: width of a tile.
        rows_at_once: height of a tile; by default as many rows as fit into a core's cache.
        impl: ``"torch"``, ``"triton"`` (fused kernels, on a GPU, no gradient), or ``"auto"``.
    """
    head = TiledHead(
        class_weights,
        bias,
        parts=parts,
        classes_at_once=classes_at_once,
        rows_at_once=rows_at_once,
        impl=impl,
    )
    return head.summaries(embeddings, labels)


class TiledHead:
    """A linear head that is prepared once and applied tile by tile; see :func:`head_summaries`."""

    def __init__(
        self,
        class_weights: Tensor,
        bias: Tensor | None = None,
        *,
        parts: tuple[str, ...] = PARTS,
        classes_at_once: int = CLASSES_AT_ONCE,
        rows_at_once: int | None = None,
        impl: str = "auto",
    ) -> None:
        if impl not in IMPLS:
            raise OptionError(f"expected impl to be one of {', '.join(IMPLS)}, got {impl!r}")
        check_matrix(class_weights=class_weights)
        if len(class_weights) == 0:
            raise ShapeError("expected at least one class, got class_weights with no rows")
        self.class_weights, self.parts, self.classes_at_once = class_weights, parts, classes_at_once
        # with few classes, take more rows at once, so that tiles keep their size
        width = min(len(class_weights), classes_at_once)
        self.rows_at_once = rows_at_once or max(1, _TILE_ENTRIES // width)
        self.impl, self.bias = impl, bias
        self._bias = None if bias is None else widen(bias)
        self._scratch = Scratch()
        self._units: tuple[Tensor, Tensor] | None = None

    @property
    def _normalized(self) -> tuple[Tensor, Tensor]:
        """Unit class weights and their norms, computed on first use; fused kernels need neither."""
        # not a cached_property, whose lock in Python 3.11 cannot be traced by torch.compile
        if self._units is None:
            self._units = units_and_norms(self.class_weights)
        return self._units

    def summaries(self, embeddings: Tensor, labels: Tensor) -> Summaries:
        """Return the summaries of examples ``[N, D]`` with labels ``[N]``."""
        check_width(embeddings, self.class_weights)
        check_rows(embeddings=embeddings, labels=labels)
        check_labels(labels, len(self.class_weights))
        # under autocast, a linear layer rounds its weights to this dtype: use the same weights
        if embeddings.dtype != self.class_weights.dtype and _is_autocast(embeddings):
            return self._rounded(embeddings).summaries(embeddings, labels)
        if self._is_fused(embeddings):
            return fused_summaries(
                embeddings, labels, self.class_weights, self.bias, parts=self.parts
            )
        step = self.rows_at_once
        # an empty batch is one empty part, so that the result has the right shapes and dtypes
        parts = [slice(first, first + step) for first in range(0, max(1, len(labels)), step)]
        merged: Summaries = _concatenate(
            [self._rows(embeddings[part], labels[part]) for part in parts]
        )
        return merged

    def nearest(self, embeddings: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the classes nearest to each example by angle, nearest first.

        It makes a row of all classes for every example, so it is for heads with few classes.

        Returns:
            classes and angles, ``[N, count]`` each, fewer if there are fewer classes; -1 and NaN
            for an example that is not finite, or zero.
        """
        unit, weights = widen_together(unit_vectors(embeddings), self._normalized[0])
        cosines, most = unit_cosines(unit, weights), min(count, len(weights))
        if cosines.is_cuda:  # the exact path would wait for the device, to look for small angles
            classes = cosines.topk(most, dim=1).indices
            nearest = angle_between(unit[:, None], weights[classes])
        else:
            angles = angles_from_cosines(cosines, embeddings=unit, class_weights=weights)
            nearest, classes = angles.topk(most, dim=1, largest=False)
        # NaN sorts behind all angles, so a NaN among the nearest means that no others are left
        known = (nearest.isfinite() & (unit != 0).any(dim=1, keepdim=True)).all(dim=1, keepdim=True)
        return torch.where(known, classes, -1), torch.where(known, nearest, math.nan)

    def _rounded(self, embeddings: Tensor) -> TiledHead:
        """The head in the dtype of autocast's embeddings, rounded as in a linear layer."""
        _, weights = linear_inputs(embeddings, self.class_weights)
        return TiledHead(
            weights, self.bias, parts=self.parts, classes_at_once=self.classes_at_once,
            rows_at_once=self.rows_at_once, impl=self.impl,
        )  # fmt: skip

    def _is_fused(self, embeddings: Tensor) -> bool:
        """Whether the fused kernels compute this: on request, or automatically on a GPU."""
        if self.impl != "auto":
            return self.impl == "triton"
        tensors = (embeddings, self.class_weights, self.bias)
        return embeddings.is_cuda and can_fuse(*tensors) and not _is_differentiated(*tensors)

    def _rows(self, embeddings: Tensor, labels: Tensor) -> Summaries:
        """Summarise some examples, merged over the tiles of classes."""
        unit, norms = units_and_norms(embeddings)
        merged = Summaries()
        for first in range(0, len(self.class_weights), self.classes_at_once):
            here = slice(first, first + self.classes_at_once)
            merged = _merge(merged, self._tile(unit, norms, labels, here))
        angles = merged.angles
        if angles is not None and is_traced(unit):
            # a trace cannot select the pairs near 0 and pi, but it knows the pairs with the label
            exact = unit_target_angles(unit, labels, self._normalized[0])
            angles = with_exact_target(angles, exact)
        norms_asked = norms if "norms" in self.parts else None
        # dataclasses.replace cannot be traced by torch 2.6
        return Summaries(norms_asked, angles, merged.predictions, merged.logits, merged.targets)

    def _tile(self, unit: Tensor, norms: Tensor, labels: Tensor, here: slice) -> Summaries:
        all_weights, weight_norms = self._normalized
        # reuse memory for all tiles, unless a gradient needs the intermediate results
        scratch = None if _is_differentiated(unit, all_weights, self._bias) else self._scratch
        unit, weights = widen_together(unit, all_weights[here])
        room = None if scratch is None else scratch.cosines(unit, weights)
        cosines = unit_cosines(unit, weights, out=room)
        whole = cosines.shape[1] == len(all_weights)
        columns = (
            all_columns(labels) if whole else own_columns(labels, here.start, cosines.shape[1])
        )
        angles = None
        decision: _Decision = (None, None, None)
        if not _LOGIT_PARTS.isdisjoint(self.parts):
            bias = None if self._bias is None else self._bias[here]
            if scratch is not None:
                tile = scratch.logits(cosines, norms, weight_norms[here], bias)
                decision = self._scratch_decision(tile, columns, here.start, scratch)
            else:
                # logits from the cosines, so that one product gives both angles and logits
                tile = cosines * weight_norms[here] * norms[:, None]
                tile = tile if bias is None else tile + bias
                logits, targets = logit_tile(tile, columns, here.start)
                decision = logits, logits, targets
        if "angles" in self.parts:
            angles = angle_tile(cosines, columns, unit, weights, spare=scratch is not None)
        return Summaries(None, angles, *decision)

    def _scratch_decision(
        self, tile: Tensor, columns: OwnColumns, first: int, scratch: Scratch
    ) -> _Decision:
        """Predictions, logits and targets of a tile; predictions alone are much cheaper."""
        if "logits" in self.parts or "targets" in self.parts:
            logits, targets = scratch_logit_tile(tile, columns, first, scratch)
            return logits, logits, targets
        return scratch_prediction_tile(tile, columns, first), None, None


def _is_differentiated(*tensors: Tensor | None) -> bool:
    return any(
        t is not None and (t.requires_grad or is_traced(t) or unpack_dual(t).tangent is not None)
        for t in tensors
    )


def _merge(first: Summaries, second: Summaries) -> Summaries:
    """Merge the summaries over two disjoint sets of classes."""
    angles, predictions = second.angles, second.predictions
    if first.angles is not None and second.angles is not None:
        angles = _merge_angles(first.angles, second.angles)
    if first.predictions is not None and second.predictions is not None:
        predictions = _merge_predictions(first.predictions, second.predictions)
    if first.logits is None or second.logits is None:
        return Summaries(None, angles, predictions, second.logits, second.targets)
    assert predictions is not None
    # log odds between the two sets; the largest logits are subtracted first, as they may be large
    gap = (floored(first.logits.largest) - floored(second.logits.largest)) + (
        first.logits.log_total - second.logits.log_total
    )
    logits = _merge_logits(first.logits, second.logits, predictions, gap)
    targets = None
    if first.targets is not None and second.targets is not None:
        targets = _merge_targets(first.targets, second.targets, gap)
    return Summaries(None, angles, logits, logits, targets)


def _merge_predictions(first: PredictionSummary, second: PredictionSummary) -> PredictionSummary:
    return PredictionSummary(
        largest=torch.maximum(first.largest, second.largest),
        # strictly larger, so that the first of equal logits is the prediction
        prediction=torch.where(second.largest > first.largest, second.prediction, first.prediction),
    )


def _merge_angles(first: AngleSummary, second: AngleSummary) -> AngleSummary:
    return AngleSummary(
        # a part without the labelled class has NaN here
        target=torch.where(first.target.isnan(), second.target, first.target),
        others=first.others + second.others,
        nearest_other=torch.minimum(first.nearest_other, second.nearest_other),
        num_classes=first.num_classes + second.num_classes,
    )


def _merge_logits(
    first: LogitSummary, second: LogitSummary, decision: PredictionSummary, gap: Tensor
) -> LogitSummary:
    largest = floored(decision.largest)
    log_total = torch.logaddexp(
        first.largest - largest + first.log_total, second.largest - largest + second.log_total
    )
    # entropy over disjoint sets: the entropy within each, plus that of the choice between them
    entropy = _share(gap, first.entropy - logsigmoid(gap)) + _share(
        -gap, second.entropy - logsigmoid(-gap)
    )
    return LogitSummary(
        decision.largest, decision.prediction, or_zero_(log_total, decision.largest), entropy
    )


def _merge_targets(first: TargetSummary, second: TargetSummary, gap: Tensor) -> TargetSummary:
    return TargetSummary(
        # -inf in the part without the labelled class, so the maximum picks the other part
        logit=torch.maximum(first.logit, second.logit),
        log_prob=torch.maximum(
            first.log_prob + logsigmoid(gap), second.log_prob + logsigmoid(-gap)
        ),
        largest_other=torch.maximum(first.largest_other, second.largest_other),
        others_prob=_share(gap, first.others_prob) + _share(-gap, second.others_prob),
        others_square=_share(gap, _share(gap, first.others_square))
        + _share(-gap, _share(-gap, second.others_square)),
    )


def _share(gap: Tensor, value: Tensor) -> Tensor:
    """``value`` times the probability of its set of classes; 0 if all its logits are -inf."""
    share = gap.sigmoid()
    return share * torch.where(share == 0, 0.0, value)


def _concatenate(pieces: list[Any]) -> Any:
    """Concatenate the same summary of consecutive examples."""
    head = pieces[0]
    if len(pieces) == 1 or not (dataclasses.is_dataclass(head) or isinstance(head, Tensor)):
        return head  # None, or the number of classes
    if isinstance(head, Tensor):
        return torch.cat(pieces)
    fields = [field.name for field in dataclasses.fields(head)]
    kind: Any = type(head)
    return kind(
        **{name: _concatenate([getattr(piece, name) for piece in pieces]) for name in fields}
    )
