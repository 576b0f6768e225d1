"""Scoring on Ray: what two actors do in the time of one, and what the driver's memory does.

Every run is a separate process that starts Ray on this machine. Starting costs the same for any
number of rows, so everything reported is the difference between a short and a long run. On a shared
machine, seconds on the clock say little, so the processor time of the actors is shown beside them.
The time one actor needs for the rows, divided by the time two need together, shows how close two
idle cores would come to linear, as long as both actors get the same share of the work.

``python -m benchmarks.cluster --photos --rows 192 --repeats 3`` on two idle cores is the case bound
by computing: ``of_linear_on_the_clock`` should be 0.9 or more, and ``load`` says whether the cores
were idle. Two cores share memory and clock speed, so even two independent processes may not be
twice as fast as one. The rows "1 process" and "2 processes" show what the machine itself can do:
each process scores its share of the same pictures without Ray.

``--part memory`` shows the driver's peak for more and more rows: its own memory, and pages of files
that it reads, which the system takes back when it needs them.

``--part growth`` shows what the driver keeps of rows and shards. The blocks in which the table is
written are made 100 times smaller, since two full ones take more memory than all that grows. Rows
and shards are varied independently on Ray, and a plane is fitted to the peaks. Then the local
engine, which has no records of shards but the same last steps, scores one and eight parts of rows.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import hardsight as hs
from benchmarks._measure import arguments, publish, row

_GROWTH = 3  # times as many rows in the long run
_OBJECTS = 100 << 20  # bytes of the object store, far below what the rows would take
_ACTOR = "ray::MapWorker"
_SHARD_ROWS = 8192  # fewer than usual, so that there are many shards of few rows
# of --part growth: rows, as shares of --rows, and shards, none of more than 8,197 rows, so that the
# one in memory hardly counts; then rows of the local engine, and how much smaller its blocks are
_ON_RAY = ((1 / 8, 61), (1 / 8, 488), (1 / 2, 244), (1 / 2, 488), (1, 488))
_LOCAL = ((1 / 4, 100), (2, 100), (1 / 4, 25), (2, 25))
_BLOCK, _SMALLER, _LOCAL_SHARD = 1 << 20, 100, 16_384


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


def made_photos(folder: Path, count: int) -> Path:
    """JPEG files of 500 x 375 pixels, as smooth as photos are, in two class folders."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(count):
        coarse = draw.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        grain = draw.normal(0, 6, (375, 500, 3))
        smooth = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC))
        pixels = np.clip(smooth + grain, 0, 255).astype(np.uint8)
        file = folder / "ab"[number % 2] / f"{number:05d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file, quality=90)
    return folder


def scored(data: Path, name: str, shard_rows: int, **engine: Any) -> None:
    """The run that is measured: stored embeddings, or photos through a ResNet-18."""
    engine |= {"out": data.parent / f"{data.name}-run-{name}", "show_progress": False}
    if (data / "embeddings.npy").exists():
        hs.score(
            None, data / "embeddings.npy", labels=str(data / "labels.npy"),
            class_weights=str(data / "weights.npy"), batch_size=min(8192, shard_rows),
            shard_rows=shard_rows, overwrite=True, **engine,
        )  # fmt: skip
        return
    hs.score(
        "resnet18", data, size=(64, 64), channels=3, mean=(0.5,) * 3, std=(0.25,) * 3,
        batch_size=8, shard_rows=shard_rows, device="cpu", thumbnails=0, overwrite=True, **engine,
    )  # fmt: skip


def measured(folder: str, actors: int, shard_rows: int, smaller: int = 1) -> None:
    """One run, in this process, without Ray if there are no actors; prints what it cost."""
    import psutil

    from hardsight.run_folder import _files

    _files.ROWS_PER_GROUP = _BLOCK // smaller
    engine: dict[str, Any] = {}
    if actors:
        import ray

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(
            address="local", num_cpus=actors, object_store_memory=_OBJECTS,
            include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        )  # fmt: skip
        engine = {"engine": "ray", "ray_actors": actors}
    own, peak = psutil.Process(), dict[str, int]()
    busy = dict[int, tuple[str, float]]()
    start = time.perf_counter()
    with _watched(own, peak, busy):
        scored(Path(folder), str(actors), shard_rows, **engine)
    seconds = time.perf_counter() - start
    times = sorted((used for name, used in busy.values() if name.startswith(_ACTOR)), reverse=True)
    others = sum(used for name, used in busy.values() if not name.startswith(_ACTOR))
    print(json.dumps({"seconds": seconds, "actors": times, "others": others, **peak}))


@contextmanager
def _watched(own: Any, peak: dict[str, int], busy: dict[int, tuple[str, float]]) -> Iterator[None]:
    """Keep the peak of this process's memory, in KiB, and every process's processor time."""
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            _note_memory(peak)
            _note_times(own, busy)
            done.wait(0.2)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _note_memory(peak: dict[str, int]) -> None:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssFile"):
            peak[name] = max(peak.get(name, 0), int(value.split()[0]))


def _note_times(own: Any, busy: dict[int, tuple[str, float]]) -> None:
    import psutil

    for process in (own, *own.children(recursive=True)):
        try:
            used = process.cpu_times()
            name = " ".join(process.cmdline())
        except psutil.Error:  # it ended meanwhile; what it used by then is on record
            continue
        # an actor that waits for its end has another name, or none
        known = busy.get(process.pid, ("", 0.0))[0]
        name = known if known.startswith(_ACTOR) else name
        busy[process.pid] = (name, used.user + used.system)


def run(folder: Path, actors: int, shard_rows: int, smaller: int = 1) -> dict[str, Any]:
    """What one run cost, in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.cluster", "--measure", str(folder), str(actors)]
    words += [str(shard_rows), str(smaller)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HARDSIGHT_CACHE": "off"}
    env["RAY_worker_niceness"] = "0"  # by default workers let everybody else go first
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=env)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def by_hand(folder: str, share: int, shares: int, shard_rows: int) -> None:
    """One process of several that score a share of the rows each, without Ray."""
    count = sum(1 for _ in Path(folder).glob("*/*.jpg"))
    start = time.perf_counter()
    scored(
        Path(folder), f"share-{share}-of-{shares}", shard_rows,
        rows=range(share * count // shares, (share + 1) * count // shares), workers=0,
    )  # fmt: skip
    print(json.dumps({"seconds": time.perf_counter() - start, "cpu": time.process_time()}))


def run_by_hand(folder: Path, shares: int, shard_rows: int) -> dict[str, float]:
    """What some processes cost that run side by side: the slowest one's time, all their work."""
    words = [sys.executable, "-m", "benchmarks.cluster", "--by-hand", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HARDSIGHT_CACHE": "off"}
    running = [
        subprocess.Popen(
            [*words, str(share), str(shares), str(shard_rows)],
            stdout=subprocess.PIPE, text=True, env=env,
        )
        for share in range(shares)
    ]  # fmt: skip
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("a process that scores by hand failed; see above")
    found = [json.loads(text.splitlines()[-1]) for text in said]
    return {"seconds": max(f["seconds"] for f in found), "cpu": sum(f["cpu"] for f in found)}


def speed(options: Any, place: Path) -> None:
    """One actor against two."""
    sizes = (options.rows, _GROWTH * options.rows)
    if options.photos:
        folders = [made_photos(place / str(rows), rows) for rows in sizes]
        what = "photos of 500 x 375 through a ResNet-18 at 64 x 64"
    else:
        folders = [
            made_embeddings(place / str(rows), rows, options.width, options.classes)
            for rows in sizes
        ]
        what = f"embeddings of width {options.width}, {options.classes:,} classes"
    found: dict[int, list[list[dict[str, Any]]]] = {1: [], 2: []}
    bare: dict[int, list[list[dict[str, float]]]] = {1: [], 2: []}
    for _ in range(options.repeats):
        for actors, runs in found.items():
            runs.append([run(folder, actors, options.shard_rows) for folder in folders])
        for shares, pairs in bare.items() if options.photos else ():
            pairs.append([run_by_hand(folder, shares, options.shard_rows) for folder in folders])
    more = sizes[1] - sizes[0]
    alone = statistics.median(long["actors"][0] - short["actors"][0] for short, long in found[1])
    clock = statistics.median(long["seconds"] - short["seconds"] for short, long in found[1])
    rows = [_speed_row(actors, runs, alone, clock, more) for actors, runs in found.items()]
    if options.photos:
        rows += _rows_by_hand(bare, more)
    publish(f"scoring on Ray, {more:,} {what}", rows, file=options.out)


def _speed_row(
    actors: int, runs: list[list[dict[str, Any]]], alone: float, clock: float, more: int
) -> dict[str, Any]:
    seconds = [long["seconds"] - short["seconds"] for short, long in runs]
    total = [sum(long["actors"]) - sum(short["actors"]) for short, long in runs]
    busiest = [long["actors"][0] / sum(long["actors"]) for _, long in runs]
    other = statistics.median(long["others"] - short["others"] for short, long in runs)
    middle = statistics.median(total)
    return row(
        f"{actors} actors" if actors > 1 else "1 actor",
        seconds,
        cpu_s=round(middle, 2),
        cpu_ms_per_row=round(1000 * middle / more, 4),
        of_linear=round(alone / middle, 2),
        of_linear_on_the_clock=round(clock / (actors * statistics.median(seconds)), 2),
        busiest_share=round(statistics.median(busiest), 2),
        others_cpu_s=round(other, 2),
        load=round(os.getloadavg()[0], 1),
    )


def _rows_by_hand(
    found: dict[int, list[list[dict[str, float]]]], more: int
) -> list[dict[str, Any]]:
    seconds, work = (
        {n: [long[key] - short[key] for short, long in pairs] for n, pairs in found.items()}
        for key in ("seconds", "cpu")
    )
    clock, alone = statistics.median(seconds[1]), statistics.median(work[1])
    return [
        row(
            f"{shares} processes" if shares > 1 else "1 process",
            seconds[shares],
            cpu_s=round(statistics.median(work[shares]), 2),
            cpu_ms_per_row=round(1000 * statistics.median(work[shares]) / more, 4),
            of_linear=round(alone / statistics.median(work[shares]), 2),
            of_linear_on_the_clock=round(clock / (shares * statistics.median(seconds[shares])), 2),
            busiest_share="",
            others_cpu_s="",
            load=round(os.getloadavg()[0], 1),
        )
        for shares in found
    ]


def memory(options: Any, place: Path) -> None:
    """The driver's peak, for four times as many rows again and again."""
    rows, before = [], None
    for count in (options.rows * 4**step for step in range(options.steps)):
        folder = made_embeddings(place / str(count), count, 16, 10)
        found = run(folder, 1, options.shard_rows)
        own = found["RssAnon"] * 1024
        rows.append(
            row(
                f"{count:,} rows",
                [found["seconds"]],
                own_mib=round(own / 2**20),
                pages_of_files_mib=round(found["RssFile"] / 1024),
                shards=-(-count // options.shard_rows),
                bytes_per_row_more=_per_row(before, count, own),
            )
        )
        before = (count, own)
    publish("peak of the driver's memory", rows, file=options.out)


def growth(options: Any, place: Path) -> None:
    """What the driver keeps of rows and shards, and what that is when there are more of them."""
    on_ray, local = [], []
    folders = {
        share: made_embeddings(place / f"{share}", round(share * options.rows), 16, 10)
        for share in {share for share, _ in _ON_RAY + _LOCAL}
    }
    for _ in range(options.repeats):
        for share, shards in _ON_RAY:
            count = round(share * options.rows)
            found = run(folders[share], 1, -(-count // shards), _SMALLER)
            on_ray.append((count, shards, found["RssAnon"] / 1024, found["seconds"]))
    for share, smaller in _LOCAL:
        found = run(folders[share], 0, _LOCAL_SHARD, smaller)
        count = round(share * options.rows)
        local.append((count, smaller, found["RssAnon"] / 1024, found["seconds"]))
    publish("what the driver's memory grows by", growth_rows(on_ray, local), file=options.out)


def growth_rows(
    on_ray: Sequence[tuple[int, int, float, float]], local: Sequence[tuple[int, int, float, float]]
) -> list[dict[str, Any]]:
    """A row for each run, and for each number of the fit with its standard error."""
    rows = [
        row(f"Ray, {n:,} rows, {shards} shards", [s], own_mib=round(own, 1), error_mib="")
        for n, shards, own, s in on_ray
    ]
    rows += [
        row(f"local, {n:,} rows, blocks / {smaller}", [s], own_mib=round(own, 1), error_mib="")
        for n, smaller, own, s in local
    ]
    design = np.array([[1, n / 1e6, shards / 1e3] for n, shards, _, _ in on_ray])
    peaks = np.array([own for _, _, own, _ in on_ray])
    values = np.linalg.lstsq(design, peaks)[0]
    rest = peaks - design @ values
    spread = np.linalg.inv(design.T @ design) * (rest @ rest / (len(peaks) - len(values)))
    names = ("none", "a million more, with their blocks", "a thousand shards more")
    for name, value, variance in zip(names, values, np.diag(spread), strict=True):
        fitted = {"n": len(peaks), "own_mib": f"{value:.1f}", "error_mib": f"{variance**0.5:.1f}"}
        rows.append(dict.fromkeys(rows[0], "") | {"name": f"Ray, fitted: {name}"} | fitted)
    return rows


def _per_row(before: tuple[int, int] | None, rows: int, own: int) -> str:
    return "" if before is None else f"{(own - before[1]) / (rows - before[0]):.1f}"


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", choices=["speed", "memory", "growth"], default="speed")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--photos", action="store_true", help="score JPEG files")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--classes", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=3, help="of --part memory")
    parser.add_argument("--shard-rows", type=int, help="rows of a shard; 8 of photos by default")
    parser.add_argument(
        "--measure",
        nargs=4,
        help="a folder, actors, rows of a shard, and how much smaller blocks are",
    )
    parser.add_argument("--by-hand", nargs=4, help="a folder, share, shares, and rows of a shard")
    options = parser.parse_args(args)
    if options.measure:
        measured(options.measure[0], *map(int, options.measure[1:]))
        return
    if options.by_hand:
        by_hand(options.by_hand[0], *map(int, options.by_hand[1:]))
        return
    options.shard_rows = options.shard_rows or (8 if options.photos else _SHARD_ROWS)
    with tempfile.TemporaryDirectory() as place:
        {"memory": memory, "growth": growth, "speed": speed}[options.part](options, Path(place))


if __name__ == "__main__":
    main()
