import numpy as np
import pytest

from hardsight.data import DegradedSource, human_frequency, open_source
from hardsight.errors import DataError, MissingDataError, ShapeError

COUNTS = [[8, 2, 0], [0, 5, 5], [1, 1, 8], [10, 0, 0], [0, 3, 7], [0, 0, 4]]
LABELS = [0, 1, 2, 0, 1, 2]
FREQUENCY = [0.8, 0.5, 0.8, 1.0, 0.3, 1.0]


@pytest.fixture
def source(tmp_path, write_pictures, pictures):
    write_pictures(tmp_path / "a.parquet", pictures, LABELS, human_counts=COUNTS)
    return open_source(tmp_path / "a.parquet")


def test_frequency_is_the_share_of_people_who_chose_the_label(source):
    np.testing.assert_allclose(human_frequency(source), FREQUENCY)


def test_degrading_the_pictures_keeps_the_counts(source):
    np.testing.assert_allclose(human_frequency(DegradedSource(source, noise=0.1)), FREQUENCY)


def test_counts_may_lie_in_a_file_of_their_own(tmp_path, pictures):
    np.savez(tmp_path / "images.npz", images=pictures, labels=LABELS)
    np.save(tmp_path / "counts.npy", np.array(COUNTS))
    bare = open_source(tmp_path / "images.npz")
    np.testing.assert_allclose(human_frequency(bare, file=tmp_path / "counts.npy"), FREQUENCY)
    with pytest.raises(MissingDataError, match=r"holds no column 'human_counts'; pass file="):
        human_frequency(bare)
    np.save(tmp_path / "short.npy", np.array(COUNTS)[:5])
    with pytest.raises(ShapeError, match=r"expected human counts \[6, 3\] .*got \[5, 3\]"):
        human_frequency(bare, file=tmp_path / "short.npy")
    np.savez(tmp_path / "other.npz", people=np.array(COUNTS))
    with pytest.raises(DataError, match=r"one named 'human_counts', in .*got people"):
        human_frequency(bare, file=tmp_path / "other.npz")


def with_counts(tmp_path, write_pictures, pictures, counts):
    write_pictures(tmp_path / "b.parquet", pictures, LABELS, human_counts=counts)
    return open_source(tmp_path / "b.parquet")


def test_counts_for_another_number_of_classes_are_refused(tmp_path, write_pictures, pictures):
    four = with_counts(tmp_path, write_pictures, pictures, [[*row, 0] for row in COUNTS])
    with pytest.raises(ShapeError, match=r"expected human counts \[6, 3\].*got \[6, 4\]"):
        human_frequency(four)


def test_rows_of_different_lengths_are_refused(tmp_path, write_pictures, pictures):
    ragged = with_counts(tmp_path, write_pictures, pictures, [*COUNTS[:5], [1, 2]])
    with pytest.raises(ShapeError, match=r"as many human counts in every row .*got 2, 3"):
        human_frequency(ragged)


@pytest.mark.parametrize("row", [[0, 0, 0], [-1, 2, 3]])
def test_counts_of_nobody_are_refused(tmp_path, write_pictures, pictures, row):
    empty = with_counts(tmp_path, write_pictures, pictures, [*COUNTS[:5], row])
    with pytest.raises(DataError, match=r"at least one person .* at position 5 \(1 such"):
        human_frequency(empty)


@pytest.fixture
def folder(tmp_path, pictures):
    from PIL import Image

    for number, (name, label) in enumerate([("x.png", "a"), ("y.png", "a"), ("z.png", "b")]):
        (tmp_path / "set" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pictures[number]).save(tmp_path / "set" / label / name)
    return open_source(tmp_path / "set")


@pytest.mark.parametrize("ids", [("a/x.png", "b/z.png"), ("x.png", "z.png")])
def test_a_csv_gives_frequencies_by_id_or_file_name_and_nan_elsewhere(tmp_path, folder, ids):
    text = f"image, frequency, note\n{ids[0]},0.25,\n{ids[1]}, 1.0,\nelsewhere.png,0.5,\n"
    (tmp_path / "f.csv").write_text(text)
    found = human_frequency(folder, file=tmp_path / "f.csv")
    np.testing.assert_array_equal(found, [0.25, np.nan, 1.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,frequency\na/x.png,1.5\n", r"line 2: expected a frequency in \[0, 1\], got '1.5'"),
        ("id,frequency\na/x.png,often\n", r"line 2: expected a frequency .* got 'often'"),
        ("id,frequency\na/x.png,1\na/x.png,0\n", "line 3: 'a/x.png' is listed twice"),
        ("name,share\na/x.png,1\n", "expected a column of ids .* got name, share"),
        ("", "got no header"),
        (
            "id,frequency\nq.png,1\n",
            "lists none of the 3 examples .* such as 'a/x.png', got 'q.png'",
        ),
    ],
)
def test_a_csv_that_cannot_be_used_is_explained(tmp_path, folder, text, message):
    (tmp_path / "f.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        human_frequency(folder, file=tmp_path / "f.csv")


def test_a_file_name_that_occurs_twice_needs_the_whole_id(tmp_path, folder, pictures):
    from PIL import Image

    Image.fromarray(pictures[4]).save(tmp_path / "set" / "b" / "x.png")
    (tmp_path / "f.csv").write_text("id,frequency\nx.png,1\n")
    with pytest.raises(DataError, match=r"holds more than once; use whole ids such as 'a/x.png'"):
        human_frequency(open_source(tmp_path / "set"), file=tmp_path / "f.csv")


@pytest.fixture
def table(source):
    """A table of the source without its third example, which could not be read."""
    import pyarrow as pa

    from hardsight.table import ScoreTable, with_metadata

    index = [0, 1, 3, 4, 5]
    rows = {"index": index, "id": [source.id_of(i) for i in index]}
    rows["label"] = [LABELS[i] for i in index]
    about = {"classes": ["a", "b", "c"], "counts": {"errors": 1}}
    return ScoreTable(with_metadata(pa.table(rows), about))


def test_rows_of_a_table_find_their_counts_by_position(tmp_path, source, table):
    kept = [FREQUENCY[i] for i in (0, 1, 3, 4, 5)]
    np.testing.assert_allclose(human_frequency(table, file=tmp_path / "a.parquet"), kept)
    np.save(tmp_path / "counts.npy", np.array(COUNTS))
    np.testing.assert_allclose(human_frequency(table, file=tmp_path / "counts.npy"), kept)
    np.save(tmp_path / "kept.npy", np.array(COUNTS)[[0, 1, 3, 4, 5]])
    with pytest.raises(ShapeError, match=r"expected human counts \[6, 3\].*got \[5, 3\]"):
        human_frequency(table, file=tmp_path / "kept.npy")
    with pytest.raises(MissingDataError, match="holds no column 'human_counts'; pass file="):
        human_frequency(table)


def test_a_csv_may_name_positions(tmp_path, source, table):
    (tmp_path / "f.csv").write_text("index,frequency\n3,0.5\n0,0.25\n")
    expected = [0.25, np.nan, np.nan, 0.5, np.nan, np.nan]
    np.testing.assert_array_equal(human_frequency(source, file=tmp_path / "f.csv"), expected)
    found = human_frequency(table, file=tmp_path / "f.csv")
    np.testing.assert_array_equal(found, [0.25, np.nan, 0.5, np.nan, np.nan])
    (tmp_path / "f.csv").write_text("index,frequency\n6,0.5\n")
    with pytest.raises(DataError, match=r"an index from 0 to 5 in .*6 examples, got '6'"):
        human_frequency(table, file=tmp_path / "f.csv")


def test_a_parquet_file_without_counts_is_explained(tmp_path, source, write_pictures, pictures):
    write_pictures(tmp_path / "none.parquet", pictures, LABELS)
    with pytest.raises(DataError, match=r"expected a column 'human_counts' in .*got image, label"):
        human_frequency(source, file=tmp_path / "none.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"no")
    with pytest.raises(DataError, match="is not a readable parquet file"):
        human_frequency(source, file=tmp_path / "broken.parquet")
