"""The table: ranking, reading, and writing that is complete or not there at all."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardsight.errors import MissingDataError, OptionError, OutputError, TableError
from hardsight.table import (
    ERRORS,
    SHARDS,
    TABLE,
    THUMBNAIL_SCHEMA,
    THUMBNAILS,
    RunFolder,
    ScoreTable,
    error_rows,
    read_table,
    with_metadata,
)

ROOT = Path(__file__).parents[1]
NAN = float("nan")
METADATA = {
    "scores": {
        "avh": {"higher_is_harder": True},
        "logit_margin": {"higher_is_harder": False},
        "not_here": {"higher_is_harder": True},
    },
    "classes": ["cat", "dog"],
}


def rows(avh=(0.1, 0.5, 0.3), margin=None, **columns):
    n = len(avh)
    margin = [1.0 - value for value in avh] if margin is None else margin
    return with_metadata(
        pa.table(
            {
                "index": list(range(n)),
                "id": [f"image-{i}" for i in range(n)],
                "label": [i % 2 for i in range(n)],
                "prediction": [0] * n,
                "finite": [True] * n,
                "avh": list(avh),
                "logit_margin": list(margin),
                "loose": [1.0] * n,
            }
            | columns
        ),
        METADATA,
    )


def order(frame):
    return frame["index"].tolist()


# -------------------------------------------------------------------------------- ranking


def test_hardest_and_easiest_follow_the_direction_of_each_score():
    table = ScoreTable(rows(avh=[0.1, 0.5, 0.3], margin=[-2.0, 4.0, 0.0]))
    assert order(table.hardest(3)) == [1, 2, 0]
    assert order(table.easiest(3)) == [0, 2, 1]
    assert order(table.hardest(2, by="logit_margin")) == [0, 2]  # smaller is harder
    assert order(table.easiest(2, by="logit_margin")) == [1, 2]


def test_ties_keep_the_order_of_the_table_in_both_directions():
    table = ScoreTable(rows(avh=[0.2, 0.7, 0.2, 0.7, 0.2]))
    assert order(table.hardest(5)) == [1, 3, 0, 2, 4]
    assert order(table.easiest(5)) == [0, 2, 4, 1, 3]


def test_rows_without_a_score_are_never_ranked():
    table = ScoreTable(rows(avh=[NAN, 0.5, NAN, 0.9], margin=[NAN, 1.0, 2.0, NAN]))
    assert order(table.hardest(4)) == [3, 1]
    assert order(table.easiest(4)) == [1, 3]
    assert order(table.hardest(4, by="logit_margin")) == [1, 2]
    assert order(ScoreTable(rows(avh=[NAN, NAN])).hardest()) == []


def test_infinite_scores_are_the_ends_of_the_order():
    table = ScoreTable(rows(avh=[0.5, np.inf, -np.inf], margin=[0.0, -np.inf, np.inf]))
    assert order(table.hardest()) == [1, 0, 2]
    assert order(table.hardest(by="logit_margin")) == [1, 0, 2]


@given(
    st.lists(st.sampled_from([NAN, -1.0, 0.0, 0.5, 2.0, np.inf]), max_size=12), st.integers(0, 14)
)
def test_ranking_matches_a_sort_in_plain_python(values, n):
    table = ScoreTable(rows(avh=np.array(values, dtype=np.float32)))
    known = [(value, i) for i, value in enumerate(values) if value == value]
    assert order(table.hardest(n)) == [i for _, i in sorted(known, key=lambda k: (-k[0], k[1]))][:n]
    assert order(table.easiest(n)) == [i for _, i in sorted(known)][:n]


def test_more_rows_than_there_are_gives_all_and_none_gives_none():
    table = ScoreTable(rows())
    assert len(table.hardest(99)) == 3
    assert len(table.hardest(0)) == 0


@pytest.mark.parametrize("ask", ["hardest", "easiest", "suspects", "most_confidently_wrong"])
@pytest.mark.parametrize("n", ["5", 2.5, None, True])
def test_a_count_of_the_wrong_type_is_named(ask, n):
    with pytest.raises(OptionError, match="expected n to be a whole number, got"):
        getattr(ScoreTable(rows()), ask)(n)
    with pytest.raises(OptionError, match="expected by to be text"):
        getattr(ScoreTable(rows()), ask)(1, by=3)


def test_a_negative_number_of_rows_is_refused():
    with pytest.raises(OptionError, match="expected n to be 0 or more, got -1"):
        ScoreTable(rows()).hardest(-1)


@pytest.mark.parametrize("method", ["hardest", "easiest"])
def test_ranking_by_what_is_no_score_is_named(method):
    rank = getattr(ScoreTable(rows()), method)
    with pytest.raises(TableError, match=r"unknown column 'avhh'\. Did you mean 'avh'\?"):
        rank(by="avhh")
    with pytest.raises(TableError, match=r"unknown score 'id'\. .*Known: avh, logit_margin"):
        rank(by="id")  # text
    with pytest.raises(TableError, match=r"unknown score 'loose'"):
        rank(by="loose")  # a number without a direction


def test_mistakes_are_ranked_by_the_margin_where_there_is_one():
    table = ScoreTable(
        rows(avh=[0.9, 0.2, 0.8, 0.7], margin=[-9.0, -1.0, -8.0, -3.0], prediction=[0, 0, 0, 0])
    )  # labels 0 1 0 1: rows 1 and 3 are wrong
    assert table.judge_of_mistakes() == "logit_margin"
    assert order(table.most_confidently_wrong()) == [3, 1]
    assert order(table.most_confidently_wrong(1)) == [3]
    assert order(table.most_confidently_wrong(by="avh")) == [3, 1]


def test_suspects_are_ranked_by_suspicion_and_else_by_the_margin():
    plain = ScoreTable(rows(avh=[0.9, 0.2, 0.8], margin=[3.0, -1.0, 2.0]))
    assert plain.judge_of_labels() == "logit_margin"
    assert order(plain.suspects(2)) == [1, 2]
    about = {**METADATA, "scores": {**METADATA["scores"], "suspicion": {"higher_is_harder": True}}}
    columns = rows(avh=[0.9, 0.2, 0.8], margin=[3.0, -1.0, 2.0], suspicion=[0.1, 0.4, 0.9])
    tracked = ScoreTable(with_metadata(columns, about))
    assert tracked.judge_of_labels() == "suspicion"
    assert order(tracked.suspects()) == [2, 1, 0]  # row 2 was memorised: its margin looks fine
    assert order(tracked.suspects(1, by="avh")) == [0]


def test_a_table_describes_itself():
    table = ScoreTable(rows())
    assert len(table) == 3
    assert table.scores == ["avh", "logit_margin"]  # what is there and has a direction
    assert table.classes == ["cat", "dog"]
    assert table.columns[:2] == ["index", "id"]
    assert table.higher_is_harder("avh")
    assert not table.higher_is_harder("logit_margin")
    assert "3 rows" in repr(table)
    assert "avh, logit_margin" in repr(table)
    np.testing.assert_array_equal(table.column("avh"), [0.1, 0.5, 0.3])
    assert table.to_pandas()["id"].tolist() == ["image-0", "image-1", "image-2"]
    assert table.to_arrow().equals(rows())


def test_where_keeps_rows_and_metadata():
    kept = ScoreTable(rows()).where(np.array([True, False, True]))
    assert kept.column("index").tolist() == [0, 2]
    assert kept.metadata == METADATA


# -------------------------------------------------------------------------------- reading


def test_a_finished_run_is_read_from_its_folder_and_from_its_file(tmp_path):
    table = finished_run(tmp_path / "run")
    assert table.path == tmp_path / "run" / TABLE
    for place in (tmp_path / "run", tmp_path / "run" / TABLE, str(tmp_path / "run")):
        again = read_table(place)
        assert again.to_arrow().equals(table.to_arrow())
        assert again.metadata == METADATA


def test_a_missing_table_is_named_with_the_next_step(tmp_path):
    with pytest.raises(MissingDataError, match=r"no score table at .*; write one with `hardsight"):
        read_table(tmp_path / "gone")
    with pytest.raises(MissingDataError, match=r"no score table at .*table\.parquet"):
        read_table(tmp_path)


def test_an_unfinished_run_says_how_to_continue(tmp_path):
    started_run(tmp_path / "run")
    with pytest.raises(MissingDataError, match=r"is unfinished; continue it with .*--resume"):
        read_table(tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all" * 10])
def test_a_file_that_is_no_parquet_is_named(tmp_path, content):
    (tmp_path / TABLE).write_bytes(content)
    with pytest.raises(TableError, match=r"table\.parquet is not a readable parquet file"):
        read_table(tmp_path)


def test_a_truncated_table_is_named(tmp_path):
    finished_run(tmp_path)
    whole = (tmp_path / TABLE).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TableError, match=r"cut\.parquet is not a readable parquet file"):
        read_table(tmp_path / "cut.parquet")


def test_a_parquet_file_of_others_is_named(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(TableError, match=r"other\.parquet .* not a table written by hardsight"):
        read_table(tmp_path / "other.parquet")


# -------------------------------------------------------------------------------- writing


def started_run(folder, shards=()):
    run = RunFolder(folder)
    run.start({"seed": 3})
    for number in shards:
        run.write_shard(number, shard(number), error_rows([(10 + number, "bad", "truncated")]))
    return run


def shard(number):
    return rows(avh=[0.1 * number, 0.5], index=[2 * number, 2 * number + 1])


def finished_run(folder):
    run = started_run(folder, shards=(1, 0))
    return run.finish(run.shards(), rows().schema)


def hidden(folder):
    return [file.name for file in folder.rglob(".*")]


def test_a_run_grows_shard_by_shard_and_ends_as_one_table(tmp_path):
    run = started_run(tmp_path / "deep" / "run")
    assert run.started
    assert not run.finished
    assert run.settings() == {"seed": 3}
    assert run.done() == set()
    run.write_shard(1, shard(1), error_rows([]))
    run.write_shard(0, shard(0), error_rows([(9, "nine.png", "zero bytes")]))
    assert run.done() == {0, 1}
    assert [part["index"].to_pylist() for part in run.shards()] == [[0, 1], [2, 3]]

    table = run.finish(run.shards(), rows().schema)
    assert run.finished
    assert not run.started
    assert table.column("index").tolist() == [0, 1, 2, 3]
    assert table.metadata == METADATA
    assert run.errors().to_dict("list") == {
        "index": [9], "id": ["nine.png"], "reason": ["zero bytes"]
    }  # fmt: skip
    assert sorted(file.name for file in run.folder.iterdir()) == [ERRORS, TABLE]


def test_a_folder_of_nothing_has_no_settings_errors_or_thumbnails(tmp_path):
    run = RunFolder(tmp_path)
    assert (run.started, run.finished, run.done(), run.settings()) == (False, False, set(), {})
    assert len(run.errors()) == 0
    assert run.thumbnails() == {}


def test_thumbnails_come_back_by_position(tmp_path):
    run = RunFolder(tmp_path)
    run.write_side_file(THUMBNAILS, pa.table([[7, 2], [b"seven", b"two"]], schema=THUMBNAIL_SCHEMA))
    assert run.thumbnails() == {7: b"seven", 2: b"two"}


def test_starting_again_sweeps_what_a_killed_writer_left(tmp_path):
    run = started_run(tmp_path, shards=(0,))
    (tmp_path / SHARDS / ".tmp-rows-00000001.parquet").write_bytes(b"half")
    assert run.done() == {0}  # a partial file is no shard
    run.start({"seed": 3})
    assert hidden(tmp_path) == []
    assert run.done() == {0}


def test_a_full_disk_leaves_no_partial_shard_and_says_how_to_go_on(tmp_path):
    run = started_run(tmp_path, shards=(0,))
    partial = tmp_path / SHARDS / ".tmp-rows-00000001.parquet"
    partial.symlink_to("/dev/full")
    with pytest.raises(
        OutputError, match=r"cannot write to .*: No space left on device; free some .*--resume"
    ):
        run.write_shard(1, shard(1), error_rows([]))
    assert hidden(tmp_path) == []
    assert run.done() == {0}
    run.write_shard(1, shard(1), error_rows([]))  # with space again
    assert run.done() == {0, 1}


def test_a_full_disk_at_the_end_leaves_the_run_unfinished_and_its_shards(tmp_path):
    run = started_run(tmp_path, shards=(0, 1))
    (tmp_path / f".tmp-{TABLE}").symlink_to("/dev/full")
    with pytest.raises(OutputError, match="No space left on device"):
        run.finish(run.shards(), rows().schema)
    assert hidden(tmp_path) == []
    assert not run.finished
    assert run.done() == {0, 1}
    assert len(run.finish(run.shards(), rows().schema)) == 4


def test_a_write_cut_off_by_a_size_limit_leaves_no_partial_file(tmp_path):
    script = """
import resource, sys
import numpy as np, pyarrow as pa
from hardsight.errors import OutputError
from hardsight.table import RunFolder, error_rows

run = RunFolder(sys.argv[1])
run.start({})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
noise = pa.table({"noise": np.random.default_rng(0).random(1_000_000)})
try:
    run.write_shard(0, noise, error_rows([]))
except OutputError as err:
    print(err)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert "cannot write to" in done.stdout
    assert "File too large" in done.stdout
    assert hidden(tmp_path) == []
    assert RunFolder(tmp_path).done() == set()


def test_an_interruption_while_writing_leaves_no_partial_file(tmp_path):
    run = started_run(tmp_path, shards=(0,))

    def parts():
        yield shard(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.finish(parts(), rows().schema)
    assert hidden(tmp_path) == []
    assert not run.finished


def test_an_error_of_the_rows_themselves_is_not_taken_for_a_full_disk(tmp_path):
    run = started_run(tmp_path, shards=(0,))

    def parts():
        yield shard(0)
        raise MissingDataError("the data went away")  # an OSError, too

    with pytest.raises(MissingDataError, match="the data went away"):
        run.finish(parts(), rows().schema)


def test_a_place_that_cannot_hold_a_folder_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"cannot write to .*run: Not a directory; free some"):
        RunFolder(tmp_path / "file" / "run").start({})
    assert (tmp_path / "file").read_text() == "in the way"


def test_metadata_survives_the_file_as_it_was(tmp_path):
    metadata = METADATA | {"config": {"über": [1, 2.5, None]}, "classes": ['<b>"x"</b>', "犬"]}
    pq.write_table(with_metadata(rows(), metadata), tmp_path / TABLE)
    assert read_table(tmp_path).metadata == json.loads(json.dumps(metadata))
