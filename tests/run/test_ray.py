"""Scoring on a Ray cluster of two nodes gives the local table, byte for byte, whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

import hardsight as hs
from hardsight.errors import (
    BadExampleError,
    DataError,
    OptionError,
    OutputError,
    RunExistsError,
    RunMismatchError,
)
from tests._cluster import ROOT, TwoNodes
from tests._deaths import Died, dying_after

SMALL = {"batch_size": 4, "shard_rows": 4}  # 36 pictures are 9 shards
# a model that says which processes run it, and takes its time while there is a file
SLOW = """
import os, time
from pathlib import Path

HERE = Path(__file__).parent


class Slow(Net):
    def forward(self, images):
        (HERE / f"pid-{os.getpid()}").touch()
        if (HERE / "hold").exists():
            time.sleep(0.5)
        return super().forward(images)


def slow(num_classes=3):
    return Slow(num_classes)
"""


@pytest.fixture(scope="module")
def cluster():
    with TwoNodes() as nodes:
        yield nodes


@pytest.fixture
def slow_net(net_file: Path) -> str:
    net_file.write_text(net_file.read_text() + SLOW)
    return f"{net_file}:slow"


def same_files(local: Path, other: Path) -> None:
    for name in ("table.parquet", "errors.parquet"):
        assert (local / name).read_bytes() == (other / name).read_bytes()
    assert not (other / "shards").exists()


class Meanwhile(threading.Thread):
    """Does something once a run in ``out`` has written two shards, and lets the model hurry."""

    def __init__(self, out: Path, deed: Callable[[], None]) -> None:
        super().__init__()
        self._out, self._deed = out, deed
        self.has_done = False

    def run(self) -> None:
        self._hold = self._out.parent / "hold"
        self._hold.touch()
        while len(list(self._out.glob("shards/rows-*"))) < 2:
            time.sleep(0.01)
        self._deed()
        self.has_done = True
        self._hold.unlink()


# ---------------------------------------------------------------------- the same table


def test_photos_scored_on_two_nodes_are_the_local_table_byte_for_byte(
    cluster, photos, net_file, tmp_path
):
    (photos / "red" / "05.png").write_bytes(b"not a picture")  # listed, in both
    model = f"{net_file}:make"
    hs.score(model, photos, out=tmp_path / "local", **SMALL)
    table = hs.score(
        model, photos, out=tmp_path / "ray", engine="ray", ray_address=cluster.address, **SMALL
    )
    same_files(tmp_path / "local", tmp_path / "ray")
    assert table.metadata["counts"]["errors"] == 1
    assert len(table) == 35
    with pytest.raises(RunExistsError, match="holds a finished scored dataset"):
        hs.score(model, photos, out=tmp_path / "ray", engine="ray", **SMALL)


def test_a_table_in_memory_is_the_local_one_and_a_local_run_that_died_is_resumed(
    cluster, embeddings_file, tmp_path, monkeypatch
):
    options = {"batch_size": 50, "shard_rows": 100}
    local = hs.score(None, embeddings_file, **options)
    made = hs.score(None, embeddings_file, engine="ray", ray_actors=(1, 2), **options)
    assert made.to_arrow().equals(local.to_arrow(), check_metadata=True)
    hs.score(None, embeddings_file, out=tmp_path / "local", **options)
    with monkeypatch.context() as patch:
        # the manifest, and two shards of rows and of errors
        patch.setattr(Path, "replace", dying_after(5))
        with pytest.raises(Died):
            hs.score(None, embeddings_file, out=tmp_path / "ray", **options)
    assert len(list(tmp_path.glob("ray/shards/rows-*"))) == 2
    # by URL: actors and driver write to the folder as they would to a store that they share
    url = f"local://{tmp_path}/ray"
    made = hs.score(None, embeddings_file, out=url, engine="ray", resume=True, **options)
    assert str(made.path) == f"{url}/table.parquet"
    same_files(tmp_path / "local", tmp_path / "ray")


@pytest.mark.slow
def test_shards_of_webdataset_are_scored_as_the_local_engine_does(
    cluster, photos, net_file, tmp_path
):
    (tmp_path / "tar").mkdir()
    files = sorted(photos.rglob("*.png"))
    for shard in range(3):
        with tarfile.open(tmp_path / "tar" / f"train-{shard}.tar", "w") as archive:
            for number in range(shard, len(files), 3):
                label = tmp_path / "label"
                label.write_text(files[number].parent.name)
                archive.add(files[number], f"{number:03d}.png")
                archive.add(label, f"{number:03d}.cls")
    url = (tmp_path / "tar").as_uri() + "/train-{0..2}.tar"
    model = f"{net_file}:make"
    hs.score(model, url, out=tmp_path / "local", **SMALL)
    table = hs.score(model, url, out=tmp_path / "ray", engine="ray", **SMALL)
    same_files(tmp_path / "local", tmp_path / "ray")
    assert len(table) == len(files)


def test_what_a_worker_has_otherwise_stops_the_run_by_name(
    cluster, embeddings_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(hs, "__version__", "0.0")
    with pytest.raises(RunMismatchError, match=r"versions\.hardsight = '0\.0' instead .*same ver"):
        hs.score(None, embeddings_file, out=tmp_path / "run", engine="ray")
    monkeypatch.undo()
    hs.score(None, embeddings_file, out=tmp_path / "run")  # nothing is left that is in the way


def test_a_source_without_files_is_refused_before_anything_is_spread(cluster, net_file, tmp_path):
    (tmp_path / "photos" / "red").mkdir(parents=True)
    with pytest.raises(DataError, match=r"photos"):
        hs.score(f"{net_file}:make", tmp_path / "photos", out=tmp_path / "run", engine="ray")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- faults


@pytest.mark.slow
def test_an_actor_that_is_killed_costs_no_row(cluster, photos, slow_net, tmp_path):
    hs.score(slow_net, photos, out=tmp_path / "local", **SMALL)

    def kill_one() -> None:
        pids = {int(file.name[4:]) for file in tmp_path.glob("pid-*")} - {os.getpid()}
        os.kill(pids.pop(), signal.SIGKILL)

    killer = Meanwhile(tmp_path / "ray", kill_one)
    killer.start()
    hs.score(slow_net, photos, out=tmp_path / "ray", engine="ray", **SMALL)
    killer.join()
    assert killer.has_done
    same_files(tmp_path / "local", tmp_path / "ray")


@pytest.mark.slow
def test_a_node_that_is_lost_costs_no_row(cluster, photos, slow_net, tmp_path):
    hs.score(slow_net, photos, out=tmp_path / "local", **SMALL)
    killer = Meanwhile(tmp_path / "ray", cluster.remove_node)
    killer.start()
    hs.score(slow_net, photos, out=tmp_path / "ray", engine="ray", **SMALL)
    killer.join()
    cluster.add_node()
    assert killer.has_done
    same_files(tmp_path / "local", tmp_path / "ray")


@pytest.mark.slow
def test_a_driver_that_is_killed_goes_on_with_resume(cluster, photos, slow_net, tmp_path):
    hs.score(slow_net, photos, out=tmp_path / "local", device="cpu", **SMALL)
    words = ["--data", photos, "--model", slow_net, "--out", tmp_path / "ray", "--device", "cpu",
             "--batch-size", 4, "--shard-rows", 4, "--ray-address", cluster.address]  # fmt: skip
    command = [sys.executable, "-m", "hardsight", "score", "--engine", "ray", *map(str, words)]
    driver = subprocess.Popen(command, cwd=ROOT)
    killer = Meanwhile(tmp_path / "ray", driver.kill)
    killer.start()
    killer.join()
    assert driver.wait() == -signal.SIGKILL
    assert not (tmp_path / "ray" / "table.parquet").exists()
    before = len(list(tmp_path.glob("ray/shards/rows-*")))
    assert before >= 2
    options = {"device": "cpu", **SMALL}
    with pytest.raises(RunExistsError, match=r"unfinished.*--resume"):
        hs.score(slow_net, photos, out=tmp_path / "ray", engine="ray", **options)
    hs.score(slow_net, photos, out=tmp_path / "ray", engine="ray", resume=True, **options)
    same_files(tmp_path / "local", tmp_path / "ray")


@pytest.mark.slow
def test_an_output_that_cannot_be_written_stops_with_what_is_missing(
    cluster, photos, slow_net, tmp_path
):
    hs.score(slow_net, photos, out=tmp_path / "local", **SMALL)
    shards = tmp_path / "ray" / "shards"

    def put_a_file_in_the_way() -> None:
        shards.rename(tmp_path / "kept")
        shards.touch()

    blocker = Meanwhile(tmp_path / "ray", put_a_file_in_the_way)
    blocker.start()
    with pytest.raises(OutputError, match=r"cannot write to .* shards are missing .*positions \d"):
        hs.score(slow_net, photos, out=tmp_path / "ray", engine="ray", **SMALL)
    blocker.join()
    shards.unlink()
    (tmp_path / "kept").rename(shards)
    hs.score(slow_net, photos, out=tmp_path / "ray", engine="ray", resume=True, **SMALL)
    same_files(tmp_path / "local", tmp_path / "ray")


@pytest.mark.slow
def test_a_strict_run_stops_at_an_example_that_cannot_be_read_with_what_is_missing(
    cluster, photos, net_file, tmp_path
):
    model, bad = f"{net_file}:make", photos / "red" / "11.png"
    bad.write_bytes(b"not a picture")
    options = {"out": tmp_path / "ray", "engine": "ray", "strict": True, **SMALL}
    with pytest.raises(BadExampleError, match=r"11\.png cannot be read.*positions.*32-35"):
        hs.score(model, photos, **options)


# ---------------------------------------------------------------------- bad input


class Closed(nn.Module):
    def forward(self, images):
        return images.flatten(1)[:, :10]

    def __reduce__(self):
        raise TypeError("this one stays at home")


@pytest.mark.slow
def test_a_model_that_cannot_be_pickled_is_refused_with_the_way_to_name_it(cluster):
    with pytest.raises(OptionError, match=r"model \(Closed\) cannot be pickled.*module:factory"):
        hs.score(Closed(), "builtin:digits", split="test", engine="ray", ray_address="auto")
