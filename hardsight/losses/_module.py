"""What the module twins share: keeping options, and owning class weights."""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from hardsight.errors import HeadError


class LossModule(nn.Module):
    """A loss that keeps its options; ``forward`` is a single call of its function."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._names = tuple(options)
        for name, value in options.items():
            if name == "weight":  # a tensor or None, as in torch.nn.CrossEntropyLoss
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    @property
    def options(self) -> dict[str, Any]:
        """The function's keyword arguments."""
        return {name: getattr(self, name) for name in self._names}

    def extra_repr(self) -> str:
        """The options, in the order of the signature."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class HeadLossModule(LossModule):
    """A loss that owns the class weights, or shares those of a layer.

    Attributes:
        class_weights: the parameter, ``[C, D]``, in the dtype it was created in or moved to.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        weights = torch.empty(num_classes, embedding_dim, device=device, dtype=dtype)
        self.class_weights = nn.Parameter(weights)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the class weights as ``torch.nn.Linear`` draws its own."""
        nn.init.kaiming_uniform_(self.class_weights, a=math.sqrt(5))

    @classmethod
    def from_head(cls, head: nn.Module, **options: Any) -> Self:
        """The same loss over the weights of ``head``, shared with it, not copied.

        Args:
            head: a linear layer with ``weight [C, D]``.
            options: the loss's options.

        Raises:
            HeadError: ``head`` has no weight matrix.
        """
        weight = getattr(head, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2:
            raise HeadError(
                "expected a layer with a weight matrix [C, D], got "
                f"{type(head).__name__}; pass the model's last linear layer"
            )
        module = cls(weight.shape[0], weight.shape[1], device="meta", **options)
        module.class_weights = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        return module
