"""What has to be said about a result."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hardsight.errors import HardsightWarning

Options = ParamSpec("Options")
Result = TypeVar("Result")
_PACKAGE = str(Path(__file__).parents[2])


def warns_of(
    notes: Callable[[Any], Iterable[str]],
) -> Callable[[Callable[Options, Result]], Callable[Options, Result]]:
    """A function that warns of what its result has to be read with.

    Args:
        notes: what there is to say about a result; each is a headline, a colon and the rest.
    """

    def around(function: Callable[Options, Result]) -> Callable[Options, Result]:
        @functools.wraps(function)
        def warning(*args: Options.args, **options: Options.kwargs) -> Result:
            result = function(*args, **options)
            for note in notes(result):
                warn(note)
            return result

        return warning

    return around


def warn(text: str) -> None:
    """Warn of something, at the line of the user's own code: Python shows it once for each line."""
    warnings.warn(text, HardsightWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """How many frames up the user's own code is."""
    level, frame = 1, sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level
