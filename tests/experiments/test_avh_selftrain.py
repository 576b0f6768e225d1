"""The self-training experiment: its tables re-derived, and claims that can turn out either way."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hardsight.data import MemorySource
from hardsight.errors import ConfigError
from hardsight.experiments import run_experiment
from hardsight.experiments.avh._selftrain import (
    Setting,
    _claims,
    _domains,
    _overview,
    _quality,
    degraded,
    larger,
    similar,
)

RULES = ("cbst", "cbst+avh", "source-only")


def made(last, first=None):
    """A run of given accuracies, and first-round numbers, by rule."""

    def rounds(rule):
        before = {"round": 0, "evaluation": {"mean_class_accuracy": 0.5, "class_accuracy": [0.5]}}
        after = {"round": 1, "evaluation": {"mean_class_accuracy": last[rule]}}
        rate, confidence, norm = (first or {}).get(rule, (0.8, 0.9, 10.0))
        after["quality"] = {
            "true_positive_rate": {"value": rate}, "mean_confidence": confidence,
            "mean_norm": norm, "mean_avh": 0.1, "mean_avc": 0.2,
        }  # fmt: skip
        return SimpleNamespace(rounds=[before] if rule == "source-only" else [before, after])

    return SimpleNamespace(runs={rule: rounds(rule) for rule in RULES}, classes=("a",))


SETTING = Setting(pairs=("a>b",), rules=RULES, seeds=(0, 1, 2))


def runs_of(avh, cbst, first=None):
    return {
        ("a>b", seed): made({"cbst+avh": one, "cbst": other, "source-only": 0.5}, first)
        for seed, (one, other) in enumerate(zip(avh, cbst, strict=True))
    }


@pytest.mark.parametrize(
    ("avh", "cbst", "holds"),
    [
        ((0.80, 0.82, 0.81), (0.70, 0.71, 0.72), True),
        ((0.70, 0.71, 0.72), (0.80, 0.82, 0.81), False),
        ((0.70, 0.80, 0.75), (0.75, 0.74, 0.76), None),
    ],
)
def test_the_main_claim_turns_with_the_data(avh, cbst, holds):
    claim = _claims(runs_of(avh, cbst), SETTING)[0]
    assert claim.says == "CBST+AVH outperforms CBST"
    assert claim.holds is holds
    wanted = 100 * (np.mean(avh) - np.mean(cbst))
    assert claim.seen.startswith(f"{wanted:+.3g} points (")
    assert claim.seen.endswith("n 3")
    assert "97.5 % interval" in claim.seen  # two questions are asked of these runs


def test_a_claim_about_lower_values_says_the_difference_that_way_round():
    claim = larger("lower", "", [0.9, 0.92, 0.91], [0.8, 0.81, 0.83], lower=True)
    assert claim.holds is True
    assert claim.seen.startswith("-0.0967")
    assert larger("lower", "", [0.8, 0.81, 0.83], [0.9, 0.92, 0.91], lower=True).holds is False


def test_rates_are_similar_different_or_neither():
    assert similar("", "", [0.800, 0.801, 0.803], [0.801, 0.800, 0.802]).holds is True
    assert similar("", "", [0.800, 0.801, 0.803], [0.701, 0.700, 0.702]).holds is False
    assert similar("", "", [0.80, 0.90, 0.70], [0.82, 0.75, 0.88]).holds is None


def test_a_single_pair_decides_nothing():
    assert larger("", "", [0.9], [0.1]).holds is None


def test_the_overview_is_the_mean_over_seeds_in_percent():
    table = _overview(runs_of((0.80, 0.82, 0.81), (0.70, 0.71, 0.72)), SETTING)
    by_rule = {row[0]: row for row in table.rows}
    assert by_rule["cbst+avh"][1].mean == pytest.approx(81)
    assert by_rule["cbst+avh"][1].std == pytest.approx(1)
    assert by_rule["source-only"][1].mean == pytest.approx(50)
    assert by_rule["cbst"][-1] == 76.4


def test_table_4_is_of_the_first_round_of_rules_that_select():
    values = {"cbst": (0.8, 0.95, 12.0), "cbst+avh": (0.7, 0.9, 10.0)}
    table = _quality(runs_of((0.8,) * 3, (0.7,) * 3, values), SETTING)
    assert [row[0] for row in table.rows] == ["cbst", "cbst+avh"]
    assert [cell.mean for cell in table.rows[1][1:]] == pytest.approx([0.7, 0.1, 0.2, 0.9, 10.0])


def test_degraded_pictures_are_inverted_pale_or_noisy():
    source = MemorySource(np.array([[[0, 255], [51, 204]]], np.uint8), [0], classes=("a", "b"))
    assert degraded(source).images.tolist() == source.images.tolist()
    assert degraded(source, invert=1.0).images[0].tolist() == [[255, 0], [204, 51]]
    pale = degraded(source, contrast=0.5).images[0]
    np.testing.assert_allclose(pale, [[64, 191], [89, 166]], atol=1)
    noisy = degraded(source, contrast=0.5, noise=0.1).images[0]
    assert 0 < np.abs(noisy.astype(int) - pale).max() <= 26


def test_an_unknown_pair_is_named():
    with pytest.raises(ConfigError, match=r"unknown pair 'contrasts'. Did you mean 'contrast'"):
        _domains(SimpleNamespace(), Setting(), "contrasts")


def test_the_tables_hold_what_the_runs_recorded(tmp_path):
    overrides = ('rules=["cbst", "cbst+avh", "threshold"]', "seeds=[0, 1]", "limit=240",
                 "rounds=1", "source_epochs=4")  # fmt: skip
    result = run_experiment(
        "avh-selftrain", scale="smoke", out=tmp_path, device="cpu", overrides=overrides,
        show_progress=False,
    )  # fmt: skip
    overview = {row[0]: row for row in result.tables[0].rows}
    for rule, row in overview.items():
        last = [
            100 * run[rule]["rounds"][-1]["evaluation"]["mean_class_accuracy"]
            for run in result.data.values()
        ]
        assert row[1].mean == pytest.approx(np.mean(last))
        assert row[1].std == pytest.approx(np.std(last, ddof=1))
    assert result.figures[0].file == "accuracy-by-round.svg"
