import numpy as np
import pytest

from hardsight.data import MemorySource
from hardsight.errors import DataError, LabelError

IMAGES = np.zeros((2, 4, 4), np.uint8)


def test_labels_that_are_no_whole_numbers_are_refused_rather_than_cut_off():
    with pytest.raises(LabelError, match=r"to be whole numbers, got 0\.5"):
        MemorySource(IMAGES, [0.5, 1.0])


def test_labels_may_be_names():
    source = MemorySource(IMAGES, ["cat", "dog"])
    assert (source.labels.tolist(), source.classes) == ([0, 1], ("cat", "dog"))


def test_no_rows_are_refused_in_words():
    with pytest.raises(DataError, match="no examples"):
        MemorySource(IMAGES, [0, 1]).subset([])
