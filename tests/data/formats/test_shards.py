"""Pictures in tar files, as webdataset stores them."""

import io
import pickle
import tarfile

import numpy as np
import pytest

from hardsight.data import open_source
from hardsight.errors import (
    BadExampleError,
    DataError,
    LabelError,
    MissingDataError,
    MissingExtraError,
    OptionError,
)


@pytest.fixture
def write_tar(tmp_path):
    def write(name, members):
        with tarfile.open(tmp_path / name, "w") as archive:
            for member, content in members:
                entry = tarfile.TarInfo(member)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return tmp_path / name

    return write


@pytest.fixture
def shards(write_tar, png_bytes):
    """Ten pictures in three files, whose red value is their number."""
    for shard, numbers in enumerate((range(4), range(4, 8), range(8, 10))):
        members = [
            part
            for n in numbers
            for part in ((f"./set/{n:03d}.cls", b" %d\n" % (n % 3)),
                         (f"./set/{n:03d}.PNG", png_bytes((n, 0, 0))),
                         (f"./set/{n:03d}.mask.png", b"not looked at"))
        ]  # fmt: skip
        file = write_tar(f"train-{shard:02d}.tar", members)
    return file.parent


def red(example):
    return example.content.getpixel((0, 0))[0]


@pytest.mark.parametrize("name", ["train-{00..02}.tar", "train-*.tar", ""])
def test_pictures_of_several_files_come_in_order_and_are_read_in_any(shards, name):
    source = open_source(str(shards / name))
    assert len(source) == 10
    assert not source.is_stream
    assert [red(source[index]) for index in range(10)] == list(range(10))
    assert [red(source[index]) for index in (9, 0, 5, 4, 8)] == [9, 0, 5, 4, 8]
    assert source.labels.tolist() == [n % 3 for n in range(10)]
    assert (source.id_of(7), source.classes) == ("./set/007", ("0", "1", "2"))
    again = pickle.loads(pickle.dumps(source))
    assert again.fingerprint() == source.fingerprint()
    assert red(again[3]) == 3


# webdataset leaves its files to the collector of garbage
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_webdataset_reads_the_same_examples(shards):
    import webdataset

    files = [str(shards / f"train-{n:02d}.tar") for n in range(3)]
    found = list(webdataset.WebDataset(files, shardshuffle=False))
    source = open_source(shards)
    assert [each["__key__"] for each in found] == [source.id_of(n) for n in range(10)]
    assert [each["png"] for each in found] == [source.stored_bytes(n) for n in range(10)]
    assert [int(each["cls"]) for each in found] == source.labels.tolist()


def test_labels_may_be_names_or_lie_in_json(write_tar, png_bytes):
    names = [(f"{n}.jpg", png_bytes(n, mode="L", format="JPEG")) for n in range(4)]
    with_names = [m for n in range(4) for m in (names[n], (f"{n}.cls", b"cat" if n else b"dog"))]
    source = open_source(write_tar("names.tar", with_names))
    assert (source.classes, source.labels.tolist()) == (("cat", "dog"), [1, 0, 0, 0])
    facts = [
        part
        for n in range(4)
        for part in (names[n], (f"{n}.json", b'{"label": %d, "kind": "%c"}' % (n % 2, 97 + n % 2)))
    ]
    file = write_tar("facts.tar", facts)
    assert open_source(file).labels.tolist() == [0, 1, 0, 1]
    assert open_source(file, label_column="kind").classes == ("a", "b")


def test_the_same_names_in_two_files_are_told_apart(write_tar, png_bytes):
    for name in ("a.tar", "b.tar"):
        parts = [(f"{n}.{end}", v) for n in range(2) for end, v in
                 (("png", png_bytes(n, mode="L")), ("cls", b"%d" % n))]  # fmt: skip
        folder = write_tar(name, parts).parent
    source = open_source(folder)
    assert [source.id_of(n) for n in range(4)] == ["a.tar/0", "a.tar/1", "b.tar/0", "b.tar/1"]


def test_splits_are_the_beginnings_of_names(shards):
    (shards / "train-02.tar").rename(shards / "test-00.tar")
    assert len(open_source(shards, split="test")) == 2
    with pytest.raises(DataError, match=r"holds \.tar files of the splits train, test; pass split"):
        open_source(shards)


PICTURE = b"\x89PNG"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("0.png", PICTURE)], r"one picture and a label .* such as 0\.jpg and 0\.cls.* got 0"),
        ([("0.cls", b"1"), ("0.png", PICTURE), ("0.jpg", PICTURE)], r"got 0\.cls, 0\.png, 0\.jpg"),
        ([("0.json", b"{}"), ("0.png", PICTURE)], r"0\.json in .* to hold the label as 'label'"),
        ([], "no examples in"),
        ([("0.png", b""), ("0.cls", b"1"), ("0.x", b""), ("1.png", b""), ("1.cls", b"0"),
          ("0.png", b""), ("0.cls", b"1")], r"every example of .* once, got x\.tar/0 2 times"),
    ],
)  # fmt: skip
def test_examples_that_cannot_be_told_are_refused(write_tar, members, said):
    with pytest.raises(DataError, match=said):
        open_source(write_tar("x.tar", members))


def test_a_missing_label_is_refused(write_tar):
    members = [("0.png", PICTURE), ("0.cls", b""), ("1.png", PICTURE), ("1.cls", b"1")]
    with pytest.raises(LabelError, match=r"the files \.cls of"):
        open_source(write_tar("x.tar", members))


def test_what_is_not_a_tar_file_and_a_missing_one_are_named(shards):
    (shards / "train-01.tar").write_bytes(b"x" * 2000)
    with pytest.raises(DataError, match=r"train-01\.tar is not a readable tar file"):
        open_source(shards)
    (shards / "train-01.tar").unlink()
    with pytest.raises(MissingDataError, match=r"train-01\.tar"):
        open_source(str(shards / "train-{00..02}.tar"))
    (shards / "packed.tar.gz").touch()
    with pytest.raises(DataError, match=r"packed\.tar\.gz is compressed.* unpack it"):
        open_source(shards / "packed.tar.gz")
    with pytest.raises(OptionError, match="image_column cannot be used here"):
        open_source(shards / "train-00.tar", image_column="png")


@pytest.mark.parametrize("damage", ["in a header", "in a picture", "cut in a header"])
def test_a_damaged_file_never_ends_early_in_silence(shards, damage):
    with tarfile.open(shards / "train-01.tar") as archive:
        member = archive.getmembers()[4]
    with (shards / "train-01.tar").open("r+b") as file:
        if damage == "in a header":
            file.seek(member.offset + 20)
            file.write(b"damaged")
        else:
            into = member.offset + 100 if damage == "cut in a header" else member.offset_data + 9
            file.truncate(into)
    with pytest.raises(DataError, match=r"train-01\.tar is (damaged at byte|not a readable tar)"):
        open_source(shards)


def test_a_file_that_was_cut_costs_the_examples_behind_the_cut(shards):
    source = open_source(shards)
    with (shards / "train-02.tar").open("r+b") as file:
        file.truncate(1600)
    assert red(source[7]) == 7
    with pytest.raises(BadExampleError, match="cannot be read: the file ends in it"):
        source[9]


# ------------------------------------------------------------------------------ by URL


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An object store in memory, and a cache of this test's own."""
    import fsspec

    monkeypatch.setenv("HARDSIGHT_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("memory://bucket/set/train-{00..02}.tar", ""),
        ("memory://bucket/set/*.tar", ""),
        ("memory://bucket/set", ""),
        ("memory://bucket/set/train-01.tar", "train-01.tar"),
    ],
)
def test_shards_of_an_object_store_are_those_of_the_disk(shards, store, url, local):
    store.put(str(shards / "*.tar"), "/bucket/set/")
    source = open_source(url)
    expected = open_source(shards / local)
    assert source.spec == url
    assert source.fingerprint() == expected.fingerprint()
    assert [red(example) for example in source] == [red(example) for example in expected]


def test_class_folders_and_embeddings_may_lie_in_a_store(class_folders, store, tmp_path):
    store.put(str(class_folders), "/photos", recursive=True)
    source = open_source("memory://photos")
    assert (source.classes, len(source)) == (("cat", "dog"), 5)
    np.savez(tmp_path / "e.npz", embeddings=np.eye(3, dtype=np.float32), labels=[0, 1, 2],
             class_weights=np.eye(3, dtype=np.float32))  # fmt: skip
    store.put(str(tmp_path / "e.npz"), "/e.npz")
    assert len(open_source("memory://e.npz")) == 3
    assert len(open_source((tmp_path / "e.npz").as_uri())) == 3


def test_labels_and_head_of_embeddings_may_lie_in_a_store(store, tmp_path):
    arrays = {"rows": np.eye(3, dtype=np.float32), "labels": np.array([0, 2, 1])}
    for name, values in arrays.items():
        np.save(tmp_path / f"{name}.npy", values)
        store.put(str(tmp_path / f"{name}.npy"), f"/{name}.npy")
    np.savez(tmp_path / "head.npz", w=2 * arrays["rows"], b=np.arange(3, dtype=np.float32))
    store.put(str(tmp_path / "head.npz"), "/head.npz")
    source = open_source(
        "memory://rows.npy", labels="memory://labels.npy",
        class_weights="memory://head.npz:w", bias=(tmp_path / "head.npz").as_uri() + ":b",
    )  # fmt: skip
    np.testing.assert_array_equal(source.labels, [0, 2, 1])
    np.testing.assert_array_equal(source.class_weights, 2 * arrays["rows"])
    np.testing.assert_array_equal(source.bias, [0, 1, 2])


def test_files_are_copied_once_and_again_after_a_change(shards, store, monkeypatch, png_bytes):
    store.put(str(shards / "*.tar"), "/set/")
    copied = []
    original = type(store).get_file
    monkeypatch.setattr(
        type(store), "get_file",
        lambda self, name, *rest, **more: (
            copied.append(name), original(self, name, *rest, **more)
        ),
    )  # fmt: skip
    for _ in range(2):
        assert len(open_source("memory://set")) == 10
    assert len(copied) == 3
    store.rm("/set/train-02.tar")
    assert len(open_source("memory://set")) == 8


def test_what_is_not_in_a_store_is_an_error_that_names_it(store):
    with pytest.raises(MissingDataError, match="nothing is stored at memory://nowhere"):
        open_source("memory://nowhere")
    with pytest.raises(DataError, match=r"cannot read nothing://x: ValueError: Protocol not known"):
        open_source("nothing://x")


def test_a_store_whose_package_is_missing_says_which(store, monkeypatch):
    import fsspec

    def refuse(url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(MissingExtraError, match=r"s3://bucket/x cannot be read: Install s3fs"):
        open_source("s3://bucket/x")
