"""Encouraging loss from embeddings and class weights, in bounded memory."""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from hardsight._checks import check_rows, check_tensors, check_width, is_traced
from hardsight.errors import LabelError, ShapeError
from hardsight.geometry import widen, widen_together
from hardsight.kernels import fused_inputs, linear_log_odds, linear_loss
from hardsight.losses._encouraging import encouraging_curve
from hardsight.losses._linear import cast_for_linear, other_logsumexp, pick_impl
from hardsight.losses._logits import Curve, kept_labels, target_log_odds
from hardsight.losses._module import HeadLossModule
from hardsight.losses._reduce import reduce_loss
from hardsight.losses._sharded import ShardLogits, refuse_smoothing, sharded_loss
from hardsight.losses._smoothed import smoothed_loss
from hardsight.ranks import Group
from hardsight.registry import loss


def linear_encouraging_loss(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    bias: Tensor | None = None,
    *,
    log_end: float = 0.75,
    bonus_start: float | None = None,
    bonus: str = "log",
    power: float = 2.0,
    clamp: float = 0.0,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    check_finite: bool = False,
    impl: str = "auto",
    process_group: Group = None,
) -> Tensor:
    r"""``encouraging_loss(embeddings @ class_weights.T + bias, labels)`` without the logits.

    Values and gradients are those of :func:`~hardsight.losses.encouraging_loss` over the logits,
    computed chunk by chunk, so the extra memory does not grow with N x C. Labels must be class
    indices. Under ``torch.autocast`` embeddings and class weights are first rounded to its dtype,
    as in a linear layer, and each gradient comes back in the dtype of its own tensor.

    Args:
        embeddings: penultimate features, ``[N, D]``.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: rows of the classifier head, ``[C, D]``.
        bias: of the head, ``[C]``, or None.
        log_end: as in :func:`~hardsight.losses.encouraging_loss`, like ``bonus_start``, ``bonus``,
            ``power``, ``clamp``, ``weight``, ``ignore_index``, ``reduction`` and ``check_finite``.
        bonus_start: see there.
        bonus: see there.
        power: see there.
        clamp: see there.
        label_smoothing: see there. The loss of an example then needs all its logits, so rows are
            processed a few at a time, in plain torch even on a GPU.
        weight: see there.
        ignore_index: see there.
        reduction: see there.
        check_finite: see there.
        impl: ``"torch"``, ``"triton"`` (fused kernels, on a GPU), or ``"auto"`` for the faster of
            the two. Under ``torch.func``, and on a CPU under ``torch.compile``, the full matrix of
            logits is formed.
        process_group: ranks that the classes are split over. Each passes its own rows and its own
            part of ``class_weights`` and ``bias``; see :class:`~hardsight.losses.AVHLoss`.

    Returns:
        A scalar, or ``[N]`` for ``"none"``; float32 or wider. Differentiable once.

    Raises:
        ShapeError: the shapes do not fit, or there are fewer than 2 classes.
        LabelError: a label is outside ``[0, C)`` and is not ``ignore_index``.
        OptionError: an option is out of its range.

    Example:
        >>> axes = torch.eye(3)
        >>> linear_encouraging_loss(axes, torch.tensor([0, 1, 2]), 2 * axes, log_end=1.0)
        tensor(-1.3069)

    Reference:
        Zhao et al., Well-classified Examples are Underestimated in Classification with Deep
        Neural Networks, AAAI 2022, Eq. (6) and Section 3.1.
    """
    curve = encouraging_curve(
        log_end=log_end, bonus_start=bonus_start, bonus=bonus, power=power, clamp=clamp
    )
    _check_bias(bias, class_weights.shape[0])
    embeddings, class_weights = cast_for_linear(embeddings, class_weights, impl)
    if process_group is not None:
        refuse_smoothing(label_smoothing)
        return sharded_loss(
            curve,
            linear_shard_logits(bias, impl),
            embeddings,
            labels,
            class_weights,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check_finite=check_finite,
            group=process_group,
        )
    check_linear(embeddings, labels, class_weights)
    if label_smoothing != 0:
        return smoothed_loss(
            curve, lambda rows, _: _chunk_logits(rows, class_weights, bias), embeddings, labels,
            len(class_weights), weight=weight, ignore_index=ignore_index,
            label_smoothing=label_smoothing, reduction=reduction, check_finite=check_finite,
        )  # fmt: skip
    fused = pick_impl(impl, embeddings, class_weights) == "triton"
    # the kernel knows only these curves; other bonuses go through the log-odds
    is_paper_curve = bonus == "log" and bonus_start is None and (log_end < 1 or clamp == 0)
    if fused and is_paper_curve and is_plain_reduction(reduction, weight, check_finite):
        x, w = fused_inputs(embeddings, class_weights)
        return linear_loss(
            x, labels, w, bias, log_end=log_end,
            ignore_index=ignore_index, mean=reduction == "mean",
        )  # fmt: skip
    kept, own = kept_labels(labels, class_weights.shape[0], ignore_index)
    twin = _log_odds_fused if fused else _log_odds_torch
    log_odds = twin(embeddings, own, class_weights, bias)
    return log_odds_loss(curve, log_odds, kept, own, weight, class_weights, reduction, check_finite)


@loss(
    "linear_encouraging",
    function=linear_encouraging_loss,
    inputs=("embeddings", "labels", "class_weights", "bias"),
)
class LinearEncouragingLoss(HeadLossModule):
    """Module twin of :func:`linear_encouraging_loss`; owns the head's weights and bias."""

    bias: nn.Parameter | None

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        log_end: float = 0.75,
        bonus_start: float | None = None,
        bonus: str = "log",
        power: float = 2.0,
        clamp: float = 0.0,
        label_smoothing: float = 0.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        check_finite: bool = False,
        impl: str = "auto",
        process_group: Group = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_classes,
            embedding_dim,
            device=device,
            dtype=dtype,
            log_end=log_end,
            bonus_start=bonus_start,
            bonus=bonus,
            power=power,
            clamp=clamp,
            label_smoothing=label_smoothing,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check_finite=check_finite,
            impl=impl,
            process_group=process_group,
        )
        own = len(self.class_weights)
        self.bias = nn.Parameter(torch.zeros(own, device=device, dtype=dtype))

    @classmethod
    def from_head(cls, head: nn.Module, **options: Any) -> Self:
        """Build the loss on the weight and bias of ``head``, which are shared and not copied."""
        module = super().from_head(head, **options)
        bias = getattr(head, "bias", None)
        # a bias that is not a parameter, such as a buffer, becomes one, so optimizers find it
        if isinstance(bias, Tensor) and not isinstance(bias, nn.Parameter):
            bias = nn.Parameter(bias, requires_grad=bias.requires_grad)
        module.bias = bias
        return module

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """See :func:`linear_encouraging_loss`."""
        return linear_encouraging_loss(
            embeddings, labels, self.class_weights, self.bias, **self.options
        )


def check_linear(embeddings: Tensor, labels: Tensor, class_weights: Tensor) -> None:
    """Raise unless these are the tensors of a linear loss."""
    check_width(embeddings, class_weights)
    check_rows(embeddings=embeddings, labels=labels)
    if labels.ndim != 1 or labels.is_floating_point():
        raise LabelError(
            f"expected labels to be class indices [N], got {labels.dtype} {list(labels.shape)}; "
            "soft labels need the loss of logits"
        )
    # the probability of a single class is always 1, so there is nothing to learn
    if class_weights.shape[0] < 2:
        raise ShapeError(f"expected at least 2 classes, got {list(class_weights.shape)}")


def is_plain_reduction(reduction: str, weight: Tensor | None, check_finite: bool) -> bool:
    """Whether the kernels can reduce the loss themselves, as a plain mean or sum."""
    return reduction in ("mean", "sum") and weight is None and not check_finite


def log_odds_loss(
    curve: Curve,
    log_odds: Tensor,
    kept: Tensor,
    own: Tensor,
    weight: Tensor | None,
    class_weights: Tensor,
    reduction: str,
    check_finite: bool,
) -> Tensor:
    """``curve`` over the label's log-odds, weighted and reduced as in ``cross_entropy``."""
    # where, not a product: the curve of an ignored row may be infinite, and 0 * inf is NaN
    values = torch.where(kept, curve(log_odds), 0.0)
    divisor = kept.sum()
    if weight is not None:
        if list(weight.shape) != [class_weights.shape[0]]:
            raise ShapeError(
                f"expected one weight per class, [{class_weights.shape[0]}], got "
                f"{list(weight.shape)}"
            )
        own_weight = weight.to(log_odds.dtype)[own] * kept
        values, divisor = own_weight * values, own_weight.sum()
    return reduce_loss(values, reduction, divisor=divisor, check_finite=check_finite)


def linear_shard_logits(bias: Tensor | None, impl: str) -> ShardLogits:
    """The logits of a linear head for the classes of one shard."""

    def plain(embeddings: Tensor, place: Tensor, class_weights: Tensor) -> Tensor:
        return _own_logits(embeddings, place, class_weights, bias)

    def log_odds(embeddings: Tensor, place: Tensor, class_weights: Tensor) -> Tensor:
        fused = pick_impl(impl, embeddings, class_weights) == "triton"
        twin = _log_odds_fused if fused else _log_odds_torch
        return twin(embeddings, place, class_weights, bias)

    return ShardLogits(plain=plain, log_odds=log_odds, own=plain)


def _own_logits(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, bias: Tensor | None
) -> Tensor:
    own = (widen(embeddings) * widen(class_weights[labels])).sum(dim=1)
    if bias is not None:
        own = own + bias[labels]
    # labels are not checked on a GPU, where -1 has picked the last class: NaN makes it visible
    return own.masked_fill(labels < 0, math.nan)


def _log_odds_fused(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, bias: Tensor | None
) -> Tensor:
    x, w = fused_inputs(embeddings, class_weights)
    return linear_log_odds(x, labels, w, bias)


def _log_odds_torch(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, bias: Tensor | None
) -> Tensor:
    # a trace cannot loop over chunks whose number depends on the shape
    if is_traced(embeddings) or is_traced(class_weights):
        return target_log_odds(_chunk_logits(embeddings, class_weights, bias), labels)
    own = _own_logits(embeddings, labels, class_weights, bias)
    return own - other_logsumexp(_chunk_logits, embeddings, labels, class_weights, bias)


def _check_bias(bias: Tensor | None, num_classes: int) -> None:
    if bias is None:
        return
    check_tensors(bias=bias)
    if list(bias.shape) != [num_classes]:
        raise ShapeError(f"expected one bias per class, [{num_classes}], got {list(bias.shape)}")


def _chunk_logits(rows: Tensor, class_weights: Tensor, bias: Tensor | None) -> Tensor:
    x, w = widen_together(rows, class_weights)
    with torch.autocast(rows.device.type, enabled=False):  # autocast would round the product
        logits = x @ w.T
    return logits if bias is None else logits + bias
