"""Which examples a DataLoader's sampler names: those are read, each once, in dataset order."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import hardsight as hs
from hardsight.data import batches, open_source
from hardsight.errors import DataError
from hardsight.models import SmallCNN
from hardsight.preprocessing import Preprocessing

DATA = TensorDataset(torch.arange(10.0)[:, None], torch.arange(10) % 2)


class Listed(Sampler):
    """Yields what it was given."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class Endless(Sampler):
    def __iter__(self):
        while True:
            yield 0


def read(loader):
    """Number and content of every example that is read."""
    source = open_source(loader)
    found = list(batches(source, Preprocessing()))
    inputs = torch.cat([batch.inputs for batch in found]).flatten().tolist()
    index = torch.cat([batch.index for batch in found])
    return source.numbered(index).tolist(), inputs


@pytest.mark.parametrize(
    "given",
    [
        {"sampler": SubsetRandomSampler([7, 2, 4])},
        {"sampler": [7, 2, 4]},
        {"sampler": Listed(torch.tensor([7, 2, 4]))},
        {"batch_sampler": BatchSampler(SubsetRandomSampler([7, 2, 4]), 2, drop_last=True)},
        {"batch_sampler": [[7, 4], [2]]},
        {"batch_sampler": Listed([[7], [2, 4]])},
        {"sampler": SubsetRandomSampler([7, 2, 4]), "batch_size": None},
    ],
    ids=["subset", "list", "tensors", "batches", "lists of lists", "own batches", "no batches"],
)
def test_only_what_a_sampler_names_is_read_in_dataset_order(given):
    numbers, inputs = read(DataLoader(DATA, **given))
    assert numbers == inputs == [2, 4, 7]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"shuffle": True},
        {"sampler": SequentialSampler(DATA)},
        {"batch_sampler": BatchSampler(RandomSampler(DATA), 4, drop_last=True)},
        {"batch_size": 4, "drop_last": True},  # rows of an incomplete batch are examples too
    ],
    ids=["plain", "shuffled", "sequential", "batches", "drop_last"],
)
def test_a_sampler_of_everything_changes_nothing(given):
    assert read(DataLoader(DATA, **given)) == (list(range(10)), list(range(10)))
    assert open_source(DataLoader(DATA, **given)).spec == "TensorDataset"


@pytest.mark.parametrize("options", [{}, {"batch_size": None}], ids=["batches", "no batches"])
@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler])
def test_a_sampler_that_counts_something_shorter_than_the_dataset_names_a_part(kind, options):
    loader = DataLoader(DATA, sampler=kind(range(4)), **options)
    assert read(loader) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_a_random_sampler_of_something_longer_than_the_dataset_is_refused():
    sampler = RandomSampler(range(1000), num_samples=len(DATA))  # draws from all 1000
    with pytest.raises(DataError, match=r"positions in \[0, 10\) from the sampler RandomSampler"):
        open_source(DataLoader(DATA, sampler=sampler))


def test_each_process_of_several_reads_its_own_share():
    shares = [
        read(DataLoader(DATA, sampler=DistributedSampler(DATA, 2, rank, shuffle=False)))[0]
        for rank in range(2)
    ]
    assert shares == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_a_random_part_is_read_and_the_random_state_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    numbers, inputs = read(DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=4)))
    assert numbers == inputs == sorted(set(numbers))
    assert len(numbers) == 4
    torch.testing.assert_close(torch.rand(2), expected)
    draw = torch.Generator().manual_seed(1)
    before = draw.get_state()
    open_source(DataLoader(DATA, sampler=SubsetRandomSampler([1, 2], generator=draw)))
    assert torch.equal(draw.get_state(), before)


@pytest.mark.parametrize(
    "sampler",
    [
        WeightedRandomSampler([1.0] * 10, 10),
        RandomSampler(DATA, replacement=True),
        Listed([1, 2, 1]),
        Endless(),
    ],
    ids=["weighted", "replacement", "twice", "endless"],
)
def test_a_sampler_that_repeats_examples_is_refused_with_a_way_to_all_of_them(sampler):
    with pytest.raises(DataError, match=r"draws examples more than once.*pass loader\.dataset"):
        open_source(DataLoader(DATA, sampler=sampler))


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([3, 10], r"positions in \[0, 10\).*got 10"),
        ([-1], r"positions in \[0, 10\).*got -1"),
        ([("a", 1)], r"positions in \[0, 10\).*got \('a', 1\)"),
        ([], "selects no examples"),
    ],
)
def test_what_is_not_a_position_is_refused(items, said):
    with pytest.raises(DataError, match=said):
        open_source(DataLoader(DATA, sampler=Listed(items)))


def test_the_fingerprint_follows_the_examples_that_a_sampler_names():
    marks = [
        open_source(DataLoader(DATA, sampler=sampler)).fingerprint()
        for sampler in (None, [1, 2], [2, 1], [1, 3])
    ]
    assert marks[1] == marks[2]
    assert len(set(marks)) == 3


@pytest.mark.parametrize("collated", [False, True])
def test_a_table_has_the_rows_of_a_sampler_under_their_own_index(tmp_path, collated):
    images = torch.rand(12, 1, 8, 8)
    images[[3, 5]] = torch.nan  # no such example may be looked at
    labels = torch.arange(12) % 3
    options = {}
    if collated:
        options["collate_fn"] = lambda rows: (
            torch.stack([row[0] for row in rows]),
            torch.tensor([row[1] for row in rows]),
        )
    chosen = [1, 2, 6, 7, 8, 11]
    data = TensorDataset(images, labels)
    loader = DataLoader(data, batch_size=4, sampler=SubsetRandomSampler(chosen), **options)
    torch.manual_seed(0)
    model = SmallCNN(num_classes=3)
    table = hs.score(model, loader, out=tmp_path / "run", device="cpu")
    assert table.column("index").tolist() == chosen
    assert table.column("id").tolist() == [str(index) for index in chosen]
    assert table.column("label").tolist() == labels[chosen].tolist()
    whole = hs.score(model, TensorDataset(images.nan_to_num(), labels), device="cpu")
    rows = whole.column("avh")[chosen]
    torch.testing.assert_close(torch.tensor(table.column("avh")), torch.tensor(rows))
    from hardsight.table import RunFolder

    pictures = RunFolder(tmp_path / "run").thumbnails()
    assert set(pictures) == set(chosen)


def test_an_unreadable_example_is_listed_under_its_own_index(tmp_path):
    class Broken(TensorDataset):
        def __getitem__(self, index):
            if index == 8:
                raise OSError("gone")
            return super().__getitem__(index)

    data = Broken(torch.rand(12, 1, 8, 8), torch.arange(12) % 3)
    loader = DataLoader(data, sampler=[2, 8, 9, 10])
    hs.score(SmallCNN(num_classes=3), loader, out=tmp_path / "run", device="cpu")
    from hardsight.table import RunFolder

    errors = RunFolder(tmp_path / "run").errors()
    assert errors[["index", "id"]].values.tolist() == [[8, "8"]]
