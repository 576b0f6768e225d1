"""AVH loss in bounded memory."""

from functools import partial

import torch
from torch import Tensor

from hardsight._checks import is_traced
from hardsight.errors import OptionError
from hardsight.geometry import pairwise_angles, target_angles, widen_together
from hardsight.kernels import angular_log_odds, angular_loss, fused_inputs
from hardsight.losses._angles import avh_logits
from hardsight.losses._linear import cast_for_linear, other_logsumexp, pick_impl
from hardsight.losses._linear_encouraging import check_linear, is_plain_reduction, log_odds_loss
from hardsight.losses._logits import cross_entropy_curve, kept_labels, target_log_odds
from hardsight.losses._module import HeadLossModule
from hardsight.losses._sharded import ShardLogits, refuse_smoothing, sharded_loss
from hardsight.losses._smoothed import smoothed_loss
from hardsight.ranks import Group
from hardsight.registry import loss


def linear_avh_loss(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    *,
    scale: float,
    margin_rad: float = 0.0,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    check_finite: bool = False,
    impl: str = "auto",
    process_group: Group = None,
) -> Tensor:
    r""":func:`~hardsight.losses.avh_loss` without its N x C matrix of angles.

    Values and gradients are those of the plain loss, computed chunk by chunk, so the extra memory
    does not grow with N x C. Under ``torch.autocast`` both tensors are first rounded to its dtype,
    as in a linear layer, and each gradient comes back in the dtype of its own tensor.

    Args:
        embeddings: penultimate features, ``[N, D]``, any scale.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: rows of the classifier head, ``[C, D]``, any scale; no bias.
        scale: :math:`s > 0`.
        margin_rad: added to the angle of the labelled class, as in ArcFace; 0 is the paper's loss.
            Logits are linear in angles here, so to subtract m from the labelled logit, as CosFace
            does, pass ``margin_rad=m / scale``.
        label_smoothing: as in ``cross_entropy``. The loss of an example then needs all its logits,
            so rows are processed a few at a time, in plain torch even on a GPU.
        weight: one factor per class, ``[C]``.
        ignore_index: label of examples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, as in ``cross_entropy``.
        check_finite: raise on a non-finite value, naming the examples.
        impl: ``"torch"``, ``"triton"`` (fused kernels, on a GPU), or ``"auto"`` for the faster of
            the two. Under ``torch.func``, and on a CPU under ``torch.compile``, the full matrix of
            angles is formed.
        process_group: ranks that the classes are split over. Each passes its own rows and its own
            part of ``class_weights``; see :class:`~hardsight.losses.AVHLoss`.

    Returns:
        A scalar, or ``[N]`` for ``"none"``, in ``[0, inf)``; float32 or wider. Differentiable once.

    Raises:
        OptionError: ``scale`` is not positive, or ``impl`` is unknown.
        ShapeError: the shapes do not fit, or there are fewer than 2 classes.
        LabelError: a label is outside ``[0, C)`` and is not ``ignore_index``.

    Example:
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> linear_avh_loss(axes[:1], torch.tensor([1]), axes, scale=2.0)
        tensor(3.1857)

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Eq. (5), with its negative log.
    """
    if not scale > 0:
        raise OptionError(f"expected scale to be positive, got {scale}")
    # before any angle is measured, since a rounded weight has a different angle
    embeddings, class_weights = cast_for_linear(embeddings, class_weights, impl)
    if process_group is not None:
        refuse_smoothing(label_smoothing)
        return sharded_loss(
            cross_entropy_curve,
            _shard_logits(scale, margin_rad, impl),
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

        def row_logits(rows: Tensor, own: Tensor) -> Tensor:
            # smoothing needs every logit of a row, so chunks are of rows instead of classes
            logits = avh_logits(rows, class_weights, scale=scale, labels=own)
            if margin_rad == 0:
                return logits
            # a margin on the labelled angle lowers its logit by scale times as much
            lowered_by = torch.full_like(logits[:, :1], scale * margin_rad)
            return logits - torch.zeros_like(logits).scatter(1, own[:, None], lowered_by)

        return smoothed_loss(
            cross_entropy_curve, row_logits, embeddings, labels, len(class_weights), weight=weight,
            ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction,
            check_finite=check_finite,
        )  # fmt: skip
    fused = pick_impl(impl, embeddings, class_weights) == "triton"
    # the kernel reduces a plain mean or sum itself; anything else needs one value per example
    if fused and is_plain_reduction(reduction, weight, check_finite):
        x, w = fused_inputs(embeddings, class_weights)
        return angular_loss(
            x, labels, w, scale=scale, margin_rad=margin_rad,
            ignore_index=ignore_index, mean=reduction == "mean",
        )  # fmt: skip
    kept, own = kept_labels(labels, class_weights.shape[0], ignore_index)
    twin = _log_odds_fused if fused else _log_odds_torch
    log_odds = twin(embeddings, own, class_weights, scale)
    if margin_rad != 0:
        # the margin is the same for every example, so it can be subtracted afterwards
        log_odds = log_odds - scale * margin_rad
    return log_odds_loss(
        cross_entropy_curve, log_odds, kept, own, weight, class_weights, reduction, check_finite
    )


@loss("linear_avh", function=linear_avh_loss, inputs=("embeddings", "labels", "class_weights"))
class LinearAVHLoss(HeadLossModule):
    """Module twin of :func:`linear_avh_loss`; owns the class weights."""

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        scale: float,
        margin_rad: float = 0.0,
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
            scale=scale,
            margin_rad=margin_rad,
            label_smoothing=label_smoothing,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check_finite=check_finite,
            impl=impl,
            process_group=process_group,
        )

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """See :func:`linear_avh_loss`."""
        return linear_avh_loss(embeddings, labels, self.class_weights, **self.options)


def _shard_logits(scale: float, margin_rad: float, impl: str) -> ShardLogits:
    # the margin applies only to the labelled logit, not when its class counts among the others
    def plain(embeddings: Tensor, place: Tensor, class_weights: Tensor) -> Tensor:
        return -scale * target_angles(embeddings, place, class_weights)

    def log_odds(embeddings: Tensor, place: Tensor, class_weights: Tensor) -> Tensor:
        fused = pick_impl(impl, embeddings, class_weights) == "triton"
        twin = _log_odds_fused if fused else _log_odds_torch
        return twin(embeddings, place, class_weights, scale)

    def own(embeddings: Tensor, place: Tensor, class_weights: Tensor) -> Tensor:
        return plain(embeddings, place, class_weights) - scale * margin_rad

    return ShardLogits(plain=plain, log_odds=log_odds, own=own)


def _log_odds_fused(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, scale: float
) -> Tensor:
    x, w = fused_inputs(embeddings, class_weights)
    return angular_log_odds(x, labels, w, scale=scale)


def _log_odds_torch(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, scale: float
) -> Tensor:
    # a trace cannot loop over chunks whose number depends on the shape
    if is_traced(embeddings) or is_traced(class_weights):
        logits = avh_logits(embeddings, class_weights, scale=scale, labels=labels)
        return target_log_odds(logits, labels)
    own = -scale * target_angles(embeddings, labels, class_weights)
    chunk_logits = partial(_chunk_logits, scale=scale)
    return own - other_logsumexp(chunk_logits, embeddings, labels, class_weights, None)


def _chunk_logits(
    rows: Tensor, class_weights: Tensor, bias: Tensor | None, *, scale: float
) -> Tensor:
    return -scale * pairwise_angles(*widen_together(rows, class_weights))
