"""All experiments side by side on one machine: ``python -m benchmarks.experiments --scale short``.

Small networks leave most of a large GPU idle, so several processes share it. Each experiment first
runs in parts, by seed and by whatever else divides it. The parts only fill the folder of trained
models and their outputs. Then the whole experiment runs, finds all of that and writes the result.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
from dataclasses import dataclass, field
from itertools import chain, product
from multiprocessing.context import ForkProcess
from pathlib import Path

import lightning.pytorch  # noqa: F401 (before the fork)
import torch

from hardsight.experiments import EXPERIMENTS, Lab, run_experiment
from hardsight.experiments.lab import Sources, setting_of

# those on the left use models that those on the right train
AFTER = {
    "avh-dynamics": "avh-human",
    "avh-degradation": "avh-human",
    "el-table4": "el-table1",
    "el-fig5": "el-table1",
    "el-fig6": "el-table1",
    "el-fig7": "el-table1",
}

# keys of a setting that divide an experiment into parts, seeds by default; keys with a plus between
# them go together
PARTS = {
    "avh-human": ("models", "seeds"),
    "avh-dynamics": ("models", "seeds"),
    "avh-selftrain": ("pairs", "seeds"),
    "avh-table5": ("models+sizes+epochs+learning_rates", "seeds"),
    "label-errors": ("datasets+epochs", "shares", "seeds"),
    "amc-table1": ("datasets", "seeds"),
    "el-table1": ("tasks", "seeds"),
    "el-table3": ("tasks", "seeds"),
}

# data that is decoded before processes are forked, so that all of them have it
PRELOADED: Sources = {}


@dataclass
class Job:
    """One process: a part of an experiment, or the whole of it."""

    name: str
    part: tuple[str, ...] = ()
    waits_for: list[Job] = field(default_factory=list)
    process: ForkProcess | None = None
    start: float = 0.0
    seconds: float | None = None

    @property
    def title(self) -> str:
        """For people and file names."""
        return " ".join([self.name, *self.part])

    @property
    def file(self) -> str:
        """The same as a file's name."""
        return re.sub(r"[^\w.-]+", "-", self.title)

    @property
    def is_done(self) -> bool:
        """Whether its process has ended, well or not."""
        return self.seconds is not None

    @property
    def is_ready(self) -> bool:
        """Whether it can be started now."""
        return self.process is None and all(job.is_done for job in self.waits_for)


def jobs_of(names: list[str], scale: str, overrides: list[str]) -> list[Job]:
    """Parts first, whole experiments as soon as their parts are done."""
    whole = {name: Job(name) for name in names}
    all_parts: list[Job] = []
    for name, job in whole.items():
        parts = [Job(name, part) for part in parts_of(name, scale, overrides)]
        above = whole.get(AFTER.get(name, ""))
        if above is not None:
            parts, job.waits_for = [], [above]
        job.waits_for += parts
        all_parts += parts
    return [*whole.values(), *all_parts]


def parts_of(name: str, scale: str, overrides: list[str]) -> list[tuple[str, ...]]:
    """Overrides of the setting, one tuple per part."""
    setting = setting_of(EXPERIMENTS[name], scale, overrides)
    choices = []
    for group in PARTS.get(name, ("seeds",)):
        keys = group.split("+")
        values = zip(*(getattr(setting, key) for key in keys), strict=True)
        choices.append(
            [[f"{k}={json.dumps([v])}" for k, v in zip(keys, one, strict=True)] for one in values]
        )
    return [tuple(chain.from_iterable(part)) for part in product(*choices)]


def start(job: Job, args: argparse.Namespace) -> None:
    log = args.runs / "logs" / f"{job.file}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # forked: the imports and the decoded data of this process are there at once
    job.process = multiprocessing.get_context("fork").Process(target=work, args=(job, args, log))
    job.start = time.monotonic()
    job.process.start()


def work(job: Job, args: argparse.Namespace, log: Path) -> None:
    with log.open("w") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // args.jobs))
        run_experiment(
            job.name,
            scale=args.scale,
            out=args.runs / "parts" / job.file if job.part else args.out / job.name,
            runs=args.runs,
            data_root=args.data_root,
            overrides=[*args.set, *job.part],
            how=args.how,
            show_progress=False,
            keep_outputs=True,
            overwrite=True,
            sources=PRELOADED,
        )


def finish(job: Job) -> None:
    assert job.process is not None
    code = job.process.exitcode
    if code is not None and not job.is_done:
        job.seconds = time.monotonic() - job.start
        print(f"{job.seconds:7.1f} s  {'done' if code == 0 else f'exit {code}'}  {job.title}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=sorted(EXPERIMENTS), help="all by default")
    parser.add_argument("--scale", default="short")
    parser.add_argument("--data-root")
    parser.add_argument(
        "--preload",
        nargs="*",
        default=[],
        metavar="NAME:SPLIT",
        help="data to decode once, before the processes start",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key of every named experiment's setting",
    )
    parser.add_argument(
        "--how",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="how models are trained, not what, such as compile=true",
    )
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    # on an H200, 13 processes together got less done than 6: contexts take turns on a GPU
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    parser.add_argument("--minutes", type=float, help="stop everything after this long")
    args = parser.parse_args()
    lab = Lab(
        scale=args.scale, out=args.out, runs=args.runs, data_root=args.data_root, device="cpu",
        sources=PRELOADED,
    )  # fmt: skip
    for name, _, split in (given.rpartition(":") for given in args.preload):
        lab.source(name, split)
    jobs, begin = jobs_of(args.names or sorted(EXPERIMENTS), args.scale, args.set), time.monotonic()
    while not all(job.is_done for job in jobs):
        running = [job for job in jobs if job.process is not None and not job.is_done]
        for job in running:
            finish(job)
        ready = [job for job in jobs if job.is_ready]
        for job in ready[: max(0, args.jobs - sum(not job.is_done for job in running))]:
            start(job, args)
        if args.minutes and time.monotonic() - begin > 60 * args.minutes:
            for job in running:
                if job.process is not None and job.process.is_alive():
                    job.process.terminate()
                    print(f"stopped  {job.title}")
            break
        time.sleep(0.2)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
