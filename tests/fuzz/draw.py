"""Random choices by name: each depends on the seed, the case and its own name, on nothing else.

A choice that is taken back to its plain value therefore leaves all others as they were, which is
what makes a failing case shrink.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Option = TypeVar("Option")
Array = NDArray[Any]
_FAULTY_SHARE = 0.35


class Draw:
    """The choices of one case.

    Args:
        seed: of the whole run.
        number: of the case.
        plain: names of choices that take their first option.

    Attributes:
        taken: what was chosen, by name, where it was not the first option.
    """

    def __init__(self, seed: int, number: int, plain: frozenset[str] = frozenset()) -> None:
        self.seed, self.number, self.plain = seed, number, plain
        self.taken: dict[str, str] = {}
        # most cases must come to a table, or only refusals would be tested
        self._is_faulty = random.Random(self._key("faults")).random() < _FAULTY_SHARE

    def pick(
        self,
        name: str,
        options: Sequence[Option],
        *,
        faults: Sequence[Option] = (),
        plain: float = 0.6,
    ) -> Option:
        """One of the options: the first with the probability ``plain``, else any other.

        Args:
            name: of the choice.
            options: the plain one first.
            faults: further options that nothing can be made of; for some of the cases only.
            plain: probability of the first option.
        """
        options = [*options, *(faults if self._is_faulty else ())]
        if name in self.plain or len(options) == 1:
            return options[0]
        rng = random.Random(self._key(name))
        if rng.random() < plain:
            return options[0]
        chosen = options[rng.randrange(1, len(options))]
        self.taken[name] = str(getattr(chosen, "__name__", chosen))[:60]
        return chosen

    def chance(self, name: str, share: float) -> bool:
        """Whether something that happens in a share of the cases happens in this one."""
        return self.pick(name, (False, True), plain=1 - share)

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``."""
        return random.Random(self._key(name)).randint(low, high)

    def shuffled(self, name: str, values: Sequence[Option]) -> list[Option]:
        """The values in a random order."""
        return [values[at] for at in self._rng(name).permutation(len(values))]

    def bytes_of(self, name: str, *shape: int, high: int = 256) -> Array:
        """Whole numbers from 0 to below ``high``."""
        return self._rng(name).integers(0, high, shape)

    def weights(self, name: str, *shape: int) -> Array:
        """Numbers that every floating-point type holds exactly: sixteenths from -2 to 2."""
        return self._rng(name).integers(-32, 33, shape) / 16

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng(self._key(name))

    def _key(self, name: str) -> int:
        text = f"{self.seed}/{self.number}/{name}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
