"""A run that is killed, at any moment, continues and ends with the same table."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hardsight as hs


class Died(BaseException):
    """Stands for a kill: no handler of an ordinary error may catch it."""


def test_dying_before_any_single_file_appears_and_resuming_gives_the_same_table(
    embeddings_file, tmp_path, monkeypatch
):
    """Exhaustive: the run dies once before each rename it makes, and once before the clean-up."""
    options = {"shard_rows": 100, "batch_size": 50}
    hs.score(None, embeddings_file, out=tmp_path / "whole", **options)
    expected = (tmp_path / "whole" / "table.parquet").read_bytes()
    renames = _count_renames(embeddings_file, tmp_path / "counted", monkeypatch, options)
    assert renames >= 14  # manifest, 5 shards of rows and of errors, errors, table, manifest
    for survived in range(renames + 1):
        out = tmp_path / f"run-{survived}"
        with monkeypatch.context() as patch:
            _die_after(survived, patch)
            with pytest.raises(Died):
                hs.score(None, embeddings_file, out=out, **options)
        hs.score(None, embeddings_file, out=out, resume=True, **options)
        assert (out / "table.parquet").read_bytes() == expected
        assert not (out / "shards").exists()


def _count_renames(data: Path, out: Path, monkeypatch, options) -> int:
    calls = []
    original = Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *args: calls.append(1) or original(*args))
        hs.score(None, data, out=out, **options)
    return len(calls)


def _die_after(survived: int, patch) -> None:
    original, calls = Path.replace, []

    def replace(self, target):
        if len(calls) == survived:
            raise Died
        calls.append(target)
        return original(self, target)

    def rmtree(*args, **kwargs):
        raise Died

    patch.setattr(Path, "replace", replace)
    patch.setattr(shutil, "rmtree", rmtree)


# Loads torch once. Each life is a fork whose own processor time ends it without a word, so that a
# busy machine moves no moment of death; a life of 0 seconds may go on to the end.
LIVES = """
import os, signal, sys
from pathlib import Path
import hardsight.run.score
from hardsight.cli import main

plain = Path.replace

def replace(self, target):
    if float(seconds) and target.name.startswith("rows-"):  # this life has stored a shard
        Path.replace = plain
        signal.setitimer(signal.ITIMER_PROF, float(seconds))
    return plain(self, target)

for seconds in sys.argv[1].split(","):
    child = os.fork()
    if child == 0:
        Path.replace = replace
        main(sys.argv[2:])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="timers and forks are of POSIX")
def test_a_process_killed_at_random_times_ends_with_the_same_table(embeddings_file, tmp_path):
    draw = random.Random(0)
    lives = [*(draw.uniform(0.001, 0.05) for _ in range(6)), 0]
    command = [
        sys.executable, "-c", LIVES, ",".join(map(str, lives)), "score", "--data",
        str(embeddings_file), "--batch-size", "2", "--shard-rows", "2", "--device", "cpu",
        "--resume", "--out", str(tmp_path / "killed"),
    ]  # fmt: skip
    hs.score(None, embeddings_file, out=tmp_path / "whole", batch_size=2, shard_rows=2)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "500 rows" in done.stdout
    ends = [line for line in done.stdout.splitlines() if line.lstrip("-").isdigit()]
    assert ends == [str(-signal.SIGPROF)] * 6 + ["0"]  # never fast enough to escape
    for name in ("table.parquet", "errors.parquet"):
        written = (tmp_path / "killed" / name).read_bytes()
        assert (tmp_path / "whole" / name).read_bytes() == written
