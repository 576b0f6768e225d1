import json
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hardsight.data import EmbeddingSource, open_source
from hardsight.data.formats import _parquet
from hardsight.errors import BadExampleError, DataError, LabelError, OptionError, ShapeError


@pytest.fixture
def images(png_bytes):
    """Ten encoded images whose red value is their position."""
    return [png_bytes((number, 0, 0)) for number in range(10)]


@pytest.fixture
def parquet(tmp_path, images, write_parquet):
    rows = [{"bytes": image, "path": f"{n}.png"} for n, image in enumerate(images)]
    labels = [n % 3 for n in range(10)]
    return write_parquet(tmp_path / "x.parquet", {"image": rows, "label": labels, "extra": labels})


def red(example):
    return example.content.getpixel((0, 0))[0]


def test_images_and_labels_come_in_row_order(parquet):
    source = open_source(str(parquet))
    assert len(source) == 10
    assert [red(source[index]) for index in range(10)] == list(range(10))
    assert [source.label_of(index) for index in range(10)] == [n % 3 for n in range(10)]
    assert source.id_of(4) == "4.png"
    assert source.classes == ("0", "1", "2")


def test_rows_can_be_read_in_any_order(parquet):
    source = open_source(parquet)
    order = np.random.default_rng(0).integers(0, 10, 40)
    assert [red(source[int(index)]) for index in order] == order.tolist()


def test_row_groups_larger_than_a_batch_are_read_in_parts(parquet, monkeypatch):
    monkeypatch.setattr(_parquet, "_BATCH_BYTES", 1)
    source = open_source(parquet)
    assert [red(source[index]) for index in (0, 2, 1, 9, 3)] == [0, 2, 1, 9, 3]


def test_reading_in_order_opens_each_row_group_once(parquet, monkeypatch):
    source = open_source(parquet)
    opened = []
    original = _parquet.RowReader._open
    monkeypatch.setattr(
        _parquet.RowReader,
        "_open",
        lambda self, number: (opened.append(number), original(self, number)),
    )
    for index in range(10):
        source[index]
    assert opened == [0, 1, 2, 3]


def test_plain_binary_images_are_read_and_named_by_position(tmp_path, images, write_parquet):
    file = write_parquet(tmp_path / "x.parquet", {"image": images, "label": [0, 1] * 5})
    source = open_source(file)
    assert (red(source[7]), source.id_of(7)) == (7, "7")


def test_repeated_paths_are_no_ids(tmp_path, images, write_parquet):
    rows = [{"bytes": image, "path": "same.png"} for image in images]
    file = write_parquet(tmp_path / "x.parquet", {"image": rows, "label": [0, 1] * 5})
    assert open_source(file).id_of(7) == "7"


@pytest.mark.parametrize("names", [["ant", "bee", "cow"], {"0": "ant", "1": "bee", "2": "cow"}])
def test_class_names_come_from_hugging_face_metadata(tmp_path, images, write_parquet, names):
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    columns = {"image": images, "label": [0, 1] * 5}
    file = write_parquet(tmp_path / "x.parquet", columns, metadata=metadata)
    assert open_source(file).classes == ("ant", "bee", "cow")


def test_a_parquet_file_written_by_datasets_is_read(tmp_path):
    import datasets
    from PIL import Image

    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["no", "yes"])
    )
    rows = {"image": [Image.new("RGB", (2, 2), (9, 9, 9))] * 3, "label": [0, 1, 1]}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    dataset.to_parquet(tmp_path / "x.parquet")
    source = open_source(tmp_path / "x.parquet")
    assert (source.classes, red(source[2]), source.label_of(2)) == (("no", "yes"), 9, 1)


def test_string_labels_are_numbered_by_name(tmp_path, images, write_parquet):
    file = write_parquet(tmp_path / "x.parquet", {"image": images, "label": ["b", "a"] * 5})
    source = open_source(file)
    assert (source.classes, source.label_of(0)) == (("a", "b"), 1)


@pytest.fixture
def splits(tmp_path, images, write_parquet):
    folder = tmp_path / "many"
    (folder / "data").mkdir(parents=True)
    for number, part in enumerate(("train-0", "train-1", "test-0")):
        columns = {"image": images[number * 3 : number * 3 + 3], "label": [0, 1, 1]}
        write_parquet(folder / "data" / f"{part}.parquet", columns)
    return folder


def test_a_folder_of_parquet_files_is_one_source_per_split(splits):
    with pytest.raises(DataError, match="splits train, test; pass split='train'"):
        open_source(splits)
    source = open_source(splits, split="train")
    assert [red(source[index]) for index in range(len(source))] == [0, 1, 2, 3, 4, 5]
    assert red(open_source(splits, split="test")[0]) == 6
    with pytest.raises(DataError, match=r"no \.parquet file of .* begins with 'val'"):
        open_source(splits, split="val")


def test_a_pattern_takes_all_files_that_match(splits):
    source = open_source(f"{splits}/data/*.parquet")
    assert [red(source[index]) for index in range(len(source))] == [6, 7, 8, 0, 1, 2, 3, 4, 5]
    with pytest.raises(DataError, match=r"no file matches .*\*\.arrow"):
        open_source(f"{splits}/data/*.arrow")
    with pytest.raises(OptionError, match="split cannot be used here"):
        open_source(f"{splits}/data/*.parquet", split="train")


def test_the_fingerprint_follows_labels_and_content(tmp_path, images, write_parquet):
    def mark(name, rows, labels):
        columns = {"image": rows, "label": labels}
        return open_source(write_parquet(tmp_path / name, columns)).fingerprint()

    base = mark("a.parquet", images, [0, 1] * 5)
    assert base == mark("b.parquet", images, [0, 1] * 5)
    assert base != mark("c.parquet", images, [1, 0] * 5)
    assert base != mark("d.parquet", images[::-1], [0, 1] * 5)


def test_a_source_reads_the_same_after_pickling(parquet):
    source = open_source(parquet)
    assert red(source[8]) == 8
    again = pickle.loads(pickle.dumps(source))
    assert [red(again[index]) for index in (1, 8)] == [1, 8]


def test_missing_and_damaged_images_are_bad_examples(tmp_path, images, write_parquet):
    rows = [{"bytes": images[0], "path": "a"}, {"bytes": None, "path": "b"}, None,
            {"bytes": b"text", "path": "d"}]  # fmt: skip
    source = open_source(
        write_parquet(tmp_path / "x.parquet", {"image": rows, "label": [0, 1, 0, 1]})
    )
    assert red(source[0]) == 0
    for index, said in ((1, "cannot be opened: No such file"), (2, "no image is stored for it")):
        with pytest.raises(BadExampleError, match=said):
            source[index]
    with pytest.raises(BadExampleError, match="not an image"):
        source[3]


def test_a_damaged_row_group_spoils_no_other(tmp_path, images, write_parquet):
    file = write_parquet(tmp_path / "x.parquet", {"image": images, "label": [0, 1] * 5})
    column = pq.ParquetFile(file).metadata.row_group(1).column(0)
    place = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(file.read_bytes())
    content[place : place + 40] = b"\xff" * 40
    file.write_bytes(bytes(content))
    source = open_source(file)
    for index in (0, 1, 2, 6, 7, 8, 9):
        assert red(source[index]) == index
    for index in (3, 4, 5):
        with pytest.raises(BadExampleError, match="cannot be read"):
            source[index]
    assert red(source[6]) == 6


def test_behind_a_damaged_page_no_row_is_mistaken_for_another(tmp_path, images, monkeypatch):
    monkeypatch.setattr(_parquet, "_BATCH_BYTES", 1)  # one row at a time
    file = tmp_path / "x.parquet"
    table = pa.table({"image": images, "label": [0, 1] * 5})
    pq.write_table(
        table, file, data_page_size=1, write_batch_size=1, use_dictionary=False, compression="NONE"
    )
    content = bytearray(file.read_bytes())
    place = content.index(images[4])
    content[place - 30 : place] = b"\xff" * 30  # the header of its page
    file.write_bytes(bytes(content))
    source = open_source(file)
    seen = []
    for index in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 5, 3, 0):
        try:
            seen.append((index, red(source[index])))
        except BadExampleError:
            seen.append((index, None))
    assert all(value in (index, None) for index, value in seen)
    assert [value for index, value in seen if index < 4] == [0, 1, 2, 3, 3, 0]
    assert dict(seen)[4] is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"picture": [b"x"], "label": [0]}, "no column 'image' in .*: it has picture, label"),
        ({"image": [b"x"], "klass": [0]}, "no column 'label' in .*: it has image, klass"),
        ({"image": [1], "label": [0]}, r"hold encoded images, as \{bytes, path\}.* got int64"),
        ({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}, "no rows"),
        ({"image": [b"x"] * 2, "label": [0, 0]}, "at least two classes"),
    ],
)
def test_unfit_files_are_refused_with_a_reason(tmp_path, write_parquet, columns, message):
    with pytest.raises(DataError, match=message):
        open_source(write_parquet(tmp_path / "x.parquet", columns))


@pytest.mark.parametrize("name", ["image", "label", "note"])
def test_two_columns_of_one_name_are_refused(tmp_path, images, name):
    arrays = {"image": images[:2], "label": [0, 1], "note": ["x", "y"]}
    names = [*arrays, name]
    columns = [pa.array(arrays[name]) for name in names]
    pq.write_table(pa.Table.from_arrays(columns, names=names), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=rf"column '{name}' is there twice in x\.parquet"):
        open_source(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.list_(pa.float32(), 3), pa.list_(pa.bool_())]
)
def test_one_hot_labels_are_the_classes_they_mark(tmp_path, images, write_parquet, kind):
    rows = np.eye(3)[[2, 0, 1, 1]].astype(kind.value_type.to_pandas_dtype()).tolist()
    columns = {"image": images[:4], "label": pa.array(rows, kind)}
    source = open_source(write_parquet(tmp_path / "x.parquet", columns))
    assert (source.labels.tolist(), source.classes) == ([2, 0, 1, 1], ("0", "1", "2"))
    columns = {"embedding": np.eye(4).tolist(), "label": pa.array(rows, kind)}
    head = np.ones((3, 4), np.float32)
    stored = open_source(write_parquet(tmp_path / "e.parquet", columns), class_weights=head)
    assert stored.labels.tolist() == [2, 0, 1, 1]


def test_soft_labels_are_refused(tmp_path, images, write_parquet):
    columns = {"image": images[:2], "label": [[0.5, 0.5], [1.0, 0.0]]}
    with pytest.raises(LabelError, match=r"column 'label' of .* got \[0\.5, 0\.5\] at position 0"):
        open_source(write_parquet(tmp_path / "x.parquet", columns))


def test_missing_labels_are_refused(tmp_path, images, write_parquet):
    file = write_parquet(tmp_path / "x.parquet", {"image": images[:2], "label": [0, None]})
    with pytest.raises(LabelError, match="1 of 2 labels in column 'label'"):
        open_source(file)


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match="not a readable parquet file"):
        open_source(tmp_path / "x.parquet")


def test_files_of_different_kinds_are_refused(tmp_path, images, write_parquet):
    write_parquet(tmp_path / "a.parquet", {"image": images[:2], "label": [0, 1]})
    write_parquet(tmp_path / "b.parquet", {"image": images[:2], "label": ["x", "y"]})
    with pytest.raises(DataError, match="the same columns in every file"):
        open_source(tmp_path)


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed-size lists", "lists"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_embeddings_are_read_in_chunks_across_row_groups(tmp_path, write_parquet, fixed, dtype):
    values = np.random.default_rng(0).normal(size=(10, 4)).astype(dtype)
    flat = pa.array(values.reshape(-1))
    lists = (
        pa.FixedSizeListArray.from_arrays(flat, 4)
        if fixed
        else pa.ListArray.from_arrays(pa.array(range(0, 41, 4), pa.int32()), flat)
    )
    columns = {"embeddings": lists, "label": [0, 1] * 5, "id": [f"k{n}" for n in range(10)]}
    source = open_source(write_parquet(tmp_path / "e.parquet", columns))
    assert isinstance(source, EmbeddingSource)
    assert (len(source), source.width, source.dtype, source.id_of(3)) == (10, 4, dtype, "k3")
    for start, stop in ((0, 10), (2, 7), (9, 10), (0, 3), (8, 99), (4, 4)):
        np.testing.assert_array_equal(source.chunk(start, stop), values[start:stop])
    assert source.chunk(0, 2).flags.writeable


def test_a_row_group_larger_than_the_memory_is_read_page_by_page(tmp_path, monkeypatch):
    monkeypatch.setattr(_parquet, "_BATCH_BYTES", 1024**2)
    values = pa.array(np.random.default_rng(0).normal(size=10_000 * 512))  # 39 MiB
    columns = {"embeddings": pa.FixedSizeListArray.from_arrays(values, 512),
               "label": np.arange(10_000) % 2}  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "e.parquet", row_group_size=10_000)
    del values, columns
    before, most = pa.total_allocated_bytes(), 0
    source = open_source(tmp_path / "e.parquet")
    for start in range(0, 10_000, 500):
        source.chunk(start, start + 500)
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 12 * 2**20


def test_rows_of_different_width_are_refused_when_they_are_read(tmp_path, write_parquet):
    columns = {"embeddings": [[1.0, 2.0], [3.0]], "label": [0, 1]}
    source = open_source(write_parquet(tmp_path / "e.parquet", columns))
    with pytest.raises(ShapeError, match=r"width 2 in every row of .*, got \[1\]"):
        source.chunk(0, 2)


@pytest.mark.parametrize(
    ("column", "message"), [([1.0, 2.0], "hold lists, got double"), ([[1], [2]], "lists of floats")]
)
def test_columns_that_are_no_embeddings_are_refused(tmp_path, write_parquet, column, message):
    file = write_parquet(tmp_path / "e.parquet", {"embeddings": column, "label": [0, 1]})
    with pytest.raises(DataError, match=message):
        open_source(file)


def test_images_whose_paths_are_all_missing_are_named_by_position(tmp_path, png_bytes):
    # as pandas writes {"bytes": ..., "path": None}: the column of paths has no type
    rows = [{"bytes": png_bytes((number, 0, 0)), "path": None} for number in range(4)]
    frame = pd.DataFrame({"image": rows, "label": [0, 1, 0, 1]})
    frame.to_parquet(tmp_path / "images.parquet")
    source = open_source(tmp_path / "images.parquet")
    assert [source.id_of(number) for number in range(4)] == ["0", "1", "2", "3"]
    assert [source[number].content.getpixel((0, 0))[0] for number in range(4)] == [0, 1, 2, 3]


def test_columns_of_other_names_can_be_named(tmp_path, images, write_parquet):
    rows = {"photo": images, "image": images[::-1], "kind": [n % 2 for n in range(10)]}
    file = write_parquet(tmp_path / "x.parquet", rows)
    source = open_source(file, image_column="photo", label_column="kind")
    assert [red(source[index]) for index in range(10)] == list(range(10))
    assert source.labels.tolist() == rows["kind"]
    assert (source.label_place.name, source.label_place.paths) == ("kind", "photo")
    with pytest.raises(DataError, match=r"no column 'picture' in .* it has photo, image, kind"):
        open_source(file, image_column="picture", label_column="kind")


def test_a_column_of_paths_can_be_named(tmp_path, images, write_parquet):
    for number, image in enumerate(images):
        (tmp_path / f"{number}.png").write_bytes(image)
    names = [f"{number}.png" for number in range(10)]
    rows = {"photo": names, "image": names[::-1], "kind": [n % 2 for n in range(10)]}
    file = write_parquet(tmp_path / "x.parquet", rows)
    source = open_source(file, image_column="photo", label_column="kind")
    assert [red(source[index]) for index in range(10)] == list(range(10))
    assert source.labels.tolist() == rows["kind"]


def test_the_labels_of_stored_embeddings_may_have_any_column(tmp_path, write_parquet):
    rows = {"embedding": [[1.0, 0.5], [0.0, 1.0]], "kind": [1, 0]}
    file = write_parquet(tmp_path / "x.parquet", rows)
    assert open_source(file, label_column="kind").labels.tolist() == [1, 0]
    with pytest.raises(OptionError, match=r"image_column cannot be used here.* embeddings"):
        open_source(file, label_column="kind", image_column="embedding", class_weights=np.eye(2))
    with pytest.raises(OptionError, match=r"label_column cannot be used here.*labels are given"):
        open_source(file, label_column="kind", labels=[1, 0])
