"""``python -m tests.fuzz``: one case again, or many cases at once."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.fuzz.cases import run_case, shrunk, told, warm_up
from tests.fuzz.draw import Draw
from tests.fuzz.grammar import maker_of


def main() -> int:
    """Run cases, print what failed, and say how many ran."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="the one case to run")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--plain", default="", help="choices to take back, with commas")
    parser.add_argument("--folder", type=Path, help="for the files; a temporary one by default")
    parser.add_argument("--most", type=int, default=20, help="failures to tell about")
    parser.add_argument("--as-program", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.fsync = os.fstat  # as in the suite: only a power cut would show it, and it takes most time
    warm_up()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
    first = options.first if options.case is None else options.case
    count = options.cases if options.case is None else 1
    plain = frozenset(name for name in options.plain.split(",") if name)
    started, failures = time.perf_counter(), 0
    for number in range(first, first + count):
        draw = Draw(options.seed, number, plain)
        place = folder / f"case-{number}"
        shutil.rmtree(place, ignore_errors=True)
        failure = run_case(maker_of(draw), draw, place, as_program=options.as_program)
        if failure is None:
            if options.case is None:
                shutil.rmtree(place)
            continue
        failures += 1
        if failures <= options.most:
            if options.case is None:
                failure = shrunk(maker_of(draw), draw, failure, place)
            print(told(failure, options.seed), flush=True)
    seconds = time.perf_counter() - started
    print(f"{count} cases, {failures} failures, {seconds:.1f} s, files in {folder}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
