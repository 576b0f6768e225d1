"""Scoring on Ray: how much faster two actors are than one, and what the driver's memory does.

Stored embeddings with many classes, so that arithmetic is nearly all of the work. Every run is a
process of its own that starts Ray on this machine. Starting costs the same for any number of rows,
so the rate is that between a short and a long run; one actor on one core is the peer. The driver's
memory is its peak, of its own pages and those of the files it reads together.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import hardsight as hs
from benchmarks._measure import arguments, publish, row

_SHARD = 8192
_GROWTH = 3  # times as many rows in the long run
_OBJECTS = 100 << 20  # bytes of the object store, far below what the rows would take


def made_embeddings(folder: Path, rows: int, width: int, classes: int) -> Path:
    """Random embeddings with their head, in one folder."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    file = np.lib.format.open_memmap(
        folder / "embeddings.npy", mode="w+", dtype=np.float32, shape=(rows, width)
    )
    for start in range(0, rows, 1 << 18):
        part = file[start : start + (1 << 18)]
        part[:] = draw.standard_normal(part.shape, dtype=np.float32)
    np.save(folder / "labels.npy", draw.integers(0, classes, rows))
    np.save(folder / "weights.npy", draw.standard_normal((classes, width), dtype=np.float32))
    return folder


def measured(folder: str, actors: int) -> None:
    """One run, in this process; prints seconds of scoring and the peak of memory in MiB."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local", num_cpus=actors, object_store_memory=_OBJECTS, include_dashboard=False,
        log_to_driver=False, logging_level="ERROR",
    )  # fmt: skip
    data = Path(folder)
    start = time.perf_counter()
    hs.score(
        None, data / "embeddings.npy", labels=str(data / "labels.npy"),
        class_weights=str(data / "weights.npy"), out=data / f"run-{actors}", overwrite=True,
        engine="ray", ray_actors=actors, batch_size=_SHARD, shard_rows=_SHARD,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([seconds, peak]))


def run(folder: Path, actors: int) -> tuple[float, float]:
    """Seconds and peak memory of the driver, of one run in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.cluster", "--measure", str(folder), str(actors)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=env)
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--classes", type=int, default=4000)
    parser.add_argument("--measure", nargs=2, help="a folder and a number of actors")
    options = parser.parse_args(args)
    if options.measure:
        measured(options.measure[0], int(options.measure[1]))
        return
    sizes = (options.rows, _GROWTH * options.rows)
    with tempfile.TemporaryDirectory() as place:
        folders = [
            made_embeddings(Path(place) / str(rows), rows, options.width, options.classes)
            for rows in sizes
        ]
        found: dict[int, list[list[tuple[float, float]]]] = {1: [], 2: []}
        for _ in range(options.repeats):
            for actors, runs in found.items():
                runs.append([run(folder, actors) for folder in folders])
    steady = {
        actors: [long[0] - short[0] for short, long in runs] for actors, runs in found.items()
    }
    one, two = (statistics.median(steady[actors]) for actors in (1, 2))
    rows = [
        row(
            f"{actors} actors" if actors > 1 else "1 actor",
            steady[actors],
            rows_per_s=round((sizes[1] - sizes[0]) / statistics.median(steady[actors])),
            of_linear=round(one / two / 2, 2) if actors == 2 else 1.0,
            peak_mib_short=round(max(short[1] for short, _ in runs)),
            peak_mib_long=round(max(long[1] for _, long in runs)),
            load=round(os.getloadavg()[0], 1),
        )
        for actors, runs in found.items()
    ]
    title = f"{sizes[1] - sizes[0]:,} rows more, width {options.width}, {options.classes:,} classes"
    publish(f"scoring on Ray, {title}", rows, file=options.out)


if __name__ == "__main__":
    main()
