"""The self-training experiment: its tables re-derived, and claims that can turn out either way."""

from __future__ import annotations

import numpy as np
import pytest

from hardsight.errors import ConfigError
from hardsight.experiments import EXPERIMENTS, run_experiment

SPEC = EXPERIMENTS["avh-selftrain"]
RULES = ("cbst", "cbst+avh", "source-only")
SETTING = type(SPEC.scales["short"])(pairs=("a>b", "c>d"), rules=RULES, seeds=(0, 1, 2))


def run_of(last, first=(0.8, 0.9, 10.0), selects=True):
    """The stored rounds of one rule: its last accuracy, and its first round."""
    rate, confidence, norm = first
    before = {"evaluation": {"mean_class_accuracy": 0.5, "class_accuracy": [0.5]}}
    after = {
        "evaluation": {"mean_class_accuracy": last, "class_accuracy": [last]},
        "quality": {
            "true_positive_rate": {"value": rate}, "mean_confidence": confidence,
            "mean_norm": norm, "mean_avh": 0.1, "mean_avc": 0.2,
        },
    }  # fmt: skip
    return {"rounds": [before, after] if selects else [before], "stopped": None}


def judged(avh, cbst, first=None):
    """Tables and claims of two pairs of domains; the second one is 20 points better."""
    first = first or {}
    data = {"classes": ["a class"]}
    for pair, more in (("a>b", 0.0), ("c>d", 0.2)):
        for seed, (one, other) in enumerate(zip(avh, cbst, strict=True)):
            data[f"{pair}, seed {seed}"] = {
                "cbst+avh": run_of(one + more, *first.get("cbst+avh", ())),
                "cbst": run_of(other + more, *first.get("cbst", ())),
                "source-only": run_of(0.5, selects=False),
            }
    return SPEC.judge(SETTING, data)


@pytest.mark.parametrize(
    ("avh", "cbst", "holds"),
    [
        ((0.80, 0.82, 0.81), (0.60, 0.61, 0.62), True),
        ((0.60, 0.61, 0.62), (0.80, 0.82, 0.81), False),
        ((0.70, 0.80, 0.75), (0.75, 0.74, 0.76), None),
    ],
)
def test_the_main_claim_turns_with_the_data(avh, cbst, holds):
    _, claims = judged(avh, cbst)
    assert claims[0].says == "CBST+AVH outperforms CBST"
    assert claims[0].holds is holds
    wanted = 100 * (np.mean(avh) - np.mean(cbst))
    assert claims[0].seen.startswith(f"{wanted:+.2f} [")


def test_a_seed_counts_once_and_not_once_per_pair_of_domains():
    # three differences of 1, 3 and 2 points, in both pairs: t = 2 / (1 / sqrt(3)), two degrees
    _, claims = judged((0.61, 0.63, 0.62), (0.60, 0.60, 0.60))
    assert claims[0].seen.startswith("+2.00 [-0.48, +4.48]")


def test_a_claim_about_lower_values_says_the_difference_that_way_round():
    lower = {"cbst": [(0.8, 0.95, 12.0)], "cbst+avh": [(0.8, 0.90, 10.0)]}
    _, claims = judged((0.8, 0.8, 0.8), (0.7, 0.7, 0.7), lower)
    by = {claim.says: claim for claim in claims}
    confidence = by["CBST+AVH selects examples of lower confidence"]
    assert confidence.holds is True
    assert confidence.seen.startswith("-0.05")
    higher = {"cbst": lower["cbst+avh"], "cbst+avh": lower["cbst"]}
    _, claims = judged((0.8, 0.8, 0.8), (0.7, 0.7, 0.7), higher)
    assert claims[-1].says == "CBST+AVH selects examples of smaller norm"
    assert claims[-1].holds is False


def test_the_overview_is_the_mean_over_seeds_in_percent():
    tables, _ = judged((0.60, 0.62, 0.61), (0.50, 0.51, 0.52))
    by_rule = {row[0]: row for row in tables[0].rows}
    assert by_rule["cbst+avh"][1].mean == pytest.approx(61)
    assert by_rule["cbst+avh"][1].std == pytest.approx(1)
    assert by_rule["cbst+avh"][3].mean == pytest.approx(71)  # of both pairs
    assert by_rule["source-only"][1].mean == pytest.approx(50)
    assert by_rule["cbst"][-1] == 76.4


def test_table_4_is_of_the_first_round_of_rules_that_select():
    values = {"cbst": [(0.8, 0.95, 12.0)], "cbst+avh": [(0.7, 0.9, 10.0)]}
    tables, _ = judged((0.8,) * 3, (0.7,) * 3, values)
    assert [row[0] for row in tables[-1].rows] == ["cbst", "cbst+avh"]
    assert [cell.mean for cell in tables[-1].rows[1][1:]] == pytest.approx(
        [0.7, 0.1, 0.2, 0.9, 10.0]
    )


def test_an_unknown_pair_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown pair 'contrasts'. Did you mean 'contrast'"):
        run_experiment("avh-selftrain", out=tmp_path, overrides=['pairs=["contrasts"]'])


def test_the_tables_hold_what_the_runs_recorded(tmp_path):
    overrides = ('rules=["cbst", "cbst+avh", "threshold"]', "seeds=[0, 1]", "limit=240",
                 "rounds=1", "source_epochs=4")  # fmt: skip
    result = run_experiment(
        "avh-selftrain", scale="smoke", out=tmp_path, device="cpu", overrides=overrides,
        show_progress=False,
    )  # fmt: skip
    runs = [result.data[f"contrast, seed {seed}"] for seed in (0, 1)]
    assert len(result.data["classes"]) == 10
    for rule, cell, *_ in result.tables[0].rows:
        last = [100 * run[rule]["rounds"][-1]["evaluation"]["mean_class_accuracy"] for run in runs]
        assert cell.mean == pytest.approx(np.mean(last), rel=1e-5)
        assert cell.std == pytest.approx(np.std(last, ddof=1), rel=1e-3)
    assert result.figures[0].file == "accuracy-by-round.svg"
