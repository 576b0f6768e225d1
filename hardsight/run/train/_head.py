"""Training the classifier head alone: decoupled re-training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from hardsight.errors import HeadError
from hardsight.heads import Head
from hardsight.run.loop import seed_of, seeded


def reset_head(model: nn.Module, head: Head, *, seed: int) -> None:
    """Give the head new random weights, decided by the seed alone.

    Raises:
        HeadError: the layer does not know how to draw its weights.
    """
    layer = model.get_submodule(head.name)
    draw = getattr(layer, "reset_parameters", None)
    if draw is None:
        raise HeadError(
            f"reset_head needs a head with reset_parameters(), got {type(layer).__name__} at "
            f"{head.name!r}; leave reset_head out, or use an nn.Linear head"
        )
    with seeded(seed_of(seed, "head") % 2**31):
        draw()


@contextmanager
def frozen_body(model: nn.Module, head: Head) -> Iterator[None]:
    """Let the head alone learn; what could learn before can again afterwards."""
    own = {id(parameter) for parameter in model.get_submodule(head.name).parameters()}
    stopped = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    for parameter in stopped:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in stopped:
            parameter.requires_grad_(True)
