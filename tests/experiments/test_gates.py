"""Networks that are good enough to judge by, and seeds that are enough to see an effect."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from hardsight.experiments import EXPERIMENTS
from hardsight.experiments.lab import (
    GOOD,
    Claim,
    Gate,
    Question,
    below_chance,
    gated_claims,
    judged,
    networks_table,
    read_result,
    weakness_of,
)
from hardsight.stats import pairs_needed

ROOT = Path(__file__).parents[2]
CLOSE, FAR = [91.4, 91.0, 91.6], [90.9, 91.1, 90.7]  # differences of 0.5, -0.1 and 0.9
MEASURED = "python -m benchmarks.good_networks"


def stored(good):
    data = json.loads((ROOT / "results" / good.stored[0] / "result.json").read_text())["data"]
    for key in good.stored[1:]:
        data = data[key]
    mean = float(np.mean(data))
    return 100 * mean if mean <= 1 else mean


@pytest.mark.parametrize("network", [name for name, good in GOOD.items() if good.stored])
def test_a_bar_from_our_own_results_is_what_they_say(network):
    assert GOOD[network].accuracy == pytest.approx(stored(GOOD[network]), abs=0.06)


def test_a_measured_bar_is_what_the_benchmark_wrote():
    file = ROOT / "benchmarks" / "results" / "good_networks.csv"
    rows = csv.DictReader(file.read_text().splitlines()) if file.exists() else []
    measured = {row["network"]: float(row["accuracy"]) for row in rows}
    cited = {name: good.accuracy for name, good in GOOD.items() if MEASURED in good.source}
    assert cited == measured


def test_every_bar_says_where_it_is_from():
    for network, good in GOOD.items():
        assert 0 < good.accuracy < 100, network
        assert good.source, network


@pytest.mark.parametrize("file", sorted((ROOT / "results").glob("*/result.json")), ids=str)
def test_a_verdict_of_a_committed_page_rests_on_networks_that_are_good_enough(file):
    """Where a page shows its networks, one below its bar decides nothing."""
    result, _ = read_result(file.parent)
    tables = [table for table in result.tables if table.title == networks_table([]).title]
    assert len(tables) <= 1
    weak = [row[0] for table in tables for row in table.rows if is_below(row)]
    assert any(claim.is_weak for claim in result.claims) or not weak
    if tables and len(weak) == len(tables[0].rows):  # nothing is left to judge by
        others = "unclamped|without its clamp|safe at|on the sphere"
        decided = [claim for claim in result.claims if not claim.is_weak]
        assert all(any(word in claim.says for word in others.split("|")) for claim in decided)


def is_below(row):
    _, reached, needed, _ = row
    return needed != "not known" and reached != "not stored" and reached.mean < float(needed)


def test_a_narrow_network_is_asked_for_what_the_whole_one_reaches():
    narrow = Gate("narrow", "cifar10/resnet18:width=32", [84.0, 85.0])
    assert narrow.weak == "84.5 % reached, and at least 89.0 % are needed"
    assert not Gate("whole", "cifar10/resnet18", [89.5, 90.0]).weak
    assert not Gate("unknown", "cifar10/nobody", [10.0]).weak
    assert not Gate("not stored", "cifar10/resnet18", []).weak


def test_a_claim_that_rests_on_several_networks_needs_all_of_them():
    strong, weak = (Gate(x, "mnist/el_mnist", [x_]) for x, x_ in (("good", 99.4), ("bad", 90.0)))
    claim = Claim("AVH rises", "Fig. 17", "in 3 of 3 runs", True)
    assert gated_claims([claim], [strong]) == [claim]
    (judged_weak,) = gated_claims([claim], [strong, weak])
    assert (judged_weak.holds, judged_weak.verdict) == (None, "network too weak to judge")
    said = "bad: 90.0 % reached, and at least 97.4 % are needed"
    assert judged_weak.seen == f"{said}; otherwise yes: in 3 of 3 runs"
    assert weakness_of([strong, weak]) == said
    assert gated_claims([judged_weak], [weak]) == [judged_weak]  # twice says it once


def test_the_table_of_networks_says_what_is_known():
    table = networks_table(
        [
            Gate("a", "mnist/el_mnist", [99.0, 99.2]),
            Gate("b", "mnist/nobody", [50.0]),
            Gate("c", "mnist/el_mnist", []),
        ]
    )
    assert [str(cell) for cell in table.rows[0][:3]] == ["a", "99.10 ± 0.14", "97.4"]
    assert table.rows[1][2:] == ["not known", "not measured"]
    assert table.rows[2][1] == "not stored"


def test_guessing_is_no_recipe_to_compare_with():
    assert below_chance([9.0, 11.0], 10) == "10.0 % reached, but guessing reaches 10.0 %"
    assert below_chance([9.0, 11.5], 10) == ""
    assert below_chance([math.nan], 10) == ""


def claim_of(effect, first=CLOSE, second=FAR, **more):
    return judged([Question("says", "paper", first, second, effect=effect, **more)])[0]


def test_an_undecided_claim_says_how_many_seeds_the_papers_effect_needs():
    std = np.subtract(CLOSE, FAR).std(ddof=1)
    needed = pairs_needed(0.4, std)
    assert needed > 3
    claim = claim_of(0.4)
    assert (claim.holds, claim.needs_seeds) == (None, needed)
    assert claim.verdict == f"cannot be decided here: needs {needed} seeds"
    assert claim.kind == "cannot be decided here"
    assert claim_of(-0.4).needs_seeds == needed  # of either direction


def test_an_effect_that_would_have_been_seen_leaves_the_claim_undecided():
    assert claim_of(50.0).verdict == "undecided"
    assert claim_of(0.0).verdict == "undecided"  # the paper has no number
    assert claim_of(0.4, first=[1.0], second=[0.5]).verdict == "undecided"  # no spread is known


def test_what_is_decided_or_weak_needs_no_seeds():
    assert claim_of(0.4, first=[95.0, 95.1, 95.2]).verdict == "yes"
    assert claim_of(0.4, weak="60 % reached").verdict == "network too weak to judge"
    assert claim_of(0.4, within=0.01).needs_seeds is None


def test_more_questions_on_a_page_need_more_seeds():
    alone = claim_of(0.4).needs_seeds
    many = judged([Question(str(at), "", CLOSE, FAR, effect=0.4) for at in range(10)])
    std = np.subtract(CLOSE, FAR).std(ddof=1)
    assert many[0].needs_seeds == pairs_needed(0.4, std, alpha=0.005) > alone


def test_every_experiment_on_pictures_states_its_networks():
    """Each has a gate of its own or says nothing about a loss that a network must speak for."""
    without = {
        name for name in EXPERIMENTS
        if (ROOT / "results" / name / "result.json").exists()
        and not any(
            table.title == networks_table([]).title
            for table in read_result(ROOT / "results" / name)[0].tables
        )
    }  # fmt: skip
    # features in the plane, a source model that adapts, long tails, networks that have few labels
    # because labels are what is asked about, and our own experiments
    assert without <= {
        "active", "avh-geometry", "avh-selftrain", "avh-adversarial", "el-table3", "el-graph",
        "el-translation", "groups", "label-errors", "label-fixing",
    }  # fmt: skip
