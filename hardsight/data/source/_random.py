"""Random states of this process: used for a while, then put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def states_kept(*generators: Any, seed: int | None = None) -> Iterator[None]:
    """The states of torch's CPU, numpy, ``random`` and given generators are the same afterwards.

    Args:
        generators: of torch, which a user's object draws from.
        seed: what the first three start from inside; ``None`` leaves them.
    """
    import torch

    states = [generator.get_state() for generator in generators]
    host = (torch.get_rng_state(), np.random.get_state(), random.getstate())  # noqa: NPY002
    try:
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach the GPU too
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
        yield
    finally:
        torch.set_rng_state(host[0])
        np.random.set_state(host[1])  # noqa: NPY002
        random.setstate(host[2])
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
