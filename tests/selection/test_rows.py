"""Lists of rows, from a table to what trains and scores on them."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import hardsight as hs
from hardsight.cli import main
from hardsight.data import data_marks
from hardsight.errors import DataError, MissingDataError, OptionError, RunMismatchError
from hardsight.selection import read_rows, write_rows

SOME = np.array([2, 3, 5, 7, 11, 13, 40])
QUIET = {"device": "cpu", "workers": 0, "show_progress": False}


def net(num_classes=3):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))


@pytest.fixture
def images(tmp_path):
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 255, size=(60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=pixels, labels=np.arange(60) % 3)
    return tmp_path / "images.npz"


@pytest.fixture
def run(images, tmp_path):
    hs.score(net(), images, out=tmp_path / "run", mean=(0.0,), std=(1.0,), **QUIET)
    return tmp_path / "run"


def test_a_list_survives_its_file_with_ids_and_the_data_it_is_of(run, tmp_path):
    table = hs.read_table(run)
    rows = hs.select(table, keep=0.5)
    write_rows(tmp_path / "rows.parquet", table, rows, keep=0.5)
    listed = read_rows(tmp_path / "rows.parquet")
    np.testing.assert_array_equal(listed.index, rows)
    assert listed.fingerprint == table.metadata["data"]["fingerprint"]


@pytest.mark.parametrize("form", ["array", "shuffled", "mask", "npy", "csv", "parquet"])
def test_every_form_of_a_list_opens_the_same_examples(form, images, run, tmp_path):
    if form == "parquet":
        rows = write_rows(tmp_path / "rows.parquet", hs.read_table(run), SOME)
    elif form == "npy":
        rows = tmp_path / "rows.npy"
        np.save(rows, SOME)
    elif form == "csv":
        rows = tmp_path / "rows.csv"
        rows.write_text("index,why\n" + "".join(f"{row},hard\n" for row in SOME))
    else:
        mask = np.isin(np.arange(60), SOME)
        rows = {"array": SOME, "shuffled": SOME[::-1].tolist(), "mask": mask}[form]
    whole, source = hs.data.open_source(images), hs.data.open_source(images, rows=rows)
    assert (len(source), source.spec) == (7, str(images))
    assert source.numbered(range(7)).tolist() == SOME.tolist()
    assert source.labels.tolist() == (SOME % 3).tolist()
    np.testing.assert_array_equal(source[3].content, whole[7].content)
    assert data_marks(source)["data"] == whole.fingerprint()
    assert data_marks(whole)["rows"] is None


def test_scores_of_chosen_rows_are_those_of_all_rows_with_their_numbers(images, run):
    whole = hs.read_table(run)
    part = hs.score(net(), images, rows=SOME, mean=(0.0,), std=(1.0,), **QUIET)
    assert part.column("index").tolist() == SOME.tolist()
    np.testing.assert_allclose(part.column("avh"), whole.column("avh")[SOME], rtol=1e-5)
    assert part.metadata["data"]["fingerprint"] == whole.metadata["data"]["fingerprint"]
    assert part.metadata["data"]["chosen"]["of"] == 60


def test_rows_of_stored_embeddings_keep_their_numbers_and_ids(tmp_path):
    draw = np.random.default_rng(1)
    arrays = {
        "embeddings": draw.normal(size=(50, 4)).astype(np.float32), "labels": np.arange(50) % 3,
        "class_weights": draw.normal(size=(3, 4)).astype(np.float32),
    }  # fmt: skip
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez(tmp_path / "named.npz", ids=np.array([f"row {at}" for at in range(50)]), **arrays)
    for name, ids in (("plain", "{}"), ("named", "row {}")):
        file = tmp_path / f"{name}.npz"
        whole = hs.score(None, file, batch_size=16)
        part = hs.score(None, file, rows=SOME, batch_size=3)
        assert part.column("index").tolist() == SOME.tolist()
        assert part.column("id").tolist() == [ids.format(row) for row in SOME]
        np.testing.assert_allclose(part.column("avh"), whole.column("avh")[SOME], rtol=1e-5)


def test_a_run_over_other_rows_is_not_continued(images, tmp_path):
    options = {"out": tmp_path / "again", "mean": (0.0,), "std": (1.0,), **QUIET}
    hs.score(net(), images, rows=SOME, **options)
    same = hs.score(net(), images, rows=SOME, resume=True, **options)
    assert len(same) == 7
    for other in (SOME[:-1], None):
        with pytest.raises(RunMismatchError, match="other chosen rows"):
            hs.score(net(), images, rows=other, resume=True, **options)


def test_training_sees_the_chosen_rows_alone_and_tracks_them_by_their_numbers(
    images, tmp_path, run
):
    rows = write_rows(tmp_path / "rows.parquet", hs.read_table(run), np.arange(0, 60, 2))
    options = {"epochs": 1, "validation": 0.2, "track": True, "thumbnails": 0, **QUIET}
    done = hs.train(net(), images, out=tmp_path / "half", rows=rows, **options)
    assert done.dynamics.column("index").tolist() == list(range(0, 60, 2))
    assert done.dynamics.metadata["data"]["fingerprint"] == read_rows(rows).fingerprint
    with pytest.raises(RunMismatchError, match=r"other chosen rows|data\.rows"):
        hs.train(
            net(), images, out=tmp_path / "half", rows=np.arange(0, 60, 3), resume=True, **options
        )
    from_array = hs.train(
        net(), images, out=tmp_path / "array", rows=np.arange(0, 60, 2), **options
    )
    for name, weights in done.model.state_dict().items():
        torch.testing.assert_close(from_array.model.state_dict()[name], weights)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([0, 60], "names row 60, but .* has the rows 0 to 59"),
        ([-1, 3], "names row -1"),
        ([3, 3], "names row 3 more than once"),
        ([], "names no row"),
        ([0.5, 1.5], "to be whole numbers, the column 'index' of a table, got float64"),
        ([[0, 1]], r"to be a list \[n\], got \[1, 2\]"),
        (np.ones(7, bool), "a mask of the 60 examples .* got 7 booleans"),
    ],
)
def test_rows_that_are_not_those_of_the_data_are_refused(rows, said, images):
    with pytest.raises(DataError, match=said):
        hs.data.open_source(images, rows=rows)


def test_files_that_are_not_lists_of_rows_are_refused(images, run, tmp_path):
    with pytest.raises(MissingDataError, match=r"no list of rows at .*none\.parquet"):
        hs.data.open_source(images, rows=tmp_path / "none.parquet")
    (tmp_path / "rows.txt").write_text("1\n")
    with pytest.raises(DataError, match=r"cannot tell what .*rows\.txt is"):
        hs.data.open_source(images, rows=tmp_path / "rows.txt")
    (tmp_path / "rows.csv").write_text("row\n1\n")
    with pytest.raises(DataError, match=r"a column 'index' in .*rows\.csv, got row"):
        hs.data.open_source(images, rows=tmp_path / "rows.csv")
    (tmp_path / "rows.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot read a list of rows"):
        hs.data.open_source(images, rows=tmp_path / "rows.npy")
    with pytest.raises(DataError, match=r"ends in \.parquet"):
        write_rows(tmp_path / "rows.csv", hs.read_table(run), SOME)


def test_rows_of_other_data_are_refused_unless_they_are_numbers_alone(run, tmp_path):
    rows = write_rows(tmp_path / "rows.parquet", hs.read_table(run), SOME)
    with pytest.raises(DataError, match="was selected from other data than builtin:digits"):
        hs.data.open_source("builtin:digits", rows=rows)
    assert len(hs.data.open_source("builtin:digits", rows=read_rows(rows).index)) == 7


def test_rows_are_chosen_in_one_place_and_not_of_a_stream(images):
    chosen = hs.data.open_source(images, rows=SOME)
    with pytest.raises(OptionError, match="holds some rows of other data already"):
        hs.data.open_source(chosen, rows=[0])
    stream = iter([(torch.zeros(3), 0)])
    with pytest.raises(OptionError, match="is a stream, without positions"):
        hs.data.open_source(stream, rows=[0])


def test_the_command_writes_a_list_that_score_takes(run, images, tmp_path):
    def command(*words):
        return CliRunner().invoke(main, ["select", str(run), *words])

    out = str(tmp_path / "lists" / "rows.parquet")
    done = command("--keep", "0.5", "--by", "avh", "--how", "hardest", "--out", out)
    assert done.exit_code == 0, done.output
    assert "30 of 60 rows" in done.output
    expected = hs.select(run, keep=0.5, by="avh", how="hardest")
    assert read_rows(out).index.tolist() == expected.tolist()
    assert len(hs.score(net(), images, rows=out, **QUIET)) == 30
    again = command("--keep", "20", "--out", out)
    assert again.exit_code == 1  # as of every command that would overwrite
    assert "exists; name another file, or replace it with --overwrite" in again.output
    assert command("--keep", "20", "--out", out, "--overwrite").exit_code == 0
    assert len(read_rows(out).index) == 20
    for keep, said in (("1", "could be either"), ("0", "keeps nothing"), ("half", "expected a sh")):
        refused = command("--keep", keep, "--out", str(tmp_path / "other.parquet"))
        assert refused.exit_code == 2
        assert said in refused.output
