"""The folder of a run: what it refuses, what it remembers, and what a kill leaves."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from hardsight.errors import (
    MissingDataError,
    OptionError,
    OutputError,
    RunExistsError,
    RunMismatchError,
    TableError,
)
from hardsight.run_folder import EVALUATE, EXPERIMENT, SCORE, STUDY, TRAIN, Manifest, RunFolder
from hardsight.table import (
    THUMBNAIL_SCHEMA,
    THUMBNAILS,
    error_rows,
    read_table,
    with_metadata,
)
from tests._deaths import Died

MADE_OF = {"fingerprints": {"data": "abc"}, "versions": {"hardsight": "1"}}
METADATA = {"scores": {"avh": {"higher_is_harder": True}}}


def rows(number):
    columns = {
        "index": [2 * number, 2 * number + 1],
        "id": ["a", "b"],
        "label": [0, 1],
        "prediction": [0, 0],
        "finite": [True, True],
        "avh": [0.1 * number, 0.5],
    }
    return with_metadata(pa.table(columns), METADATA)


def write(folder, *, shards=(0, 1), finish=True, kind=SCORE, settings=None, **how):
    """A run of scoring, or its beginning."""
    with RunFolder(folder).claimed(kind, **how) as run:
        run.describe({"seed": 3} if settings is None else settings, **MADE_OF)
        if run.is_done:
            return run
        run.begin()
        for number in shards:
            run.write_shard(number, rows(number), error_rows([(10 + number, "bad", "truncated")]))
        if finish:
            with run.new_table(run.shards(), rows(0).schema):
                pass
            run.finish()
        return run


def content(folder):
    """Every file with its bytes."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


# ------------------------------------------------------------------------------ its life


def test_a_run_grows_shard_by_shard_and_ends_as_one_table(tmp_path):
    folder = tmp_path / "deep" / "run"
    run = write(folder, shards=(1, 0), finish=False)
    assert (run.started, run.finished, run.done()) == (True, False, {0, 1})
    assert [part["index"].to_pylist() for part in run.shards()] == [[0, 1], [2, 3]]
    with pytest.raises(MissingDataError, match=r"unfinished; continue it with .*--resume"):
        read_table(folder)
    run = write(folder, shards=(), resume=True)
    assert (run.started, run.finished) == (False, True)
    table = read_table(folder)
    assert table.column("index").tolist() == [0, 1, 2, 3]
    assert table.metadata == METADATA
    assert run.errors().to_dict("list") == {
        "index": [10, 11], "id": ["bad", "bad"], "reason": ["truncated", "truncated"]
    }  # fmt: skip
    assert names(folder) == ["errors.parquet", "run.json", "table.parquet"]


def test_the_manifest_says_what_the_run_is_made_of(tmp_path):
    write(tmp_path, settings={"mean": (0.5,), "data": Path("photos")})
    stored = json.loads((tmp_path / "run.json").read_text())
    assert stored == {
        "format": 1, "kind": "score", "state": "finished",
        "settings": {"mean": [0.5], "data": "photos"}, "fingerprints": {"data": "abc"},
        "versions": {"hardsight": "1"}, "files": ["errors.parquet", "table.parquet"],
    }  # fmt: skip


def test_a_folder_of_nothing_has_no_errors_and_no_thumbnails(tmp_path):
    run = RunFolder(tmp_path)
    assert (run.started, run.finished, run.done(), run.kind) == (False, False, set(), None)
    assert len(run.errors()) == 0
    assert run.thumbnails() == {}


def test_thumbnails_come_back_by_position(tmp_path):
    run = RunFolder(tmp_path)
    run.write_side_file(THUMBNAILS, pa.table([[7, 2], [b"seven", b"two"]], schema=THUMBNAIL_SCHEMA))
    assert run.thumbnails() == {7: b"seven", 2: b"two"}


def test_a_run_that_ends_before_it_begins_leaves_no_folder(tmp_path):
    with pytest.raises(KeyError), RunFolder(tmp_path / "a" / "b").claimed(SCORE):
        raise KeyError
    assert names(tmp_path) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(KeyError), RunFolder(tmp_path / "mine").claimed(SCORE):
        raise KeyError
    assert names(tmp_path) == ["mine"]  # it was there before


def test_an_error_of_the_caller_is_not_taken_for_a_full_disk(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone"), RunFolder(tmp_path).claimed(SCORE):
        raise FileNotFoundError("gone")
    with RunFolder(tmp_path).claimed(SCORE) as run:
        run.describe({}, **MADE_OF)
        run.begin()
        with pytest.raises(PermissionError, match="mine"), run.new_table([rows(0)], rows(0).schema):
            raise PermissionError("mine")
    assert not (tmp_path / "table.parquet").exists()


# ------------------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize(
    ("finish", "message"),
    [
        (True, r"holds a finished scored dataset; .*--out, .*--resume.*--overwrite"),
        (False, r"unfinished scored dataset \(2 shards\); continue it with --resume"),
    ],
)
def test_a_run_is_never_overwritten_unasked(tmp_path, finish, message):
    write(tmp_path, finish=finish)
    before = content(tmp_path)
    with pytest.raises(RunExistsError, match=message):
        write(tmp_path)
    assert content(tmp_path) == before


def test_a_run_that_got_nowhere_is_in_nobodys_way(tmp_path):
    write(tmp_path, shards=(), finish=False)
    write(tmp_path, settings={"seed": 4})
    assert RunFolder(tmp_path).finished


def test_overwriting_replaces_the_run_and_leaves_other_files(tmp_path):
    write(tmp_path, shards=(0, 1))
    (tmp_path / "report.html").write_text("the page of the old run")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "study-human").mkdir()
    write(tmp_path, shards=(0,), settings={"seed": 4}, overwrite=True)
    assert len(read_table(tmp_path)) == 2
    assert RunFolder(tmp_path).manifest().settings == {"seed": 4}
    assert names(tmp_path) == [
        "errors.parquet", "notes.txt", "run.json", "study-human", "table.parquet"
    ]  # fmt: skip


def test_overwriting_an_unfinished_run_takes_over_none_of_its_shards(tmp_path):
    write(tmp_path, shards=(0, 1, 2), finish=False)
    with RunFolder(tmp_path).claimed(SCORE, overwrite=True) as run:
        run.describe({"seed": 3}, **MADE_OF)
        assert not run.goes_on
        run.begin()
        assert run.done() == set()


def test_a_run_that_fails_before_it_begins_leaves_the_one_it_was_to_replace(tmp_path):
    write(tmp_path)
    before = content(tmp_path)
    with RunFolder(tmp_path).claimed(SCORE, overwrite=True) as run:
        run.describe({"seed": 9}, **MADE_OF)
    assert content(tmp_path) == before


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_a_run_of_another_kind_is_left_alone(tmp_path, how):
    write(tmp_path)
    before = content(tmp_path)
    with pytest.raises(
        RunExistsError, match=r"holds a scored dataset, not an evaluation; choose another --out"
    ):
        write(tmp_path, kind=EVALUATE, **how)
    assert content(tmp_path) == before


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
@pytest.mark.parametrize(
    ("kind", "file"),
    [(TRAIN, "me.jpg"), (SCORE, "table.parquet"), (SCORE, "run.json"), (STUDY, "study.md"),
     (EVALUATE, "card.json")],
)  # fmt: skip
def test_files_of_others_are_left_alone(tmp_path, kind, file, how):
    (tmp_path / file).write_text('{"mine": true}')
    with pytest.raises(RunExistsError, match=rf"holds files that are not .*\({file}\); choose"):
        write(tmp_path, kind=kind, **how)
    assert content(tmp_path) == {file: b'{"mine": true}'}


def test_a_file_of_others_is_left_alone_that_only_this_run_would_replace(tmp_path):
    (tmp_path / "figure.svg").write_text("mine")
    with RunFolder(tmp_path).claimed(EXPERIMENT) as run:
        run.describe({}, **MADE_OF, files=["figure.svg"])
        with pytest.raises(RunExistsError, match=r"files that are not .*\(figure\.svg\)"):
            run.begin()
    assert content(tmp_path) == {"figure.svg": b"mine"}


def test_other_files_beside_a_table_are_nobodys_business(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "dynamics").mkdir()  # of a tracker
    write(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"file is not a folder; choose another --out"):
        write(tmp_path / "file")
    with pytest.raises(
        OutputError, match=r"cannot write to .*run: Not a directory; fix that or choose another"
    ):
        write(tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "in the way"


def test_going_on_and_replacing_exclude_each_other(tmp_path):
    with pytest.raises(OptionError, match="leave one of them out"):
        write(tmp_path, resume=True, overwrite=True)


def test_a_manifest_cannot_name_files_outside_of_its_folder(tmp_path):
    (tmp_path / "precious").write_text("mine")
    run = tmp_path / "run"
    write(run)
    (run / "link").symlink_to(tmp_path / "precious")
    stored = json.loads((run / "run.json").read_text())
    stored["files"] += ["../precious", str(tmp_path / "precious"), "..", ".", "link"]
    (run / "run.json").write_text(json.dumps(stored))
    write(run, overwrite=True)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (run / "link").is_symlink()


# ------------------------------------------------------------------------------ going on


@pytest.mark.parametrize("finish", [True, False])
def test_going_on_with_other_settings_is_refused_and_each_is_named(tmp_path, finish):
    old = {"mean": (0.5,), "optimizer": {"lr": 0.1, "name": "sgd"}, "size": None, "workers": 2}
    write(tmp_path, finish=finish, settings=old)
    before = content(tmp_path)
    new = {"mean": [0.4], "optimizer": {"lr": 0.2, "name": "sgd"}, "size": (8, 8), "workers": 4}
    with RunFolder(tmp_path).claimed(SCORE, resume=True) as run:
        with pytest.raises(RunMismatchError) as said:
            run.describe(
                new, fingerprints={"data": "xyz"}, versions={"hardsight": "2"},
                may_change=("workers",), may_change_when_finished=("versions",),
            )  # fmt: skip
        run.describe({**old, "workers": 7}, **MADE_OF, may_change=("workers",))
    for difference in ("mean = [0.5] instead of [0.4]", "optimizer.lr = 0.1 instead of 0.2",
                       "size = None instead of [8, 8]", "other data"):  # fmt: skip
        assert difference in str(said.value)
    assert "workers" not in str(said.value)
    assert "sgd" not in str(said.value)
    assert ("versions.hardsight = '1' instead of '2'" in str(said.value)) == (not finish)
    assert content(tmp_path) == before


def test_a_setting_that_an_older_version_did_not_record_has_its_default(tmp_path):
    write(tmp_path, settings={"seed": 3})
    with RunFolder(tmp_path).claimed(SCORE, resume=True) as run:
        new = {"seed": 3, "crop": "centre"}
        run.describe(new, **MADE_OF, defaults={"crop": "centre"})
        with pytest.raises(RunMismatchError, match="crop = None instead of 'centre'"):
            run.describe(new, **MADE_OF)


def test_an_older_run_without_a_manifest_is_read_and_replaced_but_not_continued(tmp_path):
    write(tmp_path)
    (tmp_path / "run.json").unlink()
    assert RunFolder(tmp_path).finished
    assert len(read_table(tmp_path)) == 4
    with pytest.raises(RunExistsError, match="holds a finished scored dataset"):
        write(tmp_path)
    with pytest.raises(RunMismatchError, match=r"is of an older version.*--overwrite"):
        write(tmp_path, resume=True)
    write(tmp_path, shards=(0,), overwrite=True)
    assert len(read_table(tmp_path)) == 2


def test_a_manifest_of_a_later_version_is_not_guessed_at(tmp_path):
    write(tmp_path)
    stored = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**stored, "format": 99}))
    with pytest.raises(TableError, match="written by another version of hardsight"):
        write(tmp_path, overwrite=True)


# ------------------------------------------------------------------------------ kills


def test_a_run_killed_at_any_file_while_it_replaces_another_never_mixes_them(tmp_path, monkeypatch):
    """It dies once before each rename and each removal; what is left continues or is refused."""
    write(tmp_path / "fresh", shards=(0,), settings={"seed": 4})
    expected, moments = content(tmp_path / "fresh"), 0
    for moments in range(1000):
        out = tmp_path / f"run-{moments}"
        write(out, finish=False)
        try:
            with monkeypatch.context() as patch:
                _die_after(moments, patch)
                write(out, shards=(0,), settings={"seed": 4}, overwrite=True)
        except Died:
            pass
        else:
            break
        manifest = RunFolder(out).manifest()
        if manifest.settings == {"seed": 3}:
            assert RunFolder(out).done() == {0, 1}  # nothing has happened yet
            continue
        if manifest.state == "discarded":
            with pytest.raises(MissingDataError):
                read_table(out)
        write(out, shards=(0,), settings={"seed": 4}, resume=True)
        assert content(out) == expected
    assert moments > 8


def _die_after(survived, patch):
    calls = []
    for owner, name in ((Path, "replace"), (Path, "unlink"), (shutil, "rmtree")):
        original = getattr(owner, name)

        def dying(*args, original=original, **kwargs):
            # a lock is freed by the system, and its file stays
            if isinstance(args[0], Path) and args[0].name == ".lock":
                return None
            if len(calls) >= survived:
                raise Died
            calls.append(original)
            return original(*args, **kwargs)

        patch.setattr(owner, name, dying)


def test_beginning_sweeps_what_a_killed_writer_left(tmp_path):
    write(tmp_path, shards=(0,), finish=False)
    (tmp_path / "shards" / ".tmp-1234-rows-00000001.parquet").write_bytes(b"half")
    (tmp_path / ".tmp-1234-table.parquet").write_bytes(b"half")
    assert RunFolder(tmp_path).done() == {0}  # a partial file is not a shard
    write(tmp_path, shards=(), finish=False, resume=True)
    assert sorted(content(tmp_path)) == [
        "run.json", "shards/errors-00000000.parquet", "shards/rows-00000000.parquet"
    ]  # fmt: skip


def test_manifests_differ_in_what_they_are_made_of_alone(tmp_path):
    one = Manifest("score", settings={"seed": 3})
    one.write(tmp_path)
    assert Manifest.read(tmp_path) == one


def test_a_folder_that_holds_runs_is_not_one_and_names_them(tmp_path):
    write(tmp_path / "scores")
    (tmp_path / "photos").mkdir()
    write(tmp_path / "newer")
    manifest = tmp_path / "newer" / "run.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    for missing in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(MissingDataError, match=rf"; name one of {tmp_path / 'scores'}$"):
            read_table(missing)
