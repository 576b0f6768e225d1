"""Which failures only say that an extra of hardsight is not installed."""

from __future__ import annotations

from pathlib import Path

from hardsight.errors import MissingExtraError

HERE = Path(__file__).parent


def missing_extra(error: BaseException | None, text: str) -> str | None:
    """What is missing, if that is all that is wrong.

    Either hardsight says so itself, or the test imports what the core does not bring. An import
    that fails inside hardsight is a bug: the core needs what it did not declare.

    Args:
        error: what the test raised.
        text: of the report; a command that the test ran may have said it there.
    """
    while error is not None:
        if isinstance(error, MissingExtraError):
            return str(error)
        if isinstance(error, ModuleNotFoundError) and _raised_in_a_test(error):
            return str(error)
        error = error.__cause__ or error.__context__
    said = [line for line in text.splitlines() if "pip install 'hardsight[" in line]
    return said[0] if said else None


def _raised_in_a_test(error: BaseException) -> bool:
    files = []
    trace = error.__traceback__
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    ours = [Path(file) for file in files if "importlib" not in file and "_pytest" not in file]
    return bool(ours) and ours[-1].is_relative_to(HERE)
