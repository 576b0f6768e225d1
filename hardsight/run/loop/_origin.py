"""Where a number comes from: seeds, versions and digests."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

import hardsight
from hardsight.errors import OptionError


def seed_of(seed: int, *purpose: object) -> int:
    """A seed of 63 bits for one purpose.

    Example:
        >>> seed_of(0, "order", 1) != seed_of(0, "order", 2)
        True
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A CPU generator for one purpose; the same draws on every machine and device."""
    return torch.Generator().manual_seed(seed_of(seed, *purpose))


@contextmanager
def random_states_kept(device: torch.device | None = None) -> Iterator[None]:
    """Random states of CPU and GPUs that are the same after the block as before.

    CUDA is started for it only if ``device`` says that it will be used: until then torch holds
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
    """Seed the CPU and, if they are wanted and in use, all GPUs.

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


def versions(*more: str) -> dict[str, str]:
    """Versions of everything that can change a score, and of ``more`` packages."""
    packages = {name: _installed(name) for name in ("torch", "numpy", "pyarrow", "pillow", *more)}
    return {
        "hardsight": hardsight.__version__,
        "python": platform.python_version(),
        **{name: number for name, number in packages.items() if number is not None},
    }


@cache  # a package's metadata is a file, and an adaptation would read it again for every round
def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # such as a vendored build without metadata
        return None


def values_digest(values: Any) -> str:
    """SHA-256 over plain values, such as the names of classes."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def state_digest(model: nn.Module) -> str:
    """SHA-256 over the names and values of all parameters and buffers."""
    return tensors_digest(**model.state_dict())


def tensors_digest(*tensors: Any, **named: Any) -> str:
    """SHA-256 over tensors, their names, shapes and dtypes."""
    digest = hashlib.sha256()
    entries = [*enumerate(tensors), *named.items()]
    for name, tensor in entries:
        if not isinstance(tensor, Tensor):  # extra state of a module
            continue
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {list(plain.shape)} {plain.dtype}".encode())
        if plain.numel():
            digest.update(plain.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
