"""Random states of the process: used for a while, then given back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hardsight.errors import OptionError


@contextmanager
def random_states_kept(device: torch.device | None = None) -> Iterator[None]:
    """Whatever is drawn or seeded inside, the states of CPU and GPUs are as before afterwards.

    CUDA is started for it only where ``device`` says that it will be used: until then torch holds
    the user's seed back. A GPU that is first used inside goes back to the seed it started with,
    so inside, seed with :func:`seed_generators`.

    Args:
        device: where the work inside is done, if that is known.

    Example:
        >>> before = torch.get_rng_state()
        >>> with random_states_kept():
        ...     _ = torch.rand(3)
        >>> torch.equal(before, torch.get_rng_state())
        True
    """
    if device is not None and device.type == "cuda":
        torch.cuda.init()
    was_started = torch.cuda.is_initialized()
    gpus = torch.cuda.get_rng_state_all() if was_started else []
    cpu = torch.get_rng_state()
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if mps is not None:
            torch.mps.set_rng_state(mps)
        if was_started:
            torch.cuda.set_rng_state_all(gpus)
        elif torch.cuda.is_initialized():
            for drawn in torch.cuda.default_generators:
                drawn.manual_seed(drawn.initial_seed())


def seed_generators(seed: int, *, gpus: bool) -> None:
    """Seed the CPU and, where they are wanted and in use, all GPUs.

    ``torch.manual_seed`` would also replace the seed that waits for a GPU not in use yet, which
    cannot be taken back.

    Args:
        seed: of all of them.
        gpus: whether draws on a GPU are to come from it. Not for work on the CPU: Lightning starts
            CUDA even then, and its user's seed would be lost.

    Raises:
        OptionError: the seed has more bits than a generator takes.
    """
    if not -(2**63) <= seed < 2**64:
        raise OptionError(f"expected a seed of at most 64 bits, got {seed}; use a smaller one")
    torch.default_generator.manual_seed(seed)
    if gpus and torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
    if gpus and torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Draw from a seed inside; afterwards all random states are as before.

    Args:
        seed: of CPU and GPUs.
        device: as in :func:`random_states_kept`.
    """
    with random_states_kept(device):
        seed_generators(seed, gpus=True)
        yield
