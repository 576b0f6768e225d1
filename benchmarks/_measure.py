"""How a benchmark measures and what it writes down."""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def interleaved(
    variants: Mapping[str, Callable[[], Any]],
    *,
    repeats: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per call of each variant, taken in turns so that drift hits all alike.

    ``time.process_time`` as the clock leaves out what other programs do on the same cores.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(warmup + repeats):
        for name, call in variants.items():
            start = clock()
            call()
            if turn >= warmup:
                seconds[name].append(clock() - start)
    return seconds


def extra_mib(run: Callable[[], Any]) -> int:
    """Anonymous memory a run needs beside what is there, watched every few milliseconds."""
    base, peak, stop = _resident_kib(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.005):
            peak = max(peak, _resident_kib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    stop.set()
    watcher.join()
    return max(0, peak - base) // 1024


def _resident_kib() -> int:
    fields = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in fields if line.startswith("RssAnon")).split()[1])


def row(name: str, seconds: Sequence[float], **facts: Any) -> dict[str, Any]:
    """One result: median and spread, and the facts that make it repeatable."""
    return {
        "name": name,
        "median_s": round(statistics.median(seconds), 4),
        "min_s": round(min(seconds), 4),
        "max_s": round(max(seconds), 4),
        "n": len(seconds),
        **facts,
    }


def hardware() -> dict[str, str]:
    """Machine and versions, for every row."""
    import torch

    name = platform.processor() or platform.machine()
    cpu_facts = Path("/proc/cpuinfo")
    if cpu_facts.exists():
        names = [line for line in cpu_facts.read_text().splitlines() if "model name" in line]
        name = names[0].split(":")[1].strip() if names else name
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {
        "cpu": f"{name}, {os.cpu_count()} cores",
        "gpu": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def publish(title: str, rows: Sequence[Mapping[str, Any]], *, file: Path | None) -> None:
    """Print one table and, if asked, write the same as CSV with hardware and versions."""
    facts = hardware()
    table = Table(title=f"{title}\n{', '.join(facts.values())}", title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="right" if column != "name" else "left")
    for entry in rows:
        table.add_row(*[str(value) for value in entry.values()])
    Console(width=140).print(table)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", newline="") as sink:
            writer = csv.DictWriter(sink, [*rows[0], *facts])
            writer.writeheader()
            writer.writerows({**entry, **facts} for entry in rows)


def arguments(about: str | None) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the rows to this CSV file")
    return parser
