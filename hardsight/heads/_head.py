"""What a classifier head is: a name, its weights, and how its inputs are read as embeddings."""

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor
from torch.nn.functional import normalize

from hardsight._checks import check_matrix
from hardsight.errors import ShapeError

Position = Literal["mean", "first", "last"]


@dataclass(frozen=True)
class Reading:
    """How the inputs of a layer during one forward pass become embeddings.

    Attributes:
        call: which call of the layer makes the logits, where a layer is used more than once.
        position: what is taken from a map or a row of tokens; an input ``[B, D]`` has only one.
        unit: the head normalises its input, so embeddings are unit vectors.
    """

    call: int = 0
    position: Position = "mean"
    unit: bool = False

    def embeddings(self, inputs: Tensor) -> Tensor:
        """Embeddings ``[B, D]`` from the layer's input with channels last, ``[B, P, D]``."""
        found = at_position(inputs, self.position)
        # a half-precision unit vector would carry the rounding twice
        return normalize(found.float() if found.itemsize < 4 else found) if self.unit else found


def at_position(inputs: Tensor, position: Position) -> Tensor:
    """Features ``[B, D]`` at one position of ``[B, P, D]``, or their mean over all positions."""
    if inputs.shape[1] == 1:
        return inputs[:, 0]
    if position == "mean":
        return inputs.mean(dim=1)
    return inputs[:, 0 if position == "first" else -1]


@dataclass(frozen=True, eq=False)
class Head:
    r"""The linear map from embeddings to logits.

    .. math:: \mathrm{logits} = \mathrm{embeddings} \cdot W^\top + b

    A head holds no module, so it can be pickled, and used with a copy or a wrapper of its model.

    Attributes:
        name: the layer's path in its model, such as ``"fc"`` or ``"classifier.6"``.
        weight: ``[C, D]``, one row per class, detached. Of a plain layer it shares the memory of
            the parameter and follows training; an effective weight (weight norm, spectral norm,
            cosine, a scale after the layer) is a copy, so find the head again after training.
        bias: ``[C]``, or ``None``.

    Raises:
        ShapeError: the weight is no floating-point matrix, or the bias has another length.

    Example:
        >>> import torch
        >>> Head(name="stored", weight=torch.eye(3)).num_classes
        3
    """

    name: str
    weight: Tensor
    bias: Tensor | None = None
    reading: Reading | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_matrix(weight=self.weight)
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ShapeError(
                "expected weight [C, D] and bias [C], got "
                f"weight {list(self.weight.shape)}, bias {list(self.bias.shape)}"
            )

    def __repr__(self) -> str:
        classes, width = self.weight.shape
        bias = "no bias" if self.bias is None else "bias"
        return f"Head({self.name!r}, {classes} classes, width {width}, {bias})"

    @property
    def num_classes(self) -> int:
        """Number of classes, ``C``."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """Width of the embeddings, ``D``."""
        return self.weight.shape[1]
