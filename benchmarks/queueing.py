"""Ranking a large pool for labels against one argsort of the same column, and its peak memory.

Each rule runs in a separate process, on the numbers that a model's pass stores for 10 million
examples. ``coverage`` is measured separately: it reads the embeddings once for every example taken.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks._measure import arguments, publish, row
from hardsight.run.queue import RULES, ranked

_COLUMNS = ("entropy", "probability_gap", "angle_gap", "avc")
_CLASSES, _WIDTH, _CENTRES = 1000, 64, 5
_PEER = "numpy argsort of a column"
_PART = 1_000_000


def measured(how: str, rows: int, budget: int) -> None:
    """One ranking, in this process; prints seconds and the peak of memory."""
    draw = np.random.default_rng(0)
    columns = {name: draw.random(rows, dtype=np.float32) for name in _COLUMNS}
    predictions = draw.integers(0, _CLASSES, rows)
    by, _, balanced = how.partition(" ")
    with tempfile.TemporaryDirectory() as folder:
        embeddings = _embeddings(Path(folder), rows) if by == "coverage" else None
        start = time.perf_counter()
        if how == _PEER:
            np.argsort(columns["entropy"], kind="stable")
        else:
            ranked(
                columns, predictions, budget=_CENTRES if by == "coverage" else budget, by=by,
                balanced=bool(balanced), embeddings=embeddings,
            )  # fmt: skip
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([seconds, peak]))


def _embeddings(folder: Path, rows: int) -> np.ndarray:
    """Random ones in a file, as a pass leaves them."""
    file = folder / "embeddings"
    with file.open("wb") as sink:
        for start in range(0, rows, _PART):
            draw = np.random.default_rng(start)
            part = draw.standard_normal((min(_PART, rows - start), _WIDTH), dtype=np.float32)
            sink.write(part.tobytes())
    return np.memmap(file, dtype=np.float32, mode="r", shape=(rows, _WIDTH))


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--budget", type=int, default=10_000)
    parser.add_argument("--rules", nargs="+", choices=RULES, help="all but coverage by default")
    parser.add_argument("--measure", help="a rule, for one process")
    options = parser.parse_args(args)
    if options.measure:
        measured(options.measure, options.rows, options.budget)
        return
    rules = options.rules or [rule for rule in RULES if rule != "coverage"]
    names = [_PEER, *rules, f"{rules[0]} balanced"]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(options.repeats):
        for name in names:
            words = [sys.executable, "-m", "benchmarks.queueing", "--measure", name,
                     "--rows", str(options.rows), "--budget", str(options.budget)]  # fmt: skip
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            found[name].append(tuple(json.loads(done.stdout.splitlines()[-1])))
    rows = [
        row(name, [seconds for seconds, _ in runs], peak_mib=round(max(peak for _, peak in runs)))
        for name, runs in found.items()
    ]
    title = f"{options.budget:,} of {options.rows:,} examples to label next"
    publish(f"{title} (wanted: 60 s, 1024 MiB)", rows, file=options.out)


if __name__ == "__main__":
    main()
