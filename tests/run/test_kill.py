"""A run that is killed, at any moment, continues and ends with the same table."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import hardsight as hs
from tests._deaths import Died, dying_after


@pytest.mark.long
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
    def rmtree(*args, **kwargs):
        raise Died

    patch.setattr(Path, "replace", dying_after(survived))
    patch.setattr(shutil, "rmtree", rmtree)


# A life ends without a word by its own processor time, so that a busy machine moves no moment of
# death; one of 0 seconds may go on to the end. On a processor so fast that all rows are stored
# before, it waits for its death in front of the table.
LIFE = """
import signal
from pathlib import Path
from hardsight.cli import main

plain, seconds, counts = Path.replace, {seconds}, []

def replace(self, target):
    is_table = target.name == "table.parquet"
    if seconds and not counts and (is_table or target.name.startswith("rows-")):
        counts.append(True)  # this life has something to store
        signal.setitimer(signal.ITIMER_PROF, seconds)
    while seconds and is_table:
        pass
    return plain(self, target)

Path.replace = replace
main({words})
"""


@pytest.mark.skipif(os.name != "posix", reason="timers and forks are of POSIX")
@pytest.mark.long
def test_a_process_killed_at_random_times_ends_with_the_same_table(
    embeddings_file, tmp_path, forks
):
    stored = dict(np.load(embeddings_file))
    few = {**stored, "embeddings": stored["embeddings"][:300], "labels": stored["labels"][:300]}
    np.savez(tmp_path / "few.npz", **few)
    words = [
        "score", "--data", str(tmp_path / "few.npz"), "--batch-size", "2", "--shard-rows", "2",
        "--device", "cpu", "--resume", "--out", str(tmp_path / "killed"),
    ]  # fmt: skip
    hs.score(None, tmp_path / "few.npz", out=tmp_path / "whole", batch_size=2, shard_rows=2)
    draw = random.Random(0)
    lives = [*(draw.uniform(0.001, 0.02) for _ in range(6)), 0]
    ended = [forks.run(LIFE.format(seconds=seconds, words=words)) for seconds in lives]
    assert [life.status for life in ended] == [-signal.SIGPROF] * 6 + [0], ended[-1].stderr
    assert "300 rows" in ended[-1].stdout
    for name in ("table.parquet", "errors.parquet"):
        written = (tmp_path / "killed" / name).read_bytes()
        assert (tmp_path / "whole" / name).read_bytes() == written
