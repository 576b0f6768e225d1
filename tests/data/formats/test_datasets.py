import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from hardsight.data import open_source
from hardsight.errors import (
    BadExampleError,
    DataError,
    HardsightWarning,
    LabelError,
    OptionError,
)


class Pairs(Dataset):
    """Like torchvision's datasets: classes, targets, (image, label)."""

    def __init__(self, targets=(0, 1, 2, 1), classes=("ant", "bee", "cow")):
        self.targets, self.classes = list(targets), list(classes)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return Image.new("L", (4, 4), index), self.targets[index]


class Items(Dataset):
    """Yields whatever it was given, and knows nothing about it."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        if isinstance(item, Exception):
            raise item
        return item


def test_a_dataset_is_named_by_its_class_and_examples_by_position():
    source = open_source(Pairs())
    assert (source.spec, source.classes, len(source)) == ("Pairs", ("ant", "bee", "cow"), 4)
    assert (source.id_of(2), source.label_of(2), source[2].label) == ("2", 2, 2)
    assert source[3].content.getpixel((0, 0)) == 3


def test_a_subset_and_a_concatenation_keep_the_classes_and_pick_the_labels():
    source = open_source(Subset(Pairs(), [3, 2]))
    assert source.classes == ("ant", "bee", "cow")
    assert [source.label_of(index) for index in range(2)] == [1, 2]
    joined = open_source(ConcatDataset([Pairs(), Subset(Pairs(), [1])]))
    assert joined.classes == ("ant", "bee", "cow")
    assert [joined.label_of(index) for index in range(5)] == [0, 1, 2, 1, 1]


def test_concatenated_datasets_that_disagree_have_numbered_classes():
    joined = ConcatDataset([Pairs(), Pairs(classes=("x", "y", "z"))])
    assert open_source(joined).classes == ("0", "1", "2")


def test_a_tensor_dataset_tells_its_labels():
    source = open_source(TensorDataset(torch.eye(3), torch.tensor([2, 0, 1])))
    assert (source.classes, source.label_of(0)) == (("0", "1", "2"), 2)
    torch.testing.assert_close(source[1].content, torch.eye(3)[1])


def test_a_target_transform_makes_listed_targets_unreliable():
    class Shifted(Pairs):
        target_transform = staticmethod(lambda label: label)

        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return image, (label + 1) % 3

    assert open_source(Shifted()).label_of(0) == 1


@pytest.mark.parametrize(
    "item",
    [
        (torch.ones(2), 1),
        [torch.ones(2), torch.tensor(1)],
        (torch.ones(2), 1.0, "more"),
        {"image": torch.ones(2), "label": 1},
        {"pixel_values": torch.ones(2), "labels": torch.tensor([1]), "extra": 0},
        {"x": torch.ones(2), "y": np.int32(1)},
    ],
    ids=["pair", "list", "triple", "image", "pixel_values", "x"],
)
def test_items_are_pairs_or_mappings(item):
    example = open_source(Items(item))[0]
    assert example.label == 1
    torch.testing.assert_close(example.content, torch.ones(2))


def test_a_mapping_without_a_known_input_is_passed_on_without_its_label():
    example = open_source(Items({"input_ids": [1, 2], "mask": [1, 1], "label": 0}))[0]
    assert example.content == {"input_ids": [1, 2], "mask": [1, 1]}


def test_classes_are_unknown_where_a_dataset_does_not_tell():
    source = open_source(Items((torch.ones(1), 4)))
    assert source.classes == ()
    assert source.label_of(0) == 4


@pytest.mark.parametrize("label", [[0, 1, 0], torch.tensor([0.0, 1.0, 0.0]), np.eye(3)[1] > 0])
def test_a_one_hot_label_is_the_class_it_marks(label):
    assert open_source(Items((torch.ones(1), label)))[0].label == 1
    assert open_source(Items((torch.ones(1), label)), classes=["a", "b", "c"])[0].label == 1
    with pytest.raises(LabelError, match=r"one-hot label of 3 values for 2 classes"):
        open_source(Items((torch.ones(1), label)), classes=["a", "b"])[0]


def test_a_missing_label_is_not_the_string_none():
    with pytest.raises(LabelError, match=r"^the label of example 0 of Items is missing"):
        open_source(Items((torch.ones(1), None)))[0]


def test_string_labels_need_classes():
    data = Items((torch.ones(1), "dog"))
    assert open_source(data, classes=["cat", "dog"])[0].label == 1
    with pytest.raises(LabelError, match="example 0 of Items is the string 'dog'; pass classes="):
        open_source(data)[0]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (7, r"in \[0, 2\), got 7"),
        (-1, r"in \[0, 2\), got -1"),
        (0.5, r"whole numbers, got 0\.5"),
        (torch.tensor([0.3, 0.7]), r"got 2 values; soft labels become indices with argmax"),
        (None, "label of example 0 of Items is missing"),
        (float("nan"), "missing"),
    ],
)
def test_labels_that_are_no_classes_are_refused(label, message):
    with pytest.raises(LabelError, match=message):
        open_source(Items((torch.ones(1), label)), classes=["a", "b"])[0]


def test_an_exception_of_the_dataset_is_a_bad_example():
    source = open_source(Items(KeyError("colour"), (torch.ones(1), 0)))
    with pytest.raises(BadExampleError, match=r"^KeyError: 'colour'$"):
        source[0]
    assert source[1].label == 0


@pytest.mark.parametrize(
    ("item", "found"), [(torch.ones(2), "Tensor"), ({"image": 1}, "a mapping with the keys image")]
)
def test_items_without_labels_are_explained(item, found):
    with pytest.raises(DataError, match=rf"to be \(input, label\) or a mapping .* got {found}"):
        open_source(Items(item))[0]


def test_an_empty_dataset_is_refused():
    with pytest.raises(DataError, match="no examples in Items"):
        open_source(Items())


def test_listed_labels_outside_the_classes_are_refused_at_once():
    with pytest.raises(
        LabelError, match=r"in \[0, 3\), got 3 at position 1 of the labels of Pairs"
    ):
        open_source(Pairs(targets=[0, 3]))


def test_a_list_of_pairs_is_a_dataset():
    assert open_source([(torch.ones(1), 0), (torch.ones(1), 1)])[1].label == 1


def test_a_split_of_an_object_is_refused():
    with pytest.raises(OptionError, match="split cannot be used here: a Pairs is one split"):
        open_source(Pairs(), split="train")


def test_a_data_loader_brings_its_dataset_and_settings():
    def collate(samples):
        return samples

    loader = DataLoader(Pairs(), batch_size=3, shuffle=True, num_workers=2, collate_fn=collate)
    source = open_source(loader)
    assert source.spec == "Pairs"
    assert (source.loading.batch_size, source.loading.workers) == (3, 2)
    assert source.loading.collate is collate
    assert open_source(DataLoader(Pairs())).loading.collate is None


def test_fingerprints_follow_labels_indices_and_stored_arrays_but_not_transforms():
    class Noisy(Pairs):
        def __getitem__(self, index):
            return torch.rand(3), self.targets[index]

    assert open_source(Noisy()).fingerprint() == open_source(Noisy()).fingerprint()
    labels = torch.tensor([0, 1, 1])
    marks = [
        open_source(data).fingerprint()
        for data in (
            Pairs(),
            Pairs(targets=[1, 1, 2, 0]),
            Subset(Pairs(), [0, 1, 2]),
            Subset(Pairs(), [0, 3, 2]),  # the same labels, another example
            TensorDataset(torch.eye(3), labels),
            TensorDataset(torch.eye(3) * 2, labels),
        )
    ]
    assert len(set(marks)) == len(marks)


class Held(Dataset):
    """Examples under a name of its own, as most people write it."""

    def __init__(self, inputs, labels):
        self.inputs, self.answers = inputs, labels

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.answers[index]


def changed(inputs, at):
    other = inputs.clone()
    other[at] += 1
    return other


@pytest.mark.parametrize("at", [0, 99])
def test_fingerprints_see_other_content_of_the_same_class_length_and_labels(at):
    inputs, labels = torch.arange(200.0).view(100, 2), [0, 1] * 50
    kinds = {
        "attribute": lambda x, y: Held(x, y),
        "list": lambda x, y: list(zip(x, y, strict=True)),
        "mapping": lambda x, y: [
            {"image": Image.new("L", (4, 4), int(a[0])), "label": b}
            for a, b in zip(x, y, strict=True)
        ],
        "subset": lambda x, y: Subset(Held(x, y), range(100)),
        "joined": lambda x, y: ConcatDataset([Held(x[:50], y[:50]), Held(x[50:], y[50:])]),
        "nested": lambda x, y: [({"a": [a, "text"]}, b) for a, b in zip(x, y, strict=True)],
    }
    for name, made in kinds.items():
        first = open_source(made(inputs, labels)).fingerprint()
        assert first == open_source(made(inputs, labels)).fingerprint(), name
        assert first != open_source(made(changed(inputs, at), labels)).fingerprint(), name


@pytest.mark.parametrize("at", [0, 99])
def test_fingerprints_see_other_labels_that_no_attribute_lists(at):
    inputs, labels = torch.zeros(100, 2), torch.arange(100) % 2
    first = open_source(Held(inputs, labels)).fingerprint()
    assert first != open_source(Held(inputs, changed(labels, at))).fingerprint()


def test_random_transforms_play_no_part_in_fingerprints_of_any_source_of_draws():
    import random

    own = np.random.default_rng()
    draws = {
        "torch": lambda: torch.rand(3),
        "numpy": lambda: torch.tensor(np.random.rand(3)),  # noqa: NPY002
        "random": lambda: torch.tensor([random.random()]),
        "its own": lambda: torch.tensor(own.random(3) < 0.5),
    }
    for name, draw in draws.items():

        class Augmented(Held):
            def __getitem__(self, index, draw=draw):
                return self.inputs[index] + draw().sum(), self.answers[index]

        marks = {
            open_source(Augmented(torch.zeros(100, 2), [0, 1] * 50)).fingerprint() for _ in range(3)
        }
        assert len(marks) == 1, name


def test_a_fingerprint_leaves_random_states_alone_and_passes_over_what_cannot_be_read():
    class Noisy(Held):
        def __getitem__(self, index):
            if index == 0:
                raise OSError("gone")
            return torch.rand(2), self.answers[index]

    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    assert len(open_source(Noisy(torch.zeros(5, 2), [0, 1, 0, 1, 0])).fingerprint()) == 64
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002


class Stream(IterableDataset):
    def __init__(self, count=5, breaks_at=None):
        self.count, self.breaks_at = count, breaks_at

    def __iter__(self):
        for number in range(self.count):
            if number == self.breaks_at:
                raise OSError("line dropped")
            yield torch.tensor([float(number)]), number % 2


def test_a_stream_is_read_by_position():
    source = open_source(Stream(), classes=["even", "odd"])
    assert source[3].content.item() == 3
    assert (source.label_of(3), source.id_of(3), source.spec) == (1, "3", "Stream")
    with pytest.raises(IndexError, match="ends before position 9"):
        source[9]


def test_the_length_of_a_stream_is_unknown_unless_it_tells():
    with pytest.raises(DataError, match=r"length of the stream Stream is not known .* no len"):
        len(open_source(Stream()))

    class Broken(Stream):
        def __len__(self):
            return 1 + "one"

    with pytest.raises(DataError, match="unsupported operand"):  # its own fault is named
        len(open_source(Broken()))

    class Sized(Stream):
        def __len__(self):
            return self.count

    assert len(open_source(Sized())) == 5


def test_the_fingerprint_of_a_stream_sees_how_it_begins():
    class Numbers(Stream):
        def __iter__(self):
            return iter([(torch.tensor([self.count]), 0)] * 3)

    marks = [open_source(Numbers(count)).fingerprint() for count in (1, 1, 2)]
    assert marks[0] == marks[1] != marks[2]
    assert len(open_source(Stream(breaks_at=1)).fingerprint()) == 64
    once = (pair for pair in [(torch.ones(1), 0)])
    source = open_source(once)
    assert len(source.fingerprint()) == 64
    assert [position for position, _ in source.samples()] == [0]  # nothing is lost by looking


def test_any_iterable_that_starts_anew_is_a_stream():
    class Plain:
        def __iter__(self):
            return iter([(torch.ones(1), 0)])

    assert open_source(Plain())[0].label == 0


def test_two_labels_of_one_sample_that_differ_are_refused():
    samples = [{"image": torch.ones(2), "label": at % 2, "target": (at + 1) % 2} for at in range(4)]
    with pytest.raises(DataError, match=r"label and target .*differ \(0 and 1\).*leave one"):
        open_source(samples)[0]
    alike = [{"image": torch.ones(2), "label": at % 2, "labels": at % 2} for at in range(4)]
    assert [open_source(alike)[at].label for at in range(4)] == [0, 1, 0, 1]


def triples(second, third, **known):
    """A dataset of (picture, second, third)."""
    rows = enumerate(zip(second, third, strict=True))
    items = [(Image.new("L", (4, 4), at), *pair) for at, pair in rows]
    dataset = Items(*items)
    for name, value in known.items():
        setattr(dataset, name, value)
    return dataset


LABELS, IDS = [0, 1, 2, 1, 0, 2, 2, 1, 0, 0], list(range(10))
GROUPS = [1, 1, 0, 0, 1, 0, 0, 1, 1, 0]


@pytest.mark.parametrize(
    "dataset",
    [
        triples(LABELS, IDS),
        triples(LABELS, [100 + 7 * at for at in IDS]),  # positions in another dataset
        triples(LABELS, LABELS),
        triples(LABELS, GROUPS, targets=LABELS),
        triples(LABELS, [0.5] * 10),  # weights
        triples(LABELS, [True] * 10),
        triples(LABELS, [f"{at}.png" for at in IDS]),
        TensorDataset(torch.zeros(10, 1, 4, 4), torch.tensor(LABELS), torch.arange(10)),
    ],
)
def test_the_second_value_is_the_label_without_a_word_if_no_other_could_be(dataset):
    source = open_source(dataset)
    assert [source[at].label for at in range(10)] == LABELS


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (triples(IDS, LABELS), r"second value is read.*0, 1, 2, 3, \.\.\.: it counts the examples"),
        (triples([torch.tensor(at) for at in IDS], LABELS), "as an index does, and the third does"),
        (
            triples(GROUPS, LABELS, targets=LABELS),
            "the labels that it lists are those of the third",
        ),
    ],
)
def test_an_index_in_place_of_the_label_is_refused(dataset, said):
    with pytest.raises(DataError, match=rf"{said}.*yield \(input, label\), or a mapping"):
        open_source(dataset)


def test_two_values_that_could_be_the_label_are_told_of():
    said = r"second value is read as the label, 0, 1, 2, 1, \.\.\., and the third, 1, 1, 0, 0"
    with pytest.warns(HardsightWarning, match=said):
        source = open_source(triples(LABELS, GROUPS))
    assert source[2].label == 2


def test_a_collate_fn_of_the_user_decides_by_itself_what_is_the_label():
    def collate(samples):
        return torch.zeros(len(samples), 1, 4, 4), torch.tensor([sample[2] for sample in samples])

    open_source(DataLoader(triples(IDS, LABELS), collate_fn=collate))


def test_a_stream_with_an_index_in_place_of_the_label_is_refused_before_it_is_used():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(triples(IDS, LABELS).items)

    with pytest.raises(DataError, match="it counts the examples, as an index does"):
        open_source(Stream()).fingerprint()
