"""Call a model, find the logits in its output, and record what passes its layers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hardsight.errors import ModelError
from hardsight.heads._head import Position, Side, Which, at_position
from hardsight.heads._layers import is_pointwise, positions_of, tensor_input, tokens_of_width

_POSITIONS: tuple[Position, ...] = ("mean", "first", "last")


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """The model's output: a mapping is passed as keywords, a tuple or list as positions.

    Example:
        >>> call_model(lambda a, b: a - b, (5, 3)), call_model(lambda a, b: a - b, {"b": 5, "a": 3})
        (2, -2)
    """
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def logits_of(output: Any, which: Which | None = None) -> Tensor:
    """The logits in a model's output.

    Args:
        output: a tensor; anything with ``logits`` as attribute or key (Hugging Face outputs,
            dictionaries, dataclasses, named tuples); a tuple, of which the first tensor with at
            least two dimensions is taken, to skip a leading loss; or a dictionary or dataclass
            that holds exactly one such tensor. Parts may be nested.
        which: the part that holds the logits, by key, attribute or position; a nested part by its
            path, joined by dots (``"heads.0.logits"``).

    Returns:
        the tensor as the model returned it, usually ``[B, C]``.

    Raises:
        ModelError: there is no such tensor, or more than one.

    Example:
        >>> import torch
        >>> logits_of({"loss": torch.tensor(0.3), "logits": torch.zeros(2, 10)}).shape
        torch.Size([2, 10])
        >>> logits_of((torch.zeros(2, 64), torch.zeros(2, 10)), which=1).shape
        torch.Size([2, 10])
        >>> logits_of({"a": {"logits": torch.zeros(2, 10)}, "b": None}, which="a.logits").shape
        torch.Size([2, 10])
    """
    if which is not None:
        return _part(output, which)
    if isinstance(output, Tensor):
        return output
    # by convention of the Hugging Face libraries and many others
    logits = _named_parts(output).get("logits")
    if isinstance(logits, Tensor):
        return logits
    tensors = _tensors(output)
    # a tuple has a first element; a dictionary has only names
    if len(tensors) == 1 or (tensors and isinstance(next(iter(tensors)), int)):
        return next(iter(tensors.values()))
    raise _unclear(output)


def logit_rows(output: Any, which: Which | None = None) -> Tensor:
    """The logits in a model's output as ``[B, C]``, also from a map of one pixel.

    Args:
        output: as :func:`logits_of` takes it.
        which: the part that holds the logits, by key, attribute or position.

    Raises:
        ModelError: there are no logits, or more than one row of them for an example.

    Example:
        >>> import torch
        >>> logit_rows(torch.zeros(2, 10, 1, 1)).shape
        torch.Size([2, 10])
    """
    return as_rows(logits_of(output, which))


def which_output(
    output: Any, *, num_classes: int | None = None, which: Which | None = None
) -> Which | None:
    """The name of the part of a model's output that holds the logits; ``None`` for a bare tensor.

    Args:
        output: of a model, for a batch.
        num_classes: of the data; of several parts, the one with as many columns is chosen.
        which: the part to use, if it is known.

    Raises:
        ModelError: no part can be the logits, or more than one.

    Example:
        >>> import torch
        >>> which_output((torch.zeros(2, 64), torch.zeros(2, 10)), num_classes=10)
        1
    """
    parts = possible_logits(output, which)
    fitting = {name: part for name, part in parts.items() if part.shape[1] == num_classes}
    parts = fitting or parts
    if len(parts) > 1:
        raise ModelError(
            f"the model returns several tensors that could be its logits: {listed_outputs(parts)}; "
            f"{choose_output(parts)}"
        )
    return next(iter(parts))


def possible_logits(output: Any, which: Which | None = None) -> dict[Which | None, Tensor]:
    """Every part of a model's output that may be its logits, by its name, as rows.

    Args:
        output: of a model, for a batch.
        which: the part to use, if it is known.

    Returns:
        at least one part, ``[B, C]`` each; the name of a bare tensor is ``None``.

    Raises:
        ModelError: no part can be the logits.
    """
    if which is not None:
        return {which: as_rows(_part(output, which))}
    if isinstance(output, Tensor):
        return {None: as_rows(output)}
    logits = _named_parts(output).get("logits")
    if isinstance(logits, Tensor):
        return {"logits": as_rows(logits)}
    tensors = _tensors(output)
    if not tensors:
        raise _unclear(output)
    if len(tensors) == 1:
        return {name: as_rows(part) for name, part in tensors.items()}
    # of several tensors only rows can be logits; maps of features are ignored
    rows = {name: as_rows(part) for name, part in tensors.items() if _has_rows(part)}
    if not rows:
        raise _unclear(output)
    return rows


def listed_outputs(parts: Mapping[Which | None, Tensor]) -> str:
    """Parts of an output with their shapes, for a message."""
    return ", ".join(f"{name!r} {list(part.shape)}" for name, part in parts.items())


def choose_output(parts: Mapping[Which | None, Tensor]) -> str:
    """The advice for a user who has to say which part holds the logits."""
    last = list(parts)[-1]
    return f"pass output={last!r} (--output {last}), or the one that holds the logits"


def _part(output: Any, which: Which) -> Tensor:
    """The part of an output called ``which``, which may be a position in digits."""
    part = _part_at(output, which)
    if isinstance(part, Tensor):
        return part
    what = "is not a tensor" if part is not None else "is not there"
    if isinstance(output, Tensor):
        raise ModelError(
            f"output={which!r} {what}: the model returns one tensor {list(output.shape)}; leave "
            "output out"
        )
    parts = _leaves(output)
    held = ", ".join(
        f"{name!r} {list(part.shape) if isinstance(part, Tensor) else type(part).__name__}"
        for name, part in parts.items()
    )
    raise ModelError(
        f"output={which!r} {what} in what the model returns, a {type(output).__name__} of "
        f"{held or 'nothing'}"
    )


def _part_at(output: Any, which: Which) -> Any:
    """The part at a key, an attribute, a position or a path of these; ``None`` if there is none."""
    if isinstance(output, Tensor):  # a tensor's attributes are not parts of an output
        return None
    parts = _named_parts(output)
    by_text = {str(name): part for name, part in parts.items()}
    # a key may be a number, but the command line passes text
    part = parts.get(which, by_text.get(str(which)))
    # a position, which may count from the end
    if part is None and str(which).lstrip("-").isdigit():
        at, values = int(which), list(parts.values())
        part = values[at] if -len(values) <= at < len(values) else None
    elif part is None:
        part = getattr(output, str(which), None)
    if part is None and isinstance(which, str):
        # a key may contain dots, so try to split the path at each of them
        cuts = [at for at, letter in enumerate(which) if letter == "."]
        inner = ((_part_at(output, which[:at]), which[at + 1 :]) for at in cuts)
        reached = (_part_at(held, rest) for held, rest in inner if held is not None)
        part = next((held for held in reached if held is not None), None)
    return part


def _named_parts(output: Any) -> dict[Which, Any]:
    if isinstance(output, Mapping):
        return dict(output.items())
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return dict(zip(output._fields, output, strict=True))
    if isinstance(output, tuple | list):
        return dict(enumerate(output))
    if is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in fields(output)}
    # any other object with an attribute of that name
    return {"logits": output.logits} if hasattr(output, "logits") else {}


def _leaves(output: Any, around: tuple[Any, ...] = ()) -> dict[Which, Any]:
    """The leaves of an output, by name or by path."""
    leaves: dict[Which, Any] = {}
    for name, part in _named_parts(output).items():
        is_around = any(part is outer for outer in (*around, output))  # a container in itself
        inner = {} if isinstance(part, Tensor) or is_around else _leaves(part, (*around, output))
        for path, leaf in inner.items():
            leaves.setdefault(f"{name}.{path}", leaf)
        if not inner:
            leaves[name] = part
    return leaves


def _tensors(output: Any) -> dict[Which | None, Tensor]:
    """Floating-point parts with at least two dimensions; nested ones only if they are rows."""
    tensors: dict[Which | None, Tensor] = {}
    own = _named_parts(output)
    for name, part in _leaves(output).items():
        # skip losses, which are scalars, and token ids, which are integers
        if not isinstance(part, Tensor) or part.ndim < 2 or not part.is_floating_point():
            continue
        # skip nested maps such as lists of hidden states, and the same tensor by a second name
        is_news = _has_rows(part) and not any(part is other for other in tensors.values())
        if name in own or is_news:
            tensors[name] = part
    return tensors


def _unclear(output: Any) -> ModelError:
    parts, tensors = _leaves(output), _tensors(output)
    if len(tensors) > 1:
        return ModelError(
            f"expected the model to return logits [B, C], got {type(output).__name__} with several "
            f"tensors that could be the logits: {listed_outputs(tensors)}; {choose_output(tensors)}"
        )
    held = f" with {', '.join(map(str, parts))}" if parts else ""
    return ModelError(
        f"expected the model to return logits [B, C], got {type(output).__name__}{held}: no tensor "
        "that could be the logits; wrap the model so that its forward returns them alone or as "
        "'logits'"
    )


def _has_rows(logits: Tensor) -> bool:
    # [B, C], or a map of one pixel
    return logits.shape[2:].numel() == 1


def as_rows(logits: Tensor) -> Tensor:
    """Logits ``[B, C]``, also from a map of one pixel, ``[B, C, 1, 1]``.

    Raises:
        ModelError: there is more than one prediction per example, or no class dimension.
    """
    rows = logits.flatten(1) if logits.ndim > 2 and _has_rows(logits) else logits
    if rows.ndim != 2 or not rows.is_floating_point():
        maps = "; segmentation and detection are not built" if logits.ndim > 3 else ""
        raise ModelError(
            f"expected floating-point logits [B, C] from the model, got {list(logits.shape)} of "
            f"{logits.dtype}; wrap the model so that it returns one row of logits per example{maps}"
        )
    return rows


@dataclass(frozen=True)
class Call:
    """A recorded call of a module, with a few rows of its input, rarely the whole map.

    Attributes:
        name: the module's name.
        number: how often the module was called before in this pass.
        side: whether the features are its input or its output.
        features: ``[B, D]`` at each position that may be read.
        computed_in: the dtype of the module's output.
        rectified: the output after a ReLU and the mean over positions, ``[B, C]``; of
            convolutions only.
        tokens: the whole input and output, ``[B, P, D]`` and ``[B, P, C]``, if requested.
    """

    name: str
    number: int
    side: Side
    features: dict[Position, Tensor]
    computed_in: torch.dtype | None
    rectified: Tensor | None = None
    tokens: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Recorded:
    """A forward pass: every part that may be its logits, by name, and the calls in it."""

    outputs: dict[Which | None, Tensor]
    calls: list[Call]


# makes records of a call, from: module name, number of the call, module, input and output
_Keep = Callable[[str, int, nn.Module, Tensor | None, Any], Iterator[Call]]


def recorded_inputs(
    model: nn.Module,
    inputs: Any,
    layers: Mapping[str, nn.Module],
    *,
    output: Which | None = None,
    whole: bool = False,
) -> Recorded:
    """Run the model once, recording what enters the given layers.

    Args:
        model: to run.
        inputs: a batch as it takes it.
        layers: to watch, by name.
        output: the part of the model's output that holds the logits, if that is known.
        whole: keep all tokens of a layer's input and output.

    Raises:
        ModelError: the pass fails, or returns no logits.
    """

    def kept(
        name: str, number: int, layer: nn.Module, entered: Tensor | None, out: Any
    ) -> Iterator[Call]:
        tokens = None if entered is None else positions_of(layer, entered)
        if tokens is None:
            return
        is_tensor = isinstance(out, Tensor)  # a user's layer may return a tuple with its features
        # the whole map is kept only in the second pass, over few layers
        made = positions_of(layer, out) if whole and is_tensor else None
        is_map = is_tensor and is_pointwise(layer)
        yield Call(
            name=name,
            number=number,
            side="input",
            features=_by_position(tokens),
            computed_in=out.dtype if is_tensor else None,
            # as if a ReLU came between head and pooling, to explain the error if there is one
            rectified=out.relu().flatten(2).mean(dim=2) if is_map else None,
            tokens=None if made is None else (tokens, made),
        )

    return _recorded(model, inputs, layers, kept, output)


def recorded_features(
    model: nn.Module,
    inputs: Any,
    width: int,
    *,
    output: Which | None = None,
) -> Recorded:
    """Run the model once, recording inputs and outputs of modules that are ``width`` wide.

    Args:
        model: to run.
        inputs: a batch as it takes it.
        width: number of features.
        output: the part of the model's output that holds the logits, if that is known.

    Raises:
        ModelError: the pass fails, or returns no logits.
    """

    def kept(
        name: str, number: int, module: nn.Module, entered: Tensor | None, out: Any
    ) -> Iterator[Call]:
        dtype = out.dtype if isinstance(out, Tensor) else None
        # a bare parameter may multiply the input or the output of a module
        sides: dict[Side, Any] = {"input": entered, "output": out}
        for side, tensor in sides.items():
            tokens = tokens_of_width(tensor, width)
            if tokens is not None:
                yield Call(name, number, side, _by_position(tokens), dtype)

    return _recorded(model, inputs, dict(model.named_modules()), kept, output)


def _by_position(tokens: Tensor) -> dict[Position, Tensor]:
    return {at: at_position(tokens, at) for at in _POSITIONS}


def _recorded(
    model: nn.Module,
    inputs: Any,
    modules: Mapping[str, nn.Module],
    kept: _Keep,
    output: Which | None,
) -> Recorded:
    """Run the model once, recording every call of the given modules in order."""
    calls: list[Call] = []
    counts = dict.fromkeys(modules, 0)

    def listen(name: str, module: nn.Module) -> RemovableHandle:
        def record(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            calls.extend(kept(name, counts[name], module, tensor_input(args, kwargs), out))
            counts[name] += 1

        return module.register_forward_hook(record, with_kwargs=True)

    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(listen(name, module).remove)
        # code that was compiled before does not call the hooks
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            returned = call_model(model, inputs)
        except Exception as err:
            advice = _channels_advice(model, inputs) or (
                "pass inputs as the model takes them (a tensor, a tuple of arguments or a mapping "
                "of keywords), on the model's device"
            )
            raise ModelError(
                f"the forward pass of {type(model).__name__} failed with {type(err).__name__}: "
                f"{err}; {advice}"
            ) from err
    return Recorded(possible_logits(returned, output), calls)


def _channels_advice(model: nn.Module, inputs: Any) -> str | None:
    """What to do if pictures are grey and the model takes RGB, or the other way round."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)), None)
    if first is None or not isinstance(inputs, Tensor) or inputs.ndim != 4:
        return None
    came, pixels = inputs.shape[1], inputs.shape[2:].numel()
    # a network without convolutions begins with a layer over all pixels
    takes = first.in_channels if isinstance(first, nn.Conv2d) else first.in_features / pixels
    if {came, takes} != {1, 3}:
        return None
    names = {1: "grey", 3: "RGB"}
    return (
        f"the pictures are {names[came]} ({came} channel{'s' if came > 1 else ''}) and the model "
        f"takes {names[int(takes)]} ones: pass channels={int(takes)} (--channels {int(takes)}) to "
        f"turn them into {names[int(takes)]}, or build the model for {came}"
    )
