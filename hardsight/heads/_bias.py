"""How much the bias of a head bends its decisions away from the angles."""

import torch
from torch import Tensor

from hardsight._checks import check_matrix
from hardsight.errors import ShapeError
from hardsight.heads._head import Head


def decided_by_bias(logits: Tensor, head: Head) -> Tensor:
    r"""Whether each example would be given another class if the head had no bias.

    .. math:: \arg\max_c (w_c^\top x + b_c) \ne \arg\max_c w_c^\top x

    Angular scores ignore the bias. The share of examples for which this is true says how far they
    may disagree with the model for that reason alone; sum it over batches for a whole run.

    Args:
        logits: ``[N, C]``, as the head gives them.
        head: where the bias is.

    Returns:
        ``[N]``, boolean; all false where there is no bias or the same bias for every class.

    Raises:
        ShapeError: ``logits`` has no column for each class of the head.

    Example:
        >>> head = Head(name="fc", weight=torch.eye(2), bias=torch.tensor([5.0, 0.0]))
        >>> decided_by_bias(torch.tensor([[6.0, 3.0], [9.0, 1.0]]), head)
        tensor([ True, False])
    """
    check_matrix(logits=logits)
    if logits.shape[1] != head.num_classes:
        raise ShapeError(
            f"expected logits [N, C] for {head.num_classes} classes, got {list(logits.shape)}"
        )
    if head.bias is None:
        return torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    wide = torch.promote_types(logits.dtype, torch.float32)
    without_bias = logits.to(wide) - head.bias.to(logits.device, wide)
    return logits.argmax(dim=1) != without_bias.argmax(dim=1)
