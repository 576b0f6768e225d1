"""Other draws for every seed of the suite, to see which test needs a lucky one.

With ``HARDSIGHT_TEST_SEED=3`` every generator that this process makes or seeds draws something
else. Equal seeds still draw the same, so what a test says about seeds holds. A test that compares
with numbers stored elsewhere has no other seed: it is marked ``pinned``.
"""

from __future__ import annotations

import os

import numpy as np
import torch

NUMBER = int(os.environ.get("HARDSIGHT_TEST_SEED", "0"))

_seed_all = torch.manual_seed
_make = np.random.default_rng


def _shifted(seed):
    return (int(seed) + 1_000_003 * NUMBER) % 2**63


class _Generator(torch.Generator):
    def manual_seed(self, seed):
        return super().manual_seed(_shifted(seed))


class _DefaultGenerator:
    """Torch's own, which has to stay the same object behind it."""

    def __init__(self, generator):
        self._generator = generator

    def manual_seed(self, seed):
        return self._generator.manual_seed(_shifted(seed))

    def __getattr__(self, name):
        return getattr(self._generator, name)


def _numpy_generator(seed=None):
    if seed is None or isinstance(seed, np.random.Generator | np.random.SeedSequence):
        return _make(seed)
    return _make([*np.atleast_1d(seed), NUMBER])


def shift_seeds():
    """Patch torch and numpy if asked to, before a test takes anything from them."""
    if NUMBER == 0:
        return
    torch.manual_seed = torch.random.manual_seed = lambda seed: _seed_all(_shifted(seed))
    torch.Generator = _Generator
    torch.default_generator = _DefaultGenerator(torch.default_generator)
    np.random.default_rng = _numpy_generator
