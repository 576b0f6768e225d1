import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardsight.errors import OptionError, TableError
from hardsight.gallery import gallery_rows, outcomes
from hardsight.registry import described
from hardsight.scores import SCORES
from hardsight.table import ScoreTable, read_table, with_metadata
from hardsight.tracking import SUMMARIES

SPECS = {**SCORES, **SUMMARIES}


def table(**columns):
    n = len(next(iter(columns.values())))
    columns = {"index": np.arange(n), **columns}
    about = described(SPECS[name] for name in columns if name in SPECS)
    return ScoreTable(with_metadata(pa.table(columns), about))


def test_rows_are_ordered_by_hand_worked_hardness_and_confidence():
    # four wrong rows: by AVH 3 is hardest, by logit margin 1 is the most confidently wrong
    rows = table(
        index=[10, 11, 12, 13, 14],
        label=[0, 0, 1, 1, 1],
        prediction=[0, 1, 0, 0, 0],
        avh=[0.1, 0.5, 0.6, 0.9, 0.7],
        logit_margin=[4.0, -9.0, -1.0, -2.0, -3.0],
    )
    gallery = gallery_rows(rows)
    assert gallery.by == "avh"
    assert gallery.confidence_by == "logit_margin"
    assert gallery.hardest.tolist() == [3, 4, 2, 1, 0]
    assert gallery.confidently_wrong.tolist() == [1, 4, 3, 2]
    assert [one.label for one in gallery.classes] == [1, 0]  # means 0.73 and 0.3
    assert gallery.classes[1].hardest.tolist() == [1, 0]
    assert gallery.classes[1].confidently_wrong.tolist() == [1]
    assert gallery.classes[1].easiest.tolist() == [0, 1]
    assert gallery.indices().tolist() == [10, 11, 12, 13, 14]


def test_suspects_are_ranked_whatever_the_prediction_and_the_never_learned_are_not_learned_last():
    rows = table(
        label=[0, 0, 1, 1, 1],
        prediction=[0, 0, 1, 1, 0],  # row 1 was memorised
        avh=[0.1, 0.2, 0.3, 0.4, 0.9],
        suspicion=[0.1, 0.9, 0.2, 0.3, 0.8],
        first_learned_epoch=[1, 3, 3, 1, 4],
    )
    rows = ScoreTable(with_metadata(rows.to_arrow(), {**rows.metadata, "tracking": {"epochs": 3}}))
    gallery = gallery_rows(rows)
    assert gallery.suspects.tolist() == [1, 4, 3, 2, 0]
    assert gallery.learned_last.tolist() == [1, 2, 3, 0]  # of two in epoch 3 the more suspect
    assert gallery.easiest.tolist() == [0, 1, 2, 3, 4]
    assert gallery.rows().tolist() == [0, 1, 2, 3, 4]


def test_a_table_without_dynamics_has_no_suspects():
    rows = table(label=[0, 0], prediction=[0, 1], avh=[0.1, 0.8])
    gallery = gallery_rows(rows)
    assert len(gallery.suspects) == len(gallery.learned_last) == len(gallery.easiest) == 0


def test_a_score_where_lower_is_harder_ranks_from_the_low_end():
    rows = table(label=[0, 0, 0], prediction=[0, 0, 0], model_confidence=[0.9, 0.2, 0.5])
    assert gallery_rows(rows).hardest.tolist() == [1, 2, 0]


def test_without_a_score_that_knows_the_label_the_least_uncertain_mistake_is_confident():
    rows = table(label=[0, 0, 0], prediction=[1, 1, 0], entropy=[0.7, 0.1, 0.0])
    gallery = gallery_rows(rows)
    assert gallery.hardest.tolist() == [0, 1, 2]
    assert gallery.confidently_wrong.tolist() == [1, 0]


def test_of_dynamics_alone_the_margin_averaged_over_training_judges_mistakes():
    rows = table(
        label=[0, 0, 0], prediction=[1, 1, 0], mean_avh=[0.9, 0.2, 0.1], aum=[-1.0, -5.0, 3.0]
    )
    assert rows.most_confidently_wrong(2)["index"].tolist() == [1, 0]
    assert gallery_rows(rows, by="mean_avh").confidence_by == "aum"


def test_a_long_feature_vector_makes_a_mistake_confident():
    rows = table(label=[0, 0], prediction=[1, 1], feature_norm=[2.0, 30.0])
    assert gallery_rows(rows).confidently_wrong.tolist() == [1, 0]


def test_ties_keep_the_order_of_the_table_in_every_list():
    rows = table(label=[0] * 9, prediction=[1] * 9, avh=[0.5] * 9)
    gallery = gallery_rows(rows)
    for chosen in (gallery.hardest, gallery.confidently_wrong, gallery.classes[0].easiest):
        assert chosen.tolist() == list(range(9))


def test_rows_that_are_not_finite_or_have_no_label_are_never_chosen():
    rows = table(
        label=pa.array([0, 0, None, 0]),
        prediction=[1, 1, 1, 1],
        finite=[True, False, True, True],
        avh=[0.1, 0.9, 0.9, float("nan")],
    )
    assert gallery_rows(rows).rows().tolist() == [0]
    assert outcomes(rows).tolist() == [0, -1, -1, 0]


def test_a_table_without_predictions_has_no_wrong_rows():
    rows = table(label=[0, 1], avh=[0.1, 0.2])
    assert gallery_rows(rows).confidently_wrong.tolist() == []
    assert outcomes(rows).tolist() == [-1, -1]


def test_a_table_without_scores_has_an_empty_gallery():
    gallery = gallery_rows(table(label=[0, 1], prediction=[0, 1]))
    assert gallery.by is None
    assert gallery.indices().tolist() == []


def test_a_score_without_a_stated_direction_is_never_ranked_by():
    rows = pa.table({"index": [0, 1], "label": [0, 0], "avh": [0.1, 0.2], "entropy": [2.0, 1.0]})
    about = {"scores": {"avh": {}, "entropy": {"higher_is_harder": True}}}
    assert gallery_rows(ScoreTable(with_metadata(rows, about))).by == "entropy"


def test_an_empty_table_has_an_empty_gallery():
    rows = table(label=np.empty(0, np.int64), prediction=np.empty(0, np.int64), avh=np.empty(0))
    assert gallery_rows(rows).indices().tolist() == []


def test_many_classes_keep_three_rows_of_a_kind_and_leave_easy_classes_out():
    labels = np.repeat(np.arange(1000), 20)
    avh = labels / 1000 + np.tile(np.arange(20), 1000) / 1e5  # class 999 is the hardest
    gallery = gallery_rows(table(label=labels, prediction=(labels + 1) % 1000, avh=avh))
    assert len(gallery.indices()) <= 600
    assert gallery.classes[0].label == 999
    assert {len(one.easiest) for one in gallery.classes} == {3}
    assert len(gallery.classes) + gallery.classes_left_out == 1000
    assert len(gallery.classes) > 60


def test_a_table_that_kept_few_pictures_shows_those_rows_and_no_others():
    labels = np.repeat(np.arange(10), 30)
    rows = table(label=labels, prediction=(labels + 1) % 10, avh=np.arange(300) / 300)
    few = ScoreTable(
        with_metadata(rows.to_arrow(), {**rows.metadata, "config": {"thumbnails": 30}})
    )
    assert len(gallery_rows(few).rows()) == 30  # all the room there is
    assert gallery_rows(few).rows().tolist() == gallery_rows(rows, budget=30).rows().tolist()
    none = ScoreTable(
        with_metadata(rows.to_arrow(), {**rows.metadata, "config": {"thumbnails": 0}})
    )
    assert gallery_rows(none).rows().tolist() == gallery_rows(rows).rows().tolist()


def test_budget_below_one_is_refused():
    with pytest.raises(OptionError, match="at least 1 example, got 0"):
        gallery_rows(table(label=[0], prediction=[0], avh=[0.1]), budget=0)


def test_unknown_score_names_the_nearest_one():
    with pytest.raises(TableError, match="Did you mean 'avh'"):
        gallery_rows(table(label=[0], prediction=[0], avh=[0.1]), by="avhh")


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 999), n=st.integers(1, 300), classes=st.integers(1, 40),
       budget=st.integers(1, 200))  # fmt: skip
def test_gallery_stays_within_its_budget_and_shows_the_extremes(seed, n, classes, budget):
    rng = np.random.default_rng(seed)
    labels, predictions = rng.integers(0, classes, (2, n))
    avh = rng.random(n)
    gallery = gallery_rows(table(label=labels, prediction=predictions, avh=avh), budget=budget)
    assert len(gallery.indices()) <= budget
    if gallery.classes_left_out:
        assert len(gallery.indices()) == min(budget, n)
    assert gallery.hardest[0] == avh.argmax()
    wrong = np.flatnonzero(labels != predictions)
    if len(gallery.confidently_wrong):
        assert gallery.confidently_wrong[0] == wrong[avh[wrong].argmax()]
    for one in gallery.classes:
        own = np.flatnonzero(labels == one.label)
        assert one.hardest[0] == own[avh[own].argmax()]
        assert one.easiest[0] == own[avh[own].argmin()]
        assert set(one.confidently_wrong.tolist()) <= set(own.tolist()) & set(wrong.tolist())


@given(
    st.integers(1, 60), st.integers(1, 12), st.integers(1, 40), st.integers(1, 30), st.booleans(),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_a_table_read_group_by_group_shows_what_one_in_memory_shows(
    n, num_classes, budget, group, has_dynamics, draw
):
    def values(*choices):
        return np.array([draw.choice(choices) for _ in range(n)])

    columns = {
        "label": values(*range(-1, num_classes)),
        "prediction": values(*range(-1, num_classes)),
        "finite": values(True, True, True, False),
        "avh": values(0.1, 0.2, 0.3, 0.7, 0.9, np.nan),  # many ties
        "logit_margin": values(-2.0, -1.0, 0.0, 1.5, np.nan),
    }
    if has_dynamics:
        columns["suspicion"] = values(0.0, 0.3, 0.6, np.nan)
        columns["first_learned_epoch"] = values(1.0, 2.0, 3.0)
    whole = table(**columns)
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(whole.to_arrow(), f"{folder}/table.parquet", row_group_size=group)
        found = gallery_rows(read_table(folder), budget=budget)
    expected = gallery_rows(whole, budget=budget)
    for name in ("hardest", "confidently_wrong", "suspects", "learned_last", "easiest", "shown"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    assert found.classes_left_out == expected.classes_left_out
    for one, other in zip(found.classes, expected.classes, strict=True):
        np.testing.assert_equal(vars(one), vars(other))
    np.testing.assert_array_equal(found.rows(), expected.rows())
    np.testing.assert_array_equal(found.indices(), np.unique(found.source[found.rows()]))
