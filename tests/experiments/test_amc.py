from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy import stats

from hardsight.experiments import EXPERIMENTS, Outputs, run_experiment
from hardsight.experiments.amc import feature_measures

pytestmark = pytest.mark.usefixtures("without_bars")

TABLE1, FIG7, FIGS = (EXPERIMENTS[name] for name in ("amc-table1", "amc-fig7", "amc-figs"))


def table1_data(amc_test, euclid_test=(82.5, 82.6, 82.4)):
    """Three seeds of every loss; validation prefers the weight 10."""
    numbers = {
        "cross-entropy": ([82.0, 82.1, 81.9], [82.0, 82.2, 82.1]),
        "+ Euclid, λ = 0.1": ([82.0, 82.0, 82.0], list(euclid_test)),
        "+ AMC, λ = 0.1": ([82.0, 82.1, 82.0], [10.0, 11.0, 12.1]),
        "+ Euclid, λ = 10": ([82.0, 82.0, 82.0], list(euclid_test)),
        "+ AMC, λ = 10": ([83.0, 83.1, 82.9], list(amc_test)),
    }
    return {
        "cifar10": {k: {"validation": v[0], "test": v[1]} for k, v in numbers.items()},
    }


@pytest.mark.parametrize(
    ("amc_test", "holds"),
    [((84.0, 84.1, 84.2), True), ((80.0, 80.1, 80.2), False), ((82.5, 82.4, 82.6), None)],
)
def test_table_1_claims_follow_the_numbers_at_the_weight_validation_prefers(amc_test, holds):
    data = table1_data(amc_test, euclid_test=(82.1, 82.21, 82.3))
    _, claims = TABLE1.judge(TABLE1.scales["short"], data)
    assert claims[0].says == "cifar10: + AMC is more accurate than + Euclid"
    assert claims[0].holds is holds
    assert "λ = 10 (chosen on validation)" in claims[0].seen
    assert "82.97 ± 0.20 against 82.60 ± 0.21, p = 0.0214" in claims[0].paper


def test_table_1_has_p_values_of_paired_tests_as_they_are_and_corrected():
    data = table1_data((82.9, 83.1, 82.8))
    (table, _), _ = TABLE1.judge(TABLE1.scales["short"], data)
    by_loss = {row[1]: row for row in table.rows}
    tests = {loss: numbers["test"] for loss, numbers in data["cifar10"].items()}
    large, small = (
        stats.ttest_rel(tests[f"+ AMC, λ = {weight}"], tests[f"+ Euclid, λ = {weight}"]).pvalue
        for weight in ("10", "0.1")
    )
    assert small < large
    assert by_loss["+ AMC, λ = 10"][4:] == pytest.approx([large, max(large, 2 * small)])
    assert by_loss["+ AMC, λ = 0.1"][4:] == pytest.approx([small, 2 * small])
    assert by_loss["+ Euclid, λ = 10"][4] is None
    assert ["cifar10", "+ AMC", None, "82.97 ± 0.20", 0.0214, None] in table.paper


def figs_data(amc_share):
    """One weight, three seeds: only the share of Grad-CAM maps differs between the losses."""
    losses = ("cross-entropy", "+ Euclid, λ = 0.1", "+ AMC, λ = 0.1")
    same = [0.5, 0.6, 0.7]
    shares = ("homogeneity", "completeness", "cluster_homogeneity", "cluster_completeness")
    features = {key: same for key in ("accuracy", "silhouette", *shares)}
    maps = {key: same for key in ("entropy", "deletion", "insertion", "empty")}
    return {
        "features": {
            place: dict.fromkeys(losses, features)
            for place in ("mnist, 2 dimensions", "mnist, 3 dimensions", "cifar10")
        },
        "maps": {
            loss: {**maps, "top_share": amc_share if "AMC" in loss else [0.400, 0.401, 0.403]}
            for loss in losses
        },
    }


@pytest.mark.parametrize(
    ("share", "holds"),
    [([0.450, 0.452, 0.453], True), ([0.35, 0.351, 0.352], False), ([0.41, 0.39, 0.40], None)],
)
def test_claims_on_maps_turn_with_the_data_and_all_claims_are_corrected_together(share, holds):
    data = figs_data(share)
    _, claims = FIGS.judge(replace(FIGS.scales["short"], weights=(0.1,)), data)
    assert len(claims) == 6
    tighter = claims[4]
    assert tighter.says == (
        "AMC-Loss makes Grad-CAM maps more compact than cross-entropy does (λ = 0.1)"
    )
    assert tighter.holds is holds
    raw = stats.ttest_rel(share, [0.400, 0.401, 0.403]).pvalue
    p = tighter.seen.rpartition("p ")[2]
    # two of the six comparisons differ, with the same p; the other four have p = 1
    assert p == ("< 0.001" if 6 * raw < 0.001 else f"= {min(1, 6 * raw):.3f}")


def fig7_data(by_margin):
    numbers = {"cross-entropy": [80.0, 80.1, 80.2], "λ = 0.1, m = 0.5": [80.0, 80.1, 80.2]}
    numbers |= {f"λ = 0.1, m = {margin}": values for margin, values in by_margin.items()}
    return {loss: {"validation": values, "test": values} for loss, values in numbers.items()}


@pytest.mark.parametrize(
    ("at_half", "at_one", "holds"),
    [
        ([90.0, 90.1, 90.2], [80.0, 80.1, 80.3], True),
        ([80.0, 80.1, 80.3], [90.0, 90.1, 90.2], False),
        ([90.0, 90.1, 90.2], [90.0, 90.2, 90.1], None),
        ([90.0, 90.2, 90.1], [90.0, 90.1, 90.3], None),
    ],
)
def test_a_margin_is_best_only_if_the_runs_tell_it_from_the_others(at_half, at_one, holds):
    setting = replace(FIG7.scales["short"], weights=(0.1,), margins_rad=(0.5, 1.0))
    _, claims = FIG7.judge(setting, fig7_data({0.5: at_half, 1: at_one}))
    assert claims[1].says == "the margin 0.5 leads to the best performance"
    assert claims[1].holds is holds
    alone = replace(setting, margins_rad=(0.5,))
    assert FIG7.judge(alone, fig7_data({0.5: at_half}))[1][1].holds is None


def test_a_single_seed_leaves_every_comparison_undecided(scripted):
    result, _ = scripted("amc-table1", seeds=(0,))
    assert {claim.holds for claim in result.claims} == {None}
    assert "one seed" in result.claims[0].seen


def test_the_recipe_is_the_papers_with_its_ramps_scaled(scripted):
    result, recipes = scripted("amc-table1", grey_epochs=30, seeds=(3,), weights=(0.1, 10.0))
    # 80 and 50 of 300 epochs are 8 and 5 of 30
    for recipe in recipes:
        assert recipe["schedule"]["warmup_epochs"] == pytest.approx(8)
        assert recipe["schedule"]["ramp_down_epochs"] == pytest.approx(5)
        assert recipe["schedule"]["final_beta1"] == 0.5
        assert recipe["optimizer"] == {"name": "adam", "lr": 0.003}
    plain, second = recipes[2]["loss"]
    assert plain == "cross_entropy"
    assert (second["name"], second["weight"]) == ("amc", 0.1)
    assert second["ramp_epochs"] == pytest.approx(8)
    assert second["options"] == {"margin_rad": 0.5, "similarity": "predictions"}
    # plain, and both losses at each weight
    assert list(result.data["builtin:digits"]) == [
        "cross-entropy", "+ Euclid, λ = 0.1", "+ AMC, λ = 0.1", "+ Euclid, λ = 10",
        "+ AMC, λ = 10",
    ]  # fmt: skip


def test_predictions_and_clusters_are_measured_apart():
    # the features fall into the two classes, but every example is predicted as class 0
    embeddings = torch.tensor([[1.0, 0.01], [2.0, 0.0], [0.0, 1.0], [0.02, 3.0]])
    logits = torch.tensor([[1.0, 0.0]]).repeat(4, 1)
    outputs = Outputs(embeddings, logits, torch.tensor([0, 0, 1, 1]), torch.eye(2), None)
    found = feature_measures(outputs)
    assert found["homogeneity"] == 0
    assert found["cluster_homogeneity"] == pytest.approx(1)
    assert found["cluster_completeness"] == pytest.approx(1)
    assert found["silhouette"] > 0.97
    assert found["accuracy"] == 50


def test_table_1_shares_its_models_with_figure_7(tmp_path):
    common = {"runs": tmp_path / "runs", "device": "cpu", "show_progress": False}
    one = ["seeds=[0]", "weights=[0.1]", "limit=200"]
    run_experiment("amc-table1", out=tmp_path / "a", overrides=[*one, "grey_epochs=1"], **common)
    before = {path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()}
    result = run_experiment(
        "amc-fig7", out=tmp_path / "b", overrides=[*one, "epochs=1", "margins_rad=[0.5]"], **common
    )
    assert {path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()} == before
    assert set(result.data) == {"cross-entropy", "λ = 0.1, m = 0.5"}
    assert [claim.holds for claim in result.claims] == [None, None]
