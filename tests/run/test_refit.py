"""Stored embeddings out of sample: a head for every fold, fitted to the other folds."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression

import hardsight as hs
from hardsight.cli import main
from hardsight.errors import HardsightWarning, OptionError
from hardsight.run.loop import folds_of
from hardsight.run.score import HeadFitter
from tests.review import made


@pytest.fixture
def stored():
    """Embeddings of three classes, off centre and of uneven spread, and their labels."""
    draw = np.random.default_rng(0)
    labels = np.arange(600) % 3
    rows = draw.normal(size=(600, 8)) * np.linspace(0.2, 2, 8) + 3
    rows[np.arange(600), labels] += 1.5
    return rows.astype(np.float32), labels


@pytest.fixture
def head_of_all(stored):
    """The head that all rows but every fifth give, and which rows those are."""
    rows, labels = stored
    learn = np.arange(600) % 5 > 0
    source = hs.data.open_source(rows, labels=labels)
    fitter = HeadFitter(source, 3, device=torch.device("cpu"), seed=0)
    return fitter.fitted(learn), learn


@pytest.mark.parametrize("curved_from", [10**9, 0])
def test_the_head_is_the_minimum_that_another_solver_finds(stored, head_of_all, curved_from):
    rows, labels = stored
    _, learn = head_of_all
    source = hs.data.open_source(rows, labels=labels)
    # a sample that is smaller than the rows, as in what is large enough for its curvature to count
    how = {"seed": 0, "sample_rows": 200, "curved_from": curved_from}
    fitted = HeadFitter(source, 3, device=torch.device("cpu"), **how).fitted(learn)
    rows = rows[learn].astype(np.float64)
    variance = rows.var(axis=0).mean()
    peer = LogisticRegression(C=1 / (fitted.penalty * variance), tol=1e-10, max_iter=10_000)
    peer.fit(rows - rows.mean(axis=0), labels[learn])

    def objective(weight, bias):
        logits = torch.from_numpy(rows @ weight.T + bias)
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[learn]))
        return float(loss) + 0.5 * fitted.penalty * variance / len(rows) * (weight**2).sum()

    ours = objective(fitted.head.weight.double().numpy(), fitted.head.bias.double().numpy())
    theirs = objective(peer.coef_, peer.intercept_ - peer.coef_ @ rows.mean(axis=0))
    # the sample tells the variance, in whose units the penalty is, to some percent
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert curved_from or fitted.steps <= 8


def test_the_penalty_is_chosen_without_the_rows_that_are_scored(stored, head_of_all):
    rows, labels = stored
    fitted, learn = head_of_all
    labels = np.where(learn, labels, (labels + 1) % 3)  # they know better now
    rows = np.where(learn[:, None], rows, rows + 100)
    source = hs.data.open_source(rows, labels=labels)
    again = HeadFitter(source, 3, device=torch.device("cpu"), seed=0).fitted(learn)
    assert again.penalty == fitted.penalty
    torch.testing.assert_close(again.head.weight, fitted.head.weight)
    torch.testing.assert_close(again.head.bias, fitted.head.bias)


def test_rows_of_noise_get_a_larger_penalty_than_rows_that_tell(stored):
    rows, labels = stored
    noise = np.random.default_rng(1).normal(size=rows.shape).astype(np.float32)
    told = []
    for values in (rows, noise):
        table = hs.score(None, values, labels=labels, out_of_sample=2, device="cpu")
        told.append([fold["penalty"] for fold in table.metadata["folds"]["each"]])
    assert max(told[0]) < min(told[1])


def test_embeddings_that_do_not_fit_into_memory_give_the_same_head(stored, head_of_all):
    rows, labels = stored
    fitted, learn = head_of_all
    source = hs.data.open_source(rows, labels=labels)
    read = HeadFitter(
        source, 3, device=torch.device("cpu"), seed=0, penalties=[fitted.penalty], sample_rows=200,
        keeps=False,
    ).fitted(learn)  # fmt: skip
    assert read.learned_from == 480
    same, other = (
        torch.from_numpy(rows) @ each.head.weight.T + each.head.bias for each in (fitted, read)
    )
    torch.testing.assert_close(other.softmax(1), same.softmax(1), atol=0.01, rtol=0)


def test_each_row_is_scored_by_the_head_of_its_fold(stored, tmp_path):
    rows, labels = stored
    run = tmp_path / "run"
    table = hs.score(
        None, rows, labels=labels, out_of_sample=3, out=run, device="cpu", batch_size=70
    )
    assert table.column("index").tolist() == list(range(600))
    assert np.bincount(table.column("fold")).tolist() == [0, 200, 200, 200]
    assert table.metadata["sample"] == "out-of-sample"
    assert "logistic regression" in table.metadata["folds"]["fitted"]
    for fold in (1, 2, 3):
        head = load_file(run / "heads" / f"fold-{fold}.safetensors")
        alone = hs.score(
            None, rows, labels=labels, class_weights=head["class_weights"], bias=head["bias"],
            device="cpu",
        )  # fmt: skip
        its = table.column("fold") == fold
        for score in ("avh", "logit_margin", "prediction"):
            np.testing.assert_allclose(table.column(score)[its], alone.column(score)[its], 1e-4)


def test_rows_that_are_not_finite_teach_nothing_and_keep_their_row(stored):
    rows, labels = stored
    broken = rows.copy()
    broken[7, 2], broken[8] = np.nan, np.inf
    with pytest.warns(HardsightWarning, match="2 rows are not finite"):
        table = hs.score(None, broken, labels=labels, out_of_sample=2, device="cpu")
    assert len(table) == 600
    assert table.column("finite").sum() == 598
    assert sum(fold["learned_from"] for fold in table.metadata["folds"]["each"]) == 598


def test_an_example_alone_in_its_class_is_listed_and_not_scored(stored, tmp_path):
    rows, labels = stored
    labels = labels.copy()
    labels[17] = 3
    with pytest.warns(HardsightWarning, match="class 3 of .* has a single example"):
        table = hs.score(
            None, rows, labels=labels, out_of_sample=2, out=tmp_path / "run", device="cpu",
            batch_size=1,
        )  # fmt: skip
    assert 17 not in table.column("index")
    assert len(table) == 599
    assert hs.table.RunFolder(tmp_path / "run").errors()["index"].tolist() == [17]


def test_a_run_that_dies_between_two_heads_keeps_the_first(stored, tmp_path, monkeypatch):
    rows, labels = stored
    options = {"labels": labels, "out_of_sample": 3, "device": "cpu"}
    whole = hs.score(None, rows, out=tmp_path / "whole", **options)
    original, fits = HeadFitter.fitted, []

    def fitted(self, learn):
        fits.append(learn)
        if len(fits) == 2:
            raise KeyboardInterrupt
        return original(self, learn)

    monkeypatch.setattr(HeadFitter, "fitted", fitted)
    with pytest.raises(KeyboardInterrupt):
        hs.score(None, rows, out=tmp_path / "run", **options)
    with pytest.raises(hs.errors.RunExistsError, match="unfinished"):
        hs.score(None, rows, out=tmp_path / "run", **options)
    table = hs.score(None, rows, out=tmp_path / "run", resume=True, **options)
    assert len(fits) == 4
    assert table.to_pandas().equals(whole.to_pandas())


def test_what_contradicts_the_folds_is_refused(stored):
    rows, labels = stored
    options = {"labels": labels, "out_of_sample": 2}
    with pytest.raises(OptionError, match="class_weights cannot be used with out_of_sample"):
        hs.score(None, rows, class_weights=np.ones((3, 8)), **options)
    with pytest.raises(OptionError, match="'in-sample' contradicts out_of_sample"):
        hs.score(None, rows, sample="in-sample", **options)
    with pytest.raises(OptionError, match="at least 2 folds, got 1"):
        hs.score(None, rows, labels=labels, out_of_sample=1)
    with pytest.raises(OptionError, match=r"hs\.train\(\.\.\., folds=5\).*--recipe recipe.toml"):
        hs.score("small_cnn", "builtin:digits", split="test", out_of_sample=5)


def test_stored_embeddings_in_the_place_of_the_model_are_told_what_to_write():
    embeddings, labels = np.zeros((6, 2), dtype=np.float32), [0, 1] * 3
    with pytest.raises(OptionError, match=r"is missing 'data'; write .*score\(None, embeddings, "):
        hs.score(embeddings, labels=labels, out_of_sample=5)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lables'"):
        hs.score(None, embeddings, lables=labels)


def test_planted_errors_are_found_from_the_command_line(stored, tmp_path):
    rows, labels = stored
    rows = rows.copy()
    rows[np.arange(600), labels] += 4
    wrong = np.arange(600) % 20 == 3
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "labels.npy", np.where(wrong, (labels + 1) % 3, labels))
    printed = CliRunner().invoke(
        main,
        ["score", "--data", str(tmp_path / "rows.npy"), "--labels", str(tmp_path / "labels.npy"),
         "--out-of-sample", "5", "--out", str(tmp_path / "run"), "--device", "cpu"],
    )  # fmt: skip
    assert printed.exit_code == 0, printed.output
    found = hs.read_table(tmp_path / "run").suspects(30)
    assert wrong[found["index"]].mean() > 0.9
    app = made.App(tmp_path / "run")
    try:
        item = app.queue()["items"][0]
        assert "A model that never saw it" in item["reason"]
        assert item["error_share"] > 0.5
        assert b"stored embeddings have no pictures" in app.get("pictures", of="0").content
    finally:
        app.close()


def test_copies_in_other_folds_are_told_of(stored):
    rows, labels = (np.concatenate([each[:60], each[:60]]) for each in stored)
    says = r"(\d+) of 60 examples of fold 1 looked at are also in other folds, byte for byte"
    with pytest.warns(HardsightWarning, match=says) as told:
        hs.score(None, rows, labels=labels, out_of_sample=2, device="cpu")
    text = str(told[0].message)
    number = folds_of(labels, 2, seed=0, classes=("0", "1", "2"), spec="rows").number
    split = int((number[:60] != number[60:]).sum())  # one of each such pair is in fold 1
    assert text.startswith(f"{split} of 60 ")
    own, same = (int(at) for at in re.findall(r"such as (\d+) \((\d+) there\)", text)[0])
    assert (number[own], number[same], abs(own - same)) == (1, 2, 60)


def test_copies_in_one_fold_and_rows_that_are_not_finite_raise_no_alarm(stored):
    rows, labels = (each[:60].copy() for each in stored)
    number = folds_of(labels, 2, seed=0, classes=("0", "1", "2"), spec="rows").number
    one, two = np.flatnonzero(number == 1)[:2]
    rows[one] = rows[two]
    rows[np.flatnonzero(number == 2)[0]] = rows[np.flatnonzero(number == 1)[5]] = np.nan
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hs.score(None, rows, labels=labels, out_of_sample=2, device="cpu")
    assert not [each for each in told if "byte for byte" in str(each.message)]
