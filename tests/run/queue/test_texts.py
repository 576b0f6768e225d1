"""Texts and graphs that nobody has labelled yet, in a queue."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hardsight as hs
from hardsight.errors import DataError, HardsightWarning
from tests._texts import network, reviews, tokenizer
from tests.review.made import App

TEXTS = reviews(40)[0]
QUIET = {"device": "cpu", "show_progress": False}


@pytest.fixture(scope="module")
def words():
    return tokenizer()


@pytest.fixture(scope="module")
def model(words):
    return network("bert", len(words))


def written(file, header="text"):
    file.write_text("\n".join([header, *TEXTS]))
    return file


def test_texts_without_labels_are_ranked_by_what_the_model_says_of_each_alone(
    tmp_path, model, words
):
    table = hs.queue(
        model, written(tmp_path / "pool.csv"), unlabelled=True, tokenizer=words, budget=40,
        by="entropy", batch_size=8, **QUIET,
    )  # fmt: skip
    expected = []
    for text in TEXTS:
        with torch.no_grad():
            logits = model(**words(text, return_tensors="pt")).logits[0].double()
        expected.append(torch.distributions.Categorical(logits=logits).entropy().item())
    index = table.column("index")
    np.testing.assert_allclose(table.column("entropy"), np.array(expected)[index], atol=1e-5)
    assert (np.diff(table.column("entropy")) <= 0).all()
    in_memory = hs.queue(model, TEXTS, unlabelled=True, tokenizer=words, budget=40, **QUIET)
    assert sorted(in_memory.column("index")) == list(range(40))


def test_review_opens_a_queue_of_texts(tmp_path, model, words):
    file, out = written(tmp_path / "pool.csv", header="opinion"), tmp_path / "next.parquet"
    hs.queue(
        model, file, unlabelled=True, text_column="opinion", tokenizer=words, budget=3,
        by="coverage", out=out, **QUIET,
    )  # fmt: skip
    app = App(out)
    try:
        first = app.queue()["items"][0]
        shown = app.review.session.pictures.of(first["index"], first["id"], 64)
        assert shown.content.decode() == TEXTS[first["index"]]
    finally:
        app.close()


def test_texts_that_are_cut_and_pools_that_need_a_word_more_are_told_of(tmp_path, model, words):
    file = written(tmp_path / "pool.csv")
    long = sum(len(words(text)["input_ids"]) > 8 for text in TEXTS)
    with pytest.warns(HardsightWarning, match=f"^{long} of the 40 examples .* and were cut$"):
        hs.queue(model, file, unlabelled=True, tokenizer=words, max_tokens=8, budget=3, **QUIET)
    with pytest.raises(DataError, match=r"no column of labels .*; or pass unlabelled=True \(--unl"):
        hs.queue(model, file, tokenizer=words, budget=3, **QUIET)
    with pytest.raises(DataError, match="sentences whose tokens a language model predicts"):
        hs.queue(model, written(tmp_path / "pool.txt"), unlabelled=True, budget=3, **QUIET)
