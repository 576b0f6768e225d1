"""The models of an experiment trained side by side: several processes share a machine's device.

A small network leaves most of a large GPU idle. Each process takes the next recipe that no other
one has, and keeps the model where the experiment finds it afterwards, so what is stopped and
started again trains only what is missing.
"""

from __future__ import annotations

import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any

import torch

from hardsight.errors import NonFiniteError, OutputError
from hardsight.experiments.lab._lab import Lab, NotTrained, Planned, Sources
from hardsight.experiments.lab._registry import EXPERIMENTS

_LOOK_SECONDS, _PATIENCE_SECONDS = 0.5, 1.0


@dataclass(frozen=True)
class Job:
    """An experiment that is divided among processes; everything in it can be sent to one.

    Attributes:
        name: of the experiment.
        setting: with all overrides in it.
        lab: arguments of :class:`Lab`.
        processes: at a time.
    """

    name: str
    setting: Any
    lab: Mapping[str, Any]
    processes: int


@dataclass(frozen=True)
class Unit:
    """What one process does at a time.

    Attributes:
        digest: of the recipe to train; empty to run the whole experiment with one seed.
        seed: of the run.
        title: for people.
    """

    digest: str
    seed: int
    title: str


def planned(job: Job, sources: Sources | None = None) -> dict[str, Planned] | None:
    """What an experiment would train, by digest, seed after seed; ``None`` if it cannot say.

    It is run with nothing trained, as if every run were lost. One that needs its first model to go
    on cannot be planned.
    """
    plan: dict[str, Planned] = {}
    with tempfile.TemporaryDirectory(prefix="hardsight-plan-") as folder:
        here = {"out": Path(folder), "device": "cpu", "show_progress": False}
        lab = Lab(**{**job.lab, **here}, plan=plan, sources=sources)
        try:
            EXPERIMENTS[job.name].function(lab, job.setting)
        except NotTrained:
            return None
    # pairs of losses are complete at one seed before the next one begins
    return dict(sorted(plan.items(), key=lambda item: item[1].seed))


def train_side_by_side(job: Job, tell: Callable[[str], None]) -> None:
    """Train what an experiment needs; if it measures by seed, do that too.

    Raises:
        OutputError: a process died before its work was done.
    """
    spec, plan = EXPERIMENTS[job.name], planned(job)
    trained = [
        Unit(digest, planned.seed, planned.title)
        for digest, planned in (plan or {}).items()
        if not (Path(job.lab["runs"]) / digest / "result.json").exists()
    ]
    if trained:
        tell(f"{job.name}: {len(trained)} of {len(plan or {})} models to train")
        _work_off(job, trained, tell)
    if plan is None or spec.measures_by_seed:
        seeds = [Unit("", seed, f"seed {seed}") for seed in job.setting.seeds]
        _work_off(job, seeds, tell)


def _work_off(job: Job, units: Sequence[Unit], tell: Callable[[str], None]) -> None:
    context = _context()
    waiting, told = context.Queue(), context.Queue()
    count = min(job.processes, len(units))
    for unit in (*units, *[None] * count):
        waiting.put(unit)
    processes = [
        context.Process(target=_work, args=(job, waiting, told), name=f"hardsight-{at}")
        for at in range(count)
    ]
    begin, done = time.monotonic(), 0
    with _ended_by_sigterm():
        try:
            for process in processes:
                process.start()
            while done < len(units):
                try:
                    unit, outcome = told.get(timeout=_LOOK_SECONDS)
                except queue.Empty:
                    _check_alive(processes)
                    continue
                if isinstance(outcome, BaseException):
                    raise outcome
                done += 1
                passed = time.monotonic() - begin
                tell(f"{passed:6.0f} s  {done:3d} of {len(units)}  {unit.title}: {outcome}")
        finally:
            if done < len(units):
                _end(processes)
            for process in processes:
                if process.pid is not None:
                    process.join()


def _context() -> Any:
    """How processes are started: forks of one that has imported all modules and nothing more.

    With a GPU each begins from nothing: a fork cannot use one that its parent has looked at, and
    to import a module may be to look.
    """
    if torch.cuda.is_available() or "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["hardsight.experiments", "lightning.pytorch"])
    return context


def _end(processes: Sequence[Any]) -> None:
    """End processes in the middle of their work; files are renamed into place, so none is half."""
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.terminate()
    for process in alive:
        process.join(_PATIENCE_SECONDS)
        if process.is_alive():  # Lightning waits for the end of a step first
            process.kill()


def _check_alive(processes: Sequence[Any]) -> None:
    for process in processes:
        if process.exitcode not in (None, 0):
            raise OutputError(
                f"a training process ended with exit code {process.exitcode} (-9: killed, often "
                "for memory); what it had finished is kept: run the same command again, with "
                "fewer --jobs if it was memory"
            )


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Being told to end counts as an exit, so that no process is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _work(job: Job, waiting: Any, told: Any) -> None:
    """What a process does: one unit after the other, until there is none."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // job.processes))
    plan: dict[str, Planned] | None = None
    sources: Sources = {}
    while (unit := waiting.get()) is not None:
        try:
            if unit.digest and plan is None:
                plan = planned(job, sources)
            outcome: Any = (
                _trained(job, plan[unit.digest]) if plan and unit.digest
                else _part(job, unit.seed, sources)
            )  # fmt: skip
        except Exception as err:  # the parent raises it
            outcome = err
        except KeyboardInterrupt:  # also what becomes of SIGTERM in a training run
            return
        told.put((unit, outcome))


def _trained(job: Job, wanted: Planned) -> str:
    lab = Lab(**{**job.lab, "show_progress": False})
    start = time.monotonic()
    try:
        run = wanted.train(lab)
    except NonFiniteError:
        return "lost, as its loss became infinite or NaN"
    row = run.history[-1]
    shown = [f"{key} {row[key]:.4f}" for key in ("train_loss", "val_accuracy") if key in row]
    return f"{', '.join(shown)} after {time.monotonic() - start:.0f} s"


def _part(job: Job, seed: int, sources: Sources) -> str:
    """The experiment with a single seed, for the models and measurements that it leaves behind."""
    with tempfile.TemporaryDirectory(prefix="hardsight-part-") as folder:
        lab = Lab(**{**job.lab, "out": Path(folder), "show_progress": False}, sources=sources)
        EXPERIMENTS[job.name].function(lab, replace(job.setting, seeds=(seed,)))
    return "done"
