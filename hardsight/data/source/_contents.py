"""A sample of what a user's own dataset yields, for its fingerprint."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hardsight.data.source._source import Fingerprint, evenly_spaced, in_memory

_SAMPLES = 16
_MOST_ITEMS = 1000  # of a list inside one example
_MOST_VALUES = 64  # of an array, if every example of a stream is taken in


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


def content_digest(read: Callable[[int], Any], length: int) -> str:
    """SHA-256 over evenly spaced examples, the first and the last among them.

    Each is read twice, from the same random states. If one differs between its two readings, the
    dataset draws from a source of its own: then contents say nothing, and only their shapes count.

    Args:
        read: what the dataset yields at a position.
        length: of the dataset.
    """
    positions = evenly_spaced(length, _SAMPLES)
    # read twice: a dataset that augments gives other values, of which only the shapes are a mark
    first, second = (_digest(read, positions, values=True) for _ in range(2))
    return first if first == second else _digest(read, positions, values=False)


def stream_digest(samples: Iterable[Any]) -> str:
    """SHA-256 over the first few examples of a stream; empty if reading would use it up."""
    # an iterator can be read once, and that is the run's
    if iter(samples) is samples:
        return ""
    mark = Fingerprint("beginning")
    with states_kept(seed=0):
        try:
            for sample in itertools.islice(samples, _SAMPLES):
                _add(mark, sample, values=True)
        except (Exception, SystemExit):  # reading it for a run says so
            mark.add("broken")
    return mark.hexdigest()


def add_sample(mark: Fingerprint, sample: Any) -> None:
    """Take in one example of a stream while it is read: its label, and a part of every array."""
    _add(mark, sample, values=True, most=_MOST_VALUES)


def _digest(read: Callable[[int], Any], positions: list[int], *, values: bool) -> str:
    mark = Fingerprint("contents")
    for position in positions:
        # the same draws at every reading, so that augmentation looks alike
        with states_kept(seed=position):
            try:
                sample = read(position)
            except (Exception, SystemExit):  # listed as unreadable by the run itself
                mark.add(position, "unreadable")
                continue
        _add(mark.add(position), sample, values=values)
    return mark.hexdigest()


def _add(mark: Fingerprint, value: Any, *, values: bool, most: int | None = None) -> None:
    """Take in a value of a kind whose content can be told; of others the type.

    Args:
        mark: to take it in.
        value: of an example, or a part of one.
        values: take in contents, not only their shapes.
        most: how many values of an array, evenly spaced; ``None`` for all.
    """
    mark.add(type(value).__name__)
    if isinstance(value, Image.Image):
        mark.add(value.mode, value.size)
        if values:
            mark.add_array(_some(np.asarray(value), most))
    elif isinstance(value, np.ndarray | np.generic) or hasattr(value, "detach"):
        array = in_memory(value)
        mark.add(array.shape, array.dtype)
        # objects have no bytes of their own
        if values and not array.dtype.hasobject:
            mark.add_array(_some(array, most))
    elif isinstance(value, str | bytes | int | float | bool | None):
        mark.add(value if values else "")
    elif isinstance(value, Mapping):
        mark.add_names(str(key) for key in value)
        for inner in value.values():
            _add(mark, inner, values=values, most=most)
    elif isinstance(value, list | tuple):
        mark.add(len(value))
        for inner in value[:_MOST_ITEMS]:
            _add(mark, inner, values=values, most=most)


def _some(array: NDArray[Any], most: int | None) -> NDArray[Any]:
    if most is None or array.size <= most:
        return array
    # a step through the values, so that both ends have a part
    return array.reshape(-1)[:: array.size // most]
