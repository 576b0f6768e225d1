"""Every example is scored by the model that did not see it."""

from __future__ import annotations

import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import hardsight as hs
from hardsight.cli import main
from hardsight.errors import ConfigError, DataError, HardsightWarning
from hardsight.models import load_model
from hardsight.run.loop import folds_of
from tests._texts import reviews, saved, tokenizer
from tests.review import made

QUICK = {"epochs": 2, "batch_size": 16, "device": "cpu", "workers": 0, "show_progress": False}


class Seen(nn.Module):
    """Notes which of the examples of a dataset, whose first value is their number, teach it."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)
        self.learned: set[int] = set()

    def forward(self, rows):
        if self.training:
            self.learned |= {int(number) for number in rows[:, 0]}
        return self.head(rows)


class Numbered(torch.utils.data.Dataset):
    """Vectors that begin with the number of their example."""

    def __init__(self, labels):
        self.targets = torch.as_tensor(labels)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        row = torch.zeros(5)
        row[0], row[1 + int(self.targets[index])] = index, 1.0
        return row, int(self.targets[index])


@pytest.fixture
def trained(images, net, tmp_path):
    return hs.train(net, images, out=tmp_path / "run", folds=3, **QUICK)


def test_every_example_has_one_row_and_says_which_model_scored_it(trained):
    table = hs.read_table(trained.folder)
    assert table.column("index").tolist() == list(range(120))
    assert np.bincount(table.column("fold")).tolist() == [0, 40, 40, 40]
    assert table.metadata["sample"] == "out-of-sample"
    assert table.metadata["folds"]["count"] == 3
    assert [fold["scored"] for fold in trained.folds] == [40, 40, 40]
    assert [fold["learned_from"] + fold["validated_on"] for fold in trained.folds] == [80, 80, 80]


def test_the_scores_are_those_of_the_model_of_the_fold(trained, images, net):
    for fold in (1, 2, 3):
        model = trained.folder / "folds" / f"fold-{fold}" / "model"
        stored = json.loads((model / "model.json").read_text())["preprocessing"]
        alone = hs.score(
            net, images, weights=model / "model.safetensors", device="cpu", num_classes=3,
            mean=stored["mean"], std=stored["std"],
        ).to_pandas().set_index("index")  # fmt: skip
        rows = trained.table.to_pandas().set_index("index")
        rows = rows[rows["fold"] == fold]
        np.testing.assert_allclose(rows["avh"], alone.loc[rows.index, "avh"], rtol=1e-4)
        assert (rows["prediction"] == alone.loc[rows.index, "prediction"]).all()


def test_a_run_by_folds_opens_in_review(trained, images):
    app = made.App(trained.folder)
    try:
        page = app.get("start").json()
        assert page["rows"] == 120
        assert "each example judged by a model that never saw it" in page["evidence"]
        item = app.queue(only="all")["items"][0]
        assert "A model that never saw it" in item["reason"]
        near = {one["label"]: one["angle"] for one in item["nearest"]}  # of the model of its fold
        (row,) = trained.table.rows_at(np.array([item["index"]])).to_pylist()
        assert sorted(near) == [0, 1, 2]
        np.testing.assert_allclose(near[item["label"]], row["target_angle"], atol=1e-6)
        answer = app.decide(item, "cannot tell").json()
        assert answer["recent"][0]["index"] == item["index"]
        content = app.get("pictures", of=str(item["index"]), size="large").content
        length = int.from_bytes(content[:4], "little")
        (kind, note, size), *_ = json.loads(content[4 : 4 + length])
        assert kind.startswith("image/")
        assert (note, size > 0) == ("", True)
    finally:
        app.close()
    assert hs.review.decisions(trained.folder)["index"].tolist() == [item["index"]]


def test_no_model_learns_from_or_is_selected_by_what_it_scores(tmp_path, monkeypatch):
    models = []
    original = Seen.__deepcopy__ if hasattr(Seen, "__deepcopy__") else None
    assert original is None

    def copied(self, memo):
        twin = Seen()
        twin.load_state_dict(self.state_dict())
        models.append(twin)
        return twin

    monkeypatch.setattr(Seen, "__deepcopy__", copied, raising=False)
    data = Numbered(np.arange(60) % 3)
    module = Seen()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    done = hs.train(module, data, out=tmp_path / "run", folds=4, validation=0.2, **QUICK)
    fold = done.table.column("fold")
    for number, model in enumerate(models, start=1):
        assert model.learned
        assert model.learned.isdisjoint(np.flatnonzero(fold == number).tolist())
    assert len(models) == 4
    assert not module.learned  # the user's own module stays as it is
    torch.testing.assert_close(dict(module.state_dict()), before)


def test_planted_errors_are_found_by_models_that_did_not_see_them(tmp_path):
    draw = torch.Generator().manual_seed(3)
    truth = torch.arange(240) % 3
    rows = torch.randn(240, 12, generator=draw)
    rows[torch.arange(240), truth] += 8
    wrong = np.zeros(240, dtype=bool)
    wrong[::11] = True
    labels = torch.where(torch.from_numpy(wrong), (truth + 1) % 3, truth)
    done = hs.train(
        nn.Linear(12, 3), torch.utils.data.TensorDataset(rows, labels), out=tmp_path / "run",
        folds=3, **{**QUICK, "epochs": 12},
    )  # fmt: skip
    assert wrong[done.table.suspects(22)["index"]].mean() > 0.8


def test_folds_are_shared_out_evenly_and_by_the_seed():
    labels = np.repeat([0, 1, 2], [7, 50, 13])
    folds = folds_of(labels, 5, seed=0, classes=("a", "b", "c"), spec="data")
    for rows in (np.arange(70), *(np.flatnonzero(labels == label) for label in range(3))):
        sizes = np.bincount(folds.number[rows], minlength=6)[1:]
        assert sizes.max() - sizes.min() <= 1
    again = folds_of(labels, 5, seed=0, classes=("a", "b", "c"), spec="data")
    other = folds_of(labels, 5, seed=1, classes=("a", "b", "c"), spec="data")
    np.testing.assert_array_equal(folds.number, again.number)
    assert (folds.number != other.number).any()


def test_an_example_that_is_alone_in_its_class_is_learned_from_and_not_scored(tmp_path):
    labels = np.array([0] * 20 + [1] * 19 + [2])
    rows = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(rows, torch.from_numpy(labels))
    with pytest.warns(HardsightWarning, match="class 2 of .* has a single example"):
        done = hs.train(nn.Linear(5, 3), data, out=tmp_path / "run", folds=2, **QUICK)
    assert len(done.table) == 39
    assert 39 not in done.table.column("index")
    errors = hs.table.RunFolder(done.folder).errors()
    assert errors["index"].tolist() == [39]
    assert "only example of class 2" in errors["reason"][0]


def test_a_class_of_fewer_examples_than_folds_is_said(tmp_path):
    labels = np.array([0] * 20 + [1] * 17 + [2] * 3)
    with pytest.warns(HardsightWarning, match="class c of data has fewer examples than the 5 fold"):
        folds = folds_of(labels, 5, seed=0, classes=("a", "b", "c"), spec="data")
    assert folds.number.min() == 1


def test_what_cannot_be_shared_out_is_refused(images, net, vectors, linear, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match="folds to be at least 2, got 1"):
        hs.train(net, images, out=out, folds=1, **QUICK)
    with pytest.raises(DataError, match="at least one example per fold, got 120 examples"):
        hs.train(net, images, out=out, folds=121, **QUICK)
    with pytest.raises(ConfigError, match="track records one model"):
        hs.train(net, images, out=out, folds=2, track=True, **QUICK)
    with pytest.raises(ConfigError, match="track_on watches one model"):
        hs.train(linear, vectors, out=out, folds=2, track_on={"again": vectors}, **QUICK)
    identifiers = torch.utils.data.TensorDataset(torch.randn(8, 5), torch.arange(8))
    with pytest.raises(DataError, match=r"every class .* has a single example"):
        hs.train(nn.Linear(5, 8), identifiers, out=out, folds=2, **QUICK)
    assert not out.exists()


def test_a_model_that_knows_more_classes_keeps_its_numbers(tmp_path):
    rows = torch.randn(90, 5, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(rows, torch.arange(90) % 3)
    done = hs.train(nn.Linear(5, 7), data, out=tmp_path / "run", folds=2, **QUICK)
    assert done.table.column("label").tolist() == (np.arange(90) % 3).tolist()


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is a POSIX signal")
def test_a_killed_run_goes_on_fold_by_fold_to_the_same_table(images, net, tmp_path, forks):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f'model = "{net}"\nepochs = 2\nbatch_size = 16\ndevice = "cpu"\nworkers = 0\nfolds = 3\n'
        f'data = "{images}"\nthumbnails = 0\n'
    )
    out = tmp_path / "killed"
    done = forks.run(
        f"from hardsight.cli import main; main(['train', {str(recipe)!r}, '--out', {str(out)!r}])",
        loads="lightning.pytorch",
        until=out / "folds" / "fold-2" / "model" / "checkpoints" / "last.ckpt",
    )
    assert done.status == -signal.SIGKILL, done.stderr
    first = (out / "folds" / "fold-1" / "scores" / "table.parquet").stat().st_mtime_ns
    with pytest.raises(hs.errors.MissingDataError, match="unfinished; continue"):
        hs.read_table(out)
    printed = CliRunner().invoke(main, ["train", str(recipe), "--out", str(out), "--resume"])
    assert printed.exit_code == 0, printed.output
    assert (out / "folds" / "fold-1" / "scores" / "table.parquet").stat().st_mtime_ns == first
    whole = tmp_path / "whole"
    assert CliRunner().invoke(main, ["train", str(recipe), "--out", str(whole)]).exit_code == 0
    pairs = (hs.read_table(run).to_pandas() for run in (out, whole))
    ours, theirs = (frame.select_dtypes("number") for frame in pairs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_texts_are_scored_by_the_model_that_did_not_see_them(tmp_path):
    saved(tmp_path / "bert", "bert")
    texts, labels = reviews(24)
    rows = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "reviews.csv").write_text("\n".join(["review,stars", *rows]))
    done = hs.train(
        f"hf:{tmp_path / 'bert'}", tmp_path / "reviews.csv", text_column="review",
        label_column="stars", max_tokens=16, folds=2, out=tmp_path / "run", **QUICK | {"epochs": 1},
    )  # fmt: skip
    words, about = tokenizer(16), done.table.metadata
    assert about["data"]["text_column"] == "review"
    assert about["counts"]["truncated"] == sum(
        len(tokenizer()(text).input_ids) > 16 for text in texts
    )
    for fold in (1, 2):
        model = load_model(str(done.folder / "folds" / f"fold-{fold}" / "model")).model.eval()
        own = done.table.column("fold") == fold
        for at in done.table.column("index")[own].tolist():
            given = words(texts[at], truncation=True, return_tensors="pt")
            with torch.no_grad():
                probs = model(**given).logits[0].softmax(dim=0)
            row = np.flatnonzero(done.table.column("index") == at)[0]
            confidence = done.table.column("model_confidence")[row]
            assert confidence == pytest.approx(
                float(probs[done.table.column("label")[row]]), abs=1e-5
            )


def test_copies_in_other_folds_are_told_of(images, net, tmp_path):
    with np.load(images) as stored:
        pixels, labels = stored["images"], stored["labels"]
    np.savez(tmp_path / "twice.npz", images=pixels.repeat(2, axis=0), labels=labels.repeat(2))
    says = r"\d+ of \d+ examples of fold 1 looked at are also in other folds, byte for byte"
    with pytest.warns(HardsightWarning, match=says):
        hs.train(
            net, tmp_path / "twice.npz", out=tmp_path / "run", folds=2, **QUICK | {"epochs": 1}
        )


def test_one_command_trains_and_scores_by_a_recipe(images, net, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'model = "{net}"\nepochs = 1\nbatch_size = 16\ndevice = "cpu"\nworkers = 0\n'
        f'data = "{images}"\nout = "{tmp_path / "run"}"\n'
    )
    command = ["score", "--out-of-sample", "2", "--recipe", str(recipe)]
    printed = CliRunner().invoke(main, command)
    assert printed.exit_code == 0, printed.output
    told = "120 rows, each scored by the one of 2 models that was not trained on it"
    assert told in printed.output
    assert f"next: hardsight review {tmp_path / 'run'}" in printed.output
    page = CliRunner().invoke(main, ["report", str(tmp_path / "run")])
    assert page.exit_code == 0, page.output
    shutil.rmtree(tmp_path / "run")
    refused = CliRunner().invoke(main, [*command, "--data", "photos", "--out", "x"])
    assert refused.exit_code == 2
    assert "--data cannot be used with --recipe" in refused.output
    refused = CliRunner().invoke(main, ["score", "--recipe", str(recipe)])
    assert refused.exit_code == 2
    assert "say how many folds with --out-of-sample 5" in refused.output
