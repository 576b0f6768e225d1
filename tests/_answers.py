"""A script in a process of its own that answers one line after the other.

For scripts whose start, with torch to load, takes longer than what they are asked.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Script:
    """A running script.

    Attributes:
        errors: what it has written to its standard error.
    """

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process, self._errors = process, errors

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def tell(self, *words: object) -> None:
        """Send a line of words, which may hold spaces but no tabs."""
        print(*words, sep="\t", file=self._process.stdin, flush=True)

    def heard(self) -> str:
        """Its next line; empty if it has ended."""
        return self._process.stdout.readline().removesuffix("\n")


@contextmanager
def running(script: Path, *arguments: str, folder: Path, env: dict[str, str]) -> Iterator[Script]:
    """Start a script, which ends with its standard input; its errors lie in the folder."""
    errors = folder / f"errors-{'-'.join(arguments)}"
    command = [sys.executable, str(script), *arguments]
    with (
        errors.open("w") as sink,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True,
            env={**env, "PYTHONPATH": str(ROOT)},
        ) as process,
    ):  # fmt: skip
        yield Script(process, errors)
