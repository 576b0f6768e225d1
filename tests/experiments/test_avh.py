"""What is specific to the AVH experiments: shared networks, numbers by hand, claims that flip."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from hardsight.data import MemorySource, human_frequency, open_source
from hardsight.data import decoded as in_memory
from hardsight.experiments import EXPERIMENTS, run_experiment
from hardsight.experiments.avh import _geometry_measures as measures
from hardsight.experiments.avh import degraded, grown, with_simulated_annotators
from hardsight.experiments.avh._degradation import degradation_claim
from hardsight.experiments.avh._human import class_groups, group_frequency, human_claims
from hardsight.run.study import degradation_study, human_study

pytestmark = pytest.mark.usefixtures("without_bars")

TINY = ["epochs=1", "seeds=[0]", "degraded=20", "models=['small_cnn']"]
DYNAMICS, GEOMETRY = EXPERIMENTS["avh-dynamics"], EXPERIMENTS["avh-geometry"]


def test_networks_are_trained_once_for_all_experiments_that_share_them(tmp_path, monkeypatch):
    import lightning.pytorch as pl

    shared = {"runs": tmp_path / "runs", "device": "cpu", "overrides": TINY, "show_progress": False}
    first = run_experiment("avh-human", out=tmp_path / "a", **shared)

    def fail(*args, **kwargs):
        raise AssertionError("trained again")

    monkeypatch.setattr(pl.Trainer, "fit", fail)
    second = run_experiment("avh-degradation", out=tmp_path / "b", **shared)
    assert first.data["annotators"] == "simulated annotators"
    page = (tmp_path / "a" / "README.md").read_text()
    assert "frequency of simulated annotators" in page
    # the clean level has the accuracy of the pictures that were also degraded
    assert 0 <= second.data["noise"]["small_cnn"][0]["accuracy"][0] <= 1
    assert (second.data["noise"]["small_cnn"][0]["avh"]["means"][0]
            == second.data["contrast"]["small_cnn"][0]["avh"]["means"][0])  # fmt: skip


def test_simulated_annotators_mostly_agree_and_are_always_the_same():
    train, test = (in_memory(open_source("builtin:digits", split=s)) for s in ("train", "test"))
    one, two = (with_simulated_annotators(train, test) for _ in range(2))
    np.testing.assert_array_equal(one.human_counts, two.human_counts)
    assert (one.human_counts.sum(axis=1) == 40).all()
    frequency = human_frequency(one)
    assert 0.7 < frequency.mean() < 1
    assert "simulated annotators" in one.spec
    assert len(np.unique(frequency)) > 10


def test_degraded_pictures_are_the_formulas_rounded_to_bytes():
    grey = np.full((2, 4, 4), 255, np.uint8)
    assert (degraded(grey, contrast=0.2) == 153).all()  # (0.2 + 0.8 / 2) * 255
    noisy = degraded(np.full((2, 32, 32), 128, np.uint8), noise=0.1)
    assert noisy.min() >= 128 - 26
    assert noisy.max() <= 128 + 26
    assert len(np.unique(noisy)) > 20
    assert not np.array_equal(noisy[0], noisy[1])
    images = np.array([[[0, 255], [51, 204]]], np.uint8)
    np.testing.assert_array_equal(degraded(images), images)
    assert degraded(images, invert=True)[0].tolist() == [[255, 0], [204, 51]]
    pale = degraded(images, contrast=0.5)[0]
    np.testing.assert_allclose(pale, [[64, 191], [89, 166]], atol=1)
    both = degraded(images, contrast=0.5, noise=0.1)[0]
    assert 0 < np.abs(both.astype(int) - pale).max() <= 26


def test_groups_of_classes_count_any_choice_within_them():
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
             "truck"]  # fmt: skip
    assert class_groups(names) == {
        "animals (6 classes)": [2, 3, 4, 5, 6, 7],
        "vehicles (4 classes)": [0, 1, 8, 9],
        "cat (1 class)": [3],
    }
    assert next(iter(class_groups([str(d) for d in range(10)]).values())) == [0, 1, 2, 3, 4]
    counts = np.array([[1, 2, 3, 4]])
    assert group_frequency(counts, [1, 3]).tolist() == [0.6]


def human_studies(strength):
    """Two networks of two seeds; AVH follows people with a given strength, confidence with 1."""
    found = {}
    for model in ("alexnet", "resnet18"):
        of_seeds = []
        for seed in (0, 1):
            draw = np.random.default_rng(seed)
            people = draw.uniform(size=800)
            columns = {
                "avh": -strength * people + draw.normal(size=800),
                "model_confidence": people + draw.normal(size=800),
                "class_normalized_feature_norm": draw.uniform(size=800),
            }
            harder = {"avh": True, "model_confidence": False}
            of_seeds.append(
                human_study(columns, people, labels=np.zeros(800), higher_is_harder=harder)
            )
        found[model] = of_seeds
    return found


ACCURACY = {"alexnet": [0.7, 0.7], "resnet18": [0.9, 0.9]}


@pytest.mark.parametrize(("strength", "stronger"), [(3.0, True), (0.3, False)])
def test_whether_avh_is_ahead_of_confidence_is_read_from_the_data(strength, stronger):
    claims = human_claims(human_studies(strength), ACCURACY, "people", "resnet18")
    ahead = next(claim for claim in claims if "stronger" in claim.says)
    assert ahead.holds is stronger
    assert ("AVH is the stronger in 4 of 4 runs" in ahead.seen) is stronger
    assert next(claim for claim in claims if claim.says.startswith("Model conf")).holds
    assert next(claim for claim in claims if "no correlation" in claim.says).holds is True


def test_a_hardness_that_falls_with_people_s_doubt_is_no_correlation_as_claimed():
    claims = human_claims(human_studies(-3.0), ACCURACY, "people", "resnet18")
    assert claims[0].holds is False
    assert "in the expected direction, in 0 of 4 runs" in claims[0].seen


@pytest.mark.parametrize(("slope", "holds"), [(8.0, True), (-8.0, False), (0.0, None)])
def test_where_the_correlation_is_weaker_is_read_from_bins_with_enough_examples(slope, holds):
    draw = np.random.default_rng(0)
    people = np.r_[draw.uniform(0, 0.1, 10), draw.uniform(0.2, 0.4, 300), draw.uniform(0.8, 1, 300)]
    # AVH follows people among the hard ones only (or, turned around, among the easy ones only)
    inside = people < 0.5 if slope > 0 else people > 0.5
    avh = np.where(inside, -abs(slope) * people, 0) + 0.2 * draw.normal(size=610)
    others = {"model_confidence": people, "class_normalized_feature_norm": people}
    study = human_study({"avh": avh, **others}, people, labels=np.zeros(610))
    claim = human_claims({"resnet18": [study, study]}, ACCURACY, "people", "resnet18")[-1]
    assert claim.holds is holds
    assert "in [.2, .4) (n 300)" in claim.seen  # ten examples do not count as a bin


EPOCHS = 6


def watched(*, gap, avh=0.05, right=0.9, rho=-0.3):
    """Curves of one run: AVH falls in its first epochs, accuracy and norm go on."""
    at = np.arange(EPOCHS)
    overall = {
        "norm": 10 + at + gap / 2,
        "avh": avh + 0.1 * np.exp(-3.0 * at),
        "confidence": 0.1 * at,
        "loss": 2 - 0.2 * at,
        "correct": right * (at + 1) / EPOCHS,
    }
    curves = {key: values.tolist() for key, values in overall.items()}
    groups = {
        name: {**curves, "n": 50, "norm": (10 + at + gap * share).tolist()}
        for name, share in (("people [0, 0.5)", 0.0), ("people [0.5, 1]", 1.0))
    }
    return curves, groups, {"avh": [rho] * EPOCHS}


def dynamics_data(runs, digits=()):
    parts = {model: list(zip(*of, strict=True)) for model, of in runs.items()}
    return {
        "annotators": "people",
        "overall": {model: part[0] for model, part in parts.items()},
        "by_frequency": {model: part[1] for model, part in parts.items()},
        "spearman_with_frequency": {model: part[2] for model, part in parts.items()},
        "digits": [one[0] for one in (digits or [watched(gap=1)])],
    }


def dynamics_claims(runs, digits=()):
    _, claims = DYNAMICS.judge(DYNAMICS.scales["short"], dynamics_data(runs, digits))
    return claims


PLAIN = [watched(gap=5 + s, avh=0.08, right=0.6) for s in (0, 1, 2)]
SHORTCUT = [watched(gap=0.1 * s, right=0.9) for s in (0, 1, 2)]


def test_claims_on_training_follow_the_curves():
    claims = dynamics_claims({"alexnet": PLAIN, "resnet18": SHORTCUT})
    assert [claim.holds for claim in claims] == [True] * 7
    assert "settles before accuracy or loss in 6 of 6 runs" in claims[1].seen
    swapped = dynamics_claims({"resnet18": PLAIN, "alexnet": SHORTCUT})
    assert swapped[4].holds is False  # the gap is larger with shortcuts
    better = {"alexnet": [watched(gap=1, avh=0.08)], "resnet18": [watched(gap=1, right=0.6)]}
    assert dynamics_claims(better)[3].holds is False


def test_people_count_once_half_of_the_examples_are_right():
    def follows(rho):
        curves, groups, _ = watched(gap=1, right=0.9)  # 45 % in epoch 3, 60 % in epoch 4
        return dynamics_claims({"alexnet": [(curves, groups, {"avh": rho})]})[2]

    late = follows([0.3, 0.3, 0.3, -0.3, -0.3, -0.3])
    assert late.holds is True
    assert late.seen.endswith("is below 0 in 3 of 3 epochs (before that, in 0 of 3)")
    assert follows([-0.3, -0.3, -0.3, 0.3, -0.3, -0.3]).holds is False
    never = watched(gap=1, right=0.3)
    assert dynamics_claims({"alexnet": [never]})[2].holds is None


def test_runs_that_differ_leave_an_observation_undecided():
    late = watched(gap=1)
    late[0]["avh"] = np.linspace(0.1, 0.05, EPOCHS).tolist()
    late[0]["correct"] = late[0]["loss"] = [0.6, 0.9, 0.9, 0.9, 0.9, 0.9]
    assert dynamics_claims({"alexnet": [late, late]})[1].holds is False
    assert dynamics_claims({"alexnet": [late, watched(gap=1)]})[1].holds is None


def test_the_gap_is_that_of_the_outer_bins_over_the_mean():
    claim = dynamics_claims({"alexnet": [watched(gap=5)]})[4]
    # in the last epoch 15 and 20, and 17.5 over all
    assert f"AlexNet {5 / 17.5:+.1%}; one kind of network only" in claim.seen
    assert claim.holds is None


@pytest.mark.parametrize(("slope", "holds"), [(1.0, True), (-1.0, False)])
def test_the_claim_on_degradation_turns_with_the_scores(slope, holds):
    levels = (0.0, 0.1, 0.2, 0.3, 0.4)
    avh = slope * np.array(levels)[:, None] + 0.01 * np.random.default_rng(0).normal(size=(5, 60))
    study = degradation_study(levels, {"avh": avh}, avh < 9, kind="noise")
    claim = degradation_claim({"alexnet": [study, study]}, "noise")
    assert claim.holds is holds
    assert ("on the expected side in 2 of 2 runs" in claim.seen) is holds


def test_the_doubt_on_the_sphere_is_the_share_among_many_draws():
    means = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, -1.0]])
    draw = np.random.default_rng(0)
    count = 200_000
    labels = np.repeat([0, 1], count)
    points = means[labels] + draw.normal(size=(2 * count, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    centre = np.array([0.8, 0.5, 0.3])
    centre /= np.linalg.norm(centre)
    near = points @ centre > np.cos(0.08)
    share = (labels[near] == 1).mean()
    doubt = measures.other_class_probability(centre[None], np.array([0]), means)[0]
    assert near.sum() > 500
    assert share == pytest.approx(doubt, abs=4 * np.sqrt(0.25 / near.sum()))


def test_growth_is_figure_20_by_hand():
    found = grown("nearer")
    one, two = np.pi / 4 - 0.05, np.pi / 4 + 0.05
    norm = np.array(found["norm"])
    np.testing.assert_allclose(found["avh"], one / (one + two))
    expected = 1 / (1 + np.exp(norm * (np.cos(two) - np.cos(one))))
    np.testing.assert_allclose(found["confidence"], expected)


def paths(norm_first):
    """Ten examples that leave their class in 10 steps, norm and angle one after the other."""
    early, late = np.r_[0:6, [5] * 5] / 5, np.r_[[0] * 6, 1:6] / 5
    fall, turn = (early, late) if norm_first else (late, early)
    norms = np.tile((2 - fall)[:, None], 10)
    angles = np.tile((0.1 + turn)[:, None], 10)
    return measures.Paths(np.zeros((11, 10, 2)), norms, angles, np.full(10, 10))


def geometry(*, ways=None, spheres=None, seeds=(0, 1, 2)):
    """Tables and claims of three seeds."""
    good = {"accuracy": 0.9, "avh": 0.9, "norm": 0.1, "z": 9.0, "p": 1e-9}
    plane = {"accuracy": 0.9, "own_angle": 6.0, "nearest_other_angle": 30.0, "avh_right": 0.1,
             "avh_wrong": None}  # fmt: skip
    data = {
        "plane": [plane] * len(seeds),
        "sphere": spheres or [good] * len(seeds),
        "growth": {name: grown(name) for name in ("nearer", "farther")},
        "paths": [one.numbers() for one in ways or [paths(True)] * len(seeds)],
    }
    return GEOMETRY.judge(dataclasses.replace(GEOMETRY.scales["short"], seeds=seeds), data)


@pytest.mark.parametrize("norm_first", [True, False])
def test_whether_the_norm_goes_first_is_read_from_the_paths(norm_first):
    claim = geometry(ways=[paths(norm_first)] * 3)[1][-1]
    assert claim.holds is norm_first
    assert "30 of 30 examples that changed class came nearer" in claim.seen


def test_paths_that_keep_their_norm_do_not_speak_for_the_claim():
    still = dataclasses.replace(paths(True), norms=np.full((11, 10), 2.0))
    assert geometry(ways=[still] * 3)[1][-1].holds is False
    stuck = dataclasses.replace(paths(True), flips=np.full(10, -1))
    assert geometry(ways=[stuck] * 3)[1][-1].holds is None


def test_on_the_sphere_the_claim_compares_both_scores_with_the_doubt():
    draw = np.random.default_rng(0)
    doubt = draw.uniform(size=300)
    near, far = doubt + 0.1 * draw.normal(size=300), draw.normal(size=300)
    made = {"points": np.zeros((300, 3)), "labels": np.zeros(300, int), "accuracy": 1.0}
    good = measures.Sphere(doubt=doubt, avh=near, norm=far, **made).numbers()
    bad = measures.Sphere(doubt=doubt, avh=far, norm=near, **made).numbers()
    verdicts = [geometry(spheres=of)[1][1].holds for of in ([good] * 3, [bad] * 3, [good, bad])]
    assert verdicts == [True, False, None]


def test_ways_out_of_a_class_are_listed_by_the_seed_of_their_network():
    tables, _ = geometry(seeds=(7, 3))
    assert tables[2].columns[0] == "seed"
    assert [row[0] for row in tables[2].rows] == [7, 3]


def test_gradient_ascent_leaves_the_class_and_starts_at_the_picture():
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 4, generator=draw)
    images = torch.rand(6, 1, 2, 2, generator=draw)
    labels = (images.flatten(1) @ weights.T).argmax(1)
    setting = measures.GeometrySetting(attack_steps=60, step_length=0.02)
    found = measures.ascended(
        lambda x: (x.flatten(1), x.flatten(1) @ weights.T), images, labels, weights, setting
    )
    np.testing.assert_allclose(found.norms[0], images.flatten(1).norm(dim=1), rtol=1e-6)
    steps = np.linalg.norm(np.diff(found.places, axis=0), axis=2)
    assert steps.max() <= 0.02 * 2 + 1e-6  # 0.02 times the root of four pixels
    assert ((found.flips == -1) | (found.flips > 0)).all()
    assert (found.flips > 0).any()


def test_a_source_in_memory_keeps_its_counts_when_degraded():
    source = MemorySource(np.zeros((2, 4, 4), np.uint8), [0, 1], classes=["a", "b"],
                          human_counts=np.array([[3, 1], [0, 4]]))  # fmt: skip
    np.testing.assert_allclose(
        human_frequency(source.with_images(degraded(source.images, noise=0.1))), [0.75, 1.0]
    )
