import math

import numpy as np
import pyarrow as pa
import pytest
import torch

from hardsight.errors import RunMismatchError
from hardsight.report import write_report
from hardsight.table import ScoreTable, with_metadata
from hardsight.tracking import SUMMARIES, HardnessTracker, _store

N = 6


@pytest.fixture
def tracker():
    """Example 5 never comes; example 4 comes once; example 3 carries a wrong label."""
    found = HardnessTracker(N, head=torch.eye(3, 4))
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


def test_blocks_of_examples_give_the_same_summaries_as_all_at_once(tracker, monkeypatch):
    whole = tracker.summaries()
    monkeypatch.setattr(_store, "_ROWS_AT_ONCE", 2)
    blocks = HardnessTracker(N)
    for epoch in range(3):
        columns = {name: tracker._store.column(epoch + 1, name) for name in _store.SCHEMA.names}
        blocks._store.write(epoch + 1, columns)
    blocks._epochs = 3
    assert len(list(blocks._store.blocks(["avh"]))) == 3
    got = blocks.summaries()
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
