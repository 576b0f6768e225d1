"""Print the notes and warnings of a run on standard error, each of them once."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from hardsight.errors import HardsightWarning


class _Printed(logging.Handler):
    """A log handler that prints each text once, however often it is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.say(record.getMessage())

    def say(self, text: str, colour: str | None = None) -> None:
        if text not in self._said:
            self._said.add(text)
            click.secho(text, fg=colour, err=True)


@contextmanager
def spoken() -> Iterator[None]:
    """Print notes and warnings of the package as plain lines on standard error."""
    # only while a command runs: a library must not add log handlers when it is imported
    log, printed = logging.getLogger("hardsight"), _Printed()
    level, spreads = log.level, log.propagate
    log.addHandler(printed)
    _set_level(log, logging.INFO)
    log.propagate = False
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, HardsightWarning):
                printed.say(str(message), "yellow")
            else:
                others(message, category, *place, **more)

        warnings.simplefilter("always", HardsightWarning)
        warnings.showwarning = show
        try:
            yield
        finally:
            log.removeHandler(printed)
            _set_level(log, level)
            log.propagate = spreads


def _set_level(log: logging.Logger, level: int) -> None:
    if log.level != level:  # a new level takes a millisecond if other packages have many loggers
        log.setLevel(level)
