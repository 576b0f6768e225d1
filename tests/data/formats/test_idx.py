import gzip
import struct

import numpy as np
import pytest

from hardsight.data import open_source
from hardsight.errors import DataError, MissingDataError, ShapeError

TYPES = {np.dtype(np.uint8): 8, np.dtype(np.int32): 12}


def idx_bytes(array):
    header = bytes([0, 0, TYPES[array.dtype], array.ndim])
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return header + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


IMAGES = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
LABELS = np.array([0, 1, 2, 1, 0], dtype=np.uint8)


@pytest.fixture(params=["", ".gz"], ids=["plain", "packed"])
def mnist(request, tmp_path):
    """A folder in MNIST's layout; the test split is the first two examples."""
    pack = gzip.compress if request.param else bytes
    for split, rows in (("train", slice(None)), ("t10k", slice(2))):
        images, labels = idx_bytes(IMAGES[rows]), idx_bytes(LABELS[rows])
        (tmp_path / f"{split}-images-idx3-ubyte{request.param}").write_bytes(pack(images))
        (tmp_path / f"{split}-labels-idx1-ubyte{request.param}").write_bytes(pack(labels))
    return tmp_path


@pytest.mark.parametrize(("split", "rows"), [("train", 5), ("test", 2)])
def test_a_folder_of_idx_files_is_read_by_split(mnist, split, rows):
    source = open_source(mnist, split=split)
    assert len(source) == rows
    for index in range(rows):
        np.testing.assert_array_equal(np.asarray(source[index].content), IMAGES[index])
        assert (source.label_of(index), source.id_of(index)) == (LABELS[index], str(index))


def test_the_labels_of_an_images_file_are_found_beside_it(mnist):
    (file,) = mnist.glob("train-images*")
    source = open_source(str(file))
    assert (len(source), source.classes) == (5, ("0", "1", "2"))


def test_a_folder_of_idx_files_asks_for_a_split(mnist):
    with pytest.raises(DataError, match=r"holds the idx files t10k.*, train.*; pass split='train'"):
        open_source(mnist)


def test_labels_may_be_given(mnist):
    (file,) = mnist.glob("train-images*")
    assert open_source(file, labels=[1, 0, 1, 0, 1]).label_of(0) == 1


def test_missing_labels_are_named(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(IMAGES))
    with pytest.raises(MissingDataError, match="expected train-labels-idx1-ubyte or"):
        open_source(tmp_path / "train-images-idx3-ubyte")


def test_a_file_with_both_names_is_taken_once(tmp_path):
    for name, content in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
        (tmp_path / f"train-{name}-ubyte").write_bytes(idx_bytes(content))
        (tmp_path / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(content)))
    assert len(open_source(tmp_path)) == 5


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx_bytes(IMAGES)[:-1], "is truncated"),
        (idx_bytes(IMAGES) + b"1", "holds more than the array that its header declares"),
        (idx_bytes(IMAGES)[:10], "its header is incomplete"),
        (b"PK\\3\\4 zip", "is not an idx file"),
        (b"", "is not an idx file"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content, message, packed):
    ending = ".gz" if packed else ""
    file = tmp_path / f"train-images-idx3-ubyte{ending}"
    file.write_bytes(gzip.compress(content) if packed else content)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(LABELS))
    with pytest.raises(DataError, match=message):
        open_source(file)


def test_a_file_that_is_not_packed_as_it_says_is_refused(tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"plain text")
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(LABELS))
    with pytest.raises(DataError, match="not a readable idx file"):
        open_source(tmp_path / "train-images-idx3-ubyte.gz")


def test_a_packed_file_that_declares_terabytes_is_refused(tmp_path):
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**10, 2**10)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(LABELS))
    with pytest.raises(DataError, match=r"unpacks to 2097152\.0 GiB; unpack it with gunzip"):
        open_source(tmp_path / "train-images-idx3-ubyte.gz")


def test_images_and_labels_of_different_length_are_refused(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(IMAGES[:4]))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(LABELS.astype(np.int32)))
    with pytest.raises(ShapeError, match=r"got images \[4, 4, 3\], labels \[5\]"):
        open_source(tmp_path / "train-images-idx3-ubyte")
