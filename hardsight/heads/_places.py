"""Make a language model return a row of logits for each of several places, such as tokens.

The layer that makes the logits gets only the rows of these places, so the model becomes a
classifier of tokens: the input of the layer is ``[T, D]``, the output of the model ``[T, V]``. In a
pass over data the layer gets only a few of the rows, to check each batch against the head. All rows
are kept, but the matrix of all tokens by the whole vocabulary is never made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from hardsight.errors import HeadNotFoundError, ModelError
from hardsight.heads._head import Head
from hardsight.heads._layers import layer_named, tensor_input, unwrapped
from hardsight.preprocessing import PLACES

_FEW = 64  # rows of a batch that the layer itself gets
Rows = TypeVar("Rows", Tensor, Sequence[str])


class PlacedRows:
    """The input of the layer that makes the logits, at the places that have a row.

    Attributes:
        name: of the layer.
        rows: of the last batch, ``[T, D]``.
    """

    def __init__(self, name: str) -> None:
        self.name, self._makes_few = name, False
        self.rows: Tensor | None = None
        self._places: Tensor | None = None

    def take_places(self, _model: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Take the places out of an input, since the model does not know this key."""
        self.rows, self._places = None, kwargs.pop(PLACES, None)
        return args, kwargs

    def choose_rows(self, _layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Give the layer the rows at these places, or a few of them."""
        features = tensor_input(args, kwargs)
        if self._places is None or features is None:
            return None
        if features.ndim != 3:
            raise ModelError(
                f"expected features [B, L, D] of every token to enter {self.name!r}, got "
                f"{list(features.shape)}; name the layer that makes the logits by head= (--head)"
            )
        self.rows = features.flatten(0, 1).index_select(0, self._places)
        # a few rows of every batch are enough to check that the head still gives the logits
        given = self.few(self.rows) if self._makes_few else self.rows
        return tree_map_only(
            Tensor, lambda tensor: given if tensor is features else tensor, (args, kwargs)
        )

    @contextmanager
    def few_made(self) -> Iterator[None]:
        """Give the layer a few rows of a batch instead of all inside the block."""
        self._makes_few = True
        try:
            yield
        finally:
            self._makes_few = False

    @staticmethod
    def few(of_rows: Rows) -> Rows:
        """The items, such as names, of the rows that the layer itself gets."""
        some: Rows = of_rows[:: max(1, -(-len(of_rows) // _FEW))]
        return some

    def whole(self) -> Tensor:
        """All rows of the last batch, ``[T, D]``.

        Raises:
            ModelError: the layer was not called.
        """
        if self.rows is None:
            raise ModelError(f"the model makes its logits without its layer {self.name!r}")
        return self.rows


@contextmanager
def rows_at_places(model: nn.Module, head: str | Head | None = None) -> Iterator[PlacedRows]:
    """Make a model return a row of logits for each of its inputs' ``places`` inside the block.

    Inputs have another key, ``places [T]``: positions in ``[B, L]``, row after row.

    Args:
        model: a language model.
        head: the layer that makes its logits, if the model does not say.

    Raises:
        HeadNotFoundError: there is no such layer, or nothing says which one it is.
    """
    inner = unwrapped(model)
    name = head.name if isinstance(head, Head) else head
    layer = _output_layer(inner) if name is None else layer_named(inner, name)
    found = PlacedRows(next(key for key, part in inner.named_modules() if part is layer))
    handles = [
        inner.register_forward_pre_hook(found.take_places, with_kwargs=True),
        layer.register_forward_pre_hook(found.choose_rows, with_kwargs=True),
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _output_layer(model: nn.Module) -> nn.Module:
    find = getattr(model, "get_output_embeddings", None)
    layer = None if find is None else find()
    if not isinstance(layer, nn.Module):
        raise HeadNotFoundError(
            f"{type(model).__name__} does not say which layer makes the logits of its tokens; name "
            "it by head= (--head), such as lm_head, or use a language model of transformers "
            "(...ForCausalLM, ...ForConditionalGeneration)"
        )
    return layer


def head_with_bias(model: nn.Module, name: str) -> Head | None:
    """The head of a model that adds a bias after its layer, as Marian does; else ``None``."""
    inner = unwrapped(model)
    bias, layer = getattr(inner, "final_logits_bias", None), layer_named(inner, name)
    if not isinstance(bias, Tensor) or not bool(bias.any()):
        return None
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return Head(name, weight.detach(), bias.detach().flatten())


def examples_at_places(
    inputs: Mapping[str, Any], chosen: list[int]
) -> tuple[Any, list[int]] | None:
    """Select examples of a batch with places; returns them and the numbers of their rows.

    Args:
        inputs: of the batch.
        chosen: numbers of the examples, in the order to return them.

    Returns:
        ``None`` for a batch without places.
    """
    if PLACES not in inputs:
        return None
    others = {key: value for key, value in inputs.items() if key != PLACES}
    width = others.get("decoder_input_ids", others["input_ids"]).shape[1]
    places = inputs[PLACES]
    owner = (places // width).tolist()
    own = [row for one in chosen for row, of in enumerate(owner) if of == one]
    starts = {one: at * width for at, one in enumerate(chosen)}
    moved = [starts[owner[row]] + int(places[row]) % width for row in own]
    some = {key: value[chosen] for key, value in others.items()}
    return {**some, PLACES: torch.tensor(moved, device=places.device)}, own
