"""What results show of themselves in a notebook."""

import json
import re
from html import unescape

import numpy as np
import pytest
import torch

import hardsight as hs
from hardsight.notebook import shown
from hardsight.run.study import human_study

HOSTILE = '<img src=x onerror="alert(1)">'


def text_of(html):
    return re.sub(r"<[^>]*>", " ", html)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook") / "run"
    torch.manual_seed(0)
    return hs.score(
        hs.models.SmallCNN(), "builtin:digits", split="test", mean=(0.0,), std=(1.0,), device="cpu",
        out=folder, show_progress=False,
    )  # fmt: skip


def test_a_table_shows_its_first_suspects_with_their_pictures(table):
    html = table._repr_html_()
    said = text_of(html)
    assert f"accuracy   {table.accuracy():.1%}" in re.sub(r"\s{2,}", "   ", said)
    for row in table.suspects(5).to_dict("records"):
        assert f" {row['id']} " in said
        assert row["group"] in said
    assert html.count("<img") == 5
    assert "hs.review(" in said


def test_a_table_without_rows_shows_none(table):
    assert "examples <b>0</b>" in table.where(np.zeros(len(table), bool))._repr_html_()


def test_names_from_data_are_never_html():
    classes = (HOSTILE, "cat")
    logits = torch.tensor([[2.0, -1.0], [0.5, 0.1], [-1.0, 3.0]])
    found = hs.score(None, logits.numpy(), labels=[1, 0, 1], class_weights=np.eye(2),
                     classes=classes, device="cpu")  # fmt: skip
    html = found._repr_html_()
    assert "suspects() and to_pandas()" in text_of(html)  # in memory: nothing to open
    assert HOSTILE not in html
    assert "&lt;img src=x" in html
    assert HOSTILE not in shown(HOSTILE, {HOSTILE: HOSTILE}, columns=(HOSTILE,), rows=[[HOSTILE]],
                                note=HOSTILE)  # fmt: skip


def test_what_is_not_a_picture_is_not_shown_as_one():
    html = shown("t", {}, columns=("a", "b", "c"), rows=[[b"<svg onload=x>", None, b"\x89PNG"]])
    assert html.count("<img") == 1
    assert "svg" not in html


def test_a_training_run_shows_its_last_epochs_and_the_next_step(tmp_path):
    result = hs.train(
        "small_cnn", {"name": "builtin:digits", "split": "test"}, epochs=2, device="cpu",
        out=tmp_path / "run", show_progress=False,
    )  # fmt: skip
    said = text_of(result._repr_html_())
    assert f"best epoch  {result.best_epoch}" in said
    assert result.next_step in said
    for name, value in result.history[-1].items():
        assert name in said
        assert f"{value:.4g}" in said


def test_a_card_stays_a_dict_and_shows_a_line_per_model():
    torch.manual_seed(0)
    card = hs.evaluation_card(
        {"small <b>": hs.models.SmallCNN()}, "builtin:digits", split="test", mean=(0.0,),
        std=(1.0,), attack_examples=0, explain_examples=0, feature_examples=50,
        map_examples=20, device="cpu",
        show_progress=False,
    )  # fmt: skip
    assert json.loads(json.dumps(card)) == card
    html = card._repr_html_()
    assert "small &lt;b&gt;" in html
    assert f"{card['models'][0]['accuracy']['top1']['value']:.1%}" in html


def test_a_study_shows_all_its_tables():
    draw = np.random.default_rng(0)
    study = human_study(
        {"avh": draw.random(60), "model_confidence": draw.random(60)}, draw.random(60),
        labels=draw.integers(0, 3, 60),
    )  # fmt: skip
    html = text_of(unescape(study._repr_html_()))
    for each in study.tables():
        assert each.title in html
