"""Tensors as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def in_memory(value: Any) -> NDArray[Any]:
    """A tensor, sequence or array as an array; bfloat16 widened to float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return np.asarray(value.float() if str(value.dtype) == "torch.bfloat16" else value)
    return np.asarray(value)
