"""VisDA-17 from its folders, on a small made tree."""

import pytest
from PIL import Image

from hardsight.data import DATASETS, open_source
from hardsight.errors import BadExampleError, DataError, MissingDataError

CLASSES = DATASETS["visda17"].classes


@pytest.fixture
def tree(tmp_path):
    """Two pictures per class in train/ and one in validation/, which has a list as well."""
    lines = []
    for label, name in enumerate(CLASSES):
        for split, count in (("train", 2), ("validation", 1)):
            folder = tmp_path / "visda17" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (6, 4), (label, number, 0)).save(folder / f"{number}.png")
        lines.append(f"{name}/0.png {label}")
    listed = tmp_path / "visda17" / "validation" / "image_list.txt"
    listed.write_text("\n".join(reversed(lines)) + "\n")
    return tmp_path


def test_there_are_twelve_classes_one_of_them_called_train():
    assert len(CLASSES) == 12
    assert CLASSES[10] == "train"
    assert list(CLASSES) == sorted(CLASSES)


def test_class_folders_give_the_labels_where_there_is_no_list(tree):
    source = open_source("visda17", split="train", data_root=tree)
    assert len(source) == 24
    assert source.classes == CLASSES
    assert [source.label_of(i) for i in range(4)] == [0, 0, 1, 1]
    assert source[20].content.getpixel((0, 0)) == (10, 0, 0)
    assert source.id_of(20) == "train/0.png"


def test_a_list_decides_over_folders_and_keeps_its_order(tree):
    source = open_source("visda17", split="val", data_root=tree)
    assert len(source) == 12
    assert source.id_of(0) == "truck/0.png"
    assert [source.label_of(i) for i in (0, 11)] == [11, 0]
    assert source[0].content.getpixel((0, 0)) == (11, 0, 0)
    before = source.fingerprint()
    listed = tree / "visda17" / "validation" / "image_list.txt"
    listed.write_text(listed.read_text().replace("truck/0.png 11", "truck/0.png 3"))
    assert open_source("visda17", split="val", data_root=tree).fingerprint() != before


def test_both_splits_together_are_one_source(tree):
    assert len(open_source("visda17", split="train+validation", data_root=tree)) == 36


def test_a_listed_image_that_is_missing_is_a_bad_example(tree):
    (tree / "visda17" / "validation" / "truck" / "0.png").unlink()
    source = open_source("visda17", split="validation", data_root=tree)
    with pytest.raises(BadExampleError):
        source[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("car/0.png", "expected a path and a label in line 1"),
        ("car/0.png three", "expected a path and a label in line 1"),
        ("car/0.png 12", "expected a label below 12 in line 1"),
        ("../../secret.png 3", "expected a path below the list's folder in line 1"),
        ("/etc/passwd 3", "expected a path below the list's folder in line 1"),
        ("", "names no images"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(tree, line, said):
    (tree / "visda17" / "validation" / "image_list.txt").write_text(line + "\n")
    with pytest.raises(DataError, match=said):
        open_source("visda17", split="validation", data_root=tree)


def test_where_it_is_missing_the_message_says_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"validation split of visda17.*train\.tar"):
        open_source("visda17", split="validation", data_root=tmp_path)
