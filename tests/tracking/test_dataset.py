import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import hardsight
from hardsight.errors import DataError, OptionError
from hardsight.tracking import IndexedDataset, with_index

LETTERS = [("a", 0), ("b", 1), ("c", 0), ("d", 1)]


def test_a_shuffled_loader_gives_every_item_with_its_own_position():
    data = TensorDataset(torch.arange(10) * 7, torch.arange(10) % 2)
    loader = DataLoader(with_index(data), batch_size=3, shuffle=True)
    seen = []
    for index, inputs, labels in loader:
        torch.testing.assert_close(inputs, index * 7)
        torch.testing.assert_close(labels, index % 2)
        seen += index.tolist()
    assert sorted(seen) == list(range(10))


def test_a_mapping_gets_the_key_index():
    loader = DataLoader(with_index([{"x": 1.0}, {"x": 2.0}]), batch_size=2)
    assert next(iter(loader))["index"].tolist() == [0, 1]


def test_an_item_of_its_own_kind_comes_second():
    assert with_index(["a", "b"])[1] == (1, "b")


def test_the_index_of_a_subset_is_its_own_by_default():
    data = with_index(Subset(LETTERS, [3, 1]))
    assert (data[0], data.num_examples) == ((0, "d", 1), 2)


def test_the_index_of_a_subset_of_a_subset_can_be_that_of_the_root():
    data = with_index(Subset(Subset(LETTERS, [3, 2, 1]), [2, 0]), of="root")
    assert [data[0], data[1]] == [(1, "b", 1), (3, "d", 1)]
    assert data.__getitems__([1, 0]) == [(3, "d", 1), (1, "b", 1)]
    assert (len(data), data.num_examples) == (2, 4)


def test_a_dataset_that_reads_whole_batches_is_asked_for_whole_batches():
    class Batched(list):
        asked = 0

        def __getitems__(self, positions):
            self.asked += 1
            return [self[position] for position in positions]

    data = Batched(LETTERS)
    batch = next(iter(DataLoader(with_index(data), batch_size=3)))
    assert batch[0].tolist() == [0, 1, 2]
    assert data.asked == 1


def test_a_negative_position_counts_from_the_end():
    assert with_index(LETTERS)[-1] == (3, "d", 1)


def test_iterating_ends_at_the_last_item():
    assert [item[0] for item in with_index(LETTERS)] == [0, 1, 2, 3]


def test_a_stream_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield 1

    with pytest.raises(DataError, match=r"map-style dataset .* got Stream; items of a stream have"):
        with_index(Stream())


def test_an_index_that_is_there_already_is_not_overwritten():
    with pytest.raises(DataError, match="have the key 'index' already"):
        IndexedDataset([{"index": 3}])[0]


def test_the_index_is_of_the_wrapper_or_of_the_root():
    with pytest.raises(OptionError, match="'wrapper' or 'root', got 'source'"):
        with_index(LETTERS, of="source")


def test_a_dataset_with_an_index_is_scored_as_it_is_without():
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    data = TensorDataset(torch.randn(9, 4), torch.arange(9) % 3)
    expected = hardsight.score(net, data).column("avh").tolist()
    indexed = with_index(data)
    assert hardsight.score(net, indexed).column("avh").tolist() == expected
    loader = DataLoader(indexed, batch_size=4)
    assert hardsight.score(net, loader).column("avh").tolist() == expected
    whole = with_index(data, of="root")  # no Subset: positions are positions
    assert hardsight.score(net, whole).column("avh").tolist() == expected


def test_positions_in_another_dataset_are_not_taken_for_rows():
    part = with_index(Subset(LETTERS, [2, 1]), of="root")
    with pytest.raises(DataError, match="positions in the dataset that a Subset was taken from"):
        hardsight.score(nn.Linear(4, 3), part)
