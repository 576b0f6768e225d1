"""How many functions and files an example passes: ``python -m benchmarks.walks``.

Three walks, each on sixty small pictures in class folders: from ``score`` to the table, from the
table to the report, and from ``train`` to the training dynamics. A function that ran counts once,
no matter how often. Each walk is taken twice and counted the second time, so code that only runs
while modules load does not count. ``--list WALK`` names the files and their functions, which helps
if you want to shorten a walk.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

import hardsight as hs
from benchmarks._measure import publish

PACKAGE = Path(hs.__file__).parent
Functions = set[tuple[str, str]]


def functions_passed(walk: Callable[[], Any]) -> Functions:
    """File and name of every function of hardsight that runs during ``walk``."""
    passed: Functions = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name == "<module>":
            return
        if code.co_filename.startswith(str(PACKAGE)):
            file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            passed.add((file, code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        walk()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return passed


def walks(folder: Path) -> dict[str, Callable[[], Any]]:
    """The three walks, in an order in which each finds what it needs."""
    data = _pictures(folder / "pictures")
    run, trained = folder / "scored", folder / "trained"
    quiet: dict[str, Any] = {"device": "cpu", "workers": 0, "show_progress": False}
    return {
        "score → table": lambda: hs.score("small_cnn", data, num_classes=3, out=run, **quiet),
        "table → report": lambda: hs.write_report(run),
        "train → dynamics": lambda: hs.train(
            "small_cnn", data, epochs=1, batch_size=4, track=True, out=trained, **quiet
        ),
    }


def taken() -> dict[str, Functions]:
    """What each walk passes the second time it is taken, when all modules are loaded."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        for walk in walks(Path(first)).values():
            walk()
        return {name: functions_passed(walk) for name, walk in walks(Path(second)).items()}


def _pictures(folder: Path) -> Path:
    values = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    for place, pixels in enumerate(values):
        home = folder / f"class-{place % 3}"
        home.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(home / f"{place}.png")
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", metavar="WALK", help="name the functions of one walk, by file")
    options = parser.parse_args(arguments)
    rows = []
    for name, passed in taken().items():
        files = sorted({file for file, _ in passed})
        rows.append({"name": name, "functions": len(passed), "files": len(files)})
        if options.list == name:
            for file in files:
                print(file, *sorted(f for home, f in passed if home == file), sep="\n    ")
    publish("what an example passes", rows, file=None)


if __name__ == "__main__":
    main()
