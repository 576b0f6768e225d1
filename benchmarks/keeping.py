"""Selecting rows of a large table against one argsort of the same column, and its peak memory.

Each rule runs in a separate process, from the file on disk to the list on disk, so the peak is that
of the whole command.
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
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._measure import arguments, publish, row
from hardsight.run_folder import write_parquet
from hardsight.selection import RULES, select, write_rows
from hardsight.table import read_table, with_metadata

_GROUP = 131_072  # rows of a row group, as scoring writes them
_PEER = "numpy argsort of the column"


def made_table(file: Path, rows: int, classes: int = 1000, *, unseen: bool = False) -> None:
    """A table of random scores, as large as that of a tracked run or, ``unseen``, of folds."""
    harder = {"el2n": True, **({"logit_margin": False} if unseen else {"suspicion": True})}
    about: dict[str, Any] = {
        "scores": {name: {"higher_is_harder": flag} for name, flag in harder.items()}
    }
    if unseen:
        about["sample"] = "out-of-sample"

    def part(start: int) -> pa.Table:
        stop, draw = min(start + _GROUP, rows), np.random.default_rng(start)
        index = np.arange(start, stop)
        columns = {
            "index": index,
            "id": pa.array(index).cast(pa.string()),
            "label": draw.integers(0, classes, len(index)),
            "el2n": draw.gamma(1.2, 0.2, len(index)).astype(np.float32),
        }
        if unseen:
            margin = draw.normal(3, 3, len(index)).astype(np.float32)
            label, other = columns["label"], draw.integers(0, classes, len(index))
            columns["prediction"] = np.where(margin < 0, other, label)
            columns["logit_margin"] = margin
            columns["model_confidence"] = (1 / (1 + np.exp(-margin))).astype(np.float32)
        else:
            columns["suspicion"] = draw.random(len(index)).astype(np.float32)
        return with_metadata(pa.table(columns), about)

    first = part(0)
    write_parquet(file, (part(start) for start in range(0, rows, _GROUP)), first.schema)


def measured(file: str, how: str) -> None:
    """One selection, in this process; prints seconds and the peak of memory."""
    start = time.perf_counter()
    table = read_table(file)
    if how == _PEER:
        np.argsort(table.column("el2n"), kind="stable")
    else:
        name, _, balanced = how.partition(" ")
        kept = select(table, keep=0.3, how=name, balanced=bool(balanced), drop_suspects=0.05)
        write_rows(Path(file).with_suffix(f".{name}.parquet"), table, kept)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([seconds, peak]))


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--unseen", action="store_true", help="a table of out-of-sample scores")
    parser.add_argument("--rules", nargs="+", help="all by default")
    parser.add_argument("--measure", nargs=2, help="a table and a rule, for one process")
    options = parser.parse_args(args)
    if options.measure:
        measured(*options.measure)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.parquet"
        made_table(file, options.rows, unseen=options.unseen)
        names = (_PEER, *(options.rules or (*RULES, "coverage balanced")))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for _ in range(options.repeats):
            for name in names:
                words = [sys.executable, "-m", "benchmarks.keeping", "--measure", str(file), name]
                done = subprocess.run(words, check=True, capture_output=True, text=True)
                found[name].append(tuple(json.loads(done.stdout.splitlines()[-1])))
    rows = [
        row(name, [seconds for seconds, _ in runs], peak_mib=round(max(peak for _, peak in runs)))
        for name, runs in found.items()
    ]
    kind = " of out-of-sample scores" if options.unseen else ""
    publish(f"selecting 30 % of {options.rows:,} rows{kind}, file to file", rows, file=options.out)


if __name__ == "__main__":
    main()
