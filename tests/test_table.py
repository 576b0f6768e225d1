"""The table: ranking, and reading it from a file or the folder of a run."""

import copy
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardsight.errors import MissingDataError, OptionError, TableError
from hardsight.table import DYNAMICS, TABLE, ScoreTable, read_table, with_metadata

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
    with pytest.raises(TableError, match=r"unknown score 'avhh'\. Did you mean 'avh'\?"):
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


def mixed(suspicion, held_out):
    about = {**METADATA, "scores": {"suspicion": {"higher_is_harder": True}}}
    columns = rows(avh=[0.5] * len(suspicion), suspicion=suspicion, held_out=held_out)
    return ScoreTable(with_metadata(columns, about))


def test_suspects_trained_on_and_held_out_are_ranked_each_among_their_own():
    # what is held out is never memorised: its suspicion stays higher throughout
    table = mixed([0.1, 0.2, 0.05, 0.4, 0.5, 0.9, 0.6, 0.7], [False] * 4 + [True] * 4)
    assert order(table.hardest(3, by="suspicion")) == [5, 7, 6]
    assert order(table.suspects(2)) == [5, 3]
    assert order(table.suspects(4)) == [5, 3, 7, 1]
    assert order(table.suspects()) == [5, 3, 7, 1, 6, 0, 4, 2]
    assert order(mixed([0.3, 0.3, 0.7, 0.7], [False, False, True, True]).suspects()) == [2, 3, 0, 1]
    # a quarter as many held out: one of them for every four
    few = mixed([0.1, 0.2, 0.3, 0.4, 0.9], [False] * 4 + [True])
    assert order(few.suspects(2)) == [4, 3]


def test_suspects_without_a_value_are_never_ranked_among_their_own_either():
    table = mixed([0.1, NAN, 0.3, NAN], [False, False, True, True])
    assert order(table.suspects()) == [2, 0]
    alike = mixed([0.1, 0.4, 0.3], [True] * 3)
    assert order(alike.suspects()) == [1, 2, 0]


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


def written(folder, table=None, *, group=1 << 20):
    """A table as a file, in groups of so many rows."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows() if table is None else table, folder / TABLE, row_group_size=group)
    return folder / TABLE


def test_a_table_is_read_from_its_folder_and_from_its_file(tmp_path):
    file = written(tmp_path / "run")
    for place in (tmp_path / "run", file, str(tmp_path / "run")):
        again = read_table(place)
        assert again.path == file
        assert again.to_arrow().equals(rows(), check_metadata=True)
        assert again.metadata == METADATA


def test_dynamics_without_a_table_are_the_table_of_a_folder(tmp_path):
    written(tmp_path).rename(tmp_path / DYNAMICS)
    assert len(read_table(tmp_path)) == 3
    written(tmp_path, rows(avh=[0.1]))
    assert len(read_table(tmp_path)) == 1  # scores are the table where a folder has both


@pytest.mark.parametrize("group", [1, 2, 3, 100])
def test_a_table_in_groups_of_rows_is_ranked_as_one_in_memory(tmp_path, group):
    whole = rows(avh=[0.2, 0.7, NAN, 0.7, 0.2, 0.9, 0.1])
    plain, stored = ScoreTable(whole), read_table(written(tmp_path, whole, group=group))
    for n in (0, 1, 3, 9):
        assert order(stored.hardest(n)) == order(plain.hardest(n))
        assert stored.easiest(n).equals(plain.easiest(n))
    assert stored.accuracy() == plain.accuracy()
    parts = list(stored.parts(["index", "avh"]))
    assert len(parts) == -(-7 // group)
    assert all(part.higher_is_harder("avh") for part in parts)
    np.testing.assert_array_equal(
        np.concatenate([part.column("avh") for part in parts]), plain.column("avh")
    )


def test_a_table_can_be_read_on_after_its_file_is_gone_or_replaced(tmp_path):
    table = read_table(written(tmp_path))
    other = written(tmp_path / "other", rows(avh=[9.0]))
    other.replace(tmp_path / TABLE)
    assert table.column("avh").tolist() == [0.1, 0.5, 0.3]
    (tmp_path / TABLE).unlink()
    assert order(table.hardest()) == [1, 2, 0]


def test_copies_and_pickles_of_a_table_have_its_rows(tmp_path):
    table = read_table(written(tmp_path))
    for again in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert again.to_arrow().equals(rows())
        assert (again.path, again.metadata) == (table.path, METADATA)


def test_a_missing_table_is_named_with_the_next_step(tmp_path):
    with pytest.raises(MissingDataError, match=r"no score table at .*; write one with `hardsight"):
        read_table(tmp_path / "gone")
    with pytest.raises(MissingDataError, match=r"no score table at .*table\.parquet"):
        read_table(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all" * 10])
def test_a_file_that_is_no_parquet_is_named(tmp_path, content):
    (tmp_path / TABLE).write_bytes(content)
    with pytest.raises(TableError, match=r"table\.parquet is not a readable parquet file"):
        read_table(tmp_path)


def test_a_truncated_table_is_named(tmp_path):
    whole = written(tmp_path).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TableError, match=r"cut\.parquet is not a readable parquet file"):
        read_table(tmp_path / "cut.parquet")


def test_a_parquet_file_of_others_is_named(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(TableError, match=r"other\.parquet .* not a table written by hardsight"):
        read_table(tmp_path / "other.parquet")


def test_metadata_survives_the_file_as_it_was(tmp_path):
    metadata = METADATA | {"config": {"über": [1, 2.5, None]}, "classes": ['<b>"x"</b>', "犬"]}
    pq.write_table(with_metadata(rows(), metadata), tmp_path / TABLE)
    assert read_table(tmp_path).metadata == json.loads(json.dumps(metadata))
