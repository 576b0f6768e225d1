"""A training step recorded once as a CUDA graph and replayed: one launch instead of hundreds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hardsight._checks import warn
from hardsight.run.train._images import TrainBatch

_WARM_UPS = 3  # libraries choose and allocate in the first passes, which must not be recorded


class Passed(NamedTuple):
    """What a pass over a batch leaves behind; gradients are with the parameters."""

    embeddings: Tensor | None
    logits: Tensor
    loss: Tensor


class RecordedStep:
    """Forward and backward passes of full batches, replayed; the optimizer steps as always.

    Numbers of the loss that change from step to step, such as a ramped weight, are part of the
    recording, so they are recorded again once they stay the same for two steps, and until then the
    step is not replayed. A model that cannot be recorded is trained without, and a warning says so.

    Args:
        run: forward pass and loss of a batch.
        model: whose parameters get the gradients.
        size: examples of a full batch; the rest of an epoch is smaller and not replayed.
    """

    def __init__(self, run: Callable[[TrainBatch], Passed], model: nn.Module, *, size: int) -> None:
        self._run, self._model, self._size = run, model, size
        self._recording: tuple[Hashable, TrainBatch, Passed, Any] | None = None
        self._last: Hashable = None
        self._has_failed = False

    @property
    def owns_gradients(self) -> bool:
        """Whether gradients lie where a recording writes them, and must stay there."""
        return self._recording is not None

    def passed(self, batch: TrainBatch, key: Hashable) -> Passed | None:
        """The pass over a batch with its gradients, or ``None`` if it is not replayed.

        Args:
            batch: on the device.
            key: the numbers of the loss at this step.
        """
        before, self._last = self._last, key
        if self._has_failed or len(batch.labels) != self._size:
            return None
        is_known = self._recording is not None and self._recording[0] == key
        if not is_known and (before not in (None, key) or not self._record(batch, key)):
            return None
        assert self._recording is not None
        _, own, found, graph = self._recording
        for into, tensor in zip(own, batch, strict=True):
            into.copy_(tensor)
        graph.replay()
        # the next replay overwrites the loss, which is looked at many steps later
        return found._replace(loss=found.loss.clone())

    def _record(self, batch: TrainBatch, key: Hashable) -> bool:
        self._recording = None
        gc.collect()  # what is left of earlier passes keeps nodes of another stream alive
        own = TrainBatch(*(tensor.clone() for tensor in batch))
        try:
            found, graph = recorded(lambda: self._passes(own), self._model)
        except RuntimeError as err:
            self._has_failed = True
            self._model.zero_grad(set_to_none=True)
            reason = str(err).splitlines()[0]
            warn(
                f"{type(self._model).__name__} cannot be recorded ({reason}); it is trained step "
                "by step instead"
            )
            return False
        self._recording = (key, own, found, graph)
        return True

    def _passes(self, batch: TrainBatch) -> Passed:
        with _uncached(batch.labels.device.type):
            found = self._run(batch)
        with torch.autocast(found.logits.device.type, enabled=False):
            found.loss.backward()
        embeddings = None if found.embeddings is None else found.embeddings.detach()
        return Passed(embeddings, found.logits.detach(), found.loss.detach())


def recorded(passes: Callable[[], Passed], model: nn.Module) -> tuple[Passed, Any]:
    """The passes as a graph, and the tensors that its replays write to.

    Warming up draws at random and moves the statistics of batch norm; both are put back.
    """
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                model.zero_grad(set_to_none=True)
                passes()
        here.wait_stream(aside)
    for buffer, value in kept:
        buffer.copy_(value)
    # gradients that are made while recording are where every replay writes them
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = passes()
    return found, graph


def _uncached(device: str) -> AbstractContextManager[Any]:
    """The autocast of now, without its cache: a replay must cast the weights of its own step."""
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, dtype=torch.get_autocast_dtype(device), cache_enabled=False)
