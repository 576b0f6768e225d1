"""A run in the form of other tools; what their own packages accepted is written down here."""

import base64
import csv
import json
import warnings
import xml.etree.ElementTree as ElementTree

import datasets
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hardsight.cli import main
from hardsight.data import open_source
from hardsight.errors import DataError, OptionError, RunExistsError, UnknownNameError
from hardsight.exchange import TOOLS, export_run
from tests.cli.test_patch import decide, run_of
from tests.exchange import made


def out_for(to, place):
    return place / {"csv": "run.csv", "cleanlab": "issues.parquet"}.get(to, to)


@pytest.fixture
def photos(tmp_path):
    return made.folder(tmp_path)[0]


@pytest.fixture
def run(photos, tmp_path):
    """A run whose model doubts the examples 3, 7 and 11; 3 was changed and 7 was kept."""
    source = open_source(photos)
    prediction = source.labels.copy()
    prediction[[3, 7, 11]] = [1, 2, 0]
    run = run_of(tmp_path / "run", source, classes=list(source.classes), prediction=prediction)
    decide(run, ("anna", 3, "relabel", 1), ("anna", 7, "keep", None), ("anna", 8, "relabel", 0),
           ("ben", 8, "keep", None))  # fmt: skip
    return run


@pytest.fixture
def array_run(tmp_path):
    """A run about pictures that are not files."""
    data, _ = made.npz(tmp_path)
    source = open_source(data)
    return run_of(tmp_path / "arrays", source, classes=["0", "1", "2"])


@pytest.mark.parametrize("to", TOOLS)
def test_every_tool_gets_a_result_that_is_whole_and_not_replaced_unasked(to, run, tmp_path):
    out = out_for(to, tmp_path)
    words = ["export", str(run), "--to", to, "--out", str(out)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert f"examples -> {out}" in result.output
    assert "<out>" not in result.output
    with pytest.raises(RunExistsError, match="exists; choose another --out"):
        export_run(run, to, out=out)
    export_run(run, to, out=out, overwrite=True)
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_csv_has_a_row_per_example_and_no_formula(tmp_path, photos):
    source = open_source(photos)
    run = run_of(tmp_path / "run", source, classes=["=ant", "+bee", "@cat"])
    done = export_run(run, "csv", out=tmp_path / "run.csv")
    with (tmp_path / "run.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert done.rows == len(rows) == 12
    assert [row["label_name"] for row in rows[:1]] == ["'=ant"]
    text = [value for row in rows for name, value in row.items() if name.endswith(("name", "id"))]
    assert not [value for value in text if value[:1] in tuple("=+-@")]


def test_csv_says_what_was_decided(run, tmp_path):
    export_run(run, "csv", out=tmp_path / "run.csv")
    frame = pd.read_csv(tmp_path / "run.csv", keep_default_na=False).set_index("index")
    assert frame.loc[[3, 7, 8, 0], "verdict"].tolist() == ["relabel", "keep", "disputed", ""]
    assert frame.loc[3, ["label_name", "new_name"]].tolist() == ["ant", "bee"]


# ---------------------------------------------------------------------------- cleanlab


def test_the_issue_frame_has_the_columns_types_and_direction_of_datalab(run, tmp_path):
    from cleanlab import Datalab

    export_run(run, "cleanlab", out=tmp_path / "issues.parquet")
    ours = pd.read_parquet(tmp_path / "issues.parquet")
    labels = np.tile(made.LABELS, 4)  # it wants some examples of every class
    names = np.array(["ant", "bee", "cat"])[labels]
    lab = Datalab(data={"label": names.tolist()}, label_name="label", verbosity=0)
    probs = np.full((48, 3), 0.05)
    probs[np.arange(48), labels] = 0.9
    probs[3] = [0.05, 0.9, 0.05]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pandas, about how cleanlab calls it
        lab.find_issues(pred_probs=probs, issue_types={"label": {}})
    theirs = lab.get_issues("label")
    assert list(ours.columns) == list(theirs.columns)
    for name in ours.columns:
        assert ours[name].dtype.kind == theirs[name].dtype.kind or name.endswith("_label"), name
    assert ours["given_label"].tolist() == theirs["given_label"].tolist()[:12]
    assert ours["label_score"].between(0, 1).all()
    # in both, issues are those with low scores
    for frame in (ours, theirs):
        assert frame["is_label_issue"][3]
    assert theirs["label_score"].idxmin() == 3
    assert ours.loc[[3, 7], "is_label_issue"].tolist() == [True, False]


# ---------------------------------------------------------------------------- Hugging Face


def test_datasets_reads_pictures_and_fixed_labels(run, tmp_path):
    done = export_run(run, "huggingface", out=tmp_path / "hf")
    file = str(tmp_path / "hf" / "data" / "train-00000-of-00001.parquet")
    found = datasets.Dataset.from_parquet(file, cache_dir=str(tmp_path / "cache"))
    assert found.features["label"] == datasets.ClassLabel(names=["ant", "bee", "cat"])
    assert isinstance(found.features["image"], datasets.Image)
    wanted = made.LABELS.copy()
    wanted[3] = 1
    assert found["label"][:] == wanted.tolist()
    assert found["label_before"][:] == made.LABELS.tolist()
    assert np.array_equal(np.asarray(found[5]["image"]), made.PIXELS[5])
    assert "load_dataset" in done.notes[0]
    again = open_source(tmp_path / "hf")  # ours reads it, too
    assert again.classes == ("ant", "bee", "cat")
    assert again.labels.tolist() == wanted.tolist()


def test_without_its_data_a_dataset_has_no_pictures_and_says_so(run, photos, tmp_path):
    photos.rename(tmp_path / "moved")
    done = export_run(run, "huggingface", out=tmp_path / "hf")
    schema = pq.read_schema(tmp_path / "hf" / "data" / "train-00000-of-00001.parquet")
    assert "image" not in schema.names
    assert any("there are no pictures or texts in it" in note for note in done.notes)
    export_run(run, "huggingface", out=tmp_path / "hf", data=tmp_path / "moved", overwrite=True)
    schema = pq.read_schema(tmp_path / "hf" / "data" / "train-00000-of-00001.parquet")
    assert "image" in schema.names


# ---------------------------------------------------------------------------- Label Studio


def test_tasks_name_pictures_suggestions_and_decisions(run, photos, tmp_path):
    export_run(run, "label-studio", out=tmp_path / "ls")
    tasks = json.loads((tmp_path / "ls" / "tasks.json").read_text())
    by_index = {task["data"]["index"]: task for task in tasks}
    assert {3, 7, 11} <= set(by_index)  # the suspects
    task = by_index[3]
    assert task["data"]["image"] == "/data/local-files/?d=ant/nested/3.png"
    (prediction,) = task["predictions"]
    assert 0 <= prediction["score"] <= 1
    # what label-studio-sdk 2.1.2 validates against the interface
    wanted = {"id": "r3", "from_name": "label", "to_name": "image", "type": "choices",
              "value": {"choices": ["bee"]}}  # fmt: skip
    assert prediction["result"] == [wanted]
    assert task["annotations"] == [{"result": [wanted]}]
    assert by_index[7]["annotations"][0]["result"][0]["value"] == {"choices": ["bee"]}
    assert "annotations" not in by_index[11]


def test_the_interface_lists_every_class_whatever_it_is_called(tmp_path, photos):
    names = ['a "b" <c>', "d&e", "f'g"]
    run = run_of(tmp_path / "run", open_source(photos), classes=names)
    export_run(run, "label-studio", out=tmp_path / "ls")
    tree = ElementTree.parse(tmp_path / "ls" / "config.xml")
    assert [choice.get("value") for choice in tree.iter("Choice")] == names
    assert tree.find("Choices").attrib == {"name": "label", "toName": "image", "choice": "single"}


def test_pictures_may_lie_behind_an_address_or_be_written(run, array_run, tmp_path):
    export_run(run, "label-studio", out=tmp_path / "a", image_url="https://x.org/p/", limit=1)
    (task,) = json.loads((tmp_path / "a" / "tasks.json").read_text())
    assert task["data"]["image"].startswith("https://x.org/p/")
    export_run(array_run, "label-studio", out=tmp_path / "b", examples="all")
    tasks = json.loads((tmp_path / "b" / "tasks.json").read_text())
    assert tasks[4]["data"]["image"] == "/data/local-files/?d=images/4.png"
    assert (tmp_path / "b" / "images" / "4.png").stat().st_size


# ---------------------------------------------------------------------------- FiftyOne


def test_labels_of_fiftyone_name_files_by_their_whole_path(run, photos, tmp_path):
    export_run(run, "fiftyone", out=tmp_path / "fo")
    found = json.loads((tmp_path / "fo" / "labels.json").read_text())
    assert found["classes"] == ["ant", "bee", "cat"]
    label = found["labels"][str((photos / "ant" / "nested" / "3.png").absolute())]
    assert label["label"] == 1  # by number, since classes are given
    assert label["attributes"]["label_before"] == "ant"
    assert label["attributes"]["verdict"] == "relabel"
    assert len(found["labels"]) == 12
    assert list((tmp_path / "fo" / "data").iterdir()) == []


def test_pictures_in_arrays_are_written_for_fiftyone(array_run, tmp_path):
    export_run(array_run, "fiftyone", out=tmp_path / "fo")
    found = json.loads((tmp_path / "fo" / "labels.json").read_text())
    keys = {file.stem for file in (tmp_path / "fo" / "data").iterdir()}
    assert keys == set(found["labels"]) == {str(n) for n in range(12)}


# ---------------------------------------------------------------------------- what is refused


def test_what_cannot_be_is_refused_in_words(run, photos, tmp_path):
    with pytest.raises(UnknownNameError, match=r"'fiftytwo'\. Did you mean 'fiftyone'"):
        export_run(run, "fiftytwo", out=tmp_path / "x")
    with pytest.raises(OptionError, match=r"--out to end with \.csv, got"):
        export_run(run, "csv", out=tmp_path / "x.txt")
    with pytest.raises(OptionError, match="examples to be all or suspects, got 'some'"):
        export_run(run, "csv", out=tmp_path / "x.csv", examples="some")
    with pytest.raises(OptionError, match="image_url cannot be used here"):
        export_run(run, "fiftyone", out=tmp_path / "x", image_url="y")
    photos.rename(tmp_path / "moved")
    with pytest.raises(DataError, match="fiftyone needs the pictures or texts, but the data"):
        export_run(run, "fiftyone", out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_an_example_that_is_another_one_by_now_has_no_picture(run, photos, tmp_path):
    (photos / "ant" / "nested" / "3.png").rename(photos / "ant" / "nested" / "3b.png")
    done = export_run(run, "fiftyone", out=tmp_path / "fo")
    assert len(json.loads((tmp_path / "fo" / "labels.json").read_text())["labels"]) == 11
    assert any("1 examples have no picture" in note for note in done.notes)


# ---------------------------------------------------------------------------- Argilla


def test_records_of_argilla_hold_pictures_suggestions_and_decisions(run, photos, tmp_path):
    done = export_run(run, "argilla", out=tmp_path / "ar")
    records = json.loads((tmp_path / "ar" / "records.json").read_text())
    assert done.rows == len(records)
    by_id = {record["id"]: record for record in records}
    assert {"3", "7", "11"} <= set(by_id)  # the suspects
    record = by_id["3"]
    head, _, content = record["fields"]["image"].partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(content) == (photos / "ant" / "nested" / "3.png").read_bytes()
    suggestion = record["suggestions"]["label"]
    assert suggestion["value"] == "bee"
    assert 0 <= suggestion["score"] <= 1
    assert record["metadata"]["decided"] == "bee"
    assert record["metadata"]["verdict"] == "relabel"
    assert record["responses"] == {}  # they belong to users of a server
    assert "verdict" not in by_id["11"]["metadata"]
    assert any("argilla.Dataset.from_disk" in note for note in done.notes)


def test_settings_of_argilla_name_every_class(tmp_path, photos):
    names = ['a "b" <c>', "d&e", "f'g"]
    run = run_of(tmp_path / "run", open_source(photos), classes=names)
    export_run(run, "argilla", out=tmp_path / "ar")
    settings = json.loads((tmp_path / "ar" / ".argilla" / "settings.json").read_text())
    (question,) = settings["questions"]
    assert [option["value"] for option in question["settings"]["options"]] == names
    assert [field["type"] for field in settings["fields"]] == ["image", "text"]
    # names that its lists of settings have as methods are refused there
    named = {part["name"] for part in (*settings["metadata"], *settings["fields"])}
    assert not named & set(dir(list))


@pytest.fixture
def text_run(tmp_path):
    """A run about texts in columns of other names, the second of which the model doubts."""
    data, options = made.texts_of_other_columns(tmp_path)
    source = open_source(data, **options)
    prediction = source.labels.copy()
    prediction[1] = 2
    columns = {key: options[key] for key in ("text_column", "label_column")}
    return run_of(tmp_path / "run", source, classes=list(made.CLASSES), prediction=prediction,
                  read_by=columns)  # fmt: skip


def test_texts_travel_to_the_tools_that_show_them(text_run, tmp_path):
    done = export_run(text_run, "label-studio", out=tmp_path / "ls")
    tasks = json.loads((tmp_path / "ls" / "tasks.json").read_text("utf-8"))
    assert (done.rows, done.notes) == (len(tasks), ())
    task = next(task for task in tasks if task["data"]["index"] == 1)
    assert task["data"]["text"] == made.TEXTS[1]
    assert task["predictions"][0]["result"][0]["to_name"] == "text"
    root = ElementTree.parse(tmp_path / "ls" / "config.xml").getroot()
    assert root.find("Text[@name='text']").get("value") == "$text"
    assert root.find("Choices").get("toName") == "text"
    export_run(text_run, "argilla", out=tmp_path / "argilla")
    records = json.loads((tmp_path / "argilla" / "records.json").read_text("utf-8"))
    record = next(record for record in records if record["id"] == "1")
    settings = json.loads((tmp_path / "argilla" / ".argilla" / "settings.json").read_text())
    assert record["fields"]["text"] == made.TEXTS[1]
    assert [(one["name"], one["type"]) for one in settings["fields"]] == [
        ("text", "text"), ("reason", "text")
    ]  # fmt: skip
    export_run(text_run, "huggingface", out=tmp_path / "hf")
    assert datasets.load_dataset(str(tmp_path / "hf"), split="train")["text"][:] == made.TEXTS
    with pytest.raises(DataError, match="FiftyOne shows pictures, and these examples are texts"):
        export_run(text_run, "fiftyone", out=tmp_path / "fo")


def test_what_would_hold_nothing_is_refused(run, photos, tmp_path):
    for file in photos.rglob("*.png"):
        file.write_bytes(b"")
        file.rename(file.with_name(f"other-{file.name}"))
    with pytest.raises(DataError, match="none of the 4 examples has a picture that can be read"):
        export_run(run, "label-studio", out=tmp_path / "ls")
    assert not (tmp_path / "ls").exists()


def test_local_files_of_label_studio_are_named_by_their_whole_path(array_run, tmp_path):
    done = export_run(array_run, "label-studio", out=tmp_path / "x" / ".." / "ls")
    assert done.notes[0].endswith(f"DOCUMENT_ROOT={tmp_path / 'ls'}")
