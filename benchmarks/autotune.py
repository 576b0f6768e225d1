"""Whether cuDNN's trials of algorithms (recipe key ``autotune``) pay, network by network.

    python -m benchmarks.autotune --out benchmarks/results/autotune.csv

Needs a CUDA device. Every run is a separate process, forked after the imports, on random images.
The last batch of an epoch is short, as it usually is. The first epoch includes the start of CUDA,
of the network and of the trials; ``epoch_s`` is the median of the later epochs.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch  # noqa: F401 (before the fork)
import numpy as np
import torch

import hardsight as hs
from benchmarks._measure import arguments, publish

# network, side of the images, channels, batch
_NETWORKS = [
    ("efficientnet_lite0", 144, 3, 128),
    ("cnn10", 72, 3, 128),
    ("resnet18", 32, 3, 128),
    ("resnet18:width=32", 32, 3, 512),
    ("efficientnet_small:width=0.5", 32, 3, 512),
    ("amc13:width=0.5", 32, 3, 512),
    ("small_cnn", 28, 1, 256),
]


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.set_defaults(repeats=2)
    parser.add_argument("--batches", type=int, default=40, help="in an epoch; one more is short")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--networks", type=int, default=len(_NETWORKS), help="so many of them")
    options = parser.parse_args(args)
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    rows = []
    for network in _NETWORKS[: options.networks]:
        found: dict[bool, list[tuple[float, list[float]]]] = {False: [], True: []}
        for _ in range(options.repeats):
            for autotune in found:  # in turns, so that drift hits both alike
                found[autotune].append(_alone(network, autotune, options))
        for autotune, runs in found.items():
            later = [seconds for _, epochs in runs for seconds in epochs[1:]]
            rows.append(
                {
                    "name": f"{network[0]}, {network[1]} px, batch {network[3]}",
                    "autotune": autotune,
                    "run_s": round(statistics.median(run for run, _ in runs), 2),
                    "first_epoch_s": round(statistics.median(e[0] for _, e in runs), 2),
                    "epoch_s": round(statistics.median(later), 3),
                    "epoch_min_s": round(min(later), 3),
                    "epoch_max_s": round(max(later), 3),
                    "n": len(runs),
                }
            )
            print(*rows[-1].values(), flush=True)
    title = f"{options.epochs} epochs of {options.batches} batches and a short one"
    publish(title, rows, file=options.out)


def _alone(network: Any, autotune: bool, options: Any) -> tuple[float, list[float]]:
    """Seconds of a run and of each of its epochs, from a process of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(network, autotune, options, theirs))
    process.start()
    theirs.close()
    try:
        found: tuple[float, list[float]] = ours.recv()
    except EOFError:
        raise SystemExit(f"{network[0]} failed; see above") from None
    process.join()
    return found


def _run(network: Any, autotune: bool, options: Any, pipe: Any) -> None:
    model, side, channels, batch = network
    count = options.batches * batch + batch // 3
    shape = (count, side, side, channels) if channels > 1 else (count, side, side)
    images = np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)
    data = hs.data.MemorySource(images, np.arange(count) % 10, classes=list("0123456789"))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = hs.train(
            model, data, out=Path(folder, "run"), epochs=options.epochs, batch_size=batch,
            augment={"crop_padding": 4, "flip": True}, validation=0.0, select="last",
            autotune=autotune, show_progress=False,
        )  # fmt: skip
        seconds = time.perf_counter() - start
    pipe.send((seconds, [row["seconds"] for row in done.history]))


if __name__ == "__main__":
    main()
