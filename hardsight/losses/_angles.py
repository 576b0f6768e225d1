"""Logits made of angles."""

from torch import Tensor

from hardsight._checks import check_rows, check_tensors, check_width
from hardsight.errors import OptionError, ShapeError
from hardsight.geometry import pairwise_angles, target_angles, widen_together


def avh_logits(
    embeddings: Tensor, class_weights: Tensor, *, scale: float, labels: Tensor | None = None
) -> Tensor:
    r"""Negative scaled angles to the class weights, as logits for any loss of logits.

    .. math:: z_k = -s\,\angle(x, w_k)

    Args:
        embeddings: ``[N, D]``, any scale.
        class_weights: ``[C, D]``, any scale.
        scale: :math:`s > 0`.
        labels: ``[N]``, optional. With labels, the angle to the labelled class is exact even under
            ``torch.compile`` and ``torch.func``, where nearly aligned pairs cannot be picked out.
            A label outside ``[0, C)`` has no effect.

    Returns:
        ``[N, C]`` in ``[-scale * pi, 0]``, float32 or wider. Eq. (5) has :math:`s(\pi - \angle)`;
        the constant cancels in the softmax and would only cost precision.

    Raises:
        OptionError: ``scale`` is not positive.
        ShapeError: the shapes do not fit.

    Example:
        >>> import torch
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> avh_logits(axes, axes, scale=1.0)
        tensor([[-0.0000, -1.5708],
                [-1.5708, -0.0000]])
    """
    if not scale > 0:
        raise OptionError(f"expected scale to be positive, got {scale}")
    check_width(embeddings, class_weights)
    embeddings, class_weights = widen_together(embeddings, class_weights)
    angles = pairwise_angles(embeddings, class_weights)
    if labels is None:
        return -scale * angles
    check_tensors(labels=labels)
    if labels.is_floating_point():  # soft labels have no single labelled class
        return -scale * angles
    check_rows(embeddings=embeddings, labels=labels)
    if labels.ndim != 1:
        raise ShapeError(f"expected labels to have 1 dimension, got {list(labels.shape)}")
    labels = labels.long()  # the number of classes may not fit 8 bits
    inside = (labels >= 0) & (labels < class_weights.shape[0])
    # class 0 stands in for a label that is not a class, to keep indexes in bounds; the loss
    # ignores such rows
    index = labels.masked_fill(~inside, 0)
    # a matrix product gives small angles to 2e-4 at best, so measure the labelled pair, which the
    # gradient pulls on, exactly
    exact = target_angles(embeddings, index, class_weights)
    return -scale * angles.scatter(1, index.unsqueeze(1), exact.unsqueeze(1))
