"""Embeddings and logits from one forward pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hardsight.errors import HeadMismatchError
from hardsight.heads._find import find_head
from hardsight.heads._head import Head, Reading
from hardsight.heads._layers import layer_named, positions_of, tensor_input, unwrapped
from hardsight.heads._outputs import as_rows, call, logits_of

Forward = Callable[[Any], tuple[Tensor, Tensor]]


class _Recorder:
    """The inputs of one layer during a forward pass, by device and in the order of its calls."""

    def __init__(self) -> None:
        self._inputs: dict[torch.device, list[Tensor]] = {}

    def clear(self) -> None:
        self._inputs.clear()

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = tensor_input(args, kwargs)
        positions = None if inputs is None else positions_of(layer, inputs)
        if positions is not None:
            # replicas of DataParallel share this hook, each on a device of its own
            self._inputs.setdefault(positions.device, []).append(positions)

    def embeddings(self, reading: Reading, devices: list[torch.device]) -> Tensor | None:
        """Embeddings ``[B, D]`` of the last pass, in batch order; ``None`` if nothing came."""
        order = [device for device in devices if device in self._inputs] or list(self._inputs)
        parts = [self._inputs[device] for device in order]
        if not parts or any(len(calls) <= reading.call for calls in parts):
            return None
        found = [reading.embeddings(calls[reading.call]) for calls in parts]
        return found[0] if len(found) == 1 else torch.cat([part.to(order[0]) for part in found])


@contextmanager
def capture(model: nn.Module, head: Head) -> Iterator[Forward]:
    """Run a model so that each call gives the embeddings along with the logits.

    One hook on the head's layer stays for the whole block and is removed at its end, also after an
    error. Gradient, autocast, device and train or eval mode are the caller's. A head that was not
    verified yet is verified on the first batch.

    Args:
        model: the model the head was found in, a copy of it, or a wrapper around it.
        head: from :func:`find_head`; one made by hand needs the name of a layer of ``model``.

    Yields:
        ``forward(inputs)``, which takes what :func:`find_head` takes and returns embeddings
        ``[B, D]`` and logits ``[B, C]``.

    Raises:
        HeadNotFoundError: ``model`` has no such layer.
        HeadMismatchError: the layer does not give the logits, or was not called.

    Example:
        >>> from hardsight.heads import find_head
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> with torch.no_grad(), capture(net, find_head(net)) as forward:
        ...     embeddings, logits = forward(torch.rand(5, 4))
        >>> embeddings.shape, logits.shape
        (torch.Size([5, 8]), torch.Size([5, 3]))
    """
    layer = layer_named(unwrapped(model), head.name)
    recorder = _Recorder()
    handle = layer.register_forward_pre_hook(recorder, with_kwargs=True)
    try:
        yield _forward(model, head, recorder)
    finally:
        handle.remove()
        recorder.clear()


def _forward(model: nn.Module, head: Head, recorder: _Recorder) -> Forward:
    reading = head.reading
    run = _hook_aware(model)
    devices = [torch.device("cuda", index) for index in getattr(model, "device_ids", None) or []]

    def forward(inputs: Any) -> tuple[Tensor, Tensor]:
        nonlocal reading
        if reading is None:
            reading = find_head(model, inputs, name=head.name).reading
            assert reading is not None
        recorder.clear()
        output = call(run, inputs)
        embeddings = recorder.embeddings(reading, devices)
        if embeddings is None:  # compiled before the hook was there: it cannot see it
            recorder.clear()
            with torch.compiler.set_stance("force_eager"):
                output = call(model, inputs)
            embeddings = recorder.embeddings(reading, devices)
        if embeddings is None:
            raise HeadMismatchError(
                f"layer {head.name!r} of {type(unwrapped(model)).__name__} was called fewer times "
                "than when the head was found; find it again with inputs like these"
            )
        recorder.clear()
        return embeddings, as_rows(logits_of(output))

    return forward


def _hook_aware(model: nn.Module) -> Callable[..., Any]:
    """The model as it is called, compiled anew where it was compiled.

    Code that ``torch.compile`` made before a hook was registered never calls the hook. The same
    compiler settings around another function give code that does.
    """
    recompile = getattr(model, "dynamo_ctx", None)
    if recompile is None:
        return model
    inner = model.get_submodule("_orig_mod")

    def run(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    compiled: Callable[..., Any] = recompile(run)
    return compiled
