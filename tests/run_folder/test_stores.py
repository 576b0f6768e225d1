"""A run in an object store: the files of a run on a disk, one writer, and what cannot be there."""

import json
import os
import pickle
import socket
import subprocess
import sys
from functools import partialmethod

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner

import hardsight as hs
from hardsight.cli import main
from hardsight.errors import (
    HardsightWarning,
    MissingDataError,
    MissingExtraError,
    OptionError,
    OutputError,
    RunExistsError,
    RunLockedError,
    TableError,
)
from hardsight.run_folder import TABLE, RunFolder, StorePath, held, place_of, write_bytes

RUN = "memory://bucket/run"
SHARDS = {"batch_size": 50, "shard_rows": 100, "device": "cpu"}


@pytest.fixture
def store():
    """An object store in memory."""
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


@pytest.fixture
def embeddings(tmp_path):
    """300 embeddings of width 8 in 4 classes, with their head, in one file."""
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(4, 8)).astype(np.float32)
    labels = draw.integers(0, 4, size=300)
    features = weights[labels] + draw.normal(size=(300, 8)).astype(np.float32)
    file = tmp_path / "embeddings.npz"
    np.savez(file, embeddings=features, labels=labels, class_weights=weights)
    return file


def names(store):
    return sorted(name.removeprefix("/bucket/run/") for name in store.find("/bucket"))


class DiedError(Exception):
    pass


def die_after(renamed, patch):
    """Let a run die when it gives the next object its name."""
    left, replace = [renamed], StorePath.replace

    def dying(self, target):
        if not left[0]:
            raise DiedError
        left[0] -= 1
        return replace(self, target)

    patch.setattr(StorePath, "replace", dying)


# ------------------------------------------------------------------------------ the same run


def test_a_run_in_a_store_has_the_files_of_one_on_a_disk_byte_for_byte(store, embeddings, tmp_path):
    hs.score(None, embeddings, out=tmp_path / "run", **SHARDS)
    table = hs.score(None, embeddings, out=RUN, **SHARDS)
    assert str(table.path) == f"{RUN}/{TABLE}"
    assert names(store) == ["errors.parquet", "run.json", TABLE]  # no shard, no lock, nothing half
    for name in ("errors.parquet", TABLE):
        assert store.cat_file(f"/bucket/run/{name}") == (tmp_path / "run" / name).read_bytes()
    again = hs.read_table(RUN)
    assert again.hardest(5).equals(hs.read_table(tmp_path / "run").hardest(5))
    assert hs.select(again, keep=0.5).tolist() == hs.select(table, keep=0.5).tolist()
    with pytest.raises(RunExistsError, match=f"{RUN} holds a finished scored dataset"):
        hs.score(None, embeddings, out=RUN, **SHARDS)
    assert len(hs.score(None, embeddings, out=RUN, resume=True, **SHARDS)) == 300
    assert len(hs.score(None, embeddings, out=RUN, overwrite=True, **SHARDS)) == 300


@pytest.mark.parametrize("renamed", [0, 1, 4, 7, 8])
def test_a_run_that_died_goes_on_to_the_same_table(store, embeddings, tmp_path, renamed):
    # the manifest, errors and rows of three shards, the errors of all; then the table
    hs.score(None, embeddings, out=tmp_path / "run", **SHARDS)
    with pytest.MonkeyPatch.context() as patch:
        die_after(renamed, patch)
        with pytest.raises(DiedError):
            hs.score(None, embeddings, out=RUN, **SHARDS)
    assert f"/bucket/run/{TABLE}" not in store.find("/bucket")
    if renamed > 2:
        with pytest.raises(MissingDataError, match="is unfinished; continue it with"):
            hs.read_table(RUN)
        with pytest.raises(RunExistsError, match="holds an unfinished scored dataset"):
            hs.score(None, embeddings, out=RUN, **SHARDS)
    kept = {name: store.created(name) for name in store.glob("/bucket/run/shards/rows-*")}
    moved = StorePath.replace
    with pytest.MonkeyPatch.context() as patch:
        written = []
        patch.setattr(
            StorePath, "replace", lambda self, target: (written.append(target.name),
                                                        moved(self, target))[1]
        )  # fmt: skip
        hs.score(None, embeddings, out=RUN, resume=True, **SHARDS)
    assert not {name.rpartition("/")[2] for name in kept} & set(written)  # none is made twice
    assert store.cat_file(f"/bucket/run/{TABLE}") == (tmp_path / "run" / TABLE).read_bytes()
    assert names(store) == ["errors.parquet", "run.json", TABLE]


def test_the_report_of_a_run_in_a_store_lies_in_it_or_on_a_disk(store, embeddings, tmp_path):
    hs.score(None, embeddings, out=RUN, **SHARDS)
    said = CliRunner().invoke(main, ["report", RUN])
    assert said.exit_code == 0, said.output
    assert f"{RUN}/report.html" in said.output
    assert b"<html" in store.cat_file("/bucket/run/report.html")
    page = hs.write_report(RUN, out=tmp_path / "page.html")
    assert "<html" in page.read_text()


def test_a_file_url_is_a_folder_on_the_disk(embeddings, tmp_path):
    table = hs.score(None, embeddings, out=f"file://{tmp_path}/a%20run", **SHARDS)
    assert table.path == tmp_path / "a run" / TABLE
    assert len(hs.read_table(f"file://{tmp_path}/a%20run")) == 300


# ------------------------------------------------------------------------------ one writer


def lock(store, **owner):
    store.pipe_file("/bucket/run/.lock", json.dumps(owner).encode())


def test_a_second_writer_is_told_who_writes_and_what_is_left_after_a_kill(store, embeddings):
    lock(store, pid=7, host="node-3", since="2026-01-02 03:04", command="hardsight score")
    with pytest.raises(RunLockedError) as said:
        hs.score(None, embeddings, out=RUN, **SHARDS)
    assert "by process 7 on node-3, since 2026-01-02 03:04 (hardsight score)" in str(said.value)
    assert f"If it was killed, its lock is left behind: remove {RUN}/.lock" in str(said.value)
    assert names(store) == [".lock"]


@pytest.mark.skipif(not os.path.exists("/proc/self/ns/pid"), reason="Linux names its processes so")
def test_a_lock_of_this_machine_whose_owner_is_gone_holds_nobody_up(store):
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    here = {"host": socket.gethostname(), "processes": os.readlink("/proc/self/ns/pid")}
    lock(store, pid=ended.pid, **here)
    with held(place_of(f"{RUN}/.lock")):
        assert json.loads(store.cat_file("/bucket/run/.lock"))["pid"] == os.getpid()
        with pytest.raises(RunLockedError), held(place_of(f"{RUN}/.lock")):
            pytest.fail("two writers hold the lock")
    lock(store, pid=ended.pid, **here | {"processes": "pid:[1]"})  # of a container beside this one
    with pytest.raises(RunLockedError), held(place_of(f"{RUN}/.lock")):
        pytest.fail("nobody can know that it is gone")


def refuse(system, plain, path, value, mode="overwrite"):
    if mode == "create":
        raise ValueError("no such condition")
    plain(system, path, value)


def forget(system, plain, path, value, **_):
    plain(system, path, value)


@pytest.mark.parametrize("pipe", [refuse, forget])
def test_a_store_that_cannot_lock_says_so(store, monkeypatch, pipe):
    plain = type(store).pipe_file
    monkeypatch.setattr(type(store), "pipe_file", partialmethod(pipe, plain))
    with (
        pytest.warns(HardsightWarning, match="cannot be locked"),
        held(place_of(f"{RUN}/.lock")),
        pytest.raises(RunLockedError),
        held(place_of(f"{RUN}/.lock")),
    ):
        pytest.fail("two writers hold the lock")


# ------------------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize("option", [{"keep_embeddings": True}, {"out_of_sample": 3}])
def test_arrays_that_are_read_in_place_need_a_disk(store, embeddings, option):
    with pytest.raises(OptionError, match=rf"{next(iter(option))} keeps arrays .* got {RUN}"):
        hs.score(None, embeddings, out=RUN, **option, **SHARDS)
    assert names(store) == []


def test_a_run_does_not_become_a_part_of_data_in_the_same_store(store, embeddings):
    store.put_file(str(embeddings), "/bucket/run/e.npz")
    with pytest.raises(OptionError, match="is read as data"):
        hs.score(None, "memory://bucket/run", out="memory://bucket/run/scores", **SHARDS)


def test_decisions_need_a_disk(store, embeddings):
    hs.score(None, embeddings, out=RUN, **SHARDS)
    with pytest.raises(OptionError, match="copy the folder of the run to a disk first"):
        hs.review.decisions(RUN)


def test_other_verbs_refuse_a_store_and_touch_nothing(store, tmp_path):
    with pytest.raises(OptionError, match=r"folder of an evaluation \(--out\) on a disk, got memo"):
        hs.evaluation_card("small_cnn", "builtin:digits", out=RUN)
    assert names(store) == []


def test_a_store_whose_package_is_missing_is_named(embeddings, monkeypatch):
    def refuse(url, **_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(MissingExtraError, match=r"s3://bucket/run.* cannot be .*Install s3fs"):
        hs.score(None, embeddings, out="s3://bucket/run", **SHARDS)
    with pytest.raises(MissingExtraError, match="Install s3fs"):
        hs.read_table("s3://bucket/run")


def test_errors_of_a_store_are_told_with_what_to_do(store, embeddings, monkeypatch):
    class CredentialsError(Exception):  # such as botocore's, which is not an OSError
        pass

    def refuse(self, *_, **__):
        raise CredentialsError("Unable to locate\ncredentials")

    monkeypatch.setattr(type(store), "pipe_file", refuse)
    said = r"cannot write to memory://bucket/run: CredentialsError: Unable to locate credentials"
    with pytest.raises(OutputError, match=said):
        hs.score(None, embeddings, out=RUN, **SHARDS)
    monkeypatch.setattr(type(store), "isdir", refuse)
    with pytest.raises(TableError, match=r"cannot read memory://bucket/run: Cred.*your access"):
        hs.read_table(RUN)


def test_a_url_that_names_no_store_or_no_folder_is_refused_at_once(store, embeddings):
    with pytest.raises(OutputError, match=r"cannot write to s4://b/run: .*not known: s4"):
        hs.score(None, embeddings, out="s4://b/run", **SHARDS)
    for url in ("memory://", "memory:/"):
        with pytest.raises(OptionError, match=r"URL of a folder .*such as s3://bucket/run, got me"):
            hs.score(None, embeddings, out=url, **SHARDS)


# ------------------------------------------------------------------------------ names


def test_names_in_a_store_behave_like_paths(store):
    run = place_of("memory://a/b/run")
    assert pickle.loads(pickle.dumps(run)) == run
    assert place_of("memory:/a/b/run") == run  # what a path makes of the URL
    assert str(place_of("hdfs:///runs/x") / "y") == "hdfs:///runs/x/y"
    assert RunFolder(run / "x").folder == RunFolder("memory://a/b/run/x").folder
    write_bytes(run / "one", b"1")
    write_bytes(run / "deep" / "two", b"2")
    assert [str(path) for path in run.glob("*/t*")] == ["memory://a/b/run/deep/two"]
    assert [path.name for path in run.glob("o*")] == ["one"]
    assert (run / "one").stat().st_size == 1
    assert not list((run / "nowhere").iterdir())
