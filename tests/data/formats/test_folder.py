import os
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from hardsight.data import UnlabelledFolder, open_source
from hardsight.errors import (
    BadExampleError,
    DataError,
    HardsightWarning,
    MissingDataError,
    OptionError,
)


def ids(source):
    return [source.id_of(index) for index in range(len(source))]


def test_class_folders_are_labels_in_sorted_order(class_folders):
    source = open_source(str(class_folders))
    assert source.spec == str(class_folders)
    assert source.classes == ("cat", "dog")
    assert ids(source) == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png", "dog/2.png"]
    assert [source.label_of(index) for index in range(5)] == [0, 0, 1, 1, 1]
    example = source[3]
    assert (example.id, example.label) == ("dog/1.png", 1)
    assert example.content.getpixel((0, 0)) == (101, 0, 255)


def test_a_path_object_names_a_folder_too(class_folders):
    assert len(open_source(class_folders)) == 5


def test_nested_files_upper_case_endings_and_unicode_names_are_found(class_folders, png_bytes):
    deep = class_folders / "cat" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "KATZE.PNG").write_bytes(png_bytes())
    (class_folders / "dog" / "собака-🐕.png").write_bytes(png_bytes())
    (class_folders / "dog" / ("x" * 251 + ".png")).write_bytes(png_bytes())
    source = open_source(class_folders)
    assert {"cat/a/b/KATZE.PNG", "dog/собака-🐕.png", f"dog/{'x' * 251}.png"} <= set(ids(source))
    assert all(source[index].content.size == (6, 4) for index in range(len(source)))


def test_a_name_that_is_no_utf8_is_read_and_printed_escaped(class_folders, png_bytes):
    name = os.fsencode(class_folders / "dog") + b"/\xff.png"
    with open(name, "wb") as file:
        file.write(png_bytes())
    source = open_source(class_folders)
    (index,) = [i for i, name in enumerate(ids(source)) if name == "dog/\\xff.png"]
    assert source[index].content.size == (6, 4)
    source.id_of(index).encode("utf-8")  # fit for a table


def test_hidden_files_other_files_and_folders_named_like_images_are_no_examples(
    class_folders, png_bytes
):
    (class_folders / "cat" / ".hidden.png").write_bytes(png_bytes())
    (class_folders / "cat" / "notes.txt").write_text("cats")
    (class_folders / ".git").mkdir()
    (class_folders / "__MACOSX").mkdir()
    (class_folders / "cat" / "x.png").mkdir()
    (class_folders / "readme.md").write_text("cats and dogs")
    with pytest.warns(HardsightWarning, match=r"1 file was passed over: 1 \.txt"):
        source = open_source(class_folders)
    assert (len(source), source.classes) == (5, ("cat", "dog"))


def test_the_warning_names_the_line_of_the_users_own_code(class_folders):
    (class_folders / "cat" / "notes.txt").write_text("cats")
    with pytest.warns(HardsightWarning) as said:
        open_source(class_folders)
    assert [warning.filename for warning in said] == [__file__]


def test_what_is_not_read_as_a_picture_is_counted_and_said(class_folders, png_bytes):
    for name in ("a.heic", "b.HEIC", "deep/c.svg", "photo"):
        file = class_folders / "cat" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(png_bytes())
    os.mkfifo(class_folders / "dog" / "pipe")
    (class_folders / "stray.jpg").write_bytes(png_bytes())
    said = (
        r"6 files were passed over: 2 \.heic, 1 \.svg, 2 without an ending, 1 picture outside of "
        r"the class folders; .*\.jpg"
    )
    with pytest.warns(HardsightWarning, match=said):
        source = open_source(class_folders)
    assert len(source) == 5
    assert source.passed_over == {
        ".heic": 2, ".svg": 1, "without an ending": 2,
        "picture outside of the class folders": 1,
    }  # fmt: skip


@pytest.mark.timeout(60)
def test_pipes_sockets_and_devices_never_block(class_folders):
    import socket

    os.mkfifo(class_folders / "cat" / "a pipe.png")
    (class_folders / "cat" / "a device.png").symlink_to("/dev/zero")
    here = os.getcwd()
    try:
        os.chdir(class_folders / "dog")  # names of sockets are short
        server = socket.socket(socket.AF_UNIX)
        server.bind("a socket.png")
    finally:
        os.chdir(here)
    source = open_source(class_folders)
    assert len(source) == 8
    assert len(source.fingerprint()) == 64
    special = [at for at, name in enumerate(ids(source)) if name.split("/")[1].startswith("a ")]
    assert len(special) == 3
    for index in special:
        with pytest.raises(BadExampleError, match="not a regular file"):
            source[index]
    server.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["x.parquet", "x.npz", "x.npy", "x.csv", "x-idx3-ubyte", "x.png"])
def test_a_pipe_named_as_data_is_refused_instead_of_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=r"is neither a file nor a folder"):
        open_source(tmp_path / name)


@pytest.mark.timeout(60)
def test_a_pipe_beside_class_folders_is_not_opened(class_folders):
    for name in ("x.parquet", "x-images-idx3-ubyte"):
        os.mkfifo(class_folders / name)
    assert len(open_source(class_folders)) == 5


def test_links_are_followed_but_not_in_circles(class_folders, tmp_path, png_bytes):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "far.png").write_bytes(png_bytes())
    (class_folders / "cow").symlink_to(tmp_path / "elsewhere")
    (class_folders / "dog" / "loop").symlink_to(class_folders / "dog")
    (class_folders / "dog" / "up").symlink_to(class_folders / "dog" / "..")
    (class_folders / "dog" / "root").symlink_to("/")
    (class_folders / "dog" / "above").symlink_to(tmp_path)
    (class_folders / "dog" / "self.png").symlink_to("self.png")
    with pytest.warns(HardsightWarning, match="4 links to a folder above"):
        source = open_source(class_folders)
    assert "cow/far.png" in ids(source)
    assert len(source) == 5 + 2  # each once, under its own label
    assert not any("cat" in name for name in ids(source) if name.startswith("dog"))
    broken = ids(source).index("dog/self.png")
    with pytest.raises(BadExampleError, match="cannot be opened"):
        source[broken]
    assert len(source.fingerprint()) == 64


def test_an_empty_class_folder_keeps_its_label(class_folders):
    (class_folders / "bird").mkdir()
    source = open_source(class_folders)
    assert source.classes == ("bird", "cat", "dog")
    assert source.label_of(0) == 1


def test_given_classes_number_the_folders(class_folders):
    source = open_source(class_folders, classes=["dog", "emu", "cat"])
    assert [source.label_of(index) for index in range(5)] == [2, 2, 0, 0, 0]
    with pytest.raises(DataError, match=r"class folder 'dog' .* is not one of the 2 given classes"):
        open_source(class_folders, classes=["cat", "emu"])


def test_the_fingerprint_follows_names_sizes_and_labels(class_folders, tmp_path, png_bytes):
    first = open_source(class_folders).fingerprint()
    assert first == open_source(class_folders).fingerprint()
    class_folders.rename(tmp_path / "moved")
    assert first == open_source(tmp_path / "moved").fingerprint()
    (tmp_path / "moved" / "cat" / "0.png").write_bytes(png_bytes(size=(60, 40)))
    second = open_source(tmp_path / "moved").fingerprint()
    (tmp_path / "moved" / "cat" / "0.png").rename(tmp_path / "moved" / "dog" / "9.png")
    third = open_source(tmp_path / "moved").fingerprint()
    assert len({first, second, third}) == 3


@pytest.mark.parametrize("kind", [open_source, UnlabelledFolder])
def test_the_fingerprint_sees_another_image_of_the_same_size(kind, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for at in range(4):
            Image.new("L", (8, 8), at).save(tmp_path / name / f"{at}.bmp")
    before, place = kind(tmp_path).fingerprint(), tmp_path / "cat" / "2.bmp"
    size = place.stat().st_size
    Image.new("L", (8, 8), 99).save(place)
    assert place.stat().st_size == size
    assert kind(tmp_path).fingerprint() != before


def test_a_link_to_another_class_doubles_no_examples_under_its_label(class_folders):
    before = open_source(class_folders)
    (class_folders / "dog" / "cats").symlink_to(class_folders / "cat")
    (class_folders / "cat" / "dogs").symlink_to("../dog")
    (class_folders / "cat" / "deep").mkdir()
    (class_folders / "cat" / "deep" / "dogs").symlink_to("../../dog")
    with pytest.warns(HardsightWarning, match="3 links to another folder of the data"):
        source = open_source(class_folders)
    assert ids(source) == ids(before)
    assert source.labels.tolist() == before.labels.tolist()
    assert source.passed_over == {"link to another folder of the data": 3}


def test_links_to_what_is_not_read_otherwise_are_followed(class_folders, tmp_path):
    before = len(open_source(class_folders))
    (class_folders / ".store").mkdir()
    for place in (class_folders / ".store" / "cow", tmp_path / "sheep"):
        shutil.copytree(class_folders / "cat", place)
        (class_folders / place.name).symlink_to(place)
    source = open_source(class_folders)
    assert source.classes == ("cat", "cow", "dog", "sheep")
    cats = sum(source.labels == 0)
    assert len(source) == before + 2 * cats


def test_a_fingerprint_is_made_where_a_link_leads_nowhere(class_folders):
    (class_folders / "cat" / "9.png").symlink_to(class_folders / "nowhere.png")
    assert len(open_source(class_folders).fingerprint()) == 64


def test_a_source_reads_the_same_after_pickling(class_folders):
    source = pickle.loads(pickle.dumps(open_source(class_folders)))
    np.testing.assert_array_equal(
        np.asarray(source[2].content), np.asarray(open_source(class_folders)[2].content)
    )


def test_splits_instead_of_classes_ask_for_a_split(class_folders, tmp_path):
    root = tmp_path / "splits"
    root.mkdir()
    class_folders.rename(root / "train")
    (root / "val" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match=r"holds the splits train, val .* pass split='train' or"):
        open_source(root)
    assert len(open_source(root, split="train")) == 5
    with pytest.raises(DataError, match=r"no folder 'test' in .* no such split"):
        open_source(root, split="test")


def test_a_missing_path_is_named_with_the_part_that_exists(tmp_path):
    with pytest.raises(MissingDataError, match=r"no file or folder .*a/b; the path exists up to"):
        open_source(tmp_path / "a" / "b")


def test_an_impossible_path_is_refused():
    with pytest.raises(DataError, match="File name too long"):
        open_source("x" * 5000)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="is empty; expected one folder per class"):
        open_source(tmp_path)


def test_a_folder_without_images_says_what_it_holds(tmp_path):
    (tmp_path / "a.heic").write_text("")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "b.heic").write_text("")
    with pytest.raises(DataError, match=r"no images in .*end with: \.heic\); expected one folder"):
        open_source(tmp_path)


def test_images_without_class_folders_are_explained(tmp_path, png_bytes):
    (tmp_path / "1.png").write_bytes(png_bytes())
    with pytest.raises(DataError, match=r"images lie directly in .* one folder per class"):
        open_source(tmp_path)


def test_one_class_folder_only_is_refused(class_folders):
    for file in (class_folders / "dog").iterdir():
        file.unlink()
    (class_folders / "dog").rmdir()
    with pytest.raises(DataError, match=r"at least two class folders in .* got only 'cat'"):
        open_source(class_folders)


def test_a_folder_that_may_not_be_listed_is_refused(class_folders):
    user = os.geteuid()
    class_folders.chmod(0)
    try:
        if user == 0:
            for folder in (class_folders, *class_folders.parents)[1:4]:
                folder.chmod(0o755)
            os.seteuid(65534)
        with pytest.raises(DataError, match=r"cannot (list|open) .*Permission denied"):
            open_source(class_folders)
    finally:
        os.seteuid(user)
        class_folders.chmod(0o755)


def test_a_nested_folder_that_may_not_be_listed_is_refused_by_name(class_folders, monkeypatch):
    (class_folders / "cat" / "closed").mkdir()
    scandir = os.scandir

    def refusing(path):
        if os.fsdecode(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(DataError, match=r"cannot list .*closed: Permission denied; .*permissions"):
        open_source(class_folders)


def test_options_of_other_forms_are_refused(class_folders):
    with pytest.raises(OptionError, match="labels cannot be used here: these examples have"):
        open_source(class_folders, labels=[0])
    with pytest.raises(OptionError, match="class_weights cannot be used here: they belong to"):
        open_source(class_folders, class_weights="head.npy")
