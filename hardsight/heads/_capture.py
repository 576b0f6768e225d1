"""Embeddings and logits from one forward pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hardsight.errors import HeadMismatchError
from hardsight.heads._agreement import Agreement
from hardsight.heads._find import verify_head
from hardsight.heads._head import Head, Reading, at_position
from hardsight.heads._layers import (
    layer_named,
    module_named,
    parameter_named,
    positions_of,
    tensor_input,
    tokens_of_width,
    unwrapped,
)
from hardsight.heads._outputs import call_model, logit_rows


@dataclass(frozen=True)
class _Seen:
    """One call of the module at which embeddings are read.

    Attributes:
        tokens: what entered or left it, ``[B, P, D]``.
        made: what the head's layer made of each token, ``[B, P, C]``.
        computed_in: the dtype of what it returned.
    """

    tokens: Tensor
    made: Tensor | None
    computed_in: torch.dtype | None


class _Recorder:
    """What passes one module during a forward pass, by device and in the order of its calls."""

    def __init__(self, reading: Reading, width: int, *, at_head: bool = True) -> None:
        self._reading, self._width, self._at_head = reading, width, at_head
        self._calls: dict[torch.device, list[_Seen | None]] = {}

    def clear(self) -> None:
        self._calls.clear()

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        value = tensor_input(args, kwargs) if self._reading.side == "input" else out
        if not isinstance(value, Tensor):
            return
        if self._at_head:
            tokens = positions_of(module, value)
            made = positions_of(module, out) if isinstance(out, Tensor) else None
        else:
            tokens, made = tokens_of_width(value, self._width), None
        # replicas of DataParallel share this hook, each on a device of its own
        calls = self._calls.setdefault(value.device, [])
        if tokens is None:
            calls.append(None)
            return
        calls.append(_Seen(tokens, made, out.dtype if isinstance(out, Tensor) else None))

    def seen(self, devices: list[torch.device]) -> _Seen | None:
        """The call that makes the logits, of all replicas in batch order; ``None`` if none came."""
        order = [device for device in devices if device in self._calls] or list(self._calls)
        at = self._reading.call
        parts = [self._calls[device][at : at + 1] for device in order]
        calls = [one for part in parts for one in part if one is not None]
        if not calls or len(calls) < len(order):
            return None
        if len(calls) == 1:
            return calls[0]
        made = [one.made for one in calls if one.made is not None]
        return _Seen(
            torch.cat([one.tokens.to(order[0]) for one in calls]),
            torch.cat([one.to(order[0]) for one in made]) if len(made) == len(calls) else None,
            calls[0].computed_in,
        )


class Forward:
    """Runs a model; each call gives embeddings and logits that were held to each other.

    Attributes:
        head: that the embeddings belong to, verified as soon as a batch has been seen.
    """

    def __init__(self, model: nn.Module, head: Head, *, in_training: bool) -> None:
        self._model, self.head, self._in_training = model, head, in_training
        self._run = _hook_aware(model)
        self._devices = [
            torch.device("cuda", index) for index in getattr(model, "device_ids", None) or []
        ]
        self._agreement = Agreement(type(unwrapped(model)).__name__, head.name)
        self._recorder: _Recorder | None = None
        self._hook: RemovableHandle | None = None
        if head.reading is not None:
            self._listen(head.reading)

    def __call__(self, inputs: Any, ids: Sequence[str] | None = None) -> tuple[Tensor, Tensor]:
        """Embeddings ``[B, D]`` and logits ``[B, C]`` of a batch.

        Args:
            inputs: what :func:`find_head` takes.
            ids: names of the examples, for the message of an error.

        Raises:
            HeadMismatchError: the head does not give the logits of this batch, or of one before.
        """
        if self.head.reading is None:
            self.head = verify_head(self._model, self.head, inputs)
            assert self.head.reading is not None
            self._listen(self.head.reading)
        reading, recorder = self.head.reading, self._recorder
        assert reading is not None
        assert recorder is not None
        recorder.clear()
        returned = call_model(self._run, inputs)
        seen = recorder.seen(self._devices)
        if seen is None:  # compiled before the hook was there: it cannot see it
            recorder.clear()
            with torch.compiler.set_stance("force_eager"):
                returned = call_model(self._model, inputs)
            seen = recorder.seen(self._devices)
        if seen is None:
            raise HeadMismatchError(
                f"layer {self.head.name!r} of {type(unwrapped(self._model)).__name__} was called "
                "fewer times than when the head was found; find it again with inputs like these"
            )
        recorder.clear()
        logits = logit_rows(returned, reading.output)
        where = reading.where(seen.made, logits)
        embeddings = reading.embeddings(seen.tokens, where)
        if self._in_training and seen.made is not None:
            outputs, scaled = at_position(seen.made, where), not reading.form.plain
            self._agreement.hold_outputs(outputs, logits, scaled=scaled, ids=ids)
        else:
            self._agreement.hold(
                self.head, embeddings, logits, computed_in=seen.computed_in, ids=ids
            )
        return embeddings, logits

    def check(self) -> None:
        """Wait for the device, and raise if a batch so far does not fit the head.

        Raises:
            HeadMismatchError: the head does not give the logits of a batch.
        """
        self._agreement.look()

    def close(self) -> None:
        """Take the hook away."""
        if self._hook is not None:
            self._hook.remove()
        if self._recorder is not None:
            self._recorder.clear()

    def _listen(self, reading: Reading) -> None:
        module = module_named(unwrapped(self._model), reading.module)
        at_head = reading.side == "input" and reading.module == self.head.name
        self._recorder = _Recorder(reading, self.head.width, at_head=at_head)
        self._hook = module.register_forward_hook(self._recorder, with_kwargs=True)


@contextmanager
def capture(model: nn.Module, head: Head, *, in_training: bool = False) -> Iterator[Forward]:
    r"""Run a model so that each call gives the embeddings along with the logits.

    Every batch is held to :math:`x W^\top + b = z`, all of its rows and up to 256 classes, other
    ones in the next batch, within the rounding of the precision the model runs in. On a GPU nothing
    waits for it: the verdict is read every few dozen batches, at ``forward.check()``, and when the
    block ends.

    One hook on the head's layer stays for the whole block and is removed at its end, also after an
    error. Gradient, autocast, device and train or eval mode are the caller's. A head that was not
    verified yet, such as one made by hand, is verified on the first batch.

    Args:
        model: the model the head was found in, a copy of it, or a wrapper around it.
        head: from :func:`find_head`; one made by hand needs the name of a layer of ``model``.
        in_training: the weights change between batches, so that each batch is held to what the
            head's layer makes of it, not to the weights that the head was found with.

    Yields:
        ``forward(inputs, ids=None)``, which takes what :func:`find_head` takes and returns
        embeddings ``[B, D]`` and logits ``[B, C]``; ``ids`` name the examples in an error.

    Raises:
        HeadNotFoundError: ``model`` has no such layer.
        HeadMismatchError: the layer does not give the logits of a batch, or was not called.

    Example:
        >>> from hardsight.heads import find_head
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> with torch.no_grad(), capture(net, find_head(net)) as forward:
        ...     embeddings, logits = forward(torch.rand(5, 4))
        >>> embeddings.shape, logits.shape
        (torch.Size([5, 8]), torch.Size([5, 3]))
    """
    inner = unwrapped(model)
    if head.reading is None and parameter_named(inner, head.name) is None:
        layer_named(inner, head.name)  # raises if there is none
    forward = Forward(model, head, in_training=in_training)
    try:
        yield forward
        forward.check()
    finally:
        forward.close()


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
