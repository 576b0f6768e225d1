import math

import numpy as np
import pytest
from scipy import stats

from hardsight.errors import NonFiniteError, OptionError, StatisticError
from hardsight.stats import HUMAN_BINS, bin_index, binned_correlations, quantile_edges


def test_bins_are_half_open_and_the_last_one_closed():
    edges = [0.0, 0.25, 0.5, 1.0]
    assert bin_index([0.0, 0.2499, 0.25, 0.5, 0.75, 1.0], edges).tolist() == [0, 0, 1, 2, 2, 2]


def test_every_human_frequency_falls_into_one_of_the_papers_bins():
    assert bin_index([0, 0.2, 0.4, 0.6, 0.8, 1.0], HUMAN_BINS).tolist() == [0, 1, 2, 3, 4, 4]


def test_values_outside_raise_or_are_dropped():
    with pytest.raises(OptionError, match=r"2 values are outside \[0, 1\], such as -0.1"):
        bin_index([-0.1, 0.5, 1.1], [0, 1])
    assert bin_index([-0.1, 0.5, 1.1], [0, 1], outside="drop").tolist() == [-1, 0, -1]
    with pytest.raises(NonFiniteError, match="values holds 1 NaN"):
        bin_index([np.nan], [0, 1])


@pytest.mark.parametrize("edges", [[0, 1, 1, 2], [1, 0], [1]])
def test_edges_must_increase(edges):
    with pytest.raises(OptionError, match="at least 2 edges that increase"):
        bin_index([0.5], edges)


def test_quantile_bins_hold_equal_numbers_and_merge_where_values_are_equal():
    values = np.random.default_rng(0).permutation(1000)
    counts = np.bincount(bin_index(values, quantile_edges(values, 8)))
    assert counts.tolist() == [125] * 8
    heavy = np.r_[np.linspace(0, 0.9, 100), np.ones(900)]  # top-heavy, like CIFAR-10H
    edges = quantile_edges(heavy, 5)
    assert edges.tolist() == [0.0, 1.0]
    assert bin_index(heavy, edges).max() == 0
    with pytest.raises(StatisticError, match="all 3 values are 2"):
        quantile_edges([2, 2, 2], 4)
    with pytest.raises(OptionError, match="count=0"):
        quantile_edges([1, 2], 0)


def test_binned_correlations_are_those_of_the_examples_in_each_bin(noisy_pair):
    x, y = noisy_pair
    found = binned_correlations(x, y, y, edges=[0, 0.5, 0.8, 1])
    assert sum(part.n for part in found) == 200
    inside = (y >= 0.5) & (y < 0.8)
    assert found[1].correlation.value == pytest.approx(stats.spearmanr(x[inside], y[inside])[0])
    assert (found[1].low, found[1].high, found[1].n) == (0.5, 0.8, inside.sum())


def test_a_bin_without_a_correlation_says_why():
    found = binned_correlations([1, 2, 3, 4, 5], [0.9] * 5, [0.9] * 5)
    assert [part.n for part in found] == [0, 0, 0, 0, 5]
    assert all(part.correlation is None for part in found)
    assert "at least 4 values" in found[0].reason
    assert "constant" in found[4].reason


def test_quantiles_of_infinite_values_are_refused():
    with pytest.raises(NonFiniteError, match="values holds 1 infinite"):
        quantile_edges([0.0, 1.0, math.inf], 3)
