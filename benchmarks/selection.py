"""Pseudo-label selection against one numpy argmax and a per-class partition of the same array."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._measure import arguments, interleaved, publish, row
from hardsight.selftrain import pseudo_labels

_PORTION = 0.2
_SHARPNESS = {"flat": 2.0, "confident": 8.0}  # of the logits


def argmax_and_partition(probs: NDArray[np.float32]) -> NDArray[np.float32]:
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
    options = parser.parse_args(args)
    rows = []
    for kind, sharpness in _SHARPNESS.items():
        probs = _probabilities(options.examples, options.classes, sharpness)
        rows += _compared(probs, kind, options.repeats)
        del probs  # before the next one is made
    shape = f"{options.examples:,} x {options.classes:,} float32, portion {_PORTION}"
    threads = f"{torch.get_num_threads()} threads"
    target = "target: 0.5 of numpy's speed, 2048 MiB"
    publish(f"Selection, {shape}, {threads} ({target})", rows, file=options.out)


def _compared(probs: NDArray[np.float32], kind: str, repeats: int) -> list[dict[str, Any]]:
    runs: dict[str, Callable[[], Any]] = {
        "numpy": lambda: argmax_and_partition(probs),
        "cbst": lambda: pseudo_labels(probs, portion=_PORTION),
        "crst-lrent": lambda: pseudo_labels(probs, portion=_PORTION, rule="crst-lrent"),
    }
    # first, because memory that a run gives back stays with the process
    extra = {name: _extra_mib(run) for name, run in runs.items()}
    seconds = interleaved(runs, repeats=repeats)
    base = row("", seconds["numpy"])["median_s"]
    rows = [row(f"{kind}: {name}", values) for name, values in seconds.items()]
    for name, entry in zip(runs, rows, strict=True):
        entry["speed_of_numpy"] = round(base / entry["median_s"], 3)
        entry["extra_mib"] = extra[name]
    return rows


def _probabilities(examples: int, classes: int, sharpness: float) -> NDArray[np.float32]:
    draw = np.random.default_rng(0)
    probs = np.empty((examples, classes), dtype=np.float32)
    for first in range(0, examples, 10_000):
        part = probs[first : first + 10_000]
        draw.standard_normal(dtype=np.float32, out=part)
        part *= sharpness
        part -= part.max(axis=1, keepdims=True)
        np.exp(part, out=part)
        part /= part.sum(axis=1, keepdims=True)
    return probs


def _extra_mib(run: Callable[[], Any]) -> int:
    """Anonymous memory a run needs beside the array, watched every few milliseconds."""
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


if __name__ == "__main__":
    main()
