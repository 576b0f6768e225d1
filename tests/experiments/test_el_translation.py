"""The translation of Encouraging Loss: parallel text, subwords, pairs of losses, BLEU."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from hardsight.errors import DataError, MissingDataError
from hardsight.experiments import EXPERIMENTS, run_experiment
from hardsight.experiments.el import (
    Corpus,
    Loss,
    Pairs,
    Subwords,
    Translation,
    bleu,
    bootstrapped,
    made_up_pairs,
    parallel_text,
)

SMOKE = EXPERIMENTS["el-translation"].scales["smoke"]
NAMES = {"languages": ("de", "en"), "splits": ("train", "val", "test")}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus():
    return made_up_pairs()


@pytest.fixture(scope="module")
def words(corpus):
    return Subwords([*corpus.train.source, *corpus.train.target], SMOKE.vocabulary)


def fitted(corpus, words, loss, **changes):
    setting = replace(SMOKE, **{"steps": 8, "validate_every": 100, "beams": 1, **changes})
    return Translation(corpus, words, setting, 0, CPU).fitted(loss)


def test_the_network_learns_to_translate(corpus, words):
    found = fitted(corpus, words, Loss(None, 0.1), steps=150)
    assert found["average"] > 40
    assert len(found["norms"]) == 150


def test_losses_share_weights_order_and_draws(corpus, words):
    plain = fitted(corpus, words, Loss(None, 0.1))
    again = fitted(corpus, words, Loss(None, 0.1))
    other = fitted(corpus, words, Loss(0.5, 0.1))
    assert plain == again
    # before the first step all losses see the same outputs of the same pairs
    logits, labels = torch.randn(2, 5, 9), torch.tensor([[1, 2, -100, -100, -100], [3, 4, 5, 6, 7]])
    rows = logits.flatten(0, 1)[labels.flatten() >= 0].double()
    wanted = labels.flatten()[labels.flatten() >= 0]
    probs = rows.softmax(dim=1)
    # by hand: -log p + bonus log(1 - p), which goes on as a line above LE
    own = probs[torch.arange(len(wanted)), wanted]
    line = np.log(1 - 0.5) - (own - 0.5) / (1 - 0.5)
    bonus = torch.where(own < 0.5, (1 - own).log(), line)
    by_hand = (-own.log() + bonus).mean()
    torch.testing.assert_close(
        Loss(0.5, 0.0)(logits, labels).double(), by_hand, rtol=1e-4, atol=1e-4
    )
    assert other["norms"] != plain["norms"]


def test_subwords_come_back_as_the_text(corpus, words):
    rows = words.encoded(corpus.test.target, 40)
    width = max(map(len, rows)) + 1
    # as a decoder gives them: the token it starts with, then padding behind the end
    padded = torch.tensor([[0, *row, *[0] * (width - 1 - len(row))] for row in rows])
    assert words.decoded(padded) == corpus.test.target


def test_batches_hold_every_pair_once_and_not_too_many_tokens(corpus, words):
    run = Translation(corpus, words, replace(SMOKE, tokens=200), 0, CPU)
    batches = list(run._batches(0))
    assert sum(len(source) for source, _ in batches) == len(corpus.train)
    assert max(max(s.numel(), t.numel()) for s, t in batches) <= 200


def test_bleu_of_the_references_is_100_and_says_how_it_was_computed():
    texts = ["a man in a red hat rides a horse .", "two dogs run over the wet grass ."] * 3
    found = bleu(texts, texts)
    assert found["score"] == pytest.approx(100)
    assert "tok:13a" in found["signature"]
    assert bootstrapped(texts, texts, texts) == pytest.approx(1.0, abs=0.01)
    worse = ["a man rides", "two dogs"] * 3
    assert bootstrapped(worse, texts, texts) < 0.05


def write(folder, name, lines, zipped=False):
    text = "\n".join(lines) + "\n"
    if zipped:
        with gzip.open(folder / f"{name}.gz", "wt", encoding="utf-8") as sink:
            sink.write(text)
    else:
        (folder / name).write_text(text, encoding="utf-8")


def test_parallel_files_are_read_plain_or_gzipped_without_empty_lines(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for split in ("train", "val", "test"):
        write(folder, f"{split}.de", ["eins", "", "zwei "], zipped=split == "train")
        write(folder, f"{split}.en", ["one", "none", "two"])
    found = parallel_text("mine", str(tmp_path), **NAMES)
    assert found == Corpus(*[Pairs(["eins", "zwei"], ["one", "two"])] * 3)
    assert len(found.limited(1, 1).train) == 1


def test_files_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(MissingDataError, match="no folder mine of parallel text below"):
        parallel_text("mine", str(tmp_path), **NAMES)
    folder = tmp_path / "mine"
    folder.mkdir()
    write(folder, "train.de", ["eins"])
    with pytest.raises(MissingDataError, match=r"no file train.en or train.en.gz in"):
        parallel_text("mine", str(tmp_path), **NAMES)
    write(folder, "train.en", ["one", "two"])
    with pytest.raises(DataError, match=r"train.de has 1 lines and train.en 2 in"):
        parallel_text("mine", str(tmp_path), **NAMES)


def test_a_run_that_is_lost_is_left_out_and_said(tmp_path):
    setting = ["steps=6", "seeds=[0]", "log_ends=[0.5]", "lr=1e30", "warm_up=1"]
    result = run_experiment(
        "el-translation", scale="smoke", out=tmp_path / "out", runs=tmp_path / "runs",
        device="cpu", overrides=setting, show_progress=False,
    )  # fmt: skip
    content = json.loads((tmp_path / "out/result.json").read_text())
    assert all(part["average"] == [None] for part in content["data"]["losses"].values())
    assert all(claim.holds is None for claim in result.claims)
