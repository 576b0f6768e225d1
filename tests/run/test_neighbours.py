"""Embeddings that a run keeps, and the near-duplicates that they show."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import hardsight as hs
from hardsight.errors import HardsightWarning, OptionError
from hardsight.run_folder import RunFolder
from tests._deaths import Died, dying_after


def stored(folder, vectors, labels, num_classes=4):
    file = folder / "stored.npz"
    weights = np.random.default_rng(9).normal(size=(num_classes, vectors.shape[1]))
    np.savez(file, embeddings=vectors.astype(np.float32), labels=labels, class_weights=weights)
    return file


def scored(folder, vectors, labels, **options):
    file = stored(folder, vectors, labels)
    return hs.score(None, file, out=folder / "run", keep_embeddings=True, device="cpu", **options)


def by_hand(vectors, labels, rows):
    """The same of some rows, in float64."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = unit[rows] @ unit.T
    cosine[np.arange(len(rows)), rows] = -np.inf
    nearest = cosine.max(axis=1)
    cosine[labels[rows, None] == labels[None]] = -np.inf
    return nearest, cosine.argmax(axis=1), cosine.max(axis=1)


@pytest.mark.parametrize("n", [1, 2, 700, 8300])  # 8,300: several blocks either way
def test_the_nearest_neighbours_are_those_of_the_whole_matrix(tmp_path, n):
    rng = np.random.default_rng(n)
    vectors, labels = rng.normal(size=(n, 6)), np.arange(n) % 4
    scored(tmp_path, vectors, labels)
    found = pq.read_table(tmp_path / "run" / "neighbours.parquet").to_pandas()
    assert found["index"].tolist() == list(range(n))
    if n == 1:
        assert found["other"].tolist() == [-1]
        assert found[["nearest", "similarity"]].isna().all(axis=None)
        return
    rows = np.unique(np.linspace(0, n - 1, 500).astype(int))
    nearest, other, similarity = by_hand(vectors.astype(np.float32).astype(float), labels, rows)
    found = found.loc[rows]
    np.testing.assert_allclose(found["nearest"], nearest, atol=1e-5)
    np.testing.assert_allclose(found["similarity"], similarity, atol=1e-5)
    # rounding may decide between two that are equally near
    assert (found["other"].to_numpy() == other).mean() > 0.99
    earlier, before = earlier_by_hand(vectors.astype(np.float32).astype(float), labels, rows)
    np.testing.assert_allclose(found["earlier_similarity"], before, atol=1e-5)
    assert (found["earlier"].to_numpy() == earlier).mean() > 0.99


def earlier_by_hand(vectors, labels, rows):
    """The nearest row before each that has the same label, in float64; -1 if there is none."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    places, cosines = [], []
    for row in rows:
        alike = np.flatnonzero(labels[:row] == labels[row])
        cosine = unit[alike] @ unit[row]
        places.append(alike[cosine.argmax()] if len(alike) else -1)
        cosines.append(cosine.max() if len(alike) else np.nan)
    return np.array(places), np.array(cosines)


def repeated(folder):
    """A run of 600 rows, of which three groups were planted: (5, 300, 450), (8, 310), (12, 320)."""
    rng = np.random.default_rng(3)
    vectors, labels = rng.normal(size=(600, 32)), np.arange(600) % 4
    for copy, row in ((300, 5), (450, 5), (310, 8), (320, 12)):
        vectors[copy] = 2.0 * vectors[row] * (1 + 1e-3 * rng.normal(size=32))
        labels[copy] = labels[row]
    vectors[330], labels[330] = vectors[16], (labels[16] + 1) % 4  # a wrong label, not a repeat
    return scored(folder, vectors, labels, sample="out-of-sample")


def test_of_near_duplicates_with_one_label_only_the_first_is_selected(tmp_path):
    table = repeated(tmp_path)
    with pytest.warns(HardsightWarning, match="596 rows are kept instead of 600: .* duplicates"):
        rows = hs.select(table, keep=1.0, by="avh", how="hardest", drop_duplicates=True)
    assert set(range(600)) - set(rows.tolist()) == {300, 450, 310, 320}
    assert len(hs.select(table, keep=1.0, by="avh")) == 600


def test_a_copy_stands_in_for_a_first_row_that_is_a_suspect(tmp_path):
    table = repeated(tmp_path)
    suspects = table.suspects(60)["index"].tolist()
    with pytest.warns(HardsightWarning, match="rows are kept instead"):
        rows = hs.select(
            table, keep=1.0, how="random", drop_suspects=0.1, drop_duplicates=True
        ).tolist()
    for group in ((5, 300, 450), (8, 310), (12, 320)):
        left = [row for row in group if row not in suspects]
        assert [row for row in group if row in rows] == left[:1]


def test_select_says_how_to_get_what_duplicates_need(tmp_path):
    rng = np.random.default_rng(0)
    table = hs.score(None, stored(tmp_path, rng.normal(size=(50, 8)), np.arange(50) % 4))
    with pytest.raises(OptionError, match="score again with keep_embeddings"):
        hs.select(table, keep=0.5, by="avh", drop_duplicates=True)


def test_planted_near_duplicates_with_another_label_are_all_found_and_nothing_else(tmp_path):
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(600, 32)), np.arange(600) % 4
    vectors[300:310] = 3.0 * vectors[:10] * (1 + 1e-3 * rng.normal(size=(10, 32)))
    labels[300:310] = (labels[:10] + 1) % 4
    vectors[400] = vectors[20]  # a duplicate with the same label is none of ours
    labels[400] = labels[20]
    table = scored(tmp_path, vectors, labels, sample="out-of-sample")
    frame = table.suspects(600).set_index("index")
    twins = frame[frame["group"] == "near-duplicate with another label"]
    assert set(twins.index) == {*range(10), *range(300, 310)}
    name = table.classes[labels[303]]
    assert f"nearly the same as example 303, which is labelled {name}." in twins["reason"][3]
    agreed = twins[twins["label"] == twins["prediction"]]
    partner = [row + 300 if row < 300 else row - 300 for row in agreed.index]
    assert agreed["suggestion"].tolist() == labels[partner].tolist()


def test_vectors_without_a_direction_are_nobodys_neighbours(tmp_path):
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(50, 8)), np.arange(50) % 4
    vectors[3] = 0
    scored(tmp_path, vectors, labels)
    found = pq.read_table(tmp_path / "run" / "neighbours.parquet").to_pandas()
    assert found["other"][3] == -1
    assert (found["other"] != 3).all()
    assert np.isfinite(found["nearest"].drop(3)).all()


def test_large_and_small_vectors_do_not_overflow(tmp_path):
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(60, 8)), np.arange(60) % 4
    scale = np.where(np.arange(60) % 2, 1e25, 1e-25)[:, None]
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    for name, values in (("a", vectors), ("b", vectors * scale)):
        scored(tmp_path / name, values, labels, scores="feature_norm")
    plain, scaled = (
        pq.read_table(tmp_path / name / "run" / "neighbours.parquet") for name in ("a", "b")
    )
    assert plain["other"].to_pylist() == scaled["other"].to_pylist()


def test_the_matrix_of_all_pairs_is_never_in_memory(tmp_path):
    n = 12_000  # 576 MB of similarities
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(n, 4)), np.arange(n) % 4
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scored(tmp_path, vectors, labels, scores="avh")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 500 * 1024


class Net(nn.Module):
    """Two layers, of which the last is the head."""

    def __init__(self, scale=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc, self.scale = nn.Linear(6, 5), nn.Linear(5, 4), scale

    def forward(self, rows):
        return self.fc(self.scale * self.body(rows))


def examples(n=230):
    rng = np.random.default_rng(1)
    inputs = torch.from_numpy(rng.normal(size=(n, 6)).astype(np.float32))
    return torch.utils.data.TensorDataset(inputs, torch.arange(n) % 4)


OPTIONS = {"shard_rows": 100, "batch_size": 50, "keep_embeddings": True, "device": "cpu"}


def test_a_model_run_keeps_what_enters_the_head_row_by_row(tmp_path):
    net, data = Net(), examples()
    table = hs.score(net, data, out=tmp_path / "run", **OPTIONS)
    kept = RunFolder(tmp_path / "run").embeddings()
    assert [part.shape for part in kept] == [(100, 5), (100, 5), (30, 5)]
    assert {part.dtype for part in kept} == {np.dtype(np.float16)}
    expected = net.body(data.tensors[0]).detach().numpy()
    np.testing.assert_allclose(np.concatenate(kept), expected[table.column("index")], atol=2e-3)
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["settings"]["keep_embeddings"] is True
    assert {"embeddings", "neighbours.parquet"} <= set(manifest["files"])


def test_numbers_too_large_for_half_precision_are_kept_whole(tmp_path):
    hs.score(Net(scale=1e6), examples(), out=tmp_path / "run", **OPTIONS)
    kept = RunFolder(tmp_path / "run").embeddings()
    assert {part.dtype for part in kept} == {np.dtype(np.float32)}
    assert np.isfinite(np.concatenate(kept)).all()


def test_dying_before_any_file_appears_and_resuming_keeps_the_same_bytes(tmp_path, monkeypatch):
    net, data = Net(), examples()
    hs.score(net, data, out=tmp_path / "whole", **OPTIONS)
    expected = _bytes(tmp_path / "whole")
    survived = 0
    while True:
        out = tmp_path / f"run-{survived}"
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", dying_after(survived))
            try:
                hs.score(net, data, out=out, **OPTIONS)
                break
            except Died:
                pass
        hs.score(net, data, out=out, resume=True, **OPTIONS)
        assert _bytes(out) == expected
        shutil.rmtree(out)
        survived += 1
    assert survived >= 13  # among them three arrays, and the neighbours


def _bytes(run):
    names = [
        "table.parquet",
        "neighbours.parquet",
        *(f"embeddings/0000000{n}.npy" for n in range(3)),
    ]
    return {name: (run / name).read_bytes() for name in names}


def test_a_run_that_is_replaced_leaves_no_embeddings_behind(tmp_path):
    net, data = Net(), examples()
    hs.score(net, data, out=tmp_path / "run", **OPTIONS)
    again = {**OPTIONS, "keep_embeddings": False}
    hs.score(net, data, out=tmp_path / "run", overwrite=True, **again)
    assert not (tmp_path / "run" / "embeddings").exists()
    assert not (tmp_path / "run" / "neighbours.parquet").exists()


def test_what_cannot_be_kept_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"needs a folder to keep them in; give out= \(--out\)"):
        hs.score(Net(), examples(), keep_embeddings=True)
    with pytest.raises(
        OptionError, match="no score was asked for that needs one; leave it out, or"
    ):
        hs.score(Net(), examples(), out=tmp_path / "run", scores="entropy", **OPTIONS)
    with pytest.raises(OptionError, match="keep_embeddings keeps what enters the model's head"):
        hs.score(lambda_net(), examples(), out=tmp_path / "other", **OPTIONS)


def lambda_net():
    class Headless(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, rows):
            return torch.tanh(rows[:, :4] * self.scale) * 3

    return Headless()
