"""Which failures only say that an extra of hardsight is not installed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hardsight.errors import MissingExtraError

HERE = Path(__file__).parent
GUIDES = HERE.parent / "docs"  # whose blocks are tests too
# rooms that are Lightning's: only what has asked for Lightning may import them
ENGINE = [HERE.parent / "hardsight/run" / room for room in ("train/engine", "adapt/_module.py")]

refused: list[str] = []  # what hardsight said is missing, since the test began


def watch_refusals() -> None:
    """Keep what is refused from now on; a command line turns the error into its output."""
    plain = MissingExtraError.__init__

    def noted(self, *args):
        plain(self, *args)
        refused.append(str(self))

    MissingExtraError.__init__ = noted


def missing_extra(error: BaseException, text: str) -> str | None:
    """What is missing, if a test failed for that.

    Either hardsight said so, or the test imports what the core does not bring. An import that
    fails inside hardsight is a bug: the core needs what it did not declare.

    Args:
        error: what the test raised.
        text: of the report; a process that the test started may have said it there.
    """
    said = [line for line in text.splitlines() if "pip install 'hardsight[" in line]
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and _raised_in_a_test(cause):
            said.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    return next(iter([*refused, *said]), None)


def _raised_in_a_test(error: BaseException) -> bool:
    files = []
    trace = error.__traceback__
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    ours = [Path(file) for file in files if "importlib" not in file and "_pytest" not in file]
    while ours and (_is_of_a_test(ours[-1]) or any(map(ours[-1].is_relative_to, ENGINE))):
        ours.pop()
    return bool(ours) and any(ours[-1].is_relative_to(place) for place in (HERE, GUIDES))


def _is_of_a_test(file: Path) -> bool:
    """Whether a test wrote a file and then ran it; all of a checkout may lie in that folder too."""
    is_temporary = file.is_relative_to(tempfile.gettempdir())
    return is_temporary and not file.is_relative_to(HERE.parent)
