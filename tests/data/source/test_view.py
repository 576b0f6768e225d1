"""Views of sources: other rows, labels or content, without a copy."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hardsight.data import DegradedSource, Example, ExampleSource, MemorySource, open_source
from hardsight.data import batches as batches_of
from hardsight.errors import DataError, ShapeError
from hardsight.preprocessing import Preprocessing


class Letters(ExampleSource):
    """As short as a source of one's own can be; counts how often it is read."""

    spec, classes = "letters", ("vowel", "other")

    def __init__(self, text="abcde"):
        self.text, self.reads = text, 0

    def __len__(self):
        return len(self.text)

    def __getitem__(self, index):
        self.reads += 1
        letter = self.text[index]
        return Example(self.id_of(index), int(letter not in "aeiou"), np.full(3, ord(letter)))

    def fingerprint(self):
        return self.text


def iter_again(items):
    class Again:
        def __iter__(self):
            return iter(items)

    return Again()


def test_a_source_of_ones_own_needs_no_more_than_five_members():
    source = open_source(Letters())
    assert source.labels.tolist() == [0, 1, 1, 1, 0]
    assert (source.id_of(2), source.label_of(4), source.column("human_counts")) == ("2", 0, None)
    (batch,) = batches_of(source, Preprocessing())
    assert batch.labels.tolist() == [0, 1, 1, 1, 0]


def test_labels_are_read_once():
    source = Letters()
    for _ in range(3):
        source.labels.sum()
        source.label_of(1)
    assert source.reads == len(source)


def test_what_only_looks_like_a_source_is_told_to_derive_from_it():
    class Alike:
        spec, classes = "alike", ("a", "b")

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return Example("0", 0, None)

        def id_of(self, index):
            return "0"

        def label_of(self, index):
            return 0

        def fingerprint(self):
            return ""

    with pytest.raises(DataError, match=r"derive Alike from hardsight\.data\.ExampleSource"):
        open_source(Alike())


def test_a_subset_keeps_order_labels_names_and_numbers():
    some = Letters().subset([1, 4])
    assert (some.spec, len(some), some.classes) == ("2 of letters", 2, ("vowel", "other"))
    assert some.labels.tolist() == [1, 0]
    assert [some.id_of(at) for at in range(2)] == ["1", "4"]
    assert some[1].content.tolist() == [ord("e")] * 3
    assert some.numbers.tolist() == [1, 4]
    assert some.numbered([1]).tolist() == [4]
    assert (some.position_of(4), Letters().position_of(4)) == (1, 4)
    with pytest.raises(IndexError, match="example 2 of 2"):
        some[2]


def test_a_subset_of_a_subset_is_numbered_by_the_source():
    assert Letters().subset([0, 2, 3, 4]).subset([1, 3]).numbers.tolist() == [2, 4]
    assert Letters().subset([]).labels.tolist() == []
    assert Letters().subset([True, False, False, False, True]).numbers.tolist() == [0, 4]


def test_other_labels_leave_the_content():
    turned = Letters().relabelled([2, 1, 0, 1, 2], classes=("x", "y", "z"), spec="turned")
    assert (turned.spec, turned.classes) == ("turned", ("x", "y", "z"))
    assert (turned[0].label, turned.label_of(2), turned[0].content[0]) == (2, 0, ord("a"))
    with pytest.raises(ShapeError, match=r"each of the 5 examples of letters, got shape \[2\]"):
        Letters().relabelled([0, 1])


@pytest.mark.parametrize("kind", ["dataset", "collated", "stream"])
def test_classes_can_have_other_numbers_in_data_of_any_kind(kind):
    rows = [(torch.full((2,), float(n)), n % 3) for n in range(5)]
    if kind == "stream":
        source = open_source(iter_again(rows), classes=["a", "b", "c"])
    elif kind == "collated":
        source = open_source(
            DataLoader(rows, collate_fn=lambda some: [*zip(*some, strict=True)]),
            classes=["a", "b", "c"],
        )
    else:
        source = open_source(rows, classes=["a", "b", "c"])
    turned = source.renumbered([2, 0, 0], ["b or c", "none", "a"])
    assert (turned.classes, turned.is_stream) == (("b or c", "none", "a"), kind == "stream")
    assert (turned[0].label, turned.label_of(1)) == (2, 0)
    found = torch.cat([batch.labels for batch in batches_of(turned, Preprocessing())])
    assert found.tolist() == [2, 0, 0, 2, 0]
    assert turned.fingerprint() != source.fingerprint()
    with pytest.raises(DataError, match=r"a new label for each of the 3 classes of .*, got 2"):
        source.renumbered([0, 1], ["a", "b"])


def test_hidden_labels_cannot_be_read_in_any_way():
    inputs, labels = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1])
    loader = DataLoader(
        TensorDataset(inputs, labels),
        batch_size=3,
        collate_fn=lambda rows: [*zip(*rows, strict=True)],
    )
    hidden = open_source(loader).without_labels()
    assert hidden.labels.tolist() == [-1] * 4
    assert (hidden[1].label, hidden.label_of(2)) == (-1, -1)
    assert hidden.loading.collate is None  # it would bring the labels along
    assert hidden.loading.batch_size == 3


def test_fingerprints_of_views_follow_rows_labels_and_sources():
    source = Letters()
    views = [
        source,
        source.subset([0, 1]),
        source.subset([1, 0]),
        source.relabelled([0, 0, 0, 0, 0]),
        source.relabelled([1, 0, 0, 0, 0]),
        source.relabelled([1, 0, 0, 0, 0], classes=("other", "vowel")),
        source.without_labels(),
        Letters("abcdf").without_labels(),
    ]
    marks = [view.fingerprint() for view in views]
    assert len(set(marks)) == len(marks)
    assert source.subset([0, 1]).fingerprint() == marks[1]


def test_views_of_pictures_in_memory_keep_them_at_hand():
    pixels = np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8)
    source = MemorySource(pixels, [0, 1, 0], human_counts=np.eye(3, 2))
    hidden = source.without_labels()
    assert hidden.images is pixels
    assert hidden.subset([2]).column("human_counts").tolist() == [[0.0, 0.0]]
    assert DegradedSource(source, contrast=0.5).images is None
    assert pickle.loads(pickle.dumps(hidden))[1].content.getpixel((0, 0)) == 64
