"""A case: files, commands to run on them, and what must come back."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import resource
import shlex
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from click.testing import CliRunner

from hardsight.cli import main
from tests.fuzz.draw import Draw
from tests.fuzz.judge import Answer, complaint_about

LIMIT_SECONDS = 30.0  # a case takes some hundredths of one


def warm_up() -> None:
    """Import what the commands import, so that no case pays for it."""
    sys.dont_write_bytecode = True  # a case imports its model once or twice
    for name in ("datasets", "lightning.pytorch", "sklearn.cluster", "tensorboard", "rich.console",
                 "hardsight.run.score", "hardsight.run.train", "hardsight.run.adapt",
                 "hardsight.run.evaluate", "hardsight.run.study", "hardsight.report",
                 "transformers.modeling_outputs"):  # fmt: skip
        importlib.import_module(name)


@dataclass(frozen=True)
class Step:
    """One command of a case.

    Attributes:
        words: behind ``hardsight``.
        judge: from the answer to what is wrong with it; empty if nothing is.
        without: packages that are not installed, unless the program is started by itself.
    """

    words: list[str]
    judge: Callable[[Answer], str]
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A case that went wrong."""

    number: int
    complaint: str
    command: str
    folder: Path
    taken: dict[str, str]
    output: str

    @property
    def kind(self) -> str:
        """What went wrong, without the details: shrinking keeps it."""
        return self.complaint.split(":")[0]


Maker = Callable[[Draw, Path], Iterator[Step]]


def run_case(
    make: Maker,
    draw: Draw,
    folder: Path,
    *,
    as_program: bool = False,
    limit: float = LIMIT_SECONDS,
    answers: list[Answer] | None = None,
) -> Failure | None:
    """Write the files of a case, run its commands, and judge every answer.

    Args:
        make: writes files into its folder and yields the commands, one after the other.
        draw: its choices.
        folder: empty; the commands run in it.
        as_program: start the program instead of calling it.
        limit: seconds until a command counts as hung.
        answers: takes in what came back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words: list[str] = []
    answer = Answer(0, "")
    run = _started if as_program else _called
    for step in make(draw, folder):
        words = step.words
        with _not_installed(step.without):
            answer = run(words, folder, limit)
        if answers is not None:
            answers.append(answer)
        complaint = complaint_about(answer) or step.judge(answer)
        if complaint:
            command = shlex.join(["hardsight", *words])
            (folder / "command.txt").write_text(f"{command}\n", errors="surrogateescape")
            return Failure(draw.number, complaint, command, folder, dict(draw.taken), answer.output)
    return None


@contextlib.contextmanager
def _not_installed(packages: tuple[str, ...]) -> Iterator[None]:
    """Let packages look as if they were not there."""
    modules: dict[str, Any] = sys.modules  # None in it makes an import fail
    before = {name: modules[name] for name in packages if name in modules}
    modules.update(dict.fromkeys(packages))
    try:
        yield
    finally:
        for name in packages:
            del modules[name]
        modules.update(before)


class _HungError(BaseException):
    """Raised in the main thread; no ``except Exception`` catches it."""


@contextlib.contextmanager
def _memory_limit(more: int = 4 << 30) -> Iterator[None]:
    """Refuse this process more memory than it has and some: a case must not end all others."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    before = resource.getrlimit(resource.RLIMIT_AS)
    if pages:
        limit = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise in this thread, the main one, when the time is up."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _HungError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _called(words: list[str], folder: Path, limit: float) -> Answer:
    """The command in this process."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings(), _memory_limit(), _time_limit(limit):
            warnings.simplefilter("default")  # as a user sees them, not as this suite raises them
            result = CliRunner().invoke(main, words, prog_name="hardsight")
    except _HungError:
        return Answer(-1, "", traceback.format_exc(), hung=True)
    finally:
        os.chdir(here)
    trace = ""
    if result.exc_info is not None and not isinstance(result.exception, SystemExit | None):
        trace = "".join(traceback.format_exception(*result.exc_info))
    return Answer(result.exit_code, result.output, trace)


def _started(words: list[str], folder: Path, limit: float) -> Answer:
    """The command in a process of its own."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hardsight", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit * 4,  # it has to import first
        )
    except subprocess.TimeoutExpired as err:
        return Answer(-1, "", str(err), hung=True)
    return Answer(done.returncode, done.stdout.decode("utf-8", "replace"))


def shrunk(make: Maker, draw: Draw, failure: Failure, folder: Path, *, rounds: int = 60) -> Failure:
    """The failure with as many choices as possible taken back to their plain value."""
    if failure.kind == "hang":  # each attempt would take as long
        return failure
    plain, best = set(draw.plain), failure
    for at, name in enumerate(list(failure.taken)[:rounds]):
        attempt = Draw(draw.seed, draw.number, frozenset({*plain, name}))
        again = run_case(make, attempt, folder / f"smaller-{at:02d}")
        if again is not None and again.kind == failure.kind:
            plain.add(name)
            best = again
    return best


def told(failure: Failure, seed: int) -> str:
    """The failure for a person: what, where, and how to see it again."""
    buffer = io.StringIO()
    buffer.write(f"case {failure.number}: {failure.complaint.strip()}\n")
    buffer.write(f"  files:   {failure.folder}\n  command: {failure.command}\n")
    chosen = ", ".join(f"{name}={value!r}" for name, value in failure.taken.items())
    buffer.write(f"  choices: {chosen or 'all plain'}\n")
    if failure.output.strip():
        buffer.write(f"  output:  {failure.output.strip()[-600:]}\n")
    buffer.write(f"  again:   python -m tests.fuzz --seed {seed} --case {failure.number}\n")
    return buffer.getvalue()
