import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hardsight.errors import DataError, OptionError, RunMismatchError
from hardsight.report import write_report
from hardsight.table import ScoreTable, with_metadata
from hardsight.tracking import SUMMARIES, HardnessTracker

N = 6


def recorded(folder=None):
    """Example 5 never comes; example 4 comes once; example 3 carries a wrong label."""
    found = HardnessTracker(N, head=torch.eye(3, 4), folder=folder)
    make = torch.Generator().manual_seed(0)
    for epoch in range(3):
        index = torch.arange(5 if epoch == 0 else 4)
        labels = index % 3
        embeddings = torch.eye(3, 4)[labels] * (1 + epoch) + 0.3 * torch.rand(
            len(index), 4, generator=make
        )
        embeddings[3] = torch.tensor([0.1, 0.2, 2.0, 0.1])  # its label is 0, it looks like a 2
        found.update(index, embeddings, embeddings @ torch.eye(3, 4).T, labels)
        found.end_epoch()
    return found


@pytest.fixture
def tracker():
    return recorded()


def scored(index, labels):
    rows = pa.table(
        {"index": index, "id": [str(i) for i in index], "label": labels, "avh": [0.5] * 3}
    )
    about = {"scores": {"avh": {"higher_is_harder": True}}, "seed": 7, "classes": ["a", "b", "c"]}
    return ScoreTable(with_metadata(rows, about))


def test_every_summary_is_a_column_with_its_facts(tracker):
    table = tracker.summaries()
    assert table.scores == list(SUMMARIES)
    assert table.column("index").tolist() == list(range(N))
    assert table.column("label").tolist() == [0, 1, 2, 0, 1, -1]
    for name, spec in SUMMARIES.items():
        facts = table.metadata["scores"][name]
        assert facts["meaning"] == spec.meaning
        assert facts["low"] == (spec.low if math.isfinite(spec.low) else None)
        expected = spec.function(*(tracker.history(part) for part in spec.inputs))
        np.testing.assert_allclose(table.column(name), expected, err_msg=name)


def test_the_wrong_label_is_the_hardest_and_the_unseen_example_is_not_ranked(tracker):
    table = tracker.summaries()
    for name in ("aum", "mean_avh", "map_confidence", "first_learned_epoch", "forgetting_events"):
        ranked = table.hardest(N, by=name)["index"].tolist()
        assert ranked[0] == 3, name
        assert 5 not in ranked, name


def test_the_prediction_is_that_of_the_last_epoch_seen(tracker):
    assert tracker.summaries().column("prediction").tolist() == [0, 1, 2, 2, 1, -1]


def test_blocks_of_examples_give_the_same_summaries_as_all_at_once(tracker, tmp_path, monkeypatch):
    whole = tracker.summaries()
    monkeypatch.setattr("hardsight.tracking._epochs._ROWS_AT_ONCE", 2)
    got = recorded(tmp_path).summaries()
    assert pq.ParquetFile(tmp_path / "epoch-00001.parquet").num_row_groups == 3
    for name in whole.columns:
        np.testing.assert_array_equal(got.column(name), whole.column(name), err_msg=name)


def test_the_window_of_early_el2n_is_an_option_and_is_recorded(tracker):
    table = tracker.summaries(el2n_epochs=1)
    np.testing.assert_allclose(table.column("early_el2n"), tracker.history("el2n")[0])
    assert table.metadata["tracking"] == {
        "num_examples": N,
        "stage": "train",
        "epochs": 3,
        "el2n_epochs": 1,
    }


def test_summaries_join_a_score_table_by_index(tracker):
    table = tracker.table(scored([5, 3, 1], [2, 0, 1]))
    assert table.column("index").tolist() == [5, 3, 1]
    np.testing.assert_array_equal(table.column("aum"), tracker.summaries().column("aum")[[5, 3, 1]])
    assert table.scores == ["avh", *SUMMARIES]
    assert (table.metadata["seed"], table.metadata["tracking"]["epochs"]) == (7, 3)
    assert table.hardest(1, by="aum")["index"].tolist() == [3]


def test_joining_twice_replaces_the_columns(tracker):
    once = tracker.table(scored([5, 3, 1], [2, 0, 1]))
    assert tracker.table(once).columns == once.columns


def test_a_table_of_other_data_is_not_joined(tracker):
    with pytest.raises(RunMismatchError, match="index 6, but 6 examples were tracked"):
        tracker.table(scored([0, 1, 6], [0, 1, 0]))
    with pytest.raises(RunMismatchError, match=r"1 labels of the table differ .* example 1 is 2"):
        tracker.table(scored([0, 1, 2], [0, 2, 2]))


def test_a_report_can_be_written_of_the_summaries(tracker, tmp_path):
    page = write_report(tracker.summaries(), out=tmp_path / "report.html").read_text()
    assert "Area under the margin" in page


def held_out_of(rows=(5,), *, epochs=3, stage="evaluation", num_examples=N):
    """A tracker of evaluation passes over examples that are never trained on."""
    found = HardnessTracker(num_examples, head=torch.eye(3, 4), stage=stage)
    index = torch.tensor(rows)
    for epoch in range(epochs):
        embeddings = torch.eye(3, 4)[index % 3] + torch.tensor([0.2 * epoch, 0.0, 0.5, 0.1])
        found.update(index, embeddings, embeddings @ torch.eye(3, 4).T, index % 3)
        found.end_epoch()
    return found


def test_held_out_examples_have_summaries_of_their_evaluation_passes(tracker):
    other = held_out_of()
    table = tracker.summaries(held_out=other)
    assert table.column("held_out").tolist() == [False] * 5 + [True]
    assert table.column("epochs_seen").tolist() == [3, 3, 3, 3, 1, 3]
    alone, before = other.summaries(), tracker.summaries()
    for name in ("label", "prediction", "finite", *SUMMARIES):
        np.testing.assert_array_equal(table.column(name)[:5], before.column(name)[:5], name)
        np.testing.assert_array_equal(table.column(name)[5:], alone.column(name)[5:], name)
    assert table.metadata["sample"] == "mixed"
    assert table.metadata["tracking"]["held_out"] == 1
    assert "held_out" not in before.columns
    assert before.metadata["sample"] == "in-sample"


def test_what_judges_labels_besides_the_summaries_is_that_of_the_epochs(tracker):
    table = tracker.summaries()
    label, margin = (tracker.history(name) for name in ("confidence", "logit_margin"))
    seen = np.isfinite(margin)
    rival = np.where(seen, label / np.exp(margin), 0).sum(axis=0)
    rival[:5] /= seen[:, :5].sum(axis=0)
    rival[5] = np.nan  # never seen
    np.testing.assert_allclose(table.column("rival_confidence"), rival, rtol=1e-5)
    np.testing.assert_allclose(table.column("last_margin")[:4], margin[-1, :4])
    np.testing.assert_allclose(table.column("last_confidence")[:5], [*label[-1, :4], label[0, 4]])
    joined = tracker.table(scored([5, 0, 4], [2, 0, 1]))
    np.testing.assert_array_equal(
        joined.column("rival_confidence"), table.column("rival_confidence")[[5, 0, 4]]
    )


def test_held_out_examples_are_joined_onto_a_table_of_scores(tracker):
    joined = tracker.table(scored([5, 0, 4], [2, 0, 1]), held_out=held_out_of())
    assert joined.column("held_out").tolist() == [True, False, False]
    assert joined.column("epochs_seen").tolist() == [3, 3, 1]


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        (held_out_of((2, 5)), DataError, r"1 examples 2 were trained on but are recorded as held"),
        (held_out_of(epochs=2), RunMismatchError, "recorded in 2 epochs, the training in 3"),
        (held_out_of(stage="train"), OptionError, "stage='evaluation', got 'train'"),
        (held_out_of(num_examples=7), RunMismatchError, "7 examples, this one 6"),
    ],
)
def test_a_tracker_that_cannot_be_of_the_held_out_examples_is_refused(
    tracker, other, error, message
):
    with pytest.raises(error, match=message):
        tracker.summaries(held_out=other)
