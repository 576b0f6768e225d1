import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardsight as hs
from hardsight.errors import HardsightWarning, OptionError, TableError
from hardsight.selection import RULES, rows_to_keep
from hardsight.table import ScoreTable, with_metadata


def table_of(hardness, labels=None, **more):
    """A table whose rows have the numbers 100, 102, ...; a second score points the other way."""
    count = len(hardness)
    labels = np.zeros(count, np.int64) if labels is None else np.asarray(labels)
    hardness = np.asarray(hardness, np.float64)
    columns = {
        "index": 100 + 2 * np.arange(count),
        "id": [f"row {at}" for at in range(count)],
        "label": labels,
        "prediction": labels,
        "el2n": hardness,
        "logit_margin": -hardness,
        **more,
    }
    turned = {"el2n": True, "logit_margin": False, "suspicion": True}
    about = {"scores": {name: {"higher_is_harder": way} for name, way in turned.items()}}
    return ScoreTable(with_metadata(pa.table(columns), about))


def positions(rows):
    return ((rows - 100) // 2).tolist()


def test_hardest_easiest_and_moderate_rows_by_their_direction():
    table = table_of([5.0, 1.0, 4.0, 2.0, 3.0, 0.0])
    for by in ("el2n", "logit_margin"):  # of the second one a small value is hard
        assert positions(hs.select(table, keep=2, by=by, how="hardest")) == [0, 2]
        assert positions(hs.select(table, keep=2, by=by, how="easiest")) == [1, 5]
        assert positions(hs.select(table, keep=2, by=by, how="moderate")) == [3, 4]


def test_coverage_takes_the_same_number_from_every_stratum():
    # 50 strata of width 0.02 over [0, 1]: one of 951 rows, 49 of one row
    hardness = np.concatenate([np.full(951, 0.001), 0.03 + 0.02 * np.arange(49)])
    hardness[0], hardness[-1] = 0.0, 1.0
    rows = positions(hs.select(table_of(hardness), keep=100, drop_hardest=0.0))
    assert set(range(951, 1000)) <= set(rows)  # what a stratum lacks, the others give
    assert len(rows) == 100


@pytest.mark.parametrize(("keep", "dropped"), [(0.5, 0), (0.4, 100), (0.1, 300)])
def test_coverage_drops_the_hardest_by_its_stated_rule(keep, dropped):
    hardness = np.random.default_rng(0).random(1000)
    rows = positions(hs.select(table_of(hardness), keep=keep))
    harder = np.argsort(-hardness)
    assert not set(harder[:dropped].tolist()) & set(rows)
    assert set(harder[dropped : dropped + 20].tolist()) & set(rows)  # and no more than these
    assert len(rows) == keep * 1000
    none = hs.select(table_of(hardness), keep=keep, drop_hardest=0.0)
    assert set(harder[:20].tolist()) & set(positions(none))


def test_balanced_rows_are_as_even_as_the_classes_allow():
    labels = np.repeat([0, 1, 2], [4, 46, 50])
    table = table_of(np.random.default_rng(1).random(100), labels)
    for how in RULES:
        rows = positions(hs.select(table, keep=0.3, how=how, balanced=True))
        assert np.bincount(labels[rows]).tolist() == [4, 13, 13]


def test_suspects_are_dropped_first_by_the_best_judge_there_is():
    hardness = np.arange(100.0)
    rows = hs.select(table_of(hardness), keep=10, how="hardest", drop_suspects=0.2)
    assert positions(rows) == list(range(70, 80))  # by the logit margin
    # if it was tracked, by its suspicion
    judged = table_of(hardness, suspicion=0.99 - hardness / 101)
    rows = hs.select(judged, keep=10, how="hardest", drop_suspects=0.2)
    assert positions(rows) == list(range(90, 100))


def test_rows_without_a_value_are_left_out_and_told_of():
    hardness = np.arange(10.0)
    hardness[[3, 4]] = np.nan
    assert 3 not in positions(hs.select(table_of(hardness), keep=0.8, how="easiest"))
    with pytest.warns(HardsightWarning, match="8 rows are kept instead of 10: .* no value of el2n"):
        rows = hs.select(table_of(hardness), keep=1.0, how="hardest")
    assert positions(rows) == [0, 1, 2, 5, 6, 7, 8, 9]


def test_infinite_scores_fall_into_the_outer_strata():
    hardness = np.concatenate([[np.inf, -np.inf], np.linspace(0, 1, 98)])
    rows = positions(hs.select(table_of(hardness), keep=50, drop_hardest=0.0))
    assert len(set(rows)) == 50


@given(
    st.lists(st.floats(0, 1, width=16) | st.just(float("nan")), min_size=3, max_size=60),
    st.sampled_from(RULES), st.booleans(), st.floats(0.05, 1.0), st.integers(0, 3),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*rows are kept instead")
def test_rows_ascend_are_distinct_and_as_many_as_asked_for(hardness, how, balanced, keep, seed):
    labels = np.arange(len(hardness)) % 3
    table = table_of(hardness, labels)
    known = len(hardness) if how == "random" else int((~np.isnan(hardness)).sum())
    if not known:
        with pytest.raises(OptionError, match="no row has a value of el2n"):
            hs.select(table, keep=keep, how=how, balanced=balanced, seed=seed)
        return
    rows = hs.select(table, keep=keep, how=how, balanced=balanced, seed=seed)
    assert (np.diff(rows) > 0).all()
    assert set(rows.tolist()) <= set(table.column("index").tolist())
    assert len(rows) == min(known, rows_to_keep(keep, len(hardness)))
    again = hs.select(table, keep=keep, how=how, balanced=balanced, seed=seed)
    assert again.tolist() == rows.tolist()


def test_by_default_a_tracked_run_is_judged_by_its_early_el2n():
    hardness = np.arange(10.0)
    rows = table_of(hardness).to_arrow()
    rows = rows.rename_columns([name.replace("el2n", "early_el2n") for name in rows.column_names])
    about = {"scores": {"early_el2n": {"higher_is_harder": True}}}
    tracked = ScoreTable(with_metadata(rows, about))
    assert positions(hs.select(tracked, keep=2, how="hardest")) == [8, 9]
    with pytest.raises(TableError, match=r"unknown score 'el2n'\. Known: early_el2n"):
        hs.select(tracked, keep=2, by="el2n")
    with pytest.raises(TableError, match="unknown score 'el2n'"):
        hs.select(ScoreTable(with_metadata(rows.drop(["early_el2n"]), {"scores": {}})), keep=2)


def test_another_seed_draws_other_rows():
    table = table_of(np.random.default_rng(2).random(200))
    for how in ("random", "coverage"):
        first, second = (hs.select(table, keep=0.3, how=how, seed=seed) for seed in (0, 1))
        assert first.tolist() != second.tolist()


def test_held_out_rows_are_ranked_among_themselves():
    # what was never trained on looks harder throughout
    hardness, held_out = np.arange(20.0), np.arange(20) >= 10
    rows = positions(hs.select(table_of(hardness, held_out=held_out), keep=4, how="hardest"))
    assert rows == [8, 9, 18, 19]


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (0, "got 0, which keeps nothing"),
        (0.0, "got 0.0, which keeps nothing"),
        (-0.5, "keeps nothing"),
        (float("nan"), "keeps nothing"),
        (1, "got 1, which could be either; write 1.0 for every row, or 2 or more"),
        (1.5, "a number of rows is written without a point"),
        (5.0, "a number of rows is written without a point"),
        (11, "at most all 10 rows, got keep = 11"),
        (True, "expected keep to be a whole number or a number"),
        ("0.5", "expected keep to be"),
    ],
)
def test_a_keep_that_is_not_clear_is_refused(keep, said):
    with pytest.raises(OptionError, match=said):
        hs.select(table_of(np.arange(10.0)), keep=keep)


def test_other_bad_options_say_what_is_there():
    table = table_of(np.arange(10.0))
    with pytest.raises(OptionError, match=r"unknown rule 'hard'\. Did you mean 'hardest'"):
        hs.select(table, keep=0.5, how="hard")
    with pytest.raises(TableError, match=r"unknown score 'el2m'\. Did you mean 'el2n'"):
        hs.select(table, keep=0.5, by="el2m")
    with pytest.raises(OptionError, match=r"drop_suspects to be a share in \[0, 1\), got 1"):
        hs.select(table, keep=0.5, drop_suspects=1.0)
    with pytest.raises(OptionError, match="drop_hardest belongs to how='coverage', got how='eas"):
        hs.select(table, keep=0.5, how="easiest", drop_hardest=0.1)
    plain = ScoreTable(
        with_metadata(table.to_arrow().drop(["logit_margin"]), {"scores": table.metadata["scores"]})
    )
    with pytest.raises(OptionError, match="needs a column that tells wrong labels"):
        hs.select(plain, keep=0.5, drop_suspects=0.1)
