"""The graphs of Encouraging Loss: fresh splits, losses paired on each, the deferred bonus."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hardsight.errors import MissingDataError
from hardsight.experiments import EXPERIMENTS, run_experiment
from hardsight.experiments.el import compared_losses, made_up, split_of

SMOKE = EXPERIMENTS["el-graph"].scales["smoke"]


def test_splits_are_fresh_whole_and_of_the_published_sizes():
    assert [len(part) for part in split_of(4110, 3)] == [3288, 411, 411]
    for seed in (0, 1):
        parts = split_of(120, seed)
        assert sorted(row for part in parts for row in part) == list(range(120))
    assert split_of(120, 0) != split_of(120, 1)


def test_losses_share_what_comes_before_the_bonus():
    setting = replace(SMOKE, epochs=3, log_ends=(0.25, 1.0))
    source = made_up(120)
    deferred = compared_losses(source, setting, 0, bonus_from=3)
    assert deferred["CE"] == deferred["EL, LE=0.25"] == deferred["EL, LE=1"]
    again = compared_losses(source, setting, 0, bonus_from=0)
    assert compared_losses(source, setting, 0, bonus_from=0) == again


def test_the_network_learns_rings_from_chains():
    setting = replace(SMOKE, epochs=40, patience=40, log_ends=())
    found = [compared_losses(made_up(200), setting, seed, bonus_from=0) for seed in (0, 1)]
    assert np.mean([one["CE"]["test"] for one in found]) > 70


def test_missing_graphs_are_named(tmp_path):
    with pytest.raises(MissingDataError, match="no folder proteins of graphs below"):
        run_experiment("el-graph", scale="short", out=tmp_path / "out", data_root=str(tmp_path))
