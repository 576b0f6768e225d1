"""For a process that a test starts and that must not live to its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests import _seeds

ROOT = Path(__file__).parents[1]


def dies_at(file: Path, code: str, *flags: str) -> list[str]:
    """The command that runs ``code`` and kills itself as soon as ``file`` is there.

    The process watches itself: one that watched from outside could be too late on a busy machine.
    """
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests._dies import watch; "
    return [sys.executable, *flags, "-c", f"{start}watch({str(file)!r}); {code}"]


def watch(file: str) -> None:
    """Kill this process as soon as the file is there."""
    _seeds.shift_seeds()
    threading.Thread(target=_wait, args=(file,), daemon=True).start()


def _wait(file: str) -> None:
    while not os.path.exists(file):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
