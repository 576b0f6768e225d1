"""Experiments on acting by hardness: what they choose, and what they make of numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hardsight.data import MemorySource
from hardsight.errors import ConfigError
from hardsight.experiments import EXPERIMENTS, Lab
from hardsight.experiments.acting import labelled_rows

ACTING = ("active", "curriculum", "few-labels", "groups", "pruning")


@pytest.mark.parametrize("name", ACTING)
def test_the_setting_for_a_gpu_is_that_of_a_good_network(name):
    setting = EXPERIMENTS[name].scales["paper"]
    assert (setting.dataset, setting.model) == ("cifar10", "resnet18")
    assert setting.gate([]).good is not None
    assert len(setting.seeds) >= 3


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("pruning", {"methods": ("hardest",)}, "expected methods among random, EL2N"),
        ("curriculum", {"orders": ("hard",)}, "expected orders among easy_first"),
        ("active", {"rules": ("margins", "random")}, "expected rules among margin"),
        ("active", {"rules": ("margin",)}, "expected 'random' among the rules"),
        ("few-labels", {"rules": ("cbs",)}, "expected rules among"),
    ],
)
def test_names_that_do_not_exist_are_refused(name, changes, said):
    with pytest.raises(ConfigError, match=said):
        replace(EXPERIMENTS[name].scales["smoke"], **changes)


def test_with_all_labels_there_is_no_rest_and_no_run_is_called_lost():
    spec = EXPERIMENTS["few-labels"]
    trials = [
        {"seed": seed, "rule": rule, "accuracy": 90.0 + seed, "unlabelled": rest}
        for seed in (0, 1)
        for rule, rest in (("source-only", 80.0), ("cbst", 85.0), ("all labels", None))
    ]
    tables, _ = spec.asks(spec.scales["smoke"], {"trials": trials})
    whole = next(row for row in tables[0].rows if row[0] == "all labels")
    assert whole[2] is None


def test_the_few_labels_are_spread_over_the_classes():
    labels = np.random.default_rng(0).integers(0, 10, 500)
    rows = labelled_rows(labels, 40, seed=3)
    assert np.bincount(labels[rows]).tolist() == [4] * 10
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert rows.tolist() != labelled_rows(labels, 40, seed=4).tolist()
    with pytest.raises(ConfigError, match="a multiple of the 10 classes, got 45"):
        labelled_rows(labels, 45, seed=3)


def grid_of(cells):
    """Rows of a grid: a value for each of three seeds."""
    return [
        {"seed": seed, **where, "accuracy": base + 0.1 * seed}
        for where, base in cells
        for seed in range(3)
    ]


def test_pruning_says_which_choice_is_better():
    spec = EXPERIMENTS["pruning"]
    setting = replace(spec.scales["short"], noise=(0.2,), kept=(0.1, 0.6))
    better = {"EL2N, hardest": -20.0, "suspects dropped": 5.0, "EL2N, coverage": 3.0}
    cells = [
        ({"noise": 0.2, "kept": kept, "method": method}, 80.0 + better.get(method, 0.0))
        for kept in setting.kept
        for method in setting.methods
    ]
    data = {
        "trials": grid_of(cells),
        "whole": [{"noise": 0.2, "seed": seed, "accuracy": 90.0} for seed in range(3)],
    }
    _, claims = spec.judge(setting, data)
    assert [claim.holds for claim in claims] == [True, True, True]
    assert "10% kept" in claims[0].says
    worse = [{**row, "accuracy": 100 - row["accuracy"]} for row in data["trials"]]
    assert [c.holds for c in spec.judge(setting, {**data, "trials": worse})[1]] == [False] * 3


def test_the_mean_over_rounds_leaves_out_what_all_rules_share():
    spec = EXPERIMENTS["active"]
    setting = replace(spec.scales["short"], rules=("margin", "random"), rounds=1, seeds=(0, 1, 2))
    cells = [
        ({"rule": rule, "labels": count}, {"margin": 70.0, "random": 60.0}[rule] if at else 10.0)
        for rule in setting.rules
        for at, count in enumerate(setting.counts)
    ]
    (table,), (claim,) = spec.judge(setting, {"trials": grid_of(cells)})
    assert claim.holds
    assert table.rows[0][-1].mean == pytest.approx(70.1)


def made(found, alarms):
    return [
        {"world": world, "seed": seed, "draws": 100, "accuracy": 90.0, "inside": 50.0,
         "found": found if unfair else 0, "any": found if unfair else alarms}
        for world, unfair in (("one slice is harder to see", True), ("fair", False))
        for seed in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "alarms", "outcomes"),
    [(100, 1, [True, True]), (60, 7, [False, None]), (95, 30, [True, False])],
)
def test_planted_slices_must_be_found_and_fair_data_must_be_left_alone(found, alarms, outcomes):
    spec = EXPERIMENTS["groups"]
    data = {"made": made(found, alarms), "domains": [], "people": []}
    _, claims = spec.judge(spec.scales["smoke"], data)
    assert [claim.holds for claim in claims] == outcomes


def pictures(n, seed, *, dark=False, counts=False):
    """Two classes that differ in brightness; told wrongly if they are dark."""
    draw = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    images = draw.integers(0, 20, (n, 8, 8, 3)) + 200 * labels[:, None, None, None]
    images = 255 - images if dark else images
    people = None
    if counts:  # people disagree about every third, which has the look of the other class
        images[::3] = 220 - images[::3]
        people = np.stack([10 * (labels == 0), 10 * (labels == 1)], axis=1)
        people[::3] = 5
    return MemorySource(
        images.clip(0, 255).astype(np.uint8), labels, classes=("a", "b"), spec=f"made {seed}",
        human_counts=people,
    )  # fmt: skip


def test_a_domain_that_was_left_out_and_unclear_pictures_are_found(tmp_path):
    domains = ("photo", "negative")
    sources = {
        ("pacs", name, None): pictures(90, at, dark=name == "negative")
        for at, name in enumerate(domains)
    }
    sources["cifar10", "train", None] = pictures(120, 10)
    sources["cifar10", "test", None] = pictures(120, 11, counts=True)
    spec = EXPERIMENTS["groups"]
    setting = replace(
        spec.scales["smoke"], domains=domains, people="cifar10", shrink=1, seeds=(0,), draws=1,
        domain_epochs=3, people_epochs=3, batch_size=16,
    )  # fmt: skip
    lab = Lab(
        scale="smoke", out=tmp_path, runs=tmp_path / "runs", device="cpu", show_progress=False,
        sources=sources,
    )  # fmt: skip
    result = spec.result(lab, setting)
    negative = [row for row in result.data["domains"] if row["left_out"] == "negative"]
    worst = min(negative, key=lambda row: row["accuracy"] - row["expected"])
    assert worst["group"] == "negative"
    assert worst["p"] < 0.05
    people = {row["group"]: row for row in result.data["people"]}
    assert set(people) == {"all agree", "fewer agree"}
    assert people["fewer agree"]["accuracy"] < people["all agree"]["accuracy"]
    assert result.claims[-1].holds
