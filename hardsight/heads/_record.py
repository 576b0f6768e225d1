"""One forward pass that keeps what passed every module at which embeddings may be read."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hardsight.errors import ModelError
from hardsight.heads._head import Position, at_position
from hardsight.heads._layers import is_pointwise, positions_of, tensor_input, tokens_of_width
from hardsight.heads._outputs import Which, call_model, possible_logits

_POSITIONS: tuple[Position, ...] = ("mean", "first", "last")
_Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


@dataclass(frozen=True)
class Call:
    """What is kept of one call of a module: a few rows, rarely the whole map.

    Attributes:
        name: the module's name.
        number: how often the module had been called before in this pass.
        side: whether the features entered or left it.
        features: ``[B, D]`` at each position that may be read.
        computed_in: the dtype of what the module returned.
        rectified: the output after a ReLU and the mean over positions, ``[B, C]``; of
            convolutions only.
        tokens: the whole input and output, ``[B, P, D]`` and ``[B, P, C]``, if asked for.
    """

    name: str
    number: int
    side: Literal["input", "output"]
    features: dict[Position, Tensor]
    computed_in: torch.dtype | None
    rectified: Tensor | None = None
    tokens: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Recorded:
    """A forward pass: every part that may be its logits, by name, and the calls in it."""

    outputs: dict[Which | None, Tensor]
    calls: list[Call]


def recorded_inputs(
    model: nn.Module,
    inputs: Any,
    layers: Mapping[str, nn.Module],
    *,
    output: Which | None = None,
    whole: bool = False,
) -> Recorded:
    """One pass, and what entered the given layers in it.

    Args:
        model: to run.
        inputs: a batch as it takes it.
        layers: to watch, by name.
        output: the part of the model's output that holds the logits, if that is known.
        whole: keep all tokens of a layer's input and output.

    Raises:
        ModelError: the pass fails, or returns no logits.
    """
    calls: list[Call] = []

    def recorder(name: str) -> _Hook:
        count = 0

        def record(layer: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            nonlocal count
            number, count = count, count + 1
            entered = tensor_input(args, kwargs)
            tokens = None if entered is None else positions_of(layer, entered)
            if tokens is None:
                return
            is_tensor = isinstance(out, Tensor)  # a layer may return its features as well
            made = positions_of(layer, out) if whole and is_tensor else None
            is_map = is_tensor and is_pointwise(layer)
            calls.append(
                Call(
                    name=name,
                    number=number,
                    side="input",
                    features=_by_position(tokens),
                    computed_in=out.dtype if is_tensor else None,
                    rectified=out.relu().flatten(2).mean(dim=2) if is_map else None,
                    tokens=None if made is None else (tokens, made),
                )
            )

        return record

    hooks = {name: (layer, recorder(name)) for name, layer in layers.items()}
    return Recorded(_outputs(model, inputs, hooks, output), calls)


def recorded_features(
    model: nn.Module,
    inputs: Any,
    width: int,
    *,
    output: Which | None = None,
) -> Recorded:
    """One pass, and every ``width`` features that entered or left a module in it, in order.

    Args:
        model: to run.
        inputs: a batch as it takes it.
        width: number of features.
        output: the part of the model's output that holds the logits, if that is known.

    Raises:
        ModelError: the pass fails, or returns no logits.
    """
    calls: list[Call] = []

    def recorder(name: str) -> _Hook:
        count = 0

        def record(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            nonlocal count
            number, count = count, count + 1
            dtype = out.dtype if isinstance(out, Tensor) else None
            for side, tensor in (("input", tensor_input(args, kwargs)), ("output", out)):
                tokens = tokens_of_width(tensor, width)
                if tokens is not None:
                    calls.append(Call(name, number, side, _by_position(tokens), dtype))  # type: ignore[arg-type]

        return record

    hooks = {name: (module, recorder(name)) for name, module in model.named_modules()}
    return Recorded(_outputs(model, inputs, hooks, output), calls)


def _by_position(tokens: Tensor) -> dict[Position, Tensor]:
    return {at: at_position(tokens, at) for at in _POSITIONS}


def _outputs(
    model: nn.Module,
    inputs: Any,
    hooks: Mapping[str, tuple[nn.Module, _Hook]],
    output: Which | None,
) -> dict[Which | None, Tensor]:
    with ExitStack() as stack:
        for layer, hook in hooks.values():
            handle = layer.register_forward_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        # code compiled before the hooks were there does not know them
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            returned = call_model(model, inputs)
        except Exception as err:
            raise ModelError(
                f"the forward pass of {type(model).__name__} failed with {type(err).__name__}: "
                f"{err}; pass inputs as the model takes them (a tensor, a tuple of arguments or a "
                "mapping of keywords), on the model's device"
            ) from err
    return possible_logits(returned, output)
