"""Record a training step as a CUDA graph and replay it: one launch instead of hundreds."""

from __future__ import annotations

import copy
import gc
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hardsight._checks import warn
from hardsight.run.train._batches import Ticket
from hardsight.run.train._images import TrainBatch

# In the first passes, libraries choose algorithms and allocate memory, which a graph must not do.
_WARM_UPS = 3


class StepOutputs(NamedTuple):
    """The results of a step; gradients are with the parameters.

    Attributes:
        embeddings: ``[B, D]``, if the head is known.
        logits: ``[B, C]``.
        loss: loss of the batch.
        finite: whether all logits of a row are finite, ``[B]``.
        class_weights: the head's weights in the pass, if the step has changed them since.
    """

    embeddings: Tensor | None
    logits: Tensor
    loss: Tensor
    finite: Tensor
    class_weights: Tensor | None = None


class StepNumbers:
    """Numbers that change from step to step, kept on the device, where a recorded step reads them.

    Args:
        count: how many numbers there are.
        device: device of the model.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.values = torch.zeros(count, device=device)
        self._known: list[float] = []

    def set(self, values: Sequence[float]) -> None:
        """Set the numbers for the next replay; nothing is copied if they are the same."""
        if self._known != list(values):
            self._known = list(values)
            self.values.copy_(torch.tensor(self._known), non_blocking=True)


class RecordedStep:
    """Replays the step over a full batch: both passes, and the optimizer's step if possible.

    The first step is not recorded, so that the optimizer has its state. Learning rates and weights
    of losses are read on the device. Other numbers that change, such as loss options that decay,
    are part of the recording. When they change, steps are not replayed until they have been the
    same for two steps; then the step is recorded again. A model that cannot be recorded is trained
    step by step, with a warning.

    Args:
        run: forward pass and loss of a batch.
        model: the model whose parameters get the gradients.
        size: number of examples in a full batch; the last batch of an epoch may be smaller and is
            not replayed.
        adds_to: tensors besides the model's own that a pass changes; recording restores them.
        update: the optimiser's step; ``None`` if it is taken outside, after the replay.
    """

    def __init__(
        self,
        run: Callable[[TrainBatch | Ticket], StepOutputs],
        model: nn.Module,
        *,
        size: int,
        adds_to: Sequence[Tensor] = (),
        update: Callable[[], None] | None = None,
    ) -> None:
        self._run, self._model, self._size, self._update = run, model, size, update
        self._changed = [*model.buffers(), *adds_to]
        self._recording: tuple[Hashable, TrainBatch | Ticket, StepOutputs, Any] | None = None
        self._last: Hashable = None
        self._has_failed = False

    @property
    def owns_gradients(self) -> bool:
        """Whether gradients are in memory that a recording writes to, and must stay there."""
        return self._recording is not None

    def passed(self, batch: TrainBatch | Ticket, key: Hashable) -> StepOutputs | None:
        """Do the step over a batch by a replay; ``None`` if it cannot be replayed.

        Args:
            batch: a batch on the device.
            key: the numbers of this step that are part of a recording.
        """
        before, self._last = self._last, key
        if self._has_failed or len(batch.labels) != self._size:
            return None
        is_known = self._recording is not None and self._recording[0] == key
        if not is_known and (before != key or not self._record(batch, key)):
            return None
        assert self._recording is not None
        _, own, made, graph = self._recording
        for into, tensor in zip(own, batch, strict=True):
            into.copy_(tensor)
        graph.replay()
        # copies, because the guard reads them many steps later and the next replay overwrites them
        return made._replace(loss=made.loss.clone(), finite=made.finite.clone())

    def give_up(self, reason: str) -> None:
        """Free the recording's memory and train the rest of the run step by step."""
        self._recording, self._has_failed = None, True
        self._model.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.empty_cache()
        warn(
            f"{type(self._model).__name__} cannot be recorded ({reason}); it is trained step by "
            "step instead"
        )

    def _record(self, batch: TrainBatch | Ticket, key: Hashable) -> bool:
        self._recording = None
        gc.collect()  # leftovers of earlier passes keep alive autograd nodes of another stream
        own = type(batch)(*(tensor.clone() for tensor in batch))
        try:
            passed, graph = recorded(
                lambda: self._passes(own), self._model, self._changed, self._update
            )
        except RuntimeError as err:  # from CUDA, from torch about memory, or a HostStateError
            self.give_up(str(err).splitlines()[0])
            return False
        self._recording = (key, own, passed, graph)
        return True

    def _passes(self, batch: TrainBatch | Ticket) -> StepOutputs:
        with _uncached(batch.labels.device.type):
            passed = self._run(batch)
        with torch.autocast(passed.logits.device.type, enabled=False):
            passed.loss.backward()
        return StepOutputs(*(None if value is None else value.detach() for value in passed))  # type: ignore[arg-type]


class HostStateError(RuntimeError):
    """A pass changed something on the host, which a replay would not change."""


def recorded(
    passes: Callable[[], StepOutputs],
    model: nn.Module,
    changed: Sequence[Tensor],
    update: Callable[[], None] | None,
) -> tuple[StepOutputs, Any]:
    """Record a step as a graph; return it with the tensors that its replays write to.

    Warming up draws random numbers and changes tensors such as the statistics of batch norm; both
    are restored. The optimiser is not warmed up, because it would change the weights.

    Args:
        passes: forward and backward pass of a batch that stays in its place in memory.
        model: the model whose gradients are computed.
        changed: tensors that the passes change.
        update: the optimizer's step, or ``None``.

    Raises:
        HostStateError: the model draws numbers or counts on the host, for instance to skip layers
            at random; every replay would repeat the recorded draw.
        RuntimeError: CUDA cannot record an operation of the model.
    """
    kept = [tensor.clone() for tensor in changed]
    here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    before = HostState(model)
    try:
        with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UPS):
                    model.zero_grad(set_to_none=True)
                    passes()
            here.wait_stream(aside)
            problem = before.changed()
    finally:
        before.put_back()
        for tensor, value in zip(changed, kept, strict=True):
            tensor.copy_(value)
    # the gradients allocated during the recording are the ones that every replay writes to
    model.zero_grad(set_to_none=True)
    if problem:
        raise HostStateError(problem)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        passed = passes()
        if update is not None:
            update()
    return passed, graph


class HostState:
    """A snapshot of what a forward pass may change on the host: random states and attributes.

    Replacing a tensor by another, as in ``self.mean = 0.9 * self.mean + ...``, is such a change,
    because every replay would read the first tensor. Writing into a tensor is not.

    Args:
        model: the model in its current state.

    Example:
        >>> layer = nn.Dropout(0.5)
        >>> before = HostState(layer)
        >>> layer.p = 0.9
        >>> before.changed()
        'its forward pass changes p'
        >>> before.put_back()
        >>> layer.p
        0.5
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._numpy = np.random.get_state(legacy=False)  # noqa: NPY002  # what a model may use
        held = list(_held(model))
        self._values = {(at, key): (values, values[key]) for at, key, values in held}
        self._marks = {(at, key): _mark(values[key]) for at, key, values in held}
        self._contents = [
            (values[key], copy.copy(values[key]))
            for _, key, values in held
            if isinstance(values[key], _GROWING)
        ]
        with torch.no_grad():
            self._tensors = [
                (value, value.clone())
                for values, value in self._values.values()
                # neither activations nor leftovers of a validation pass
                if isinstance(value, Tensor) and value.grad_fn is None and not value.is_inference()
            ]

    def changed(self) -> str:
        """Return what has changed since the snapshot, in words; empty if nothing has."""
        now = HostState(self._model)
        if (
            now._python != self._python
            or not torch.equal(now._torch, self._torch)
            or str(now._numpy) != str(self._numpy)
        ):
            return "its forward pass draws random numbers on the CPU"
        before = self._marks
        moved = [key for (at, key), mark in now._marks.items() if before.get((at, key)) != mark]
        return f"its forward pass changes {', '.join(moved[:3])}" if moved else ""

    def put_back(self) -> None:
        """Restore the snapshot."""
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy)  # noqa: NPY002
        for (_, key), (values, value) in self._values.items():
            values[key] = value
        for container, content in self._contents:
            container.clear()
            (container.extend if hasattr(container, "extend") else container.update)(content)
        with torch.no_grad():
            for tensor, value in self._tensors:
                tensor.copy_(value)


_GROWING = (list, deque, dict, set)
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


def _held(model: nn.Module) -> Iterator[tuple[nn.Module, str, dict[str, Any]]]:
    """Yield every attribute and buffer of a model: module, name, and the dict that holds it."""
    for module in model.modules():
        yield from ((module, key, module._buffers) for key in module._buffers)
        yield from ((module, key, vars(module)) for key in vars(module).keys() - _OF_EVERY_MODULE)


def _mark(value: Any) -> Hashable:
    """Return a mark that changes when a value is replaced.

    It is constant for activations, because they are never read again.
    """
    if isinstance(value, Tensor):
        return (id(value),) if value.grad_fn is None else ()
    if isinstance(value, dict):
        return tuple((key, _mark(one)) for key, one in value.items())
    if isinstance(value, (tuple, *_GROWING)):
        return tuple(_mark(one) for one in value)
    return (value,) if isinstance(value, bool | int | float | str | None) else ()


def _uncached(device: str) -> AbstractContextManager[Any]:
    """Return the current autocast without its cache: a replay must cast the weights of its step."""
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, dtype=torch.get_autocast_dtype(device), cache_enabled=False)
