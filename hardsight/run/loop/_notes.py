"""What has to be said about a result: warnings in Python, notes on the command line."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
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
                warnings.warn(note, HardsightWarning, stacklevel=_callers_level())
            return result

        return warning

    return around


def _callers_level() -> int:
    """How many frames up the user's own code is: Python shows a warning once for each line."""
    level, frame = 1, sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level


def other_classes(data: Mapping[str, Any], classes: Sequence[str]) -> list[str]:
    """That the model has other classes than the data names, if it has.

    Args:
        data: facts about the data, with ``named``, the number of classes it names; 0 for none.
        classes: those of the model.
    """
    named = data.get("named")
    if not named or named == len(classes):
        return []
    return [
        f"the model has {len(classes)} classes, the data names {named}: is it the model of this "
        "data?"
    ]
