from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hardsight.experiments import Lab, Outputs, run_experiment
from hardsight.experiments.amc._fig7 import _is_best
from hardsight.experiments.amc._fig7 import _Scores as Fig7Scores
from hardsight.experiments.amc._figs import Setting as FigsSetting
from hardsight.experiments.amc._figs import _claims as figs_claims
from hardsight.experiments.amc._figs import _feature_measures
from hardsight.experiments.amc._recipes import Variant, amc, euclid, trained, variants
from hardsight.experiments.amc._table1 import _claims, _Scores, _table
from hardsight.experiments.lab import compared, corrected, verdict


def scores(validation, test):
    return _Scores(validation, test)


def made_up(amc_test, euclid_test=(82.5, 82.6, 82.4)):
    """Three seeds of every variant; validation prefers the weight 10."""
    return {
        Variant(): scores([82.0, 82.1, 81.9], [82.0, 82.2, 82.1]),
        euclid(0.1): scores([82.0, 82.0, 82.0], list(euclid_test)),
        amc(0.1): scores([82.0, 82.1, 82.0], [10.0, 11.0, 12.0]),
        euclid(10.0): scores([82.0, 82.0, 82.0], list(euclid_test)),
        amc(10.0): scores([83.0, 83.1, 82.9], list(amc_test)),
    }


@pytest.mark.parametrize(
    ("amc_test", "holds"),
    [((84.0, 84.1, 84.2), True), ((80.0, 80.1, 80.2), False), ((82.5, 82.4, 82.6), None)],
)
def test_table_1_claims_follow_the_numbers_at_the_weight_validation_prefers(amc_test, holds):
    claims = _claims("cifar10", made_up(amc_test), (0.1, 10.0))
    assert claims[0].says == "cifar10: + AMC is more accurate than + Euclid"
    assert claims[0].holds is holds
    assert "λ = 10 (chosen on validation)" in claims[0].seen
    assert "82.97 ± 0.20 against 82.60 ± 0.21, p = 0.0214" in claims[0].paper


def test_table_1_has_p_values_of_a_welch_test_worked_by_hand_and_corrected():
    found = {"cifar10": made_up((82.9, 83.1, 82.8))}
    table = _table(found, (0.1, 10.0))
    by_loss = {row[1]: row for row in table.rows}
    # 0.43 apart with standard errors 0.0882 and 0.0577: t = 4.11 with 3.45 degrees of freedom
    assert by_loss["+ AMC, λ = 10"][4] == pytest.approx(0.0199, abs=2e-4)
    # the other comparison has a p far smaller, so Holm leaves the larger one as it is
    assert by_loss["+ AMC, λ = 0.1"][4] < 1e-3
    assert by_loss["+ AMC, λ = 10"][5] == pytest.approx(by_loss["+ AMC, λ = 10"][4])
    assert by_loss["+ AMC, λ = 0.1"][5] == pytest.approx(2 * by_loss["+ AMC, λ = 0.1"][4])
    assert by_loss["+ Euclid, λ = 10"][4] is None
    assert ["cifar10", "+ AMC", None, "82.97 ± 0.20", 0.0214, None] in table.paper


def test_corrected_p_values_are_holms_and_missing_tests_do_not_count():
    pairs = [([1.0, 1.1, 1.3], [1.2, 1.4, 1.3]), ([5.0], [4.0]), ([3.0, 3.1, 3.2], [1.0, 1.1, 1.2])]
    small, missing, smaller = (compared(*pair) for pair in pairs)
    first, none, last = corrected([small, missing, smaller])
    assert none is None
    assert last.p == pytest.approx(2 * smaller.p)
    assert first.p == pytest.approx(max(small.p, 2 * smaller.p))
    assert (last.difference, last.low) == (smaller.difference, smaller.low)


def committed_figs():
    file = Path(__file__).parents[2] / "results" / "amc-figs" / "result.json"
    content = json.loads(file.read_text())
    setting = FigsSetting(**{**content["setting"], "weights": tuple(content["setting"]["weights"])})
    by_title = {variant.title: variant for variant in variants(setting.weights)}

    def by_variant(found):
        return {by_title[title]: values for title, values in found.items()}

    features = {place: by_variant(of) for place, of in content["data"]["features"].items()}
    return content, features, by_variant(content["data"]["maps"]), setting


def test_the_claims_of_the_figures_are_judged_together():
    # of twelve p-values those at rank 5 and 6, 0.0078 and 0.0384, become 0.062 and 0.27
    content, features, maps, setting = committed_figs()
    claims = figs_claims(features, maps, setting)
    assert len(claims) == 12
    assert sum(claim.holds is not None for claim in claims) == 4
    by = {claim.says: claim for claim in claims}
    clusters = by["AMC-Loss raises the homogeneity of clusters of the features (λ = 10)"]
    assert clusters.holds is None
    assert float(clusters.seen.rpartition("p = ")[2]) == pytest.approx(8 * 0.0078, abs=5e-4)
    tighter = by["AMC-Loss makes Grad-CAM maps more compact than cross-entropy does (λ = 10)"]
    assert tighter.holds is True
    stored = content["claims"]
    told = [
        {key: vars(claim)[key] for key in old} for claim, old in zip(claims, stored, strict=True)
    ]
    assert told == stored


def test_a_single_seed_leaves_every_comparison_undecided():
    test = compared([90.0], [10.0])
    assert test is None
    assert verdict(test) is None
    assert verdict(compared([90.0, 90.0], [90.0, 90.0])) is None


@pytest.mark.parametrize(
    ("at_half", "at_one", "holds"),
    [
        ([90.0, 90.1, 90.2], [80.0, 80.1, 80.2], True),
        ([80.0, 80.1, 80.2], [90.0, 90.1, 90.2], False),
        ([90.0, 90.1, 90.2], [90.0, 90.2, 90.1], None),
        ([90.0, 90.2, 90.1], [90.0, 90.1, 90.3], None),
    ],
)
def test_a_margin_is_best_only_where_the_runs_tell_it_from_the_others(at_half, at_one, holds):
    by = {0.5: amc(0.1, 0.5), 1.0: amc(0.1, 1.0)}
    found = {by[0.5]: Fig7Scores(at_half, []), by[1.0]: Fig7Scores(at_one, [])}
    best = max(by, key=lambda value: np.mean(found[by[value]].validation))
    assert _is_best(0.5, best, found, by) is holds
    assert _is_best(0.7, best, found, by) is None


def test_the_recipe_is_the_papers_with_its_ramps_scaled(tmp_path, monkeypatch):
    seen = {}
    lab = Lab(scale="smoke", out=tmp_path, runs=tmp_path, device="cpu", show_progress=False)
    monkeypatch.setattr(lab, "train", lambda model, source, **given: seen.update(given))
    digits = lab.source("builtin:digits", "train")
    trained(
        lab, "small_cnn", digits, amc(0.1), seed=3, epochs=30, batch_size=64,
        similarity="predictions",
    )  # fmt: skip
    # 80 and 50 of 300 epochs are 8 and 5 of 30
    assert seen["schedule"]["warmup_epochs"] == pytest.approx(8)
    assert seen["schedule"]["ramp_down_epochs"] == pytest.approx(5)
    assert seen["schedule"]["final_beta1"] == 0.5
    assert seen["optimizer"] == {"name": "adam", "lr": 0.003}
    plain, second = seen["loss"]
    assert plain == "cross_entropy"
    assert (second["name"], second["weight"]) == ("amc", 0.1)
    assert second["ramp_epochs"] == pytest.approx(8)
    assert second["options"] == {"margin_rad": 0.5, "similarity": "predictions"}


def test_variants_are_plain_and_both_losses_at_each_weight():
    titles = [variant.title for variant in variants((0.1, 10.0))]
    assert titles == [
        "cross-entropy", "+ Euclid, λ = 0.1", "+ AMC, λ = 0.1", "+ Euclid, λ = 10",
        "+ AMC, λ = 10",
    ]  # fmt: skip


def test_predictions_and_clusters_are_measured_apart():
    # the features fall into the two classes, but every example is predicted as class 0
    embeddings = torch.tensor([[1.0, 0.01], [2.0, 0.0], [0.0, 1.0], [0.02, 3.0]])
    logits = torch.tensor([[1.0, 0.0]]).repeat(4, 1)
    outputs = Outputs(embeddings, logits, torch.tensor([0, 0, 1, 1]), torch.eye(2), None)
    found = _feature_measures(outputs)
    assert found["homogeneity"] == 0
    assert found["cluster_homogeneity"] == pytest.approx(1)
    assert found["cluster_completeness"] == pytest.approx(1)
    assert found["silhouette"] > 0.97
    assert found["accuracy"] == 50


def test_table_1_shares_its_models_with_figure_7(tmp_path, monkeypatch):
    one = ["seeds=[0]", "weights=[0.1]"]
    run_experiment(
        "amc-table1", out=tmp_path / "a", runs=tmp_path / "runs", device="cpu",
        overrides=[*one, "grey_epochs=1"], show_progress=False,
    )  # fmt: skip
    before = {path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()}
    result = run_experiment(
        "amc-fig7", out=tmp_path / "b", runs=tmp_path / "runs", device="cpu",
        overrides=[*one, "epochs=1", "margins_rad=[0.5]"], show_progress=False,
    )  # fmt: skip
    assert {path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()} == before
    assert set(result.data) == {"cross-entropy", "λ = 0.1, m = 0.5"}
    assert [claim.holds for claim in result.claims] == [None, None]
