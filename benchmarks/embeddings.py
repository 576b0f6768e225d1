"""Stored embeddings: scoring against the bare chunked matrix product over the same file."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import hardsight as hs
from benchmarks._measure import arguments, extra_mib, interleaved, publish, row

_CHUNK = 16384  # rows the bare product reads at once, the same as the scoring run


def bare_product(file: Path, weights: torch.Tensor) -> None:
    """Read, widen and multiply; the least anybody has to do."""
    rows = np.load(file, mmap_mode="r")
    with torch.inference_mode():
        for first in range(0, len(rows), _CHUNK):
            chunk = torch.from_numpy(np.array(rows[first : first + _CHUNK]))
            for part in chunk.split(1024):
                torch.mm(part.float(), weights.T)


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--peak", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(args)
    if options.peak:
        _print_peak(Path(options.peak))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = _write(folder, options.rows, options.width, options.classes)
        source = {"labels": folder / "y.npy", "class_weights": folder / "w.npy"}
        seconds = interleaved(
            {
                "bare product": lambda: bare_product(folder / "x.npy", weights),
                "score, avh": lambda: hs.score(
                    None, folder / "x.npy", scores=["avh"], device="cpu", **source
                ),
                "score, all": lambda: hs.score(None, folder / "x.npy", device="cpu", **source),
            },
            repeats=options.repeats,
        )
        peak = _peak_mib(folder)
    bare = row("", seconds["bare product"])["median_s"]
    rows = [row(name, values) for name, values in seconds.items()]
    for entry in rows:
        entry["speed_of_bare"] = round(bare / entry["median_s"], 3)
        entry["resident_mib"] = peak.get(entry["name"], "")
    shape = f"{options.rows:,} x {options.width} float16, {options.classes:,} classes"
    publish(f"Stored embeddings, {shape} (target: 0.8 of bare)", rows, file=options.out)


def _write(folder: Path, rows: int, width: int, classes: int) -> torch.Tensor:
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(classes, width)).astype(np.float32)
    labels = draw.integers(0, classes, rows)
    out = np.lib.format.open_memmap(
        folder / "x.npy", mode="w+", dtype=np.float16, shape=(rows, width)
    )
    for first in range(0, rows, 65536):
        part = labels[first : first + 65536]
        noise = draw.normal(size=(len(part), width)).astype(np.float32)
        out[first : first + 65536] = 0.185 * weights[part] + noise  # about four in five right
    out.flush()
    np.save(folder / "y.npy", labels)
    np.save(folder / "w.npy", weights)
    return torch.from_numpy(weights)


def _peak_mib(folder: Path) -> dict[str, int]:
    """Anonymous resident memory above interpreter and torch, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.embeddings", "--peak", str(folder)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return {"score, all": int(done.stdout)}


def _print_peak(folder: Path) -> None:
    import hardsight.run.score  # noqa: F401  interpreter, torch and our own code come first

    source = {"labels": folder / "y.npy", "class_weights": folder / "w.npy"}
    data, out = folder / "x.npy", folder / "run"
    print(extra_mib(lambda: hs.score(None, data, device="cpu", out=out, **source)))


if __name__ == "__main__":
    main()
