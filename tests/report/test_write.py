import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from hardsight.errors import (
    MissingDataError,
    OptionError,
    OutputError,
    RunExistsError,
    TableError,
)
from hardsight.report import write_report
from hardsight.table import read_table

VOID = {"meta", "link", "img", "input", "br"}
NASTY = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "\"quotes\" & 'apostrophes'",
    "中文 émoji 🦉",
    "עברית \u202e gnp.exe",
    "x" * 400,
    "{{ 7 * 7 }}",
    "line\nbreak",
    "",
]


class Outline(HTMLParser):
    """Tags and text of a page; fails on a tag that is closed without having been opened."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def report_text(table, tmp_path, **options):
    file = tmp_path / "report.html"
    return write_report(table, out=file, overwrite=True, **options).read_text("utf-8")


def test_report_lies_beside_the_table_of_its_run(run):
    for source in (run, run / "table.parquet", str(run), read_table(run)):
        assert write_report(source) == run / "report.html"


def test_report_goes_to_a_file_or_into_a_folder(run, tmp_path):
    assert write_report(run, out=tmp_path) == tmp_path / "report.html"
    assert write_report(run, out=tmp_path / "new" / "page.html").stat().st_size > 10_000


def test_tags_are_balanced_and_every_part_is_there(run):
    outline = Outline(write_report(run).read_text("utf-8"))
    assert outline.open == []
    sections = [attrs.get("id") for tag, attrs in outline.tags if tag == "section"]
    for part in ("summary", "examples", "classes", "map", "distributions", "scores", "run"):
        assert part in sections


def test_the_same_run_gives_the_same_bytes(run, tmp_path):
    one, other = (write_report(run, out=tmp_path / name) for name in ("a.html", "b.html"))
    assert one.read_bytes() == other.read_bytes()


def test_pictures_are_stored_once_however_often_they_are_shown(run):
    text = write_report(run).read_text("utf-8")
    stored = re.findall(r'data-picture="(\d+)"', text)
    copies = re.findall(r'data-copy="(\d+)"', text)
    assert len(stored) == len(set(stored)) == text.count('src="data:image/png')
    assert copies
    assert set(copies) <= set(stored)


def test_nothing_in_the_page_points_outside_of_it(run):
    outline = Outline(write_report(run).read_text("utf-8"))
    for tag, attrs in outline.tags:
        for name in ("src", "href", "action", "srcset", "data"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value[:80])


@pytest.mark.parametrize("name", NASTY)
def test_hostile_names_stay_text(make, tmp_path, name):
    columns = make.rows(60, 3)
    columns["id"] = [f"{i}/{name}" for i in range(60)]
    about = make.metadata(columns, 3, classes=[name, "b", "c"], data={"spec": name},
                          model={"spec": name}, config={name: name})  # fmt: skip
    errors = [(60, name, name)]
    folder = make.save(tmp_path, make.table(columns, about), errors=errors)
    outline = Outline(write_report(folder, title=name or None).read_text("utf-8"))
    assert outline.open == []
    scripts = [attrs for tag, attrs in outline.tags if tag == "script"]
    assert [attrs.get("type") for attrs in scripts] == [None, "application/json"]
    assert not [attrs for _, attrs in outline.tags if any(key.startswith("on") for key in attrs)]
    assert all(attrs.get("src") != "x" for _, attrs in outline.tags)
    assert any(name in text for text in outline.texts)
    island = json.loads(next(text for text in outline.texts if text.startswith('{"columns"')))
    assert all(one["id"].endswith(name) for one in island["examples"].values())


def test_half_a_surrogate_pair_in_the_metadata_does_not_stop_the_report(make, tmp_path):
    columns = make.rows(20, 2)
    about = make.metadata(columns, 2, classes=["caf\udce9", "b"])
    assert "caf?" in report_text(make.table(columns, about), tmp_path)


def test_a_table_with_nothing_but_positions_still_gives_a_report(make, tmp_path):
    text = report_text(make.table({"index": [0, 1, 2]}, {}), tmp_path)
    assert "No score of this table has a finite value" in text
    assert "no example has both a label and a finite prediction" in text
    assert "No example has a label" in text


def test_an_empty_table_still_gives_a_report(make, tmp_path):
    columns = {name: np.asarray(values)[:0] for name, values in make.rows(5, 2).items()}
    columns["id"] = np.empty(0, str).tolist()
    columns["index"] = np.empty(0, np.int64)
    assert "Skip to the report" in report_text(make.table(columns, {}), tmp_path)


def test_a_table_full_of_nan_says_so(make, tmp_path):
    columns = make.rows(30, 3)
    columns["finite"] = np.zeros(30, bool)
    for name in ("avh", "target_angle", "feature_norm", "entropy"):
        columns[name] = np.full(30, np.nan)
    about = make.metadata(columns, 3)
    about["scores"] = {name: about["scores"][name] for name in ("avh", "entropy")}
    text = report_text(make.table(columns, about), tmp_path)
    assert "No example has a finite score" in text
    assert "30 examples without a label or a finite prediction" in text
    assert "0 unreadable, 30 not finite" not in text  # the run counted 2 unreadable files
    assert "2 unreadable, 30 not finite" in text


def test_unreadable_examples_are_counted_where_their_list_is_missing(make, tmp_path):
    columns = make.rows(20, 2)
    text = report_text(make.table(columns, make.metadata(columns, 2)), tmp_path)
    assert "2 examples could not be read; they are listed in errors.parquet" in text
    none = make.metadata(columns, 2, counts={"errors": 0})
    assert "Every example could be read." in report_text(make.table(columns, none), tmp_path)


def test_a_column_without_a_direction_is_not_shown_as_a_score(make, tmp_path):
    columns = make.rows(20, 2)
    about = make.metadata(columns, 2)
    about["scores"] = {"avh": {}, "entropy": {"higher_is_harder": True}}
    text = report_text(make.table(columns, about), tmp_path)
    assert "Mean Entropy" in text
    assert "Mean AVH" not in text


def test_a_score_that_is_a_mean_by_name_is_headed_by_one_mean(make, tmp_path):
    columns = make.rows(20, 2)
    columns["mean_avh"] = columns.pop("avh")
    about = make.metadata(columns, 2)
    about["scores"] = {"mean_avh": {"higher_is_harder": True, "title": "Mean AVH"}}
    text = report_text(make.table(columns, about), tmp_path)
    assert ">Mean AVH</button>" in text


def test_one_row_gives_a_report(make, tmp_path):
    columns = make.rows(1, 4)
    assert "95% interval" in report_text(make.table(columns, make.metadata(columns, 4)), tmp_path)


def test_infinite_scores_are_left_out_and_counted(make, tmp_path):
    columns = make.rows(50, 3)
    columns["entropy"][:7] = np.inf
    text = report_text(make.table(columns, make.metadata(columns, 3)), tmp_path)
    assert "7 values not finite, left out" in text


def test_without_wrong_predictions_the_galleries_say_so(make, tmp_path):
    columns = make.rows(50, 3)
    columns["prediction"] = columns["label"]
    text = report_text(make.table(columns, make.metadata(columns, 3)), tmp_path)
    assert "No wrong predictions here." in text
    assert "Most confused classes" not in text


def test_examples_without_a_picture_show_their_name(make, tmp_path):
    columns = make.rows(40, 3)
    folder = make.save(tmp_path, make.table(columns, make.metadata(columns, 3)), pictures=False)
    text = write_report(folder).read_text("utf-8")
    assert '<span class="blank"><bdi>class-' in text
    assert "<img" not in text


def test_the_map_falls_back_to_another_pair_and_says_so(make, tmp_path):
    columns = make.rows(40, 3)
    del columns["feature_norm"]
    text = report_text(make.table(columns, make.metadata(columns, 3)), tmp_path)
    assert "Map of two scores" in text
    assert "so this map shows" in text


def test_the_map_is_left_out_with_a_sentence_when_there_is_one_score(make, tmp_path):
    columns = {k: v for k, v in make.rows(40, 3).items() if k in ("index", "label", "avh")}
    text = report_text(make.table(columns, make.metadata(columns, 3)), tmp_path)
    assert "The map needs two scores" in text


@pytest.mark.parametrize(
    ("sample", "said"),
    [("in-sample", "was trained on"), ("out-of-sample", "was not trained on"), (None, "recorded")],
)
def test_the_summary_says_whether_the_model_knew_the_examples(make, tmp_path, sample, said):
    columns = make.rows(20, 2)
    text = report_text(make.table(columns, make.metadata(columns, 2, sample=sample)), tmp_path)
    assert said in text


def test_a_thousand_classes_stay_a_small_file(make, tmp_path):
    columns = make.rows(20_000, 1000)
    folder = make.save(tmp_path, make.table(columns, make.metadata(columns, 1000)), side=32)
    file = write_report(folder)
    assert file.stat().st_size < 5e6
    assert "of 1,000 classes are shown" in file.read_text("utf-8")


def test_a_failed_write_leaves_the_older_report_whole(run, tmp_path, monkeypatch):
    write_report(run, out=tmp_path / "report.html")
    before = (tmp_path / "report.html").read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match="No space left on device; choose another file"):
        write_report(run, out=tmp_path / "report.html", overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_bytes() == before


def test_the_page_of_a_run_is_replaced_and_no_other_file_unasked(run, tmp_path):
    assert write_report(run) == write_report(run, title="again") == run / "report.html"
    assert "again" in (run / "report.html").read_text("utf-8")
    assert write_report(run, out=run / "report.html") == run / "report.html"
    (tmp_path / "report.html").write_text("mine")
    for out in (tmp_path, tmp_path / "report.html"):
        with pytest.raises(RunExistsError, match=r"report\.html already exists; .*--overwrite"):
            write_report(run, out=out)
    assert (tmp_path / "report.html").read_text() == "mine"
    write_report(run, out=tmp_path, overwrite=True)
    assert (tmp_path / "report.html").read_text("utf-8") != "mine"


def test_a_table_that_was_copied_elsewhere_replaces_no_page_unasked(run, tmp_path):
    shutil.copy(run / "table.parquet", tmp_path / "scores.parquet")
    assert write_report(tmp_path / "scores.parquet") == tmp_path / "scores.html"
    with pytest.raises(RunExistsError, match=r"scores\.html already exists"):
        write_report(tmp_path / "scores.parquet")


def test_a_file_in_the_place_of_a_folder_is_named(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write the report to"):
        write_report(run, out=tmp_path / "file" / "report.html")


def test_a_table_in_memory_needs_an_output_file(make):
    columns = make.rows(5, 2)
    with pytest.raises(OptionError, match="pass out="):
        write_report(make.table(columns, make.metadata(columns, 2)))


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(MissingDataError, match="no score table at"):
        write_report(tmp_path / "nowhere")


def test_a_file_that_is_no_table_is_refused(tmp_path):
    (tmp_path / "table.parquet").write_bytes(b"not parquet")
    with pytest.raises(TableError, match="not a readable parquet file"):
        write_report(tmp_path)


def test_reporting_loads_no_torch(run):
    code = f"import sys, hardsight.report as r; r.write_report({str(run)!r}); " + (
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
