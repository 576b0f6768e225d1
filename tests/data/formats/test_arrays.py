import pickle

import numpy as np
import pytest
import torch

from hardsight.data import EmbeddingSource, open_source
from hardsight.errors import DataError, OptionError, ShapeError, UnknownNameError

GREY = np.arange(3 * 5 * 6, dtype=np.uint8).reshape(3, 5, 6)
COLOUR = (np.arange(3 * 5 * 6 * 3) % 251).astype(np.uint8).reshape(3, 5, 6, 3)
LABELS = np.array([0, 1, 1])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("names", [("images", "labels"), ("x", "y")])
@pytest.mark.parametrize(
    ("images", "shown"),
    [
        (GREY, GREY),
        (GREY[..., None], GREY),
        (GREY[:, None], GREY),
        (COLOUR, COLOUR),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR),
        (np.asfortranarray(COLOUR), COLOUR),
    ],
    ids=["NHW", "NHW1", "N1HW", "NHWC", "NCHW", "column-major"],
)
def test_image_arrays_become_pictures(tmp_path, save, names, images, shown):
    save(tmp_path / "a.npz", **dict(zip(names, (images, LABELS), strict=True)))
    source = open_source(tmp_path / "a.npz")
    assert len(source) == 3
    for index in range(3):
        np.testing.assert_array_equal(np.asarray(source[index].content), shown[index])
        assert source.label_of(index) == LABELS[index]


def test_images_and_labels_may_lie_in_two_files(tmp_path):
    np.save(tmp_path / "images.npy", COLOUR)
    np.save(tmp_path / "labels.npy", np.array(["b", "a", "b"]))
    source = open_source(tmp_path / "images.npy", labels=str(tmp_path / "labels.npy"))
    assert (source.classes, source[0].label) == (("a", "b"), 1)


@pytest.mark.parametrize("dtype", [np.uint16, np.float16, np.float64, ">f4"])
def test_wide_images_stay_arrays_in_native_order(tmp_path, dtype):
    np.savez(tmp_path / "a.npz", images=GREY.astype(dtype), labels=LABELS)
    content = open_source(tmp_path / "a.npz")[1].content
    assert content.dtype == (np.uint16 if dtype == np.uint16 else np.float32)
    np.testing.assert_array_equal(content, GREY[1])


def test_rows_of_x_are_vectors_for_models_of_vectors(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(3), y=LABELS)
    content = open_source(tmp_path / "a.npz")[1].content
    np.testing.assert_array_equal(content, np.array([0, 1, 0], dtype=np.float32))


def test_ids_are_used_where_stored(tmp_path):
    np.savez(tmp_path / "a.npz", images=GREY, labels=LABELS, ids=np.array(["p", "q", "ä"]))
    source = open_source(tmp_path / "a.npz")
    assert [source.id_of(index) for index in range(3)] == ["p", "q", "ä"]


def test_arrays_in_memory_need_labels():
    assert len(open_source(GREY, labels=LABELS)) == 3
    assert isinstance(open_source(torch.eye(3), labels=LABELS), EmbeddingSource)
    with pytest.raises(DataError, match="ndarray holds no labels; pass labels="):
        open_source(GREY)


def test_a_source_pickles_as_its_place_on_disk(tmp_path):
    images = np.zeros((1000, 16, 16), dtype=np.uint8)
    images[7] = 7
    np.save(tmp_path / "a.npy", images)
    source = open_source(tmp_path / "a.npy", labels=np.arange(1000) % 2)
    source[7]
    pickled = pickle.dumps(source)
    assert len(pickled) < 60_000  # labels, not 256,000 pixels
    assert pickle.loads(pickled)[7].content.getpixel((0, 0)) == 7


def test_the_fingerprint_follows_pixels_and_labels():
    base = open_source(GREY, labels=LABELS).fingerprint()
    assert base == open_source(GREY.copy(), labels=LABELS.tolist()).fingerprint()
    assert base != open_source(GREY + 1, labels=LABELS).fingerprint()
    assert base != open_source(GREY, labels=[1, 1, 0]).fingerprint()


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (np.zeros((3, 3, 8, 3), np.uint8), ShapeError, r"1 or 3 channels, got \[3, 3, 8, 3\]"),
        (np.zeros((3, 8, 8, 7), np.uint8), ShapeError, r"got \[3, 8, 8, 7\]"),
        (np.zeros((3,), np.uint8), ShapeError, r"got \[3\]"),
        (np.zeros((3, 8, 8), np.int64), DataError, r"got int64 .*images.astype\('uint8'\)"),
        (np.zeros((0, 8, 8), np.uint8), DataError, "no examples"),
        (np.zeros((4, 8, 8), np.uint8), ShapeError, r"images \[4, 8, 8\], labels \[3\]"),
    ],
)
def test_arrays_that_are_no_images_are_refused(tmp_path, images, error, message):
    np.savez(tmp_path / "a.npz", images=images, labels=LABELS)
    with pytest.raises(error, match=message):
        open_source(tmp_path / "a.npz")


def test_an_npz_file_without_known_names_is_explained(tmp_path):
    np.savez(tmp_path / "a.npz", pictures=GREY, labels=LABELS)
    with pytest.raises(DataError, match=r"images, x or embeddings in .*, got pictures, labels"):
        open_source(tmp_path / "a.npz")


def test_class_weights_do_not_belong_to_images(tmp_path):
    np.savez(tmp_path / "a.npz", images=GREY, labels=LABELS)
    with pytest.raises(OptionError, match="class_weights cannot be used here"):
        open_source(tmp_path / "a.npz", class_weights=np.eye(2))


def test_builtin_digits_are_split_without_overlap():
    every = open_source("builtin:digits")
    parts = [open_source("builtin:digits", split=split) for split in ("train", "test")]
    names = [{part.id_of(index) for index in range(len(part))} for part in parts]
    assert [len(part) for part in (every, *parts)] == [1797, 1348, 449]
    assert not names[0] & names[1]
    assert {parts[1].label_of(index) for index in range(449)} == set(range(10))


def test_builtin_digits_fill_the_range_of_eight_bits():
    from sklearn.datasets import load_digits

    source = open_source("builtin:digits")
    expected = load_digits().images[1000] * 255 / 16
    np.testing.assert_allclose(np.asarray(source[1000].content), expected, atol=0.5)
    assert (source.id_of(1000), source.spec) == ("digits/1000", "builtin:digits")


def test_unknown_builtin_data_and_splits_are_refused():
    with pytest.raises(UnknownNameError, match="Did you mean 'builtin:digits'"):
        open_source("builtin:digit")
    with pytest.raises(DataError, match="splits train and test, got 'val'"):
        open_source("builtin:digits", split="val")


def test_a_file_of_no_known_kind_is_explained(tmp_path):
    (tmp_path / "a.xls").write_text("x,y")
    with pytest.raises(DataError, match=r"cannot tell what .*a\.xls is; expected a folder of"):
        open_source(tmp_path / "a.xls")


@pytest.mark.parametrize("data", [{"images": GREY}, 7, None])
def test_objects_that_hold_no_examples_are_explained(data):
    with pytest.raises(DataError, match=r"cannot read examples from a \w+; expected"):
        open_source(data)


def test_arrays_of_other_names_are_named(tmp_path):
    np.savez(tmp_path / "odd.npz", pictures=np.zeros((3, 4, 4)), kinds=np.arange(3))
    with pytest.raises(DataError, match=r"no labels; .* its arrays are pictures, kinds"):
        open_source(tmp_path / "odd.npz")
