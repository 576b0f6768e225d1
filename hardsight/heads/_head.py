"""What a classifier head is: a name, its weights, and how its inputs are read as embeddings."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hardsight._checks import check_matrix
from hardsight.errors import ShapeError
from hardsight.heads._outputs import Which
from hardsight.heads._verify import LinearForm

Position = Literal["mean", "first", "last", "own"]


@dataclass(frozen=True)
class Reading:
    """How what passes a module during one forward pass becomes embeddings and logits.

    Attributes:
        module: the name of the module at which embeddings are read.
        side: whether they enter or leave it.
        call: which call of the module it is, if the module is used more than once.
        position: what is taken from a map or a row of tokens; ``own`` is the token whose output is
            the example's logits. A ``[B, D]`` tensor has only one position.
        form: how the logits follow from the embeddings; a head that normalises its input has unit
            vectors as embeddings.
        output: which part of the model's output holds the logits; ``None`` for a bare tensor.
    """

    module: str = ""
    side: Literal["input", "output"] = "input"
    call: int = 0
    position: Position = "mean"
    form: LinearForm = field(default_factory=LinearForm)
    output: Which | None = None

    def where(self, outputs: Tensor | None, logits: Tensor) -> Position | Tensor:
        """The position that is read in a batch; one for each example, ``[B]``, if they differ.

        Args:
            outputs: what the head's layer made of each token, ``[B, P, C]``.
            logits: of the model, ``[B, C]``.
        """
        if outputs is None or outputs.shape[1] == 1 or self.position == "mean":
            return self.position
        own = own_positions(outputs, logits, otherwise=self.position)
        return self.position if own is None else own

    def embeddings(self, tokens: Tensor, where: Position | Tensor) -> Tensor:
        """Embeddings ``[B, D]`` of what was read, ``[B, P, D]``."""
        features = at_position(tokens, where)
        if not self.form.unit_features:
            return features
        # a half-precision unit vector would carry the rounding twice
        return normalize(features.float() if features.itemsize < 4 else features)


def at_position(tokens: Tensor, where: Position | Tensor) -> Tensor:
    """Features ``[B, D]`` at one position of ``[B, P, D]``, or their mean over all positions."""
    if tokens.shape[1] == 1:
        return tokens[:, 0]
    if isinstance(where, Tensor):
        return tokens.take_along_dim(where[:, None, None], dim=1)[:, 0]
    if where == "mean":
        return tokens.mean(dim=1)
    return tokens[:, 0 if where == "first" else -1]


def own_positions(outputs: Tensor, logits: Tensor, *, otherwise: Position) -> Tensor | None:
    """For each example the token whose output is its logits, ``[B]``.

    A language model that classifies takes the last token that is not padding, another one in every
    row. It picks the logits out of the layer's output, so that they are equal to the last bit.

    Args:
        outputs: of the head's layer, ``[B, P, C]``.
        logits: of the model, ``[B, C]``.
        otherwise: the position that goes first, and that is taken if no output is the logits.

    Returns:
        ``None`` if outputs and logits are not of the same size.
    """
    if (len(outputs), outputs.shape[2]) != logits.shape:
        return None
    is_own = (outputs.to(logits.dtype) == logits[:, None]).all(dim=2)
    usual = 0 if otherwise == "first" else outputs.shape[1] - 1
    at = is_own.int().argmax(dim=1)  # the first one that is equal
    return torch.where(is_own[:, usual] | ~is_own.any(dim=1), usual, at)


@dataclass(frozen=True, eq=False)
class Head:
    r"""The linear map from embeddings to logits.

    .. math:: \mathrm{logits} = \mathrm{embeddings} \cdot W^\top + b

    A head holds no module, so it can be pickled, and used with a copy or a wrapper of its model.

    Attributes:
        name: the path of the layer, or of the bare parameter, in its model, such as ``"fc"`` or
            ``"classifier.6"``.
        weight: ``[C, D]``, one row per class, detached. Of a plain layer it shares the memory of
            the parameter and follows training; an effective weight (weight norm, spectral norm,
            cosine, a scale after the layer) is a copy, so find the head again after training.
        bias: ``[C]``, or ``None``. For a head made by hand ``None`` stands for the layer's own.

    Raises:
        ShapeError: the weight is not a floating-point matrix, or the bias has another length.

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
