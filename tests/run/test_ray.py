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
import torch
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

pytestmark = pytest.mark.long

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


def arrived(place: str, driver: int) -> nn.Module:
    """Made where it is unpickled; the first process that does so, but for the driver, is killed."""
    if os.getpid() != driver and not Path(place).exists():
        Path(place).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Fragile(place, driver)


class Fragile(nn.Module):
    """A model that costs the first actor its life while it starts."""

    def __init__(self, place: str, driver: int) -> None:
        super().__init__()
        self.place, self.driver = place, driver
        self.head = nn.Linear(2, 3)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
            self.head.bias.zero_()

    def forward(self, images):
        return self.head(images.flatten(1)[:, :2])

    def __reduce__(self):
        return arrived, (self.place, self.driver)


@pytest.mark.slow
def test_an_actor_that_is_killed_while_it_starts_is_replaced(cluster, photos, tmp_path):
    model = Fragile(str(tmp_path / "died"), os.getpid())
    options = {
        "size": (8, 8),
        "mean": (0.5,) * 3,
        "std": (0.25,) * 3,
        "channels": 3,
        "device": "cpu",
        **SMALL,
    }
    hs.score(model, photos, out=tmp_path / "local", **options)
    hs.score(model, photos, out=tmp_path / "ray", engine="ray", **options)
    assert (tmp_path / "died").exists()
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


# a cluster of its own, whose head dies as soon as there is a line on standard input
HEAD = """
import os, psutil, sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={
    "num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False})
print(cluster.address, flush=True)
sys.stdin.readline()
for process in psutil.Process().children(recursive=True):
    process.kill()
"""


@pytest.mark.slow
def test_a_cluster_that_is_gone_is_said_to_be_with_what_is_missing(
    cluster, photos, slow_net, tmp_path
):
    hs.score(slow_net, photos, out=tmp_path / "local", device="cpu", **SMALL)
    head = subprocess.Popen([sys.executable, "-c", HEAD], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)  # fmt: skip
    address = next(line for line in head.stdout if line.startswith(tuple("0123456789"))).strip()
    words = ["--data", photos, "--model", slow_net, "--out", tmp_path / "ray", "--device", "cpu",
             "--batch-size", 4, "--shard-rows", 4, "--ray-address", address]  # fmt: skip
    command = [sys.executable, "-m", "hardsight", "score", "--engine", "ray", *map(str, words)]
    driver = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    killer = Meanwhile(tmp_path / "ray", lambda: head.communicate("now\n"))
    killer.start()
    said = driver.communicate()[1]  # Ray ends it a minute after its head
    killer.join()
    assert driver.returncode != 0
    assert "not answer any more" in said
    assert f"shards are missing in {tmp_path / 'ray'} (positions" in said
    hs.score(slow_net, photos, out=tmp_path / "ray", resume=True, device="cpu", **SMALL)
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
