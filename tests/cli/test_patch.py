"""`hardsight patch`: from a click in the app to a corrected copy of the data."""

import csv
import shlex

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import hardsight as hs
from hardsight.cli import main
from hardsight.data import open_source
from hardsight.errors import OptionError, PatchError
from hardsight.exchange import patch_of
from tests.exchange import made as data_of
from tests.review import made

DOG = 3  # a class that the model has and the data does not


def run_of(
    folder, source, *, classes, number=lambda label: label, prediction=None, read_by=None, **about
):
    """A finished run about a source, as a model that numbers its classes in some way gives it."""
    columns = made.rows_of(len(source), len(source.classes))
    labels = np.array([number(label) for label in source.labels])
    columns |= {
        "index": np.arange(len(source)), "label": labels,
        "id": [source.id_of(at) for at in range(len(source))],
        "prediction": np.roll(labels, 3) if prediction is None else prediction,
    }  # fmt: skip
    facts = {"spec": source.spec, "split": None, "fingerprint": source.fingerprint(),
             "named": len(source.classes), **(read_by or {})}  # fmt: skip
    return made.save(folder, columns, classes=classes, data=facts, thumbnails=False, **about)


@pytest.fixture
def photos(tmp_path):
    return data_of.folder(tmp_path)[0]


@pytest.fixture
def run(photos, tmp_path):
    """A run whose model has the data's classes in another order, and one more."""
    order = {"labels": [2, 0, 1], "data_classes": ["ant", "bee", "cat"], "taken": "name"}
    source = open_source(photos)
    return run_of(tmp_path / "run", source, classes=["bee", "cat", "ant", "dog"],
                  number=[2, 0, 1].__getitem__, class_order=order)  # fmt: skip


def decide(run, *answers):
    """Answer in the app: ``(reviewer, index, action, class of the model)``."""
    app = made.App(run)
    for reviewer, index, action, new in answers:
        item = vars(app.example(index, reviewer))
        assert app.decide(item, action, new, reviewer).status_code == 200
    app.close()


def invoke(*words, code=0):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def test_the_line_after_an_export_names_labels_in_a_file_of_their_own(tmp_path):
    rows, labels = np.eye(12, 3, dtype="f4"), np.arange(12) % 3
    for name, array in (("x", rows), ("y", labels), ("w", np.eye(3, dtype="f4"))):
        np.save(tmp_path / f"{name}.npy", array)
    run = tmp_path / "run"
    invoke("score", "--data", tmp_path / "x.npy", "--labels", tmp_path / "y.npy",
           "--class-weights", tmp_path / "w.npy", "--out", run)  # fmt: skip
    decide(run, ("anna", 0, "relabel", 2))
    said = invoke("patch", "export", run).splitlines()[-1]
    assert said.endswith("/x.npy --labels LABELS.npy --class-weights WEIGHTS --out FIXED.npy")
    named = {"LABELS.npy": "y.npy", "WEIGHTS": "w.npy", "FIXED.npy": "fixed.npy"}
    step = shlex.split(said.removeprefix("next: hardsight "))
    invoke(*(tmp_path / named[word] if word in named else word for word in step))
    assert np.load(tmp_path / "fixed.npy").tolist() == [2, *labels[1:]]


@pytest.mark.parametrize("numbers", [False, True])
def test_the_labels_of_a_csv_are_fixed_that_a_bag_of_words_judged(tmp_path, numbers):
    file, run = tmp_path / "films.csv", tmp_path / "run"
    films = pd.DataFrame({"text": ["a fine film", "a dull film", "fine, warm", "cold, dull"] * 5})
    films["label"] = [1, 0, 1, 0] * 5 if numbers else ["good", "bad", "good", "bad"] * 5
    films.to_csv(file, index=False)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    hs.score(model.fit(films["text"], films["label"]), file, sample="in-sample", out=run)
    decide(run, ("anna", 2, "relabel", 0))  # to bad, or 0
    step = invoke("patch", "export", run).splitlines()[-1].removeprefix("next: hardsight ")
    assert step.endswith("films.csv --out FIXED.csv")
    invoke(*shlex.split(step)[:-1], tmp_path / "fixed.csv")
    fixed = pd.read_csv(tmp_path / "fixed.csv")
    assert fixed["label"].tolist() == [*films["label"][:2], films["label"][1], *films["label"][3:]]
    assert fixed["text"].tolist() == films["text"].tolist()


def test_a_click_in_the_app_becomes_a_fixed_label_of_the_data(run, photos, tmp_path):
    decide(run, ("anna", 0, "relabel", 0), ("anna", 1, "keep", None), ("ben", 4, "relabel", DOG),
           ("ben", 5, "cannot tell", None))  # fmt: skip
    before = data_of.hashes(photos)
    said = invoke("patch", "export", run)
    assert "4 decisions (2 relabel, 1 keep, 1 cannot tell) by anna, ben" in said
    # the line that it ends with works
    step = shlex.split(said.splitlines()[-1].removeprefix("next: hardsight "))
    said = invoke(*step[:-1], tmp_path / "fixed")
    assert "12 examples, 2 with another label; nobody could tell the class of 1" in said
    found = open_source(tmp_path / "fixed")
    assert found.classes == ("ant", "bee", "cat", "dog")
    ids = [found.id_of(at) for at in range(len(found))]
    assert {"bee/nested/0.png", "dog/nested/4.png", "bee/nested/5.png"} <= set(ids)
    assert data_of.hashes(photos) == before


def test_a_patch_has_the_classes_of_the_data_by_number_and_name(run, photos):
    decide(run, ("anna", 0, "relabel", 0), ("anna", 4, "relabel", DOG))
    rows = patch_of(run).to_pandas()
    assert rows[["old", "old_name", "new", "new_name"]].values.tolist() == [
        [0, "ant", 1, "bee"], [1, "bee", 3, "dog"],
    ]  # fmt: skip
    assert rows["data"].unique().tolist() == [open_source(photos).fingerprint()]
    assert rows["evidence"][0].startswith("Logit margin, one pass of a model that never saw")
    assert rows["reason"].str.contains("The model says").all()
    assert (
        open_source(photos, patch=patch_of(run).where_kept(np.array([True, False]))).labels[0] == 1
    )


def test_names_that_only_the_model_has_do_not_reach_data_without_names(tmp_path):
    file, _ = data_of.npz(tmp_path)
    order = {"labels": None, "data_classes": ["0", "1", "2"], "taken": "position"}
    source = open_source(file)
    run = run_of(tmp_path / "run", source, classes=["ant", "bee", "cat"], class_order=order)
    decide(run, ("anna", 0, "relabel", 2))
    assert patch_of(run).to_pandas()["new_name"].tolist() == ["2"]
    assert open_source(file, patch=patch_of(run)).labels[0] == 2


def test_disagreement_is_listed_and_left_out_unless_told_otherwise(run, tmp_path):
    decide(run, ("anna", 0, "relabel", 0), ("ben", 0, "relabel", 1), ("eve", 0, "relabel", 0),
           ("anna", 7, "relabel", 1))  # fmt: skip
    said = invoke("patch", "export", run, "--out", tmp_path / "a.csv")
    assert "reviewers disagree about 1 examples:" in said
    assert "0 (ant/nested/0.png) anna: bee, ben: cat, eve: bee -> left out" in said
    kept = {"drop": [7], "majority": [0, 0, 7], "newest": [0, 0, 7], "keep": [0, 0, 0, 7]}
    for how, index in kept.items():
        said = invoke("patch", "export", run, "--out", tmp_path / f"{how}.csv", "--resolve", how)
        assert f"{len(index)} decisions ({len(index)} relabel) by" in said
        assert hs.read_patch(tmp_path / f"{how}.csv").to_pandas()["index"].tolist() == index
    invoke("patch", "export", run, "--out", tmp_path / "ben.csv", "--reviewer", "ben")
    assert hs.read_patch(tmp_path / "ben.csv").reviewers == ["ben"]
    assert "'zoe' decided nothing" in invoke("patch", "export", run, "--reviewer", "zoe", code=2)


def test_people_export_by_themselves_and_merge(run, photos, tmp_path):
    decide(run, ("anna", 0, "relabel", 0), ("ben", 0, "relabel", 1), ("ben", 7, "relabel", 1))
    for name in ("anna", "ben"):
        invoke("patch", "export", run, "--out", tmp_path / f"{name}.csv", "--reviewer", name)
    files = [tmp_path / "anna.csv", tmp_path / "ben.csv"]
    out = tmp_path / "both.csv"
    said = invoke("patch", "merge", *files, "--out", out, code=1)
    assert "0 (ant/nested/0.png) anna: bee, ben: cat\n" in said
    assert "nothing was written; say what to do with --resolve" in said
    assert not out.exists()
    said = invoke("patch", "merge", *files, "--out", out, "--resolve", "newest")
    assert "-> settled" in said
    assert hs.read_patch(out).changes().new.tolist() == [2, 2]
    said = invoke("patch", "merge", *files, *files, "--resolve", "drop")
    assert "-> left out" in said
    assert "3 decisions were duplicates" in said
    invoke("patch", "merge", *files, "--out", tmp_path / "all.jsonl", "--resolve", "keep")
    said = invoke("patch", "apply", tmp_path / "all.jsonl", "--data", photos, "--out",
                  tmp_path / "fixed", code=1)  # fmt: skip
    assert "people disagree about 1 examples" in said


def test_nothing_decided_is_said(run, tmp_path):
    said = invoke("patch", "export", run, code=1)
    assert f"nothing was decided about {run}; decide with `hardsight review {run}`" in said
    spaced = run.rename(run.with_name("a run"))
    assert f"`hardsight review '{spaced}'`" in invoke("patch", "export", spaced, code=1)
    said = invoke("patch", "export", tmp_path / "gone", code=2)
    assert "no score table at" in said
    with pytest.raises(OptionError, match="keep or drop, got 'guess'"):
        patch_of(run, cannot_tell="guess")


def test_a_table_that_does_not_name_its_data_has_no_patch(tmp_path):
    run = made.save(tmp_path / "run", data={"spec": "x", "split": None, "fingerprint": None})
    decide(run, ("anna", 0, "keep", None))
    with pytest.raises(PatchError, match="does not say which data it is about"):
        patch_of(run)


def test_what_nobody_could_tell_can_be_left_out_already_by_the_patch(run, photos, tmp_path):
    decide(run, ("anna", 5, "cannot tell", None))
    out = tmp_path / "drop.csv"
    invoke("patch", "export", run, "--out", out, "--cannot-tell", "drop")
    found = open_source(photos, patch=out)
    assert len(found) == 11
    assert 5 not in found.numbers
    said = invoke("patch", "apply", out, "--data", photos, "--out", tmp_path / "fixed")
    assert "11 examples, 0 with another label, 1 left out" in said


def test_hostile_names_are_text_in_every_file(tmp_path):
    source = open_source(data_of.folder(tmp_path)[0])
    evil = '=HYPERLINK("http://x")\n@SUM'
    run = run_of(tmp_path / "run", source, classes=["ant", "bee", evil, "+1"],
                 class_order={"labels": None, "data_classes": ["ant", "bee", "cat"]})  # fmt: skip
    decide(run, ("-anna", 0, "relabel", 3), ("-anna", 1, "relabel", 2))
    invoke("patch", "export", run)
    with (run / "patch.csv").open(newline="") as opened:
        cells = [cell for line in csv.reader(opened) for cell in line]
    assert "'+1" in cells
    assert "'-anna" in cells
    assert not [cell for cell in cells if cell[:1] in tuple("=+-@")]
    frame = hs.read_patch(run / "patch.csv").to_pandas()
    assert frame["new_name"].tolist() == ["+1", "cat"]
    assert frame["reviewer"].unique().tolist() == ["-anna"]


def test_help_tells_a_stranger_what_to_do():
    said = invoke("patch", "--help")
    assert [word in said for word in ("export", "apply", "merge", "Examples:")] == [True] * 4
    assert "never touched" in invoke("patch", "apply", "--help")


def test_the_frame_of_a_patch_is_a_copy(run):
    decide(run, ("anna", 0, "relabel", 0))
    patch = patch_of(run)
    frame = patch.to_pandas()
    frame["new"] = 7
    assert isinstance(frame, pd.DataFrame)
    assert patch.changes().new.tolist() == [1]
