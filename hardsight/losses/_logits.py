r"""The computation behind all losses of logits, each given as a curve over log-odds.

The softmax probability of a class is the logistic function of its log-odds,

.. math:: m_c = z_c - \log\sum_{j \ne c} e^{z_j}, \qquad
          \log p_c = \log\sigma(m_c), \qquad \log(1 - p_c) = \log\sigma(-m_c)

so cross-entropy, focal loss and every bonus are curves over :math:`m_c`. No clamp is needed, since
:math:`\log(1 - p)` stays exact even if :math:`p` is very close to 1.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight._checks import check_labels, check_tensors, is_traced
from hardsight.errors import LabelError, OptionError, ShapeError
from hardsight.geometry import widen
from hardsight.losses._reduce import reduce_loss

Curve = Callable[[Tensor], Tensor]


def logit_loss(
    curve: Curve,
    logits: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    check_finite: bool,
) -> Tensor:
    r"""Return the loss ``curve`` over log-odds, under the target distribution :math:`q`.

    .. math:: L_i = \sum_c q_{ic}\, w_c\, \mathrm{curve}(m_{ic})

    Shapes, class weights, ``ignore_index``, smoothing, soft labels and reductions are those of
    ``torch.nn.functional.cross_entropy``, which is the case of the curve :math:`-\log\sigma(m)`.
    """
    check_logits(logits, labels)
    if not 0 <= label_smoothing <= 1:
        raise OptionError(f"expected label_smoothing in [0, 1], got {label_smoothing}")
    # the reductions below expect classes last; dense logits have them second
    z = classes_last(widen(logits))
    class_weight = _class_weight(weight, z)
    if labels.is_floating_point():
        if ignore_index >= 0:
            raise OptionError(
                f"expected no ignore_index with soft labels, got {ignore_index}; to ignore an "
                "example, give it a row of zeros"
            )
        probs = classes_last(labels.to(z.dtype))
        # smoothing mixes with the uniform distribution, as cross_entropy does
        probs = probs * (1 - label_smoothing) + label_smoothing / z.shape[-1]
        values = (probs * class_weight * curve(class_log_odds(z))).sum(dim=-1)
        return reduce_loss(values, reduction, check_finite=check_finite)

    kept, own = kept_labels(labels, z.shape[-1], ignore_index)
    # gather, because an index without dimensions cannot be read under vmap
    own_weight = class_weight.gather(0, own.reshape(-1)).reshape(own.shape) * kept
    if label_smoothing == 0:
        values = own_weight * curve(target_log_odds(z, own))
    else:
        every = curve(class_log_odds(z))
        hard = own_weight * every.gather(-1, own.unsqueeze(-1)).squeeze(-1)
        # smoothed labels give every class the same small share, including the labelled one
        flat = (every * class_weight).mean(dim=-1)
        values = (1 - label_smoothing) * hard + label_smoothing * flat
    # a weight of 0 is not enough: 0 times an infinite loss is NaN
    values = values.masked_fill(~kept, 0.0)
    return reduce_loss(values, reduction, divisor=own_weight.sum(), check_finite=check_finite)


def cross_entropy_curve(log_odds: Tensor) -> Tensor:
    r""":math:`-\log p`."""
    return -F.logsigmoid(log_odds)


def target_log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-odds of the labelled class.

    Args:
        logits: ``[..., C]``, classes last.
        labels: ``[...]`` in ``[0, C)``.

    Returns:
        ``[...]``; its gradient is 1 at the labelled logit and minus the softmax at the others.
    """
    # mask the labelled class instead of subtracting it from the full log-sum-exp, which would
    # cancel when p is near 1
    index = labels.unsqueeze(-1)
    others = logits.scatter(-1, index, float("-inf")).logsumexp(dim=-1)
    return logits.gather(-1, index).squeeze(-1) - others


def class_log_odds(logits: Tensor) -> Tensor:
    """Log-odds of every class, ``[..., C]`` to ``[..., C]``."""
    top = logits.argmax(dim=-1)
    log_probs = logits.log_softmax(dim=-1)
    # every class but the top one has p <= 1/2, for which log1p(-p) is exact
    below = log_probs.exp().scatter(-1, top.unsqueeze(-1), 0.0)
    log_odds = log_probs - torch.log1p(-below)
    return log_odds.scatter(-1, top.unsqueeze(-1), target_log_odds(logits, top).unsqueeze(-1))


def check_logits(logits: Tensor, labels: Tensor) -> None:
    """Raise unless logits and labels have shapes that ``cross_entropy`` accepts."""
    check_tensors(logits=logits, labels=labels)
    if not logits.is_floating_point():
        raise ShapeError(f"expected logits to be floating point, got {logits.dtype}")
    shape = list(logits.shape)
    # a vector of logits has its classes first, a batch second
    if logits.ndim == 0 or shape[min(1, logits.ndim - 1)] < 2:
        raise ShapeError(
            f"expected logits [N, C] or [N, C, ...] of at least 2 classes, got {shape}; the "
            "probability of a single class is always 1"
        )
    hard = shape[:1] * (logits.ndim > 1) + shape[2:]
    if list(labels.shape) == shape:
        if not labels.is_floating_point():
            raise LabelError(
                f"expected labels of the shape of logits to be probabilities, got {labels.dtype}"
            )
    elif list(labels.shape) != hard:
        raise ShapeError(
            f"expected labels {hard} (class indices) or {shape} (probabilities) for logits "
            f"{shape}, got {list(labels.shape)}"
        )
    elif labels.is_floating_point():
        raise LabelError(
            f"expected class indices to be integers, got {labels.dtype}; labels as probabilities "
            f"have the shape of logits, {shape}"
        )


def kept_labels(labels: Tensor, num_classes: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return which examples are not ignored, and labels with 0 in place of ``ignore_index``."""
    labels = labels.long()
    kept = labels != ignore_index
    # not on a GPU, where the check would wait for the device, nor in a trace, which has no values
    if labels.device.type == "cpu" and not is_traced(labels):
        check_labels(labels[kept], num_classes)
    # not torch.where, which copies a Python number to the GPU and waits for it
    return kept, labels.masked_fill(~kept, 0)


def classes_last(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim < 3 else tensor.movedim(1, -1)


def _class_weight(weight: Tensor | None, logits: Tensor) -> Tensor:
    if weight is None:
        return logits.new_ones(logits.shape[-1])
    check_tensors(weight=weight)
    if list(weight.shape) != [logits.shape[-1]]:
        raise ShapeError(
            f"expected one weight per class, [{logits.shape[-1]}], got {list(weight.shape)}"
        )
    return weight.to(logits.dtype)
