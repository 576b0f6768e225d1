"""Capture what enters a head along with the logits, check both, or watch a head in training."""

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

_LOOKED_AT_ONCE = 32  # batches that are checked together, since a check waits for the device
See = Callable[[Tensor, Tensor, Tensor], None]


@dataclass(frozen=True)
class _ModuleCall:
    """A call of the module at which embeddings are read.

    Attributes:
        tokens: its input or output, ``[B, P, D]``.
        made: outputs of the head's layer for each token, ``[B, P, C]``.
        computed_in: the dtype of its output.
    """

    tokens: Tensor
    made: Tensor | None
    computed_in: torch.dtype | None


class _Recorder:
    """Records the calls of a module during a forward pass, by device and in their order."""

    def __init__(self, reading: Reading, width: int, *, at_head: bool = True) -> None:
        self._reading, self._width, self._at_head = reading, width, at_head
        self._calls: dict[torch.device, list[_ModuleCall | None]] = {}

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
        # DataParallel's replicas share this hook, each on its own device
        calls = self._calls.setdefault(value.device, [])
        if tokens is None:
            calls.append(None)
            return
        calls.append(_ModuleCall(tokens, made, out.dtype if isinstance(out, Tensor) else None))

    def seen(self, devices: list[torch.device]) -> _ModuleCall | None:
        """The call that makes the logits, joined over replicas; ``None`` if there was no call."""
        # in the order of the model's replicas; a model on one device has a single entry
        order = [device for device in devices if device in self._calls] or list(self._calls)
        at = self._reading.call
        # a slice, since a replica may have fewer calls
        parts = [self._calls[device][at : at + 1] for device in order]
        calls = [call for part in parts for call in part if call is not None]
        # if a replica was not called, its rows have no embeddings
        if not calls or len(calls) < len(order):
            return None
        if len(calls) == 1:
            return calls[0]
        # outputs are compared with the logits only if every replica has them
        made = [call.made for call in calls if call.made is not None]
        return _ModuleCall(
            torch.cat([call.tokens.to(order[0]) for call in calls]),
            torch.cat([output.to(order[0]) for output in made])
            if len(made) == len(calls)
            else None,
            calls[0].computed_in,
        )


class Forward:
    """Runs a model; each call returns embeddings and logits, and checks one against the other.

    Attributes:
        head: that the embeddings belong to; it is verified on the first batch at the latest.
    """

    def __init__(self, model: nn.Module, head: Head, *, in_training: bool) -> None:
        self._model, self.head, self._in_training = model, head, in_training
        # compile again, since code that was compiled before does not call the hook
        self._run = _hook_aware(model)
        self._devices = [
            torch.device("cuda", index) for index in getattr(model, "device_ids", None) or []
        ]
        self._agreement = Agreement(type(unwrapped(model)).__name__, head.name)
        self._recorder: _Recorder | None = None
        self._hook: RemovableHandle | None = None
        if head.reading is not None:
            self._listen(head.reading)

    def __call__(
        self, inputs: Any, ids: Sequence[str] | None = None, *, batch: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Embeddings ``[B, D]`` and logits ``[B, C]`` of a batch.

        Args:
            inputs: what :func:`find_head` takes.
            ids: names of the examples, for error messages.
            batch: name of the batch, for error messages; by default calls are counted.

        Raises:
            HeadMismatchError: the head does not give the logits of this or an earlier batch.
        """
        # a Head made by the user is verified on the first batch, which also shows where to hook
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
        if seen is None:  # no call was recorded, for example in code compiled before the hook
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
        # in training, weights change before the check is read, so compare the layer's own output
        if self._in_training and seen.made is not None:
            outputs, scaled = at_position(seen.made, where), not reading.form.plain
            self._agreement.hold_outputs(outputs, logits, scaled=scaled, ids=ids, batch=batch)
        else:
            self._agreement.hold(
                self.head, embeddings, logits, computed_in=seen.computed_in, ids=ids, batch=batch
            )
        return embeddings, logits

    def check(self) -> None:
        """Wait for the device, and raise if a batch so far does not fit the head.

        Raises:
            HeadMismatchError: the head does not give the logits of a batch.
        """
        self._agreement.check()

    def close(self) -> None:
        """Remove the hook."""
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
    r"""Run a model so that each call returns the embeddings along with the logits.

    Every batch is checked for :math:`x W^\top + b = z`: all of its rows, and up to 256 classes,
    with other classes in the next batch, within the rounding of the model's precision. On a GPU
    nothing waits for it: results are read every few dozen batches, at ``forward.check()``, and
    when the block ends.

    A hook on the head's layer stays for the whole block and is removed at its end, also after an
    error. Gradient, autocast, device and train or eval mode are up to the caller. A head that was
    not verified yet, such as one made by the user, is verified on the first batch.

    Args:
        model: the model the head was found in, a copy of it, or a wrapper around it.
        head: from :func:`find_head`, or made by the user with the name of a layer of ``model``.
        in_training: whether weights change between batches; each batch is then compared with the
            output of the head's layer, not with the weights that the head was found with.

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
    # a bare parameter has no module to hook; the first batch shows where its input is
    if head.reading is None and parameter_named(inner, head.name) is None:
        layer_named(inner, head.name)  # only to raise if there is no such layer
    forward = Forward(model, head, in_training=in_training)
    try:
        yield forward
        forward.check()
    finally:
        forward.close()


def _hook_aware(model: nn.Module) -> Callable[..., Any]:
    """A function that calls the model, compiled again if the model was compiled.

    Code that ``torch.compile`` made before a hook was registered never calls the hook. Compiling
    another function with the same settings gives code that does.
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
    name: str
    differs: Tensor  # [B], on the device
    ids: Sequence[str] | None


def is_there(tensor: Tensor) -> bool:
    """Whether a tensor can be read without waiting for a device."""
    return tensor.device.type == "cpu"


class Agreement:
    r"""Whether :math:`x W^\top + b = z` in every batch of a pass.

    On a CPU every batch is checked at once, on other devices after a few dozen and at the end.

    Args:
        model: its name, for the message.
        head: its name.
    """

    def __init__(self, model: str, head: str) -> None:
        self._model, self._head = model, head
        self._count = 0
        self._waiting: list[_Batch] = []
        self._has_replayed: Tensor | None = None  # a flag on the device that a recorded graph sets

    def hold(
        self,
        head: Head,
        embeddings: Tensor,
        logits: Tensor,
        *,
        computed_in: torch.dtype | None,
        ids: Sequence[str] | None,
        batch: str | None = None,
    ) -> None:
        """Check a batch against the weights of a head.

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
            batch,
        )

    def hold_outputs(
        self,
        outputs: Tensor,
        logits: Tensor,
        *,
        scaled: bool,
        ids: Sequence[str] | None,
        batch: str | None = None,
    ) -> None:
        """Check a batch against the output of the head's layer, for weights in training.

        Raises:
            HeadMismatchError: as :meth:`check`.
        """
        if outputs.shape != logits.shape:
            raise HeadMismatchError(
                f"expected logits of the same shape as the output of {self._head!r} of "
                f"{self._model}, {list(outputs.shape)}, got {list(logits.shape)}"
            )
        self._add(differing_outputs(outputs, logits, scaled=scaled, turn=self._count), ids, batch)

    def _add(self, differs: Tensor, ids: Sequence[str] | None, batch: str | None) -> None:
        self._count += 1
        if differs.is_cuda:
            if self._has_replayed is None:
                # allocated outside the recording, since replays reuse the graph's own memory
                self._has_replayed = differs.new_zeros(())
            elif torch.cuda.is_current_stream_capturing():
                self._has_replayed.logical_or_(differs.any())  # every replay repeats this
                return
        self._waiting.append(_Batch(batch or f"batch {self._count}", differs, ids))
        # reading is free on a CPU, so check every batch; on a GPU check several at once
        if is_there(differs) or len(self._waiting) >= _LOOKED_AT_ONCE:
            self.check()

    def check(self) -> None:
        """Raise if a batch since the last check broke the equation.

        Raises:
            HeadMismatchError: names the batch and the rows.
        """
        batches, self._waiting = self._waiting, []
        # wait for the device once, and search for the batch only if something is wrong
        if batches and bool(torch.cat([batch.differs for batch in batches]).any()):
            broken = next(batch for batch in batches if bool(batch.differs.any()))
            raise HeadMismatchError(self._said(broken))
        if self._has_replayed is not None and bool(self._has_replayed):
            # reset, so that a run that continues after the error is not refused again
            self._has_replayed.zero_()
            raise HeadMismatchError(self._said(None))

    def _said(self, batch: _Batch | None) -> str:
        where = "a batch of a recorded step" if batch is None else self._rows(batch)
        return (
            f"what enters {self._head!r} of {self._model}, times its weight, plus its bias, is not "
            f"what the model returns for {where}, so their angles would be wrong: the model treats "
            "them differently (padding, a mask, a branch). Let every row take the same path, for "
            "example by padding on the left, or score stored embeddings and class weights"
        )

    @staticmethod
    def _rows(batch: _Batch) -> str:
        rows = batch.differs.nonzero()[:, 0].tolist()
        names = [str(row) if batch.ids is None else str(batch.ids[row]) for row in rows[:5]]
        more = ", ..." if len(rows) > 5 else ""
        what = "rows" if batch.ids is None else "examples"
        count = f"{len(rows)} of {len(batch.differs)} rows of {batch.name}"
        return f"{count} ({what} {', '.join(names)}{more})"


def head_layer(model: nn.Module, name: str | None = None) -> nn.Module:
    """The layer that makes the logits, by its name or from the model's structure alone.

    Args:
        model: any classifier, wrapped or not, or the layer itself.
        name: of the layer, if the structure leaves more than one possibility.

    Raises:
        AmbiguousHeadError: more than one layer could be the head.
        HeadNotFoundError: no layer could be the head, or there is no layer of that name.

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
    """The current weight of a layer, as a detached matrix; reading it changes no state.

    Example:
        >>> live_weight(nn.Conv2d(8, 3, kernel_size=1)).shape
        torch.Size([3, 8])
    """
    inside: list[nn.Module] = []
    if is_parametrized(layer):
        inside = list(layer.get_submodule("parametrizations").modules())
    flags = [(module, module.training) for module in inside]
    try:
        for module, _ in flags:  # in train mode, reading a spectral norm would update it
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
    # a user's own layer may keep [D, C]; if both orders fit, use the usual one
    return weight.T if len(weight) != classes == weight.shape[1] else weight


def watch(layer: nn.Module, see: See) -> RemovableHandle:
    """Call ``see(embeddings, logits, class_weights)`` at every forward pass of a head.

    The tensors are detached, ``[B, D]``, ``[B, C]`` and ``[C, D]``, and share the memory of the
    originals. For a 1x1 convolution over a map they are averages over the map.

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
                f"the head takes {positions.shape[1]} tokens per example, and it is unknown which "
                "one decides; pass the embeddings and logits of each example yourself"
            )
        outputs = positions_of(layer, output.detach())
        if outputs is None:
            return
        embeddings, logits = (at_position(part, "mean") for part in (positions, outputs))
        see(embeddings, logits, live_class_weights(layer, logits.shape[1]))

    # not compiled into the model's graph: compiled code breaks the graph and calls the hook
    uncompiled: Any = torch.compiler.disable(hook)
    return layer.register_forward_hook(uncompiled, with_kwargs=True)
