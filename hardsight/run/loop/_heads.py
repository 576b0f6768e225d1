"""The classifier head of a model, seen on the data it is to work on."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from hardsight.data import ExampleSource, batches
from hardsight.errors import ModelError, NonFiniteError
from hardsight.heads import Head, find_head, logits_of
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop._device import moved

_MOST_LOOKED_AT = 256  # examples, in search of one with finite outputs


def verified_head(
    model: nn.Module,
    source: ExampleSource,
    preprocessing: Preprocessing,
    *,
    device: torch.device,
    name: str | None,
    at_once: int = 8,
) -> tuple[Head, tuple[int, ...] | None]:
    """The head of a model, and the shape of one input, from the first examples it can be seen on.

    Examples that cannot be read or have no finite output say nothing of the head; the next do.

    Args:
        model: to look into, on ``device``.
        source: of its examples.
        preprocessing: of images.
        device: where the model is.
        name: of the head; found where it is ``None``.
        at_once: how many examples to try it on.

    Raises:
        ModelError: none of the examples could be read.
        NonFiniteError: none of the first few hundred has a finite output.
    """
    seen = 0
    with closing(batches(source, preprocessing, batch_size=at_once)) as few:
        for batch in few:
            if not len(batch.index):
                continue
            seen += len(batch.index)
            inputs = moved(batch.inputs, device)
            shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else None
            try:
                return find_head(model, inputs, name=name), shape
            except NonFiniteError:
                finite = _finite_rows(model, inputs)
            if finite is not None and len(finite):
                return find_head(model, finite, name=name), shape
            if seen >= _MOST_LOOKED_AT:
                break
    if not seen:
        raise ModelError(f"none of the examples of {source.spec} could be read")
    raise NonFiniteError(
        f"{type(model).__name__} has no finite output for any of the first {seen:,} examples of "
        f"{source.spec}, so its head cannot be verified; check its weights, and mean and std of "
        "its inputs"
    )


@torch.inference_mode()
def _finite_rows(model: nn.Module, inputs: Any) -> Tensor | None:
    """The inputs whose logits are finite; ``None`` where inputs are no tensor."""
    if not isinstance(inputs, Tensor):
        return None
    logits = logits_of(model(inputs)).flatten(1)
    return inputs[torch.isfinite(logits).all(dim=1)]
