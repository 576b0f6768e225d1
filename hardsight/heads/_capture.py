"""What passes a head: captured along with the logits and held to them, or watched in training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.hooks import RemovableHandle

from hardsight.errors import HeadMismatchError
from hardsight.heads._find import find_head, verify_head
from hardsight.heads._forward import call_model, logit_rows
from hardsight.heads._head import Head, Reading, at_position, differing_outputs, differing_rows
from hardsight.heads._layers import (
    is_candidate,
    layer_named,
    module_named,
    parameter_named,
    positions_of,
    tensor_input,
    tokens_of_width,
    unwrapped,
)

_LOOKED_AT_ONCE = 32  # batches; to look waits for the device
See = Callable[[Tensor, Tensor, Tensor], None]


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
        # replicas are listed by the model; a model on one device has a single entry of its own
        order = [device for device in devices if device in self._calls] or list(self._calls)
        at = self._reading.call
        # a slice, because a replica may have been called fewer times
        parts = [self._calls[device][at : at + 1] for device in order]
        calls = [call for part in parts for call in part if call is not None]
        # a replica that was not called leaves rows without embeddings
        if not calls or len(calls) < len(order):
            return None
        if len(calls) == 1:
            return calls[0]
        # outputs are held to the logits only if every replica has them
        made = [call.made for call in calls if call.made is not None]
        return _Seen(
            torch.cat([call.tokens.to(order[0]) for call in calls]),
            torch.cat([output.to(order[0]) for output in made])
            if len(made) == len(calls)
            else None,
            calls[0].computed_in,
        )


class Forward:
    """Runs a model; each call gives embeddings and logits that were held to each other.

    Attributes:
        head: that the embeddings belong to, verified as soon as a batch has been seen.
    """

    def __init__(self, model: nn.Module, head: Head, *, in_training: bool) -> None:
        self._model, self.head, self._in_training = model, head, in_training
        # compiled again around the hook: what was compiled before does not know it
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
        # a head made by hand is verified on the first batch, which also tells where to listen
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
        # in training the weights move between forward and check, so the layer's own output is
        # compared
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
        self._agreement.check()

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
    # a bare parameter has no module of its own; where it is read is found on the first batch
    if head.reading is None and parameter_named(inner, head.name) is None:
        layer_named(inner, head.name)  # raises if there is none
    forward = Forward(model, head, in_training=in_training)
    try:
        yield forward
        forward.check()
    finally:
        forward.close()


def _hook_aware(model: nn.Module) -> Callable[..., Any]:
    """The model as it is called, compiled again if it was compiled.

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


@dataclass(frozen=True)
class _Batch:
    number: int
    differs: Tensor  # [B], on the device
    ids: Sequence[str] | None


def is_there(tensor: Tensor) -> bool:
    """Whether a tensor can be read without waiting for a device."""
    return tensor.device.type == "cpu"


class Agreement:
    r"""Whether :math:`x W^\top + b = z` in every batch of a pass.

    A CPU is looked at after each batch, another device after a few dozen of them and at the end.

    Args:
        model: its name, for the message.
        head: its name.
    """

    def __init__(self, model: str, head: str) -> None:
        self._model, self._head = model, head
        self._count = 0
        self._waiting: list[_Batch] = []
        self._has_replayed: Tensor | None = None  # a flag that a recorded graph raises

    def hold(
        self,
        head: Head,
        embeddings: Tensor,
        logits: Tensor,
        *,
        computed_in: torch.dtype | None,
        ids: Sequence[str] | None,
    ) -> None:
        """Hold a batch to the weights of a head.

        Raises:
            HeadMismatchError: as :meth:`check`.
        """
        if logits.shape[1] != head.num_classes or embeddings.shape != (len(logits), head.width):
            raise HeadMismatchError(
                f"expected {head.num_classes} logits and {head.width} features for each example, "
                f"as when the head {head.name!r} was found, got logits {list(logits.shape)} and "
                f"features {list(embeddings.shape)}"
            )
        turn, weight, bias = self._count, head.weight, head.bias
        self._add(
            differing_rows(embeddings, logits, weight, bias, computed_in=computed_in, turn=turn),
            ids,
        )

    def hold_outputs(
        self, outputs: Tensor, logits: Tensor, *, scaled: bool, ids: Sequence[str] | None
    ) -> None:
        """Hold a batch to what the head's layer made of it, for weights in training.

        Raises:
            HeadMismatchError: as :meth:`check`.
        """
        if outputs.shape != logits.shape:
            raise HeadMismatchError(
                f"expected logits of the same shape as what {self._head!r} of {self._model} "
                f"returns, {list(outputs.shape)}, got {list(logits.shape)}"
            )
        self._add(differing_outputs(outputs, logits, scaled=scaled, turn=self._count), ids)

    def _add(self, differs: Tensor, ids: Sequence[str] | None) -> None:
        self._count += 1
        if differs.is_cuda:
            if self._has_replayed is None:
                # made outside of a recording: memory of a graph is used again by the next replay
                self._has_replayed = differs.new_zeros(())
            elif torch.cuda.is_current_stream_capturing():
                self._has_replayed.logical_or_(differs.any())  # again in every replay
                return
        self._waiting.append(_Batch(self._count, differs, ids))
        # on a CPU nothing waits, so every batch is looked at; on a GPU several at once
        if is_there(differs) or len(self._waiting) >= _LOOKED_AT_ONCE:
            self.check()

    def check(self) -> None:
        """Raise if a batch since the last check broke the equation.

        Raises:
            HeadMismatchError: names the batch and the rows.
        """
        batches, self._waiting = self._waiting, []
        # one wait for the device, then the batch is looked for only if something is wrong
        if batches and bool(torch.cat([batch.differs for batch in batches]).any()):
            broken = next(batch for batch in batches if bool(batch.differs.any()))
            raise HeadMismatchError(self._said(broken))
        if self._has_replayed is not None and bool(self._has_replayed):
            # raised once; a run that goes on after the error starts clean
            self._has_replayed.zero_()
            raise HeadMismatchError(self._said(None))

    def _said(self, batch: _Batch | None) -> str:
        where = "a batch of a recorded step" if batch is None else self._rows(batch)
        return (
            f"what enters {self._head!r} of {self._model}, times its weight, plus its bias, is not "
            f"what the model returns for {where}, so that their angles would be wrong: the model "
            "takes another way for them (padding, a mask, a branch). Let every row take the same "
            "way, such as by padding on the left, or score stored embeddings and class weights"
        )

    @staticmethod
    def _rows(batch: _Batch) -> str:
        rows = batch.differs.nonzero()[:, 0].tolist()
        names = [str(row) if batch.ids is None else str(batch.ids[row]) for row in rows[:5]]
        more = ", ..." if len(rows) > 5 else ""
        what = "rows" if batch.ids is None else "examples"
        count = f"{len(rows)} of {len(batch.differs)} rows of batch {batch.number}"
        return f"{count} ({what} {', '.join(names)}{more})"


def head_layer(model: nn.Module, name: str | None = None) -> nn.Module:
    """The layer that makes the logits, by its name or from the model's structure alone.

    Args:
        model: any classifier, wrapped or not, or the layer itself.
        name: of the layer, if the structure leaves more than one possibility.

    Raises:
        AmbiguousHeadError: more than one layer could be the head.
        HeadNotFoundError: none could, or there is no layer of that name.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> head_layer(net) is net[2]
        True
    """
    inner = unwrapped(model)
    if name is None and is_candidate(inner):
        return inner
    return layer_named(inner, name or find_head(inner).name)


def live_weight(layer: nn.Module) -> Tensor:
    """Weight of a layer as it is now, as a matrix and detached; looking changes nothing.

    Example:
        >>> live_weight(nn.Conv2d(8, 3, kernel_size=1)).shape
        torch.Size([3, 8])
    """
    inside: list[nn.Module] = []
    if is_parametrized(layer):
        inside = list(layer.get_submodule("parametrizations").modules())
    flags = [(module, module.training) for module in inside]
    try:
        for module, _ in flags:  # a spectral norm in training takes a step when it is read
            module.training = False
        weight: Any = layer.weight
    finally:
        for module, flag in flags:
            module.training = flag
    matrix: Tensor = weight.detach().flatten(1)
    return matrix


def live_class_weights(layer: nn.Module, classes: int) -> Tensor:
    """:func:`live_weight` with a row per class, also of a layer that keeps it as ``[D, C]``."""
    weight = live_weight(layer)
    # a layer of the user's may keep [D, C]; if both fit, the usual way is taken
    return weight.T if len(weight) != classes == weight.shape[1] else weight


def watch(layer: nn.Module, see: See) -> RemovableHandle:
    """Call ``see(embeddings, logits, class_weights)`` at every forward pass of a head.

    The tensors are detached, ``[B, D]``, ``[B, C]`` and ``[C, D]``, and share the memory of the
    originals. What a 1x1 convolution makes of a map is averaged over the map.

    Args:
        layer: from :func:`head_layer`.
        see: called with gradients off.

    Returns:
        the hook; call its ``remove()``.

    Raises:
        HeadMismatchError: in the forward pass, if the layer gives more than one prediction per
            example.

    Example:
        >>> layer = nn.Linear(8, 3)
        >>> hook = watch(layer, lambda embeddings, logits, weights: print(embeddings.shape))
        >>> _ = layer(torch.rand(5, 8))
        torch.Size([5, 8])
        >>> hook.remove()
    """

    @torch.no_grad()
    def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        inputs = tensor_input(args, kwargs)
        positions = None if inputs is None else positions_of(layer, inputs.detach())
        if positions is None or not isinstance(output, Tensor):
            return
        if positions.shape[1] > 1 and isinstance(layer, nn.Linear):
            raise HeadMismatchError(
                f"the head takes {positions.shape[1]} tokens per example, and cannot tell which "
                "one decides; pass the embeddings and logits of each example by hand"
            )
        outputs = positions_of(layer, output.detach())
        if outputs is None:
            return
        embeddings, logits = (at_position(part, "mean") for part in (positions, outputs))
        see(embeddings, logits, live_class_weights(layer, logits.shape[1]))

    # compiled code calls the hook between two graphs
    uncompiled: Any = torch.compiler.disable(hook)
    return layer.register_forward_hook(uncompiled, with_kwargs=True)
