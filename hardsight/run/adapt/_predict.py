"""What the model says about the target domain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hardsight.errors import NonFiniteError
from hardsight.heads import find_head
from hardsight.run.loop import ModelPass

_BATCHES_AT_ONCE = 16  # kept on the device before they are copied: a copy waits for the device


@dataclass(frozen=True)
class Seen:
    """Outputs of one pass over the target, on the CPU.

    Attributes:
        probs: softmax probabilities, ``[N, C]``, float32.
        embeddings: penultimate features, ``[N, D]``.
        class_weights: of the head in this pass, ``[C, D]``.
    """

    probs: Tensor
    embeddings: Tensor
    class_weights: Tensor

    @property
    def predictions(self) -> Tensor:
        """Most probable classes ``[N]``, the first if several tie."""
        return self.probs.argmax(dim=1)


@torch.no_grad()
def seen_by(
    model: nn.Module,
    batches: Iterable[Tensor],
    *,
    sample: Tensor,
    device: torch.device,
    precision: str,
    head: str | None = None,
    num_classes: int | None = None,
    id_of: Callable[[int], str] = str,
    advance: Callable[[int], object] = lambda done: None,
) -> Seen:
    """One pass of a model over inputs, in their order.

    Args:
        model: is moved to ``device`` and left there in eval mode.
        batches: inputs, on ``device``.
        sample: a few of them, on which the classifier head is found.
        device: to compute on.
        precision: of the forward pass.
        head: name of the classifier layer, if it is not found by itself.
        num_classes: of the data; of several outputs the one with as many columns is taken.
        id_of: name of an example, for the message of an error.
        advance: told how many examples were just done.

    Raises:
        NonFiniteError: the model gives NaN or infinity for an example.
        HeadError: the model has no classifier head that can be read.
    """
    model = model.to(device).eval()
    known = find_head(model, sample, name=head, num_classes=num_classes)
    waiting: list[tuple[Tensor, Tensor]] = []
    done: list[tuple[Tensor, Tensor]] = []
    first = 0
    with ModelPass(model, known, device=device, precision=precision) as running:
        for inputs in batches:
            names = [id_of(position) for position in range(first, first + len(inputs))]
            embeddings, logits = running.outputs(inputs, names)
            assert embeddings is not None
            first += len(inputs)
            waiting.append((logits.float().softmax(dim=1), embeddings.float()))
            if len(waiting) == _BATCHES_AT_ONCE:
                done.append(_on_cpu(waiting))
                waiting = []
            advance(len(inputs))
    if waiting:
        done.append(_on_cpu(waiting))
    probs, embeddings = (torch.cat(parts) for parts in zip(*done, strict=True))
    _check_finite(probs, id_of)
    return Seen(probs, embeddings, known.weight.float().cpu())


def _on_cpu(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    probs, embeddings = (torch.cat(tensors).cpu() for tensors in zip(*parts, strict=True))
    return probs, embeddings


def _check_finite(probs: Tensor, id_of: Callable[[int], str]) -> None:
    bad = ~probs.isfinite().all(dim=1)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise NonFiniteError(
            f"the model gives NaN or infinity for {int(bad.sum()):,} of {len(probs):,} target "
            f"examples, first {id_of(first)} (position {first}); lower the learning rate, or use "
            "precision = 'float32'"
        )
