"""Texts and tokens on a GPU: the numbers of the CPU, and no matrix of tokens by vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hardsight as hs
from tests._texts import byte_pairs, language_model, network, pair_words, reviews, tokenizer

TEXTS, LABELS = reviews(200)
OTHERS = reviews(200, seed=1)[0]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5", "marian"])
def test_tokens_have_the_numbers_of_the_cpu(kind):
    is_pair = kind in ("t5", "marian")
    words = pair_words() if is_pair else byte_pairs()
    model = language_model(kind, len(words), width=64)
    options = {"target": OTHERS} if is_pair else {"tokens": True}
    exact, here = (
        hs.score(model, TEXTS, tokenizer=words, device=device, precision="float32", **options)
        for device in ("cpu", "cuda")
    )
    for name in ("avh", "target_angle", "model_confidence", "entropy"):
        np.testing.assert_allclose(
            here.column(name), exact.column(name), rtol=5e-3, atol=5e-3, err_msg=name
        )
    assert (here.column("prediction") == exact.column("prediction")).mean() > 0.99
    half = hs.score(model, TEXTS, tokenizer=words, device="cuda", **options)
    apart = np.abs(half.column("avh") / exact.column("avh") - 1)
    assert np.quantile(apart, 0.9) < 0.05


def test_a_large_vocabulary_takes_no_memory_of_tokens_times_vocabulary():
    words = byte_pairs()
    words.add_tokens([f"more{n}" for n in range(65_536 - len(words))])
    model = language_model("gpt2", len(words), width=128).cuda()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    table = hs.score(model, TEXTS * 8, tokens=True, tokenizer=words, device="cuda", batch_size=512)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < len(table) * len(words) * 2 / 4  # a quarter of the matrix in half precision


def test_texts_have_the_numbers_of_the_cpu():
    words = tokenizer()
    model = network("bert", len(words))
    exact, here = (
        hs.score(model, TEXTS, labels=LABELS, tokenizer=words, device=device, precision="float32")
        for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(here.column("avh"), exact.column("avh"), rtol=5e-3, atol=5e-3)
