"""Record the norm of the gradient, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hardsight._checks import require
from hardsight.errors import OptionError


class GradientNorms:
    r"""The norm of the whole gradient, :math:`\lVert \nabla_\theta L \rVert_2`, of every step.

    A loss whose gradient does not fade, such as Encouraging Loss with a steep bonus, takes larger
    steps at the same learning rate, and this shows it. Nothing waits for the device: a number per
    step stays there until :meth:`values` is called.

    Args:
        every: record one step in this many.

    Raises:
        OptionError: ``every`` is below 1.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> norms = GradientNorms()
        >>> layer(torch.tensor([[3.0, 4.0]])).sum().backward()
        >>> norms.record(layer)
        >>> norms.values().tolist()
        [5.0]
    """

    def __init__(self, *, every: int = 1) -> None:
        if every < 1:
            raise OptionError(f"expected every to be 1 or more, got {every}")
        self._every, self._seen = every, 0
        self._norms: list[Tensor] = []

    def record(self, model: nn.Module | Iterable[Tensor]) -> None:
        """Record the current gradients; call it after ``backward``, before they are clipped.

        Args:
            model: or its parameters; those without a gradient count as 0.
        """
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        tensors = model.parameters() if isinstance(model, nn.Module) else model
        grads = [tensor.grad.detach() for tensor in tensors if tensor.grad is not None]
        self._norms.append(_norm(grads))

    def values(self) -> NDArray[np.float64]:
        """The norms so far, in the order of the steps, ``[S]``."""
        if not self._norms:
            return torch.empty(0, dtype=torch.float64).numpy()
        return torch.stack(self._norms).double().cpu().numpy()

    def lightning_callback(self) -> Any:
        """A callback for Lightning's trainer that records before every step of an optimizer.

        With the loss scaling of mixed precision, gradients are recorded after unscaling.

        Raises:
            MissingExtraError: Lightning is not installed.
        """
        require("lightning", extra="train", feature="GradientNorms.lightning_callback")
        from hardsight.tracking._lightning import GradientCallback

        return GradientCallback(self)


def _norm(grads: list[Tensor]) -> Tensor:
    """Norm over all tensors together, in float32 or wider, on the device of the first."""
    if not grads:
        return torch.zeros(())
    wide = [torch.promote_types(grad.dtype, torch.float32) for grad in grads]
    parts = [
        torch.linalg.vector_norm(grad, dtype=dtype) for grad, dtype in zip(grads, wide, strict=True)
    ]
    norm: Tensor = torch.linalg.vector_norm(torch.stack([part.to(parts[0]) for part in parts]))
    return norm
