"""Examples that are in two sources at once."""

import numpy as np
import pytest
from PIL import Image

from hardsight.data import DegradedSource, open_source
from hardsight.data.source import row_marks, shared_examples

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
OTHERS = DRAW.integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)


def stored(place, pixels, form):
    """Pictures with two labels in turn, as arrays or as files in class folders."""
    labels = np.arange(len(pixels)) % 2
    if form == "npz":
        np.savez(f"{place}.npz", images=pixels, labels=labels)
        return open_source(f"{place}.npz")
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        (place / f"class-{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"class-{label}" / f"{number:02d}.{form}")
    return open_source(place)


@pytest.mark.parametrize("form", ["npz", "png", "bmp"])  # bmp: files that all have one size
def test_examples_with_the_same_bytes_are_counted_and_named(tmp_path, form):
    train = stored(tmp_path / "train", PIXELS, form)
    test = stored(tmp_path / "test", np.concatenate([OTHERS, PIXELS[5:8]]), form)
    found = shared_examples(test, train, range(len(train)))
    assert (found.looked_at, found.of, found.shared) == (33, 33, 3)
    assert (found.compared_with, found.others) == (40, 40)
    named = {"npz": ("30", "5")}.get(form, (f"class-0/30.{form}", f"class-1/05.{form}"))
    assert found.first == named


@pytest.mark.parametrize("form", ["npz", "png"])
def test_other_examples_are_not(tmp_path, form):
    train, test = (stored(tmp_path / name, pixels, form)
                   for name, pixels in (("train", PIXELS), ("test", OTHERS)))  # fmt: skip
    found = shared_examples(test, train, range(len(train)))
    assert (found.shared, found.first) == (0, None)


def test_rows_that_are_not_trained_on_do_not_count(tmp_path):
    whole = stored(tmp_path / "all", PIXELS, "npz")
    assert shared_examples(whole, whole, range(10)).shared == 10
    later = whole.subset(range(10, 40))
    assert shared_examples(later, whole, range(10)).shared == 0


def test_pictures_that_agree_in_all_bytes_but_one_are_other_pictures(tmp_path):
    # of 192 bytes the marks take in 64, so that the second look has to tell them apart
    changed = PIXELS.copy()
    changed[:, 0, 0, 1] ^= 1
    train, test = (stored(tmp_path / name, pixels, "npz")
                   for name, pixels in (("train", PIXELS), ("test", changed)))  # fmt: skip
    assert (train.stored_marks() == test.stored_marks()).all()
    assert shared_examples(test, train, range(40)).shared == 0


def test_a_source_that_shows_other_content_than_is_stored_is_not_looked_at(tmp_path):
    train = stored(tmp_path / "train", PIXELS, "npz")
    dim = DegradedSource(train, contrast=0.5)
    assert shared_examples(dim, train, range(40)) is None
    assert shared_examples(train, dim, range(40)) is None


def test_files_and_arrays_are_not_compared(tmp_path):
    files, arrays = stored(tmp_path / "a", PIXELS, "png"), stored(tmp_path / "b", PIXELS, "npz")
    assert shared_examples(files, arrays, range(40)) is None
    assert shared_examples(arrays, files, range(40)) is None
    assert shared_examples(files.subset(range(9)), arrays, range(40)) is None
    assert shared_examples(files.subset(range(9)), files, range(40)).shared == 9


def test_an_array_that_is_too_large_to_be_read_in_passing_has_no_marks():
    assert row_marks(PIXELS, most_bytes=PIXELS.nbytes) is not None
    assert row_marks(PIXELS, most_bytes=PIXELS.nbytes - 1) is None


def test_no_more_is_read_than_is_allowed_and_that_is_said(tmp_path):
    train = stored(tmp_path / "train", PIXELS, "npz")
    found = shared_examples(train, train, range(40), most_bytes=192 * 9)
    assert found.shared == found.compared_with == 10
    assert found.others == 40


def test_files_that_cannot_be_read_are_left_to_the_run(tmp_path):
    train = stored(tmp_path / "train", PIXELS, "png")
    test = stored(tmp_path / "test", PIXELS, "png")
    (tmp_path / "train" / "class-0" / "00.png").unlink()
    (tmp_path / "test" / "class-1" / "01.png").write_bytes(b"")
    assert shared_examples(test, train, range(40)).shared == 38
