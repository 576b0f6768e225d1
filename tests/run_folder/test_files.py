"""Files that are there as a whole or not at all."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors import SafetensorError

from hardsight.errors import MissingDataError, OutputError
from hardsight.run_folder import (
    AGAIN,
    put_in_place,
    replacing,
    write_bytes,
    write_json,
    write_parquet,
    write_text,
    writing,
)

ROOT = Path(__file__).parents[2]


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_an_older_file_stays_until_the_new_one_is_complete(tmp_path):
    file = tmp_path / "page.html"
    write_text(file, "old")
    with replacing(file) as partial:
        partial.write_text("new")
        assert file.read_text() == "old"
        assert partial.parent == tmp_path
    assert file.read_text() == "new"
    assert names(tmp_path) == ["page.html"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, ValueError])
def test_an_error_leaves_the_older_file_and_nothing_else(tmp_path, error):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(error), replacing(tmp_path / "a.txt") as partial:
        _fail(partial, error)
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def _fail(partial, error):
    partial.write_text("half")
    raise error


def test_two_writers_of_one_file_do_not_share_a_temporary_name(tmp_path):
    with replacing(tmp_path / "a.txt") as one, replacing(tmp_path / "a.txt") as other:
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "a.txt").read_text() in ("one", "other")
    assert names(tmp_path) == ["a.txt"]


def test_content_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    calls, sync, replace = [], os.fsync, Path.replace

    def synced(descriptor):
        kind = "folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"
        calls.append(kind)
        return sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", lambda *args: calls.append("name") or replace(*args))
    write_bytes(tmp_path / "a.bin", b"content")
    assert calls == ["file", "name", "folder"]


def test_a_folder_that_cannot_be_synced_is_no_error_but_a_file_is(tmp_path, monkeypatch):
    sync = os.fsync

    def refuse(folders):
        def synced(descriptor):
            if os.path.isdir(f"/proc/self/fd/{descriptor}") == folders:
                raise OSError(errno.EIO, "Input/output error")
            return sync(descriptor)

        monkeypatch.setattr(os, "fsync", synced)

    refuse(folders=True)
    write_bytes(tmp_path / "a.bin", b"content")
    refuse(folders=False)
    with pytest.raises(OSError, match="Input/output"):
        write_bytes(tmp_path / "b.bin", b"content")
    assert names(tmp_path) == ["a.bin"]


def test_a_file_has_the_rights_that_any_new_file_has(tmp_path):
    (tmp_path / "plain").touch()
    write_bytes(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_file_that_a_library_made_private_has_them_too(tmp_path, umask):
    """Weights that safetensors wrote could be read by nobody else, so no colleague could score."""
    before = os.umask(umask)
    try:
        (tmp_path / "usual").touch()
        with replacing(tmp_path / "private") as partial:
            partial.touch(mode=0o600)
    finally:
        os.umask(before)
    modes = {(tmp_path / name).stat().st_mode for name in ("usual", "private")}
    assert len(modes) == 1
    assert {file.name for file in tmp_path.iterdir()} == {"usual", "private"}


def test_a_folder_gets_its_name_as_a_whole(tmp_path):
    (tmp_path / "round.part").mkdir()
    write_json(tmp_path / "round.part" / "round.json", {"round": 1})
    put_in_place(tmp_path / "round.part", tmp_path / "round")
    assert json.loads((tmp_path / "round" / "round.json").read_text()) == {"round": 1}
    assert names(tmp_path) == ["round"]


@pytest.mark.parametrize("lengths", [[], [0], [3], [2, 0, 5], [1] * 7])
def test_parts_of_any_length_give_the_bytes_of_the_whole(tmp_path, lengths):
    schema = pa.schema([("x", pa.int64())], metadata={b"about": b"it"})
    parts = [pa.table({"x": pa.array(range(length), pa.int64())}) for length in lengths]
    whole = pa.concat_tables([schema.empty_table().replace_schema_metadata(None), *parts])
    write_parquet(tmp_path / "parts.parquet", iter(parts), schema)
    write_parquet(tmp_path / "whole.parquet", [whole], schema)
    assert (tmp_path / "parts.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    read = pq.read_table(tmp_path / "parts.parquet")
    assert read["x"].to_pylist() == whole["x"].to_pylist()
    assert read.schema.metadata == {b"about": b"it"}


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device"),
    ],
)
def test_a_full_disk_is_named_with_the_next_step(tmp_path, error):
    with (
        pytest.raises(OutputError, match=r"cannot write to .*: .*No space left.*; make room"),
        writing(tmp_path, step="make room"),
    ):
        raise error


def test_an_error_of_ours_is_not_taken_for_a_full_disk(tmp_path):
    with (
        pytest.raises(MissingDataError, match="the data went away"),
        writing(tmp_path, step="make room"),
    ):
        raise MissingDataError("the data went away")  # an OSError, too


@pytest.mark.skipif(os.name != "posix", reason="limits of a process are POSIX")
def test_a_write_cut_off_by_a_size_limit_leaves_no_partial_file(tmp_path):
    script = """
import resource, sys
from pathlib import Path
import numpy as np, pyarrow as pa
from hardsight.errors import OutputError
from hardsight.run_folder import write_parquet, writing

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
noise = pa.table({"noise": np.random.default_rng(0).random(1_000_000)})
try:
    with writing(Path(sys.argv[1]), step="make room"):
        write_parquet(Path(sys.argv[1]) / "noise.parquet", [noise], noise.schema)
except OutputError as err:
    print(err)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert "File too large; make room" in done.stdout
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("err", "step"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "free some space and run again"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "free some space and run again"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "free some space"),
        (PermissionError(errno.EACCES, "Permission denied"), "denied; allow writing there and run"),
        (OSError(errno.EROFS, "Read-only file system"), "allow writing there and run again"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "directory; fix that and run"),
        (SafetensorError("I/O error"), "make sure that there is space and writing is allowed"),
    ],
)
def test_space_is_asked_for_only_if_it_is_missing(tmp_path, err, step):
    with pytest.raises(OutputError, match=step) as told, writing(tmp_path, step=AGAIN):
        raise err
    assert ("free some space" in str(told.value)) == step.startswith("free")


def test_a_table_is_read_in_a_locale_that_is_not_utf8(tmp_path):
    file = tmp_path / "ü 😀.parquet"
    write_parquet(file, [pa.table({"a": [1, 2]})], pa.schema([("a", pa.int64())]))
    code = (
        "import sys; from pathlib import Path; from hardsight.run_folder import open_parquet\n"
        "assert sys.getfilesystemencoding() != 'utf-8', sys.getfilesystemencoding()\n"
        "with open_parquet(Path(sys.argv[1])) as opened:\n"
        "    print(opened.read().column('a').to_pylist())"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, file], env={**os.environ, **plain}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")
