"""A run that is killed, at any moment, continues and ends with the same table."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
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


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is a POSIX signal")
def test_a_process_killed_at_random_times_ends_with_the_same_table(embeddings_file, tmp_path):
    command = [
        sys.executable, "-m", "hardsight", "score", "--data", str(embeddings_file),
        "--batch-size", "1", "--shard-rows", "1", "--device", "cpu", "--resume",
    ]  # fmt: skip
    hs.score(None, embeddings_file, out=tmp_path / "whole", batch_size=1, shard_rows=1)
    draw, out = random.Random(0), tmp_path / "killed"
    kills = 0
    for _ in range(4):
        process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE)
        _wait_for_shards(process, out)
        time.sleep(draw.uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    assert kills == 4  # the run was never fast enough to escape
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=True)
    assert "500 rows" in done.stdout
    for name in ("table.parquet", "errors.parquet"):
        assert (tmp_path / "whole" / name).read_bytes() == (out / name).read_bytes()


def _wait_for_shards(process: subprocess.Popen, out: Path) -> None:
    """Until the process has added at least one shard of its own."""
    before = len(list(out.glob("shards/rows-*")))
    while process.poll() is None and len(list(out.glob("shards/rows-*"))) <= before:
        time.sleep(0.01)
