"""One forward pass that keeps what entered every layer that could be the head."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from hardsight.errors import ModelError
from hardsight.heads._head import Position, at_position
from hardsight.heads._layers import is_pointwise, positions_of, tensor_input
from hardsight.heads._outputs import as_rows, call, logits_of


@dataclass(frozen=True)
class Call:
    """What is kept of one call of a layer: a few rows, never the whole map.

    Attributes:
        name: the layer's name.
        number: how often the layer had been called before in this pass.
        features: the input ``[B, D]`` at each position that may be read.
        rectified: the output after a ReLU and the mean over positions, ``[B, C]``; of
            convolutions only.
    """

    name: str
    number: int
    features: dict[Position, Tensor]
    rectified: Tensor | None


def recorded_pass(
    model: nn.Module, inputs: Any, layers: dict[str, nn.Module]
) -> tuple[Tensor, list[Call]]:
    """Logits ``[B, C]`` of one pass, and every call of the given layers in it.

    Raises:
        ModelError: the pass fails, or returns no logits.
    """
    calls: list[Call] = []
    with ExitStack() as stack:
        for name, layer in layers.items():
            handle = layer.register_forward_hook(_recorder(name, calls), with_kwargs=True)
            stack.callback(handle.remove)
        # code compiled before the hooks were there does not know them
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            output = call(model, inputs)
        except Exception as err:
            raise ModelError(
                f"the forward pass of {type(model).__name__} failed with {type(err).__name__}: "
                f"{err}; pass inputs as the model takes them (a tensor, a tuple of arguments or a "
                "mapping of keywords), on the model's device"
            ) from err
    return as_rows(logits_of(output)), calls


def _recorder(name: str, calls: list[Call]) -> Callable[..., None]:
    def record(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        inputs = tensor_input(args, kwargs)
        positions = None if inputs is None else positions_of(layer, inputs)
        if positions is None:
            return
        calls.append(
            Call(
                name=name,
                number=sum(one.name == name for one in calls),
                features={at: at_position(positions, at) for at in get_args(Position)},
                rectified=out.relu().flatten(2).mean(dim=2) if is_pointwise(layer) else None,
            )
        )

    return record
