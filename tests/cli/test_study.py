"""``hardsight study`` as a stranger meets it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import hardsight as hs
from hardsight.cli import main


def run(*args: object):
    wide = {"COLUMNS": "200"}
    return CliRunner().invoke(main, ["study", *[str(arg) for arg in args]], env=wide)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    from hardsight.models import SmallCNN

    folder = tmp_path_factory.mktemp("scored") / "scores"
    hs.score(SmallCNN(num_classes=10), "builtin:digits", split="test", out=folder, device="cpu")
    return folder


@pytest.fixture
def people(tmp_path):
    draw = np.random.default_rng(0)
    lines = [f"{index},{share:.2f}" for index, share in enumerate(draw.uniform(size=449))]
    (tmp_path / "people.csv").write_text("\n".join(["index,frequency", *lines]) + "\n")
    return tmp_path / "people.csv"


def test_human_prints_the_hypotheses_and_leaves_page_figures_and_json(scored, people, tmp_path):
    done = run("human", scored, "--human", people, "--out", tmp_path / "study")
    assert done.exit_code == 0, done.output
    assert "H3" in done.output
    assert "AVH against model confidence" in done.output
    assert str(tmp_path / "study" / "study.md") in done.output.replace("\n", "")
    page = (tmp_path / "study" / "study.md").read_text()
    assert "| score | n | Spearman |" in page
    assert "](human-histograms.svg)" in page
    for name in ("human-histograms.svg", "human-scores.svg"):
        assert (tmp_path / "study" / name).read_text().startswith("<?xml")
    assert json.loads((tmp_path / "study" / "study.json").read_text())["kind"] == "human"


def test_human_writes_beside_the_table_by_default(scored, people):
    done = run("human", scored / "table.parquet", "--human", people, "--scores", "avh")
    assert done.exit_code == 0, done.output
    assert (scored / "study-human" / "study.md").exists()


def test_help_teaches_with_examples():
    done = run("human", "--help")
    assert done.exit_code == 0
    assert "hardsight study human scores --human" in done.output
    assert "index,frequency" in done.output
    assert "hardsight study human TABLE --human FILE" in run("--help").output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("index,frequency\n3,0.5\n3,0.5\n", "line 3: '3' is listed twice"),
        ("index,frequency\n449,0.5\n", "an index from 0 to 448"),
        ("name,share\na,0.5\n", "expected a column of ids"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(scored, tmp_path, content, message):
    (tmp_path / "people.csv").write_text(content)
    done = run("human", scored, "--human", tmp_path / "people.csv")
    assert done.exit_code == 1
    assert message in done.output.replace("\n", " ")
    assert "Traceback" not in done.output


def test_what_is_not_there_is_wrong_usage(scored, tmp_path):
    missing = run("human", tmp_path / "nothing", "--human", tmp_path / "people.csv")
    assert missing.exit_code == 2
    assert "no score table at" in missing.output
    missing = run("human", scored, "--human", tmp_path / "none.csv")
    assert missing.exit_code == 2
    assert "none.csv" in missing.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    hs.train(
        "small_cnn", "builtin:digits", split="train", test_split="test", track_test=True,
        out=folder, epochs=2, batch_size=256, device="cpu", show_progress=False,
    )  # fmt: skip
    return folder


def test_dynamics_follows_a_run_and_splits_it_by_people(trained, people):
    done = run("dynamics", trained, "--human", people)
    assert done.exit_code == 0, done.output
    assert "The paper's observations" in done.output
    assert "people [0.8, 1]" in done.output
    page = (trained / "study-dynamics" / "study.md").read_text()
    for name in ("dynamics.svg", "dynamics-groups-1.svg"):
        assert f"]({name})" in page
        assert (trained / "study-dynamics" / name).read_text().startswith("<?xml")


def test_dynamics_says_what_to_train_with(trained, tmp_path):
    done = run("dynamics", trained, "--examples", "train", "--out", tmp_path / "study")
    assert done.exit_code == 2
    assert "train with track = true" in done.output.replace("\n", " ")
    assert run("dynamics").exit_code == 2


def test_degradation_scores_a_trained_model_at_every_level(trained, tmp_path):
    done = run(
        "degradation", "--model", trained, "--data", "builtin:digits", "--split", "test",
        "--device", "cpu", "--limit", 30, "--noise", "0,0.4", "--contrast", "1,0.1",
        "--out", tmp_path / "study",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "Scores by level of contrast" in done.output
    for name in ("degradation-noise.svg", "degradation-contrast.svg", "study.md"):
        assert (tmp_path / "study" / name).exists()


def test_a_page_without_matplotlib_has_the_tables_and_says_so(
    scored, people, tmp_path, monkeypatch
):
    import sys

    run("human", scored, "--human", people, "--out", tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = hs.report.write_study(tmp_path).read_text()
    assert "No figures: drawing figures needs 'matplotlib'" in page
    assert "| score | n | Spearman |" in page


def test_a_page_of_nothing_is_explained(tmp_path):
    from hardsight.errors import DataError, MissingDataError

    with pytest.raises(
        MissingDataError, match=r"expected a study at .*; make one with hardsight study"
    ):
        hs.report.write_study(tmp_path)
    for text, message in (
        ("{", "is not a study: "),
        ("{}", "is not a study; make one"),
        ('{"kind": "human", "format": 9}', "has format 9, but this version reads 1"),
    ):
        (tmp_path / "study.json").write_text(text)
        with pytest.raises(DataError, match=message):
            hs.report.write_study(tmp_path)


def test_a_note_that_a_command_does_not_print_itself_is_printed_at_its_end(tmp_path):
    done = CliRunner().invoke(
        main,
        ["study", "degradation", "--model", "small_cnn:num_classes=15", "--data", "builtin:digits",
         "--split", "test", "--limit", "20", "--noise", "0,0.5", "--contrast", "1,0.5",
         "--out", str(tmp_path / "study")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert done.output.count("the model has 15 classes, the data names 10") == 1
    assert "HardsightWarning" not in done.output
