"""Pseudo-label selection against one numpy argmax and a per-class partition of the same array."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._measure import arguments, interleaved, publish, row
from hardsight.selftrain import pseudo_labels

_PORTION = 0.2
_RULES = ("cbst", "crst-lrent")


def argmax_and_partition(probs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Predictions and the confidence at the portion of each class; the least anybody has to do."""
    predictions = probs.argmax(axis=1)
    confidence = probs[np.arange(len(probs)), predictions]
    order = np.argsort(predictions, kind="stable")
    ends = np.cumsum(np.bincount(predictions, minlength=probs.shape[1]))
    thresholds = np.ones(probs.shape[1], dtype=probs.dtype)
    for c, own in enumerate(np.split(confidence[order], ends[:-1])):
        rank = int(len(own) * _PORTION)
        if rank:
            thresholds[c] = np.partition(own, len(own) - rank)[len(own) - rank]
    return thresholds


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--peak", nargs=2, metavar=("FILE", "RULE"), help=argparse.SUPPRESS)
    options = parser.parse_args(args)
    if options.peak:
        _print_peak(Path(options.peak[0]), options.peak[1])
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probs.npy"
        for kind, sharpness in (("flat", 2.0), ("confident", 8.0)):
            _write(file, options.examples, options.classes, sharpness)
            rows += _compared(file, kind, options.repeats)
    shape = f"{options.examples:,} x {options.classes:,} float32, portion {_PORTION}"
    threads = f"{torch.get_num_threads()} threads"
    target = "target: 0.5 of numpy's speed, 2048 MiB"
    publish(f"Selection, {shape}, {threads} ({target})", rows, file=options.out)


def _compared(file: Path, kind: str, repeats: int) -> list[dict[str, Any]]:
    """Both over a file whose pages are in memory; peak memory in a process of its own."""
    probs = np.load(file, mmap_mode="r")
    runs: dict[str, Callable[[], Any]] = {"numpy": lambda: argmax_and_partition(probs)}
    runs |= {rule: _selection(probs, rule) for rule in _RULES}
    seconds = interleaved(runs, repeats=repeats)
    base = row("", seconds["numpy"])["median_s"]
    rows = [row(f"{kind}: {name}", values) for name, values in seconds.items()]
    for name, entry in zip(seconds, rows, strict=True):
        entry["speed_of_numpy"] = round(base / entry["median_s"], 3)
        entry["extra_mib"] = _peak_mib(file, name)
    return rows


def _selection(probs: np.ndarray[Any, Any], rule: str) -> Callable[[], Any]:
    return lambda: pseudo_labels(probs, portion=_PORTION, rule=rule)


def _write(file: Path, examples: int, classes: int, sharpness: float) -> None:
    draw = np.random.default_rng(0)
    out = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(examples, classes))
    for first in range(0, examples, 10_000):
        part = out[first : first + 10_000]
        logits = sharpness * draw.standard_normal(part.shape, dtype=np.float32)
        np.exp(logits - logits.max(axis=1, keepdims=True), out=part)
        part /= part.sum(axis=1, keepdims=True)
    out.flush()


def _peak_mib(file: Path, name: str) -> int:
    """Anonymous resident memory above interpreter and torch, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.selection", "--peak", str(file), name],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return int(done.stdout)


def _print_peak(file: Path, name: str) -> None:
    probs = np.load(file, mmap_mode="r")
    run = (lambda: argmax_and_partition(probs)) if name == "numpy" else _selection(probs, name)
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
    print(max(0, peak - base) // 1024)


def _resident_kib() -> int:
    fields = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in fields if line.startswith("RssAnon")).split()[1])


if __name__ == "__main__":
    main()
