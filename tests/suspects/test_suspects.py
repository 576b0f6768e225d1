"""Every table answers ``suspects(n)`` with the best evidence that it has, and says which."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from hardsight.errors import OptionError, TableError
from hardsight.suspects import GROUPS, most_suspect, suspects_of
from hardsight.table import ScoreTable, read_table, with_metadata
from tests.suspects import made

COLUMNS = ["index", "id", "label", "prediction", "suggestion", "group", "reason", "suspicion"]
COLUMNS += ["error_share", "evidence"]
# an ant, a clear dog, somewhere between bee and cat, a plain ant
PROBS = [
    [0.9, 0.04, 0.03, 0.03],
    [0.01, 0.02, 0.01, 0.96],
    [0.02, 0.5, 0.45, 0.03],
    [0.97, 0.01, 0.01, 0.01],
]


def test_one_pass_suggests_what_the_model_says_and_says_why():
    found = made.one_pass(PROBS, [0, 2, 2, 0]).suspects(2)
    assert found.columns.tolist()[:10] == COLUMNS
    assert found["index"].tolist() == [1, 2]
    assert found["suggestion"].tolist() == [3, 1]
    assert found["evidence"].tolist() == ["one pass"] * 2
    assert found["reason"][0].startswith("The model says dog (96%), not cat (1%).")
    assert found["reason"][1].startswith("The model says bee (50%), not cat (45%).")
    # the chance in a duel between label and rival
    np.testing.assert_allclose(found["suspicion"], [0.96 / 0.97, 0.5 / 0.95], rtol=1e-5)


@pytest.mark.parametrize(
    ("sample", "fold", "said"),
    [
        ("in-sample", False, "one pass, in-sample"),
        ("out-of-sample", False, "one pass, out-of-sample"),
        ("out-of-sample", True, "out-of-sample folds"),
        ("unknown", False, "one pass"),
    ],
)
def test_the_evidence_of_one_pass_is_named_after_what_the_model_saw(sample, fold, said):
    folds = {"fold": [0, 1, 2, 3]} if fold else {}
    table = made.one_pass(PROBS, [0, 2, 2, 0], sample=sample, **folds)
    found = table.suspects(1)
    assert found["evidence"].tolist() == [said]
    starts = "A model that never saw it says dog" if fold else "The model says dog"
    assert found["reason"][0].startswith(starts)


def test_tracked_suspects_have_the_rival_of_training_though_the_label_was_memorised():
    table = made.tracked([0.05, 0.9, 0.4], [0, 2, 1], rival=[-1, 3, 0])
    found = table.suspects(3)
    assert found["index"].tolist() == [1, 2, 0]
    assert found["suggestion"].tolist() == [3, 0, -1]
    assert found["evidence"].tolist() == ["training dynamics"] * 3
    assert found["reason"][0].startswith("A rival class led in 9 of 10 epochs, most often dog.")
    assert found["reason"][2].startswith("The label ant led in all 10 epochs.")
    lost = made.tracked([1.0], [2], rival=[3]).suspects(1)["reason"][0]
    assert lost.startswith("A rival class led in all 10 epochs, most often dog.")
    once = made.tracked([1.0], [2], rival=[3], seen=1).suspects(1)["reason"][0]
    assert once.startswith("A rival class led in the only epoch, most often dog.")


def test_a_tracked_table_of_an_older_version_names_no_rival_it_does_not_know():
    found = made.tracked([0.9, 0.1], [2, 1]).suspects(1)
    assert found["suggestion"].tolist() == [-1]
    assert found["reason"][0].startswith("A rival class led in 9 of 10 epochs. ")


def test_the_columns_of_the_table_are_all_there_and_none_is_hidden():
    table = made.one_pass(PROBS, [0, 2, 2, 0])
    rows = table.to_arrow().append_column("group", pa.array(["night", "day", "day", "night"]))
    named = ScoreTable(with_metadata(rows, table.metadata))
    found = named.suspects(1)
    assert set(table.columns) <= set(found.columns)
    assert found["table_group"].tolist() == ["day"]
    assert found["group"].tolist() == ["likely wrong label"]


def test_another_score_ranks_and_the_evidence_stays():
    table = made.one_pass(PROBS, [0, 2, 2, 0])
    found = table.suspects(4, by="model_confidence")
    assert found["index"].tolist() == [1, 2, 0, 3]
    again = table.suspects(4).set_index("index").loc[found["index"]]
    assert again["group"].tolist() == found["group"].tolist()
    with pytest.raises(TableError, match="unknown score 'avhh'"):
        table.suspects(4, by="avhh")
    with pytest.raises(OptionError, match="expected n to be 0 or more, got -1"):
        table.suspects(-1)


def test_rows_without_label_prediction_or_number_are_never_suspects():
    probs = np.array(PROBS)
    table = made.one_pass(probs, [0, -1, 2, 0], finite=[True, True, True, False])
    assert table.suspects(9)["index"].tolist() == [2, 0]
    found = suspects_of(table)
    assert found.ranked == 2
    assert sorted(found.order.tolist()) == [0, 1, 2, 3]
    assert [found.groups[place] for place in found.group[[1, 3]]] == [GROUPS[-1]] * 2
    assert found.reason(1) == "It has no label."


def test_a_table_whose_scores_are_all_nan_has_no_suspects():
    nothing = np.full(3, np.nan, np.float32)
    columns = {"label": [0, 1, 2], "prediction": [1, 1, 1], "finite": [True] * 3}
    table = made.table_of({**columns, "logit_margin": nothing, "model_confidence": nothing})
    assert len(table.suspects(3)) == 0
    assert suspects_of(table).error_share is None


def test_a_table_without_predictions_says_so():
    columns = {"label": [0, 1], "avh": np.array([0.1, 0.4], np.float32)}
    found = made.table_of(columns).suspects(2)
    assert found["index"].tolist() == [1, 0]
    assert found["suggestion"].tolist() == [-1, -1]
    assert found["group"].tolist() == ["no label or no prediction"] * 2
    assert found["reason"][0].startswith("The model gave no prediction.")
    assert found["suspicion"].isna().all()


def test_a_table_without_any_score_has_no_suspects_and_an_order():
    table = made.table_of({"label": [0, 1], "prediction": [1, 1]})
    assert len(table.suspects(2)) == 0
    assert suspects_of(table).kind == "none"
    assert suspects_of(table).order.tolist() == [0, 1]


def test_an_empty_table_has_the_columns_and_no_row():
    table = made.one_pass(PROBS, [0, 2, 2, 0])
    empty = ScoreTable(table.to_arrow().slice(0, 0))
    assert empty.suspects(5).columns.tolist()[:10] == COLUMNS
    assert len(empty.suspects(5)) == 0


@pytest.mark.parametrize("num_classes", [1, 2])
def test_one_and_two_classes_are_answered(num_classes):
    if num_classes == 1:  # nothing can rival the only class
        columns = {"label": [0, 0], "prediction": [0, 0], "finite": [True] * 2}
        margin = np.array([np.inf, np.inf], np.float32)
        table = made.table_of({**columns, "logit_margin": margin, "model_confidence": [1.0, 1.0]})
    else:
        table = made.one_pass([[0.9, 0.1], [0.05, 0.95]], [0, 0])
    found = table.suspects(2)
    assert len(found) == 2
    assert found["suggestion"].tolist() == ([-1, -1] if num_classes == 1 else [1, -1])


def test_labels_outside_the_known_classes_are_named_by_number():
    columns = {"label": [7, 0], "prediction": [0, 9], "finite": [True] * 2}
    table = made.table_of({**columns, "logit_margin": np.array([-2.0, -1.0], np.float32)})
    found = table.suspects(2)
    assert "not 7" in found["reason"][0]
    assert "The model says 9" in found["reason"][1]


def test_a_file_is_read_in_groups_and_answers_as_memory_does(tmp_path):
    import pyarrow.parquet as pq

    table, _ = made.noisy_pass(1000, 0.1)
    pq.write_table(table.to_arrow(), tmp_path / "t.parquet", row_group_size=64)
    stored = read_table(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(stored.suspects(50), table.suspects(50))


@pytest.mark.parametrize("kind", ["out-of-sample", "one pass", "tracked"])
def test_the_most_suspect_rows_alone_are_those_of_the_whole_answer(kind):
    # out-of-sample they are ranked by the estimate, else by the judge of labels
    if kind == "tracked":
        suspicion = np.random.default_rng(0).random(600)
        suspicion[:5] = np.nan  # never ranked
        table = made.tracked(suspicion, np.arange(600) % 4, held_out=np.arange(600) % 3 == 0)
    else:
        probs, truth = made.noisy_probs(600)
        labels = np.where(np.arange(600) % 7, truth, (truth + 1) % 4)
        sample = "out-of-sample" if kind == "out-of-sample" else "unknown"
        table = made.one_pass(probs, labels, sample=sample)
    whole = suspects_of(table)
    assert (whole.error_share is not None) == (kind == "out-of-sample")
    np.testing.assert_array_equal(most_suspect(table, 50), whole.order[:50])
    assert len(most_suspect(table, 10**6)) == whole.ranked
