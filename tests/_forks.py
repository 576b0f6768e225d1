"""Processes that a test starts, and that may be killed: forks of one that has loaded torch.

A new interpreter takes seconds to load torch and Lightning; a fork has them already. What runs in
a fork is Python code, under ``-W error``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]


class Forks:
    """The process that is forked, for the tests of one worker.

    Args:
        folder: for what the forks print.
    """

    def __init__(self, folder: Path) -> None:
        import torch

        # threads change the rounding; tests of kernels have Triton interpret them, here it compiles
        env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
        env.pop("TRITON_INTERPRET", None)
        self._folder, self._count = folder, 0
        self._server = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests._forks"], cwd=ROOT, env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def start(
        self,
        code: str,
        *,
        loads: str | None = None,
        words: tuple[str, ...] = (),
        until: Path | None = None,
    ) -> Fork:
        """Run code in a fork.

        Args:
            code: Python.
            loads: a module that this fork and all later ones have from the start.
            words: its ``sys.argv`` after the program.
            until: the file whose appearance kills the fork. It watches for itself: a process that
                watched from outside could be too late on a busy machine.
        """
        self._count += 1
        out, err = (self._folder / f"{self._count}-{name}" for name in ("out", "err"))
        order = {"code": code, "loads": loads, "words": words, "out": str(out), "err": str(err)}
        pid = self._asked(order | {"until": until and str(until)})
        return Fork(self, pid, out, err)

    def run(self, code: str, **options: Any) -> Fork:
        """The same, and wait for its end."""
        fork = self.start(code, **options)
        fork.wait()
        return fork

    def close(self) -> None:
        """End the process. It would not see its input end while a loader of another test has it."""
        with self._server:
            self._server.kill()

    def _asked(self, order: dict[str, Any]) -> int:
        print(json.dumps(order), file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())


@dataclass
class Fork:
    """A started fork.

    Attributes:
        status: how it ended, as ``subprocess`` has it: a signal is negative.
    """

    forks: Forks
    pid: int
    out: Path
    err: Path
    status: int | None = None

    @property
    def stdout(self) -> str:
        """What it has printed."""
        return self.out.read_text()

    @property
    def stderr(self) -> str:
        """What it has said about errors."""
        return self.err.read_text()

    @property
    def has_ended(self) -> bool:
        """Whether it is gone; asks without waiting."""
        if self.status is None:
            self.status = self._status(os.WNOHANG)
        return self.status is not None

    def wait(self) -> int:
        """Wait for its end."""
        if self.status is None:
            self.status = self._status(0)
        return self.status

    def kill(self) -> None:
        """End it without a word, if it lives."""
        if not self.has_ended:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def _status(self, flags: int) -> int | None:
        status = self.forks._asked({"wait": self.pid, "flags": flags})
        return None if status == _LIVES else status


_LIVES = 1 << 20  # in place of a status


def serve() -> None:
    """Take orders from the standard input, a line of JSON each; answer each with a number."""
    _load()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            pid, status = os.waitpid(order["wait"], order["flags"])
            answer = os.waitstatus_to_exitcode(status) if pid else _LIVES
        else:
            with suppress(ImportError):  # hardsight says what is missing, in the fork
                importlib.import_module(order["loads"] or "torch")
            gc.freeze()  # what is loaded is not garbage, in no fork
            answer = os.fork()
            if not answer:
                _become(order)
        print(answer, flush=True)


def _load() -> None:
    # as in pyproject.toml: matplotlib and a newer pyparsing
    warnings.filterwarnings("ignore", ".*deprecated(,| -) use", DeprecationWarning)
    gc.disable()  # until a fork: looking for garbage takes a quarter of the time of imports
    import pandas  # noqa: F401  # which pyarrow loads when it first needs it
    import torch  # noqa: F401

    from tests import _seeds

    _seeds.shift_seeds()  # before anything takes a generator from torch
    import hardsight.cli
    import hardsight.run.score  # noqa: F401


def _become(order: dict[str, Any]) -> NoReturn:
    """Do what the order says, in the fork, and end."""
    for number, name in enumerate((os.devnull, order["out"], order["err"])):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    if order["until"] is not None:
        threading.Thread(target=_watch, args=(order["until"],), daemon=True).start()
    gc.enable()
    sys.argv = ["python", *order["words"]]
    status = 1
    try:
        exec(order["code"], {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _watch(file: str) -> None:
    while not os.path.exists(file):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve()
