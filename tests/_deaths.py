"""A process that ends between two files, without ending one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


class Died(BaseException):
    """Stands for a kill: no handler of an ordinary error may catch it."""


def dying_after(
    renames: int, counts: Callable[[Any], bool] = lambda target: True
) -> Callable[[Path, Any], Any]:
    """``Path.replace`` for a process that lives to see so many files in place.

    Args:
        renames: how many; the next one never happens.
        counts: which targets are counted.
    """
    original, done = Path.replace, []

    def replace(self: Path, target: Any) -> Any:
        if counts(target):
            if len(done) == renames:
                raise Died
            done.append(target)
        return original(self, target)

    return replace
