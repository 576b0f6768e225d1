"""Lists of pictures: CSV files, data frames, parquet files of paths."""

import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

import hardsight as hs
from hardsight.data import batches, open_source
from hardsight.errors import BadExampleError, DataError, LabelError, OptionError
from hardsight.models import SmallCNN
from hardsight.preprocessing import Preprocessing


@pytest.fixture
def pictures(tmp_path, png_bytes):
    """Four pictures whose red value is their number, in a folder beside the list."""
    folder = tmp_path / "data" / "pics"
    folder.mkdir(parents=True)
    for number in range(4):
        (folder / f"{number}.png").write_bytes(png_bytes((number, 0, 0)))
    return folder


@pytest.fixture
def listed(pictures):
    """Write a CSV beside the pictures' folder."""

    def write(text, name="list.csv", **options):
        file = pictures.parent / name
        file.write_text(text, **options)
        return file

    return write


LINES = "pics/2.png,dog\npics/0.png,cat\npics/3.png,dog\n"


def reds(source):
    return [source[index].content.getpixel((0, 0))[0] for index in range(len(source))]


def check(source):
    assert reds(source) == [2, 0, 3]
    assert source.labels.tolist() == [1, 0, 1]
    assert source.classes == ("cat", "dog")


def test_a_csv_of_paths_and_labels_is_data_from_any_working_directory(listed, monkeypatch):
    file = listed("path,label\n" + LINES)
    monkeypatch.chdir("/")
    source = open_source(str(file))
    check(source)
    assert source.spec == str(file)
    assert [source.id_of(index) for index in range(3)] == ["pics/2.png", "pics/0.png", "pics/3.png"]
    (batch,) = batches(source, Preprocessing(size=(4, 4)))
    assert batch.inputs.shape == (3, 3, 4, 4)


@pytest.mark.parametrize(
    "header",
    ["path,label", "file,class", "Filename,Target", " image_path , category ", "image,labels",
     "file_name,class_name", "FilePath,Label", "img-path,y", "Image Path,class id"],
)  # fmt: skip
def test_usual_names_of_the_columns_are_known(listed, header):
    check(open_source(listed(header + "\n" + LINES)))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("file,image,label", r"columns 'file' and 'image' could both be the paths"),
        ("image_path,class,category", r"columns 'class' and 'category' could both be the labels"),
        ("name,label", r"no column of paths in the header .*got name, label"),
        ("path,colour", r"no column of labels in the header .*got path, colour"),
        ("pics/2.png,dog", r"no column of paths in the header .* such as path,label"),
        ("a fine film,good", r"or text,label for texts; --text-column \(text_column=\) names"),
        ("path,label,path", r"column 'path' .* twice"),
    ],
)
def test_a_header_that_leaves_a_choice_or_none_is_refused(listed, header, said):
    cells = header.count(",") + 1
    rows = "\n".join(",".join(["pics/2.png", "dog", "x"][:cells]) for _ in range(2))
    with pytest.raises(DataError, match=said):
        open_source(listed(f"{header}\n{rows}\n"))


def test_the_documented_names_win_over_others(listed):
    file = listed("path,label,file,class\npics/2.png,dog,x,y\npics/0.png,cat,x,z\n")
    assert open_source(file).classes == ("cat", "dog")


def test_other_separators_quotes_a_byte_order_mark_and_windows_lines_are_read(listed, pictures):
    check(open_source(listed("path;label\n" + LINES.replace(",", ";"))))
    check(open_source(listed("path\tlabel\n" + LINES.replace(",", "\t"), "list.tsv")))
    check(open_source(listed("path,label\n" + LINES, encoding="utf-8-sig")))
    check(open_source(listed("path,label\r\n\r\n" + LINES.replace("\n", "\r\n"), newline="")))
    (pictures / "2.png").rename(pictures / "two, and more.png")
    quoted = LINES.replace("pics/2.png", '"pics/two, and more.png"')
    check(open_source(listed("path,label\n" + quoted)))


def test_absolute_paths_and_paths_above_are_followed(listed, pictures):
    text = f"path,label\n{pictures / '2.png'},dog\n../data/pics/0.png,cat\npics/3.png,dog\n"
    source = open_source(listed(text))
    check(source)
    assert source.id_of(0) == str(pictures / "2.png")


def test_a_backslash_of_windows_is_explained_where_it_finds_nothing(listed):
    file = listed("path,label\npics\\2.png,dog\npics\\0.png,cat\n")
    with pytest.raises(DataError, match=r"none of the pictures .* looked for .*pics\\2\.png"):
        open_source(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column of paths"),
        ("path,label\n", "no examples in .*list.csv: it has no rows"),
        ("path,label\npics/0.png\n", r"line 2 of .*list.csv has 1 cells, the header 2"),
        ("path,label\npics/0.png,cat,x\n", r"line 2 of .* has 3 cells, the header 2; quote"),
        ("path,label\n,cat\n", r"line 2 of .* names no picture"),
        ("path,label\npics/0.png,\npics/1.png,dog\n", r"1 of 2 labels .* are missing"),
        ("path,label\npics/0.png,cat\npics/1.png,cat\n", r"two classes, got only 'cat'"),
        ("path,label\npics/9.png,cat\nx.png,dog\n", r"none of the pictures that .*names is there"),
        ("path,label\npics/0.png,0.5\npics/1.png,1\n", r"to be whole numbers, got 0\.5"),
        ("path,label\npics/0.png,-1\npics/1.png,1\n", r"got -1 at .*or name the classes"),
        ("path,label\npics/0.png,1.0\npics/1.png,1\n", r"'1' and '1\.0' .* both be class 1"),
    ],
)
def test_a_list_that_cannot_be_used_says_why(listed, text, said):
    with pytest.raises((DataError, LabelError), match=said):
        open_source(listed(text))


def test_a_list_that_is_not_utf8_says_so(listed):
    with pytest.raises(DataError, match=r"list.csv is not UTF-8 text .*save it as UTF-8"):
        open_source(listed("path,label\npics/é.png,cat\n", encoding="latin-1"))
    with pytest.raises(DataError, match=r"list.csv cannot be read as a table"):
        open_source(listed("path,label\n" + "x" * 200_000 + ",cat\n"))


@pytest.mark.parametrize("ones", [("0", "1"), ("0.0", "1.0")])
def test_numbers_in_a_list_are_class_indices(listed, ones):
    lines = "".join(f"pics/{n}.png,{ones[n % 2]}\n" for n in range(4))
    source = open_source(listed("path,label\n" + lines))
    assert (source.labels.tolist(), source.classes) == ([0, 1, 0, 1], ("0", "1"))


def test_numbers_beyond_nine_are_not_sorted_as_text(listed):
    source = open_source(listed("path,label\npics/0.png,10.0\npics/1.png,2.0\n"))
    assert source.labels.tolist() == [10, 2]


def test_a_column_split_decides_what_is_read(listed):
    text = "path,label,split\npics/2.png,dog,test\npics/0.png,cat,test\npics/1.png,cat,train\n"
    file = listed(text)
    with pytest.raises(DataError, match=r"holds the splits test, train; pass split='test'"):
        open_source(file)
    assert reds(open_source(file, split="test")) == [2, 0]
    with pytest.raises(DataError, match=r"no split 'val' in .*; it has test, train"):
        open_source(file, split="val")
    only = listed("path,label,split\npics/2.png,dog,test\npics/0.png,cat,test\n")
    assert len(open_source(only)) == 2
    with pytest.raises(OptionError, match=r"split cannot be used here: .* has no column 'split'"):
        open_source(listed("path,label\n" + LINES), split="test")


SPLITS = pd.DataFrame({
    "path": ["pics/0.png", "pics/1.png", "pics/2.png", "pics/3.png"],
    "label": ["cat", "dog", "dog", "emu"],
    "split": ["train", "train", "test", "test"],
})  # fmt: skip


def split_source(form, pictures, rows=SPLITS, **options):
    """The same list with splits as a CSV, a parquet file, a data frame or one of pictures."""
    place = pictures.parent / f"list.{form}"
    if form == "csv":
        rows.to_csv(place, index=False)
    elif form == "parquet":
        rows.to_parquet(place)
    else:
        paths = [str(pictures.parent / path) for path in rows["path"]]
        read = [Image.open(path).copy() for path in paths]
        cells = {"path": paths} if form == "frame" else {"image": read}
        return open_source(rows[["label", "split"]].assign(**cells), **options)
    return open_source(place, **options)


@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "pictures"])
def test_every_split_of_a_list_numbers_its_classes_alike(pictures, form):
    for split, numbers, reds_there in (("train", [0, 1], [0, 1]), ("test", [1, 2], [2, 3])):
        source = split_source(form, pictures, split=split)
        assert source.classes == ("cat", "dog", "emu")
        assert source.labels.tolist() == numbers
        assert reds(source) == reds_there
    with pytest.raises(DataError, match=r"holds the splits train, test; pass split='train'"):
        split_source(form, pictures)
    with pytest.raises(DataError, match=r"no split 'val' in .*; it has train, test"):
        split_source(form, pictures, split="val")


@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "pictures"])
def test_labels_that_are_missing_in_another_split_do_no_harm(pictures, form):
    rows = SPLITS.assign(label=["cat", "dog", None, None])
    source = split_source(form, pictures, rows, split="train")
    assert (source.classes, source.labels.tolist()) == (("cat", "dog"), [0, 1])
    with pytest.raises(LabelError, match=r"2 of 2 labels in .* are missing"):
        split_source(form, pictures, rows, split="test")
    rows = SPLITS.assign(label=[0, 1, -1, -1])
    assert split_source(form, pictures, rows, split="train").labels.tolist() == [0, 1]


@pytest.mark.parametrize("cell", [list, np.array])
def test_labels_of_a_data_frame_may_be_one_hot_or_lists_of_one(pictures, cell):
    paths = [str(pictures / f"{number}.png") for number in (2, 0, 3)]
    hot = pd.DataFrame({"path": paths, "label": [cell(row) for row in ([0, 1], [1, 0], [0, 1])]})
    assert open_source(hot).labels.tolist() == [1, 0, 1]
    single = pd.DataFrame({"path": paths, "label": [cell([label]) for label in (1, 0, 1)]})
    assert open_source(single).labels.tolist() == [1, 0, 1]
    encoded = pd.DataFrame({"path": paths, "label": [b"dog", b"cat", b"dog"]})
    assert open_source(encoded).classes == ("cat", "dog")


def test_a_missing_picture_of_a_list_is_a_bad_example_with_its_place(listed, pictures):
    (pictures / "0.png").unlink()
    source = open_source(listed("path,label\n" + LINES))
    with pytest.raises(BadExampleError, match=r"cannot be opened: No such file .*pics/0\.png"):
        source[1]


def test_other_columns_of_a_list_are_kept(listed):
    source = open_source(listed("path,label,site\npics/2.png,dog,a\npics/0.png,cat,b\n"))
    assert source.column("site").tolist() == ["a", "b"]
    assert source.column("colour") is None


def test_the_fingerprint_of_a_list_follows_rows_labels_and_pictures(listed, pictures, png_bytes):
    marks = [open_source(listed("path,label\n" + LINES)).fingerprint()]
    marks.append(open_source(listed("path,label\n" + LINES.replace("3", "1"))).fingerprint())
    marks.append(open_source(listed("path,label\n" + LINES.replace("cat", "cow"))).fingerprint())
    (pictures / "2.png").write_bytes(png_bytes((9, 9, 9)))
    marks.append(open_source(listed("path,label\n" + LINES)).fingerprint())
    assert len(set(marks)) == 4


def frame(pictures, kind):
    """A data frame of the pictures 2, 0 and 3 with its labels."""
    files = [pictures / f"{number}.png" for number in (2, 0, 3)]
    made = {
        "paths": str,
        "path objects": lambda file: file,
        "bytes": lambda file: file.read_bytes(),
        "structs": lambda file: {"bytes": file.read_bytes(), "path": "x.png"},
        "structs of paths": lambda file: {"bytes": None, "path": str(file)},
        "pictures": lambda file: Image.open(io.BytesIO(file.read_bytes())),
        "arrays": lambda file: np.asarray(Image.open(io.BytesIO(file.read_bytes()))),
    }
    name = "path" if kind == "paths" else "image"
    cells = [made[kind](file) for file in files]
    return pd.DataFrame({name: cells, "label": ["dog", "cat", "dog"]}, index=[7, 8, 9])


KINDS = [
    "paths", "path objects", "bytes", "structs", "structs of paths", "pictures", "arrays",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_data_frame_is_data(pictures, kind):
    source = open_source(frame(pictures, kind))
    check(source)
    assert source.spec == "DataFrame"
    for workers in (0, 1):
        (batch,) = batches(source, Preprocessing(size=(4, 4)), workers=workers)
        assert (batch.inputs[:, 0, 0, 0] * 255).round().tolist() == [2, 0, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_of_a_data_frame_follows_what_is_in_it(pictures, kind):
    table = frame(pictures, kind)
    before = open_source(table).fingerprint()
    assert open_source(frame(pictures, kind)).fingerprint() == before
    assert open_source(table.iloc[[0, 1]]).fingerprint() != before
    assert open_source(table.iloc[[2, 1, 0]]).fingerprint() != before
    assert open_source(table.assign(label=["dog", "dog", "cat"])).fingerprint() != before


def test_paths_of_a_data_frame_start_from_the_working_directory(pictures, monkeypatch):
    table = pd.DataFrame({"path": ["pics/2.png", "pics/0.png", "pics/3.png"],
                          "label": ["dog", "cat", "dog"]})  # fmt: skip
    monkeypatch.chdir(pictures.parent)
    check(open_source(table))


def test_categories_of_a_data_frame_number_the_classes(pictures):
    table = frame(pictures, "paths")
    table["label"] = pd.Categorical(table["label"], categories=["dog", "emu", "cat"])
    source = open_source(table)
    assert (source.classes, source.labels.tolist()) == (("dog", "emu", "cat"), [0, 2, 0])


def test_missing_labels_and_cells_of_a_data_frame_are_told(pictures):
    table = frame(pictures, "paths")
    table.loc[8, "label"] = None
    with pytest.raises(LabelError, match=r"1 of 3 labels .* are missing"):
        open_source(table)
    numbers = frame(pictures, "paths").assign(label=pd.array([1, None, 0], dtype="Int64"))
    with pytest.raises(LabelError, match=r"1 of 3 labels .* are missing"):
        open_source(numbers)
    table = frame(pictures, "bytes")
    table["image"] = [table["image"].iloc[0], None, 5]
    source = open_source(table)
    for index, said in ((1, "no image is stored for it"), (2, "got int")):
        with pytest.raises(BadExampleError, match=said):
            source[index]


def test_embeddings_in_a_data_frame_are_embeddings():
    table = pd.DataFrame({"embedding": list(np.eye(3, dtype=np.float32)), "label": [0, 1, 1]})
    source = open_source(table, class_weights=np.ones((2, 3), np.float32))
    assert (source.width, source.labels.tolist()) == (3, [0, 1, 1])


def test_a_data_frame_without_pictures_says_what_it_has():
    with pytest.raises(
        DataError, match=r"no column of pictures or paths .* DataFrame.*got words, label"
    ):
        open_source(pd.DataFrame({"words": ["a", "b"], "label": [0, 1]}))
    with pytest.raises(DataError, match="no examples in DataFrame"):
        open_source(pd.DataFrame({"path": [], "label": []}))


def test_paths_win_over_names_in_data_frames_and_parquet_files(pictures, write_parquet):
    paths = [str(pictures / f"{number}.png") for number in (2, 0, 3)]
    columns = {"image": ["x", "y", "z"], "path": paths, "label": ["dog", "cat", "dog"]}
    check(open_source(pd.DataFrame(columns)))
    check(open_source(write_parquet(pictures.parent / "x.parquet", columns)))


@pytest.mark.parametrize("column", ["image", "path", "file_name"])
def test_a_parquet_file_of_paths_starts_from_its_own_folder(
    pictures, write_parquet, monkeypatch, column
):
    columns = {column: ["pics/2.png", "pics/0.png", "pics/3.png"], "label": ["dog", "cat", "dog"]}
    file = write_parquet(pictures.parent / "x.parquet", columns)
    monkeypatch.chdir("/")
    source = open_source(file)
    check(source)
    assert source.id_of(1) == "pics/0.png"


def test_a_parquet_file_of_structs_without_bytes_is_read_by_its_paths(pictures, write_parquet):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": None, "path": f"pics/{number}.png"} for number in (2, 0, 3)]
    columns = {"image": pa.array(rows, kind), "label": ["dog", "cat", "dog"]}
    check(open_source(write_parquet(pictures.parent / "x.parquet", columns)))


def test_a_list_is_scored_from_the_command_line(listed, tmp_path):
    from click.testing import CliRunner

    from hardsight.cli import main

    file = listed("path,label\n" + "".join(f"pics/{n}.png,{n % 2}\n" for n in range(4)))
    run = CliRunner().invoke(
        main,
        ["score", "--data", str(file), "--model", "small_cnn:channels=3", "--num-classes", "2",
         "--size", "8", "--mean", "0.5", "--std", "0.5", "--out", str(tmp_path / "run"),
         "--device", "cpu"],
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    assert hs.read_table(tmp_path / "run").column("id").tolist()[0] == "pics/0.png"


def test_a_data_frame_of_pictures_can_be_scored(pictures):
    table = frame(pictures, "pictures").assign(label=[1, 0, 1])
    scored = hs.score(SmallCNN(channels=3, num_classes=2), table, size=(8, 8), device="cpu")
    assert scored.column("label").tolist() == [1, 0, 1]


def test_a_picture_kept_open_in_a_frame_is_read_more_than_once():
    buffer = io.BytesIO()
    Image.new("L", (4, 4), 7).save(buffer, format="PNG")
    opened = [Image.open(io.BytesIO(buffer.getvalue())) for _ in range(2)]
    source = open_source(pd.DataFrame({"image": opened, "label": [0, 1]}))
    assert [source[0].content.getpixel((0, 0)) for _ in range(2)] == [7, 7]


def test_a_stated_column_that_a_frame_has_twice_is_refused(pictures):
    paths = [str(pictures / name) for name in ("2.png", "0.png")]
    rows = [[path, *labels] for path, labels in zip(paths, [(0, 1), (1, 0)], strict=True)]
    frame = pd.DataFrame(rows, columns=["path", "label", "label"])
    for stated in (None, "label"):
        with pytest.raises(DataError, match="column 'label' is there twice in the columns of Data"):
            open_source(frame, label_column=stated)
