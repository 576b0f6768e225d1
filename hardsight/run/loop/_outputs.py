"""A model's outputs for a whole dataset, in memory or mapped from files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight.heads import Head
from hardsight.registry import SCORES
from hardsight.run.loop._pass import ModelPass

_ROWS_AT_ONCE = 4096  # because tensors may be mapped from files that are larger than memory
_BATCHES_AT_ONCE = 16  # batches of outputs kept on the device, because every copy waits for it


@dataclass(frozen=True, eq=False)
class Outputs:
    """A model's outputs for a dataset, float32 on the CPU.

    Attributes:
        embeddings: what enters the head, ``[N, D]``.
        logits: ``[N, C]``.
        labels: class indices, ``[N]``; -1 for an example without a label.
        class_weights: class weights of the head in this pass, ``[C, D]``.
        bias: bias of the head, ``[C]``, or ``None``.
        index: positions of the rows in their source, ``[N]``, ascending; ``None`` if no example
            is missing.
        errors: number of examples that could not be read.
    """

    embeddings: Tensor
    logits: Tensor
    labels: Tensor
    class_weights: Tensor
    bias: Tensor | None
    index: NDArray[np.int64] | None = None
    errors: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def positions(self) -> NDArray[np.int64]:
        """Position of each row in its source, ``[N]``."""
        return np.arange(len(self)) if self.index is None else self.index

    @property
    def accuracy(self) -> float:
        """Share of examples whose largest logit belongs to their label."""
        return float((self.logits.argmax(dim=1) == self.labels).double().mean())

    @cached_property
    def probs(self) -> Tensor:
        """Softmax probabilities, ``[N, C]``."""
        return self.logits.softmax(dim=1)

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """Whether logits and embedding are finite, ``[N]``."""
        parts = [
            # both must be finite: angles need the embedding, losses the logits
            (logits.isfinite().all(dim=1) & embeddings.isfinite().all(dim=1)).numpy()
            for logits, embeddings, _ in self.chunks(np.arange(len(self)))
        ]
        return np.concatenate(parts)

    @cached_property
    def predictions(self) -> NDArray[np.int64]:
        """Class of the largest logit, ``[N]``: the first if several tie, -1 if not usable."""
        parts = [logits.argmax(dim=1).numpy() for logits, *_ in self.chunks(np.arange(len(self)))]
        return np.where(self.usable, np.concatenate(parts), -1)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether each prediction is the label, ``[N]``."""
        is_right: NDArray[np.bool_] = self.predictions == self.labels.numpy()
        return is_right

    def scores(self) -> dict[str, NDArray[np.float64]]:
        """Return all scores of the registry that are one number per example, ``[N]`` each."""
        return {
            name: spec.function(*(getattr(self, key) for key in spec.inputs)).double().numpy()
            for name, spec in SCORES.items()
            if not spec.per_class
        }

    def chunks(self, rows: NDArray[np.int64]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield logits, embeddings and labels of chosen rows, a few thousand at a time."""
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            some = torch.from_numpy(rows[first : first + _ROWS_AT_ONCE])
            yield self.logits[some], self.embeddings[some], self.labels[some]

    def per_row(
        self, rows: NDArray[np.int64], values: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> NDArray[np.float64]:
        """Return one number per chosen row, computed from its logits, embedding and label."""
        parts = [values(*chunk).double().numpy() for chunk in self.chunks(rows)]
        return np.concatenate(parts) if parts else np.empty(0)


def gathered(
    running: ModelPass,
    head: Head,
    batches: Iterable[Tensor],
    labels: Tensor | None = None,
    *,
    id_of: Callable[[int], str] | None = None,
    advance: Callable[[int], object] = lambda done: None,
) -> Outputs:
    """Run a model over batches of inputs and collect the outputs in memory.

    Args:
        running: the model with this head, inside its ``with`` block.
        head: the model's head.
        batches: inputs, in the order of the rows.
        labels: labels of the rows, ``[N]``, if they have labels.
        id_of: returns the name of the example at a position, for error messages.
        advance: called with the number of examples that were just done.
    """
    waiting: list[tuple[Tensor, Tensor]] = []
    done: list[tuple[Tensor, Tensor]] = []
    first = 0
    for inputs in batches:
        rows = range(first, first + len(inputs))
        embeddings, logits = running.outputs(inputs, id_of and [id_of(row) for row in rows])
        assert embeddings is not None
        first = rows.stop
        waiting.append((embeddings.float(), logits.float()))
        # wait for the device once in sixteen batches instead of every time
        if len(waiting) == _BATCHES_AT_ONCE:
            done.append(_on_cpu(waiting))
            waiting = []
        advance(len(rows))
    embeddings, logits = _on_cpu([*done, *([_on_cpu(waiting)] if waiting else [])])
    known = torch.full((first,), -1) if labels is None else labels
    return Outputs(embeddings, logits, known, **parameters(head))


def parameters(head: Head) -> dict[str, Any]:
    """Return class weights and bias of a head, as :class:`Outputs` keeps them."""
    weight, bias = (
        None if tensor is None else tensor.detach().float().cpu().clone()
        for tensor in (head.weight, head.bias)
    )
    return {"class_weights": weight, "bias": bias}


def _on_cpu(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    embeddings, logits = (torch.cat(tensors).cpu() for tensors in zip(*parts, strict=True))
    return embeddings, logits
