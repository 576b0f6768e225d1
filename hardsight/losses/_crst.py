"""Regularisers of confidence-regularised self-training (CRST)."""

import math

from torch import Tensor

from hardsight._checks import check_tensors
from hardsight.errors import OptionError, ShapeError
from hardsight.geometry import widen
from hardsight.losses._logits import classes_last
from hardsight.losses._module import LossModule
from hardsight.losses._reduce import reduce_loss
from hardsight.registry import loss


def mrkld(logits: Tensor, *, reduction: str = "mean", check_finite: bool = False) -> Tensor:
    r"""Divergence of the prediction from the uniform distribution, as a model regulariser.

    .. math:: \mathrm{KL}(u \,\|\, p) = -\log C - \frac{1}{C}\sum_c \log p_c

    Add it to the loss of pseudo-labelled examples with a weight of .1, as in the paper. The
    published code multiplies by it twice, which gives .01.

    Args:
        logits: ``[N, C]``, ``[N, C, ...]`` or ``[C]``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        check_finite: raise on a non-finite value, naming the examples.

    Returns:
        A scalar, or ``[N]`` (``[N, ...]``) for ``"none"``, in ``[0, inf)``; 0 if all classes are
        equally likely. Float32 or wider.

    Raises:
        ShapeError: ``logits`` is not floating point or has no classes.

    Example:
        >>> import torch
        >>> mrkld(torch.tensor([[0.0, 0.0], [4.0, 0.0]]), reduction="none")
        tensor([0.0000, 1.3250])

    Reference:
        Zou et al., Confidence Regularized Self-Training, ICCV 2019, Table 1 (MRKLD).
        Deviation: the constant :math:`-\log C` is kept, which makes the smallest value 0.
    """
    z = _floating_classes_last(logits)
    # the mean of -log p minus log C, which is 0 for a uniform prediction
    values = -z.log_softmax(dim=-1).mean(dim=-1) - math.log(z.shape[-1])
    return reduce_loss(values, reduction, check_finite=check_finite)


@loss("mrkld", function=mrkld, inputs=("logits",))
class MRKLD(LossModule):
    """Module twin of :func:`mrkld`."""

    def __init__(self, *, reduction: str = "mean", check_finite: bool = False) -> None:
        super().__init__(reduction=reduction, check_finite=check_finite)

    def forward(self, logits: Tensor) -> Tensor:
        """See :func:`mrkld`."""
        return mrkld(logits, **self.options)


def lrent(logits: Tensor, thresholds: Tensor | None = None, *, alpha: float = 0.25) -> Tensor:
    r"""Soft pseudo-labels that minimise the loss plus an entropy term, as a label regulariser.

    .. math:: \hat y_c \propto \left(p_c / \lambda_c\right)^{1/\alpha}

    Args:
        logits: ``[N, C]``.
        thresholds: :math:`\lambda_c` per class in ``(0, 1]``, ``[C]``; all 1 by default.
        alpha: :math:`\alpha > 0`, .25 in the paper; towards 0 the label becomes one-hot.

    Returns:
        ``[N, C]`` whose rows sum to 1, without gradient: soft labels for
        :func:`~hardsight.losses.encouraging_loss` or ``cross_entropy``.

    Raises:
        OptionError: ``alpha`` is not positive, or a threshold is not.
        ShapeError: ``logits`` is not floating point or has no classes, or ``thresholds`` does not
            hold one value per class.

    Example:
        >>> import torch
        >>> lrent(torch.tensor([[1.0, 0.0]]), alpha=1.0)
        tensor([[0.7311, 0.2689]])

    Reference:
        Zou et al., Confidence Regularized Self-Training, ICCV 2019, Table 1 (LRENT).
    """
    if not alpha > 0:
        raise OptionError(f"expected alpha to be positive, got {alpha}")
    # labels are targets, so no gradient may reach the model through them
    z = _floating_classes_last(logits).detach()
    if thresholds is not None:
        if list(thresholds.shape) != [z.shape[-1]]:
            raise ShapeError(
                f"expected one threshold per class, [{z.shape[-1]}], got {list(thresholds.shape)}"
            )
        # only on a CPU: on a GPU the check would wait for the device
        if thresholds.device.type == "cpu" and not bool((thresholds > 0).all()):
            raise OptionError(
                f"expected positive thresholds, got {thresholds.min().item()} as the smallest"
            )
        z = z - thresholds.to(z.dtype).log()
    # z holds log(p / lambda) up to a constant per row, which cancels in the softmax
    labels = (z / alpha).softmax(dim=-1)
    return labels if labels.ndim < 3 else labels.movedim(-1, 1)  # dense predictions [N, C, H, W]


def _floating_classes_last(logits: Tensor) -> Tensor:
    check_tensors(logits=logits)
    if not logits.is_floating_point() or logits.ndim == 0 or not logits.shape[logits.ndim > 1]:
        raise ShapeError(
            "expected floating-point logits [N, C], [N, C, ...] or [C] of at least one class, got "
            f"{logits.dtype} {list(logits.shape)}"
        )
    return classes_last(widen(logits))
