"""Images per second of every network beside a hand-written loop, and a grid of runs at once.

``python -m benchmarks.training --networks --device cuda`` does all of it in one call.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hardsight as hs
from benchmarks._measure import publish
from benchmarks.recorded_training import Loop

# channels and side of the pictures
NETWORKS = {
    "resnet18": (3, 32),
    "resnet50": (3, 32),
    "densenet121": (3, 32),
    "vgg19": (3, 32),
    "efficientnet_small": (3, 32),
    "mnist_cnn": (1, 28),
    "el_mnist": (1, 28),
}
# pictures, batch size and epochs, the first of which is left out; a CPU shows that it runs
SCALES = {"cuda": (50_000, 512, 4), "cpu": (512, 32, 3)}
GRID = {"cuda": ("resnet18", 12, 10, 4), "cpu": ("mnist_cnn", 4, 2, 2)}  # runs, epochs, at once


def compare(
    names: list[str], *, device: str | None, repeats: int, file: Path | None = None
) -> None:
    """Print the table of the networks, then that of the grid."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    rows = [_network(name, device, repeats) for name in names or NETWORKS]
    count, size, _ = SCALES[device]
    title = (
        f"Images a second on {device}, {count:,} pictures, batch {size} (wanted: 0.9 of the loop)"
    )
    publish(title, rows, file=file)
    publish("Runs side by side (wanted: 0.8 of their sum)", [_grid(device)], file=None)


def _network(name: str, device: str, repeats: int) -> dict[str, Any]:
    """Ours and the loop in turns, so that drift hits both alike."""
    count, size, epochs = SCALES[device]
    images, labels = _pictures(*NETWORKS[name], count // size * size)
    loop = Loop(name, images, labels, batch_size=size, device=device)
    loop.epoch()  # warms up
    by_hand: list[float] = []
    ours: list[float] = []
    for _ in range(repeats):
        for _ in range(epochs - 1):
            start = time.perf_counter()
            loop.epoch()
            by_hand.append(time.perf_counter() - start)
        ours += _epoch_seconds(name, images, labels, size, epochs, device)
    mine, theirs = statistics.median(ours), statistics.median(by_hand)
    return {
        "name": name,
        "by_hand_images_per_s": round(len(images) / theirs),
        "hardsight_images_per_s": round(len(images) / mine),
        "of_loop": round(theirs / mine, 2),
        "min_of_loop": round(min(by_hand) / max(ours), 2),
        "max_of_loop": round(max(by_hand) / min(ours), 2),
        "n": len(ours),
    }


def _pictures(channels: int, side: int, count: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, channels, side, side), dtype=torch.uint8, generator=draw)
    return images, torch.arange(count) % 10


def _epoch_seconds(
    name: str, images: Tensor, labels: Tensor, size: int, epochs: int, device: str, seed: int = 0
) -> list[float]:
    """Seconds of all epochs but the first."""
    pixels = np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())
    data = hs.data.MemorySource(pixels if pixels.shape[3] == 3 else pixels[..., 0], labels.numpy())
    with tempfile.TemporaryDirectory() as folder:
        done = hs.train(
            name, data, out=Path(folder, "run"), epochs=epochs, validation=0.0, batch_size=size,
            select="last", device=device, seed=seed, show_progress=False, resident=True,
            augment={"crop_padding": 4, "flip": True},
        )  # fmt: skip
    return [entry["seconds"] for entry in done.history][1:]


def _one_of_grid(job: tuple[str, int, int, str]) -> float:
    """One run, in whatever process; its seconds."""
    name, seed, epochs, device = job
    count, size, _ = SCALES[device]
    images, labels = _pictures(*NETWORKS[name], count // size * size)
    start = time.perf_counter()
    _epoch_seconds(name, images, labels, size, epochs, device, seed=seed)
    return time.perf_counter() - start


def _grid(device: str) -> dict[str, Any]:
    """Runs of other seeds one after the other, and in processes that share the device."""
    name, runs, epochs, at_once = GRID[device]
    jobs = [(name, seed, epochs, device) for seed in range(runs)]
    _one_of_grid(jobs[0])
    alone = [_one_of_grid(job) for job in jobs]
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, mp_context=spawned) as pool:
        list(pool.map(_one_of_grid, jobs[:at_once]))  # starts the processes, and warms them up
        start = time.perf_counter()
        list(pool.map(_one_of_grid, jobs))
        together = time.perf_counter() - start
    return {
        "name": f"{runs} x {name}, {epochs} epochs, {at_once} at once",
        "sum_s": round(sum(alone), 2),
        "together_s": round(together, 2),
        "of_sum": round(together / sum(alone), 2),
    }
