import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hardsight.errors import DataError, OptionError, ShapeError
from hardsight.table import ScoreTable, with_metadata
from hardsight.tracking import ORDERS, HardnessSampler

HARDNESS = np.random.default_rng(0).permutation(100).astype(float)  # value = rank


def test_a_curriculum_begins_with_the_easiest_and_ends_with_all():
    sampler = HardnessSampler(HARDNESS, start=0.2, full_epoch=4)
    for epoch, most in ((0, 20), (1, 40), (2, 60), (4, 100), (9, 100)):
        sampler.set_epoch(epoch)
        rows = np.array(list(sampler))
        assert len(rows) == 100  # equal steps in every epoch
        assert HARDNESS[rows].max() == most - 1
        counts = np.bincount(rows, minlength=100)[most > HARDNESS]
        assert counts.max() - counts.min() <= 1  # each as often, up to one


def test_the_other_way_round_it_begins_with_the_hardest():
    sampler = HardnessSampler(HARDNESS, order="hard_first", start=0.25, full_epoch=4)
    assert HARDNESS[list(sampler)].min() == 75


@pytest.mark.parametrize("power", [2.0, 0.0, -2.0])
def test_weights_follow_the_rank(power):
    sampler = HardnessSampler(HARDNESS, order="weighted", power=power)
    draws = []
    for epoch in range(60):
        sampler.set_epoch(epoch)
        draws += list(sampler)
    ranks = np.arange(1, 101) / 100
    expected = ranks**power / (ranks**power).sum()
    mean = (HARDNESS[draws] + 1).mean() / 100
    spread = np.sqrt((expected * ranks**2).sum() - (expected * ranks).sum() ** 2)
    assert abs(mean - (expected * ranks).sum()) < 5 * spread / np.sqrt(len(draws))


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.sampled_from(ORDERS),
    st.floats(0.01, 1.0), st.integers(0, 5), st.integers(0, 6),
)  # fmt: skip
def test_every_epoch_has_as_many_draws_as_examples_and_comes_out_again(
    hardness, order, start, full_epoch, epoch
):
    def drawn(seed):
        sampler = HardnessSampler(
            hardness, order=order, start=start, full_epoch=full_epoch, seed=seed
        )
        sampler.set_epoch(epoch)
        return list(sampler)

    rows = drawn(0)
    assert len(rows) == len(hardness)
    assert set(rows) <= set(range(len(hardness)))
    assert rows == drawn(0)


def test_a_dataloader_takes_it_and_another_epoch_is_drawn_anew():
    sampler = HardnessSampler(HARDNESS, start=0.5)
    loader = DataLoader(torch.arange(100), batch_size=10, sampler=sampler)
    first = torch.cat(list(loader)).tolist()
    sampler.set_epoch(1)
    assert torch.cat(list(loader)).tolist() != first


def test_self_paced_learning_goes_by_what_it_is_told():
    sampler = HardnessSampler(HARDNESS, start=0.1, full_epoch=10)
    sampler.update(-HARDNESS)
    assert HARDNESS[list(sampler)].min() == 90


def test_a_table_numbers_the_examples():
    about = {"scores": {"aum": {"higher_is_harder": False}}}
    rows = {"index": [3, 0, 2, 1], "aum": [4.0, 1.0, 3.0, 2.0]}
    table = ScoreTable(with_metadata(pa.table(rows), about))
    sampler = HardnessSampler.from_table(table, 4, by="aum", start=0.25)
    assert set(sampler) == {3}  # the largest margin is the easiest
    with pytest.raises(DataError, match="1 of 5 examples have no hardness"):
        HardnessSampler.from_table(table, 5, by="aum")
    with pytest.raises(DataError, match="has a row 3, the data only 3 examples"):
        HardnessSampler.from_table(table, 3, by="aum")


def test_bad_options_are_refused():
    with pytest.raises(OptionError, match=r"unknown order 'easy'\. Did you mean 'easy_first'"):
        HardnessSampler(HARDNESS, order="easy")
    for start in (0.0, 1.5):
        with pytest.raises(OptionError, match=r"start to be a share in \(0, 1\]"):
            HardnessSampler(HARDNESS, start=start)
    with pytest.raises(OptionError, match="full_epoch to be 0 or more"):
        HardnessSampler(HARDNESS, full_epoch=-1)
    with pytest.raises(ShapeError, match=r"\[N\] with N >= 1, got \[0\]"):
        HardnessSampler([])
