"""One file, one line, one test: a new score shows in the table, the page, the study, the docs."""

import json
import math
import runpy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import hardsight as hs
from hardsight.models import SmallCNN
from hardsight.registry import SCORES, ScoreSpec
from hardsight.run.study import study_human
from hardsight.table import ScoreTable, with_metadata

ROOT = Path(__file__).parents[1]


def second_margin(logits):
    """Largest logit less the second largest; what a user would add as a score of her own."""
    first, second = logits.topk(2, dim=1).values.unbind(dim=1)
    return first - second


@pytest.fixture
def added(monkeypatch):
    """One score more than the registry holds, for as long as the test runs."""
    spec = ScoreSpec(
        name="second_margin",
        function=second_margin,
        inputs=("logits",),
        low=0.0,
        high=math.inf,
        higher_is_harder=False,
        version=3,
        meaning="Largest logit less the second largest. Near 0 two classes tie.",
        title="Lead over the second",
        unit="nats",
        needs_label=False,
        reads="logits",
        formula=lambda logits: logits.largest - logits.logsumexp,  # any summary of the run
    )
    monkeypatch.setitem(SCORES._specs, spec.name, spec)
    return spec


def test_a_new_score_is_a_column_of_the_table_that_describes_itself(added):
    table = hs.score(SmallCNN(num_classes=10), "builtin:digits", split="test", device="cpu")
    assert "second_margin" in table.scores
    assert table.about("second_margin")["title"] == "Lead over the second"
    assert table.metadata["scores"]["second_margin"]["version"] == 3
    assert len(table.hardest(5, by="second_margin")) == 5


def test_a_new_score_is_on_the_page_in_the_study_and_in_the_reference(added, tmp_path):
    torch.manual_seed(0)
    model, run = SmallCNN(num_classes=10), tmp_path / "run"
    table = hs.score(model, "builtin:digits", split="test", device="cpu", out=run)
    page = hs.write_report(run).read_text(encoding="utf-8")
    assert "Lead over the second" in page
    assert added.meaning in page
    counts = np.random.default_rng(0).integers(1, 9, size=(len(table), 10))
    np.save(tmp_path / "counts.npy", counts)
    study_human(run, tmp_path / "counts.npy", out=tmp_path / "study")
    studied = json.loads((tmp_path / "study" / "study.json").read_text(encoding="utf-8"))
    assert "second_margin" in [score["name"] for score in studied["result"]["scores"]]
    assert studied["titles"]["second_margin"] == "Lead over the second"
    reference = runpy.run_path(str(ROOT / "docs" / "_build_tools" / "columns.py"))
    line = "| `second_margin` | Lead over the second | 0 to ∞ nats | low | Largest logit less"
    assert line in reference["table"]("SCORES")


def test_a_table_that_says_nothing_of_its_columns_is_shown_by_their_names():
    rows = pa.table({"index": [0], "el2n": [0.5], "forgetting_events": [1.0]})
    about = {"scores": {name: {"higher_is_harder": True} for name in ("el2n", "forgetting_events")}}
    table = ScoreTable(with_metadata(rows, about))
    assert table.about("el2n")["title"] == "EL2N"
    assert table.about("forgetting_events")["short_title"] == "Forgetting events"
    assert table.judge_of_labels() is None
