"""The experiment label-errors: its peers, its statistics, and claims that follow the data."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hardsight.data import MemorySource
from hardsight.errors import ConfigError, MissingExtraError
from hardsight.experiments import run_experiment
from hardsight.experiments.labels._errors import (
    Setting,
    _held_out_probs,
    area,
    by_cleanlab,
    label_errors,
    partners,
)
from hardsight.experiments.labels._findings import Findings, Trial, claims, comparisons
from hardsight.stats import auroc

PEER = "cleanlab self-confidence"


def findings(**values):
    """Trials whose AUROC and precision are both the given values, one per seed."""
    seeds = range(len(next(iter(values.values()))))
    names = {"peer": PEER}
    return Findings(
        [
            Trial("mnist", "pairs", 0.1, seed, {
                names.get(name, name): (found[seed], found[seed]) for name, found in values.items()
            })
            for seed in seeds
        ]
    )  # fmt: skip


def outcome(**values):
    base = {"aum": [0.9, 0.91, 0.9, 0.92], "logit_margin": [0.8, 0.82, 0.81, 0.8]}
    found = findings(**{**base, **values})
    compared = {measure: comparisons(found, measure) for measure in ("AUROC", "precision")}
    said = claims(found, compared)
    return [claim.holds for claim in said], said


def test_partners_are_swapped_both_ways_and_no_class_is_left_out():
    for name in ("mnist", "builtin:digits", "cifar10"):
        swap = partners(name, 10)
        assert sorted(swap) == sorted(swap.values()) == list(range(10))
        assert all(swap[swap[label]] == label != swap[label] for label in swap)
    assert partners("cifar10", 10)[3] == 5  # cat and dog
    assert partners("other", 3) == {0: 1, 1: 2, 2: 0}


def test_the_area_is_that_of_the_statistics():
    rng = np.random.default_rng(0)
    scores, wrong = rng.integers(0, 9, 200).astype(float), rng.random(200) < 0.2
    assert area(scores, wrong) == pytest.approx(auroc(scores, wrong).value, rel=1e-12)


def test_cleanlab_ranks_by_what_it_says():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 40)
    probs = np.full((120, 3), 0.05) + 0.02 * rng.random((120, 3))
    probs[np.arange(120), labels] = 0.9
    labels[:8] = 1  # errors that the probabilities give away
    probs /= probs.sum(axis=1, keepdims=True)
    found = by_cleanlab(labels, probs)
    np.testing.assert_allclose(
        found["cleanlab self-confidence"], -probs[np.arange(120), labels], atol=1e-12
    )
    for name, suspect in found.items():
        assert set(np.argsort(-suspect)[:8]) == set(range(8)), name
    called = found["cleanlab confident learning"] > 0  # a margin alone is never above 0
    assert called[:8].sum() >= 3  # those above the threshold of their class
    assert not called[8:].any()


def test_suspicion_holds_when_it_leads_and_fails_when_a_peer_surely_does():
    leads, _ = outcome(suspicion=[0.95, 0.96, 0.97, 0.95], peer=[0.9, 0.91, 0.9, 0.91])
    assert leads == [True, True, True, True, True]
    trails, said = outcome(suspicion=[0.85, 0.86, 0.87, 0.85], peer=[0.95, 0.96, 0.97, 0.96])
    assert trails == [False, False, False, False, True]
    assert "2 of 3 have a higher mean, 2 of them significantly" in said[0].seen
    assert said[0].seen.startswith("mean 0.8575; the best other method is cleanlab self-confidence")


def test_a_lead_within_the_noise_decides_nothing():
    unclear, said = outcome(suspicion=[0.95, 0.96, 0.97, 0.95], peer=[0.97, 0.95, 0.96, 0.97])
    assert unclear[:4] == [None, None, None, None]
    assert "1 of 3 have a higher mean, 0 of them significantly" in said[0].seen


def test_the_claim_on_aum_turns_with_the_data():
    even = {"suspicion": [0.95, 0.96, 0.97, 0.95], "peer": [0.9, 0.91, 0.9, 0.91]}
    assert outcome(**even)[0][-1] is True
    assert outcome(**even, logit_margin=[0.95, 0.94, 0.96, 0.95])[0][-1] is False
    assert outcome(**even, logit_margin=[0.91, 0.9, 0.91, 0.91])[0][-1] is None
    assert outcome(**even, logit_margin=[0.9, 0.91, 0.9, 0.92])[0][-1] is None


def test_a_single_trial_decides_nothing():
    found, said = outcome(suspicion=[0.9], peer=[0.8], aum=[0.85], logit_margin=[0.7])
    assert found == [True, True, None, None, None]  # it leads, but nothing was tested
    assert "difference +0.1000 (p = 1 after Holm)" in said[2].seen


def test_p_values_are_raised_for_the_number_of_comparisons():
    found = findings(suspicion=[0.95, 0.96, 0.97], aum=[0.90, 0.93, 0.92], peer=[0.95, 0.96, 0.97])
    compared = comparisons(found, "AUROC")
    test, p = compared["aum"]
    # differences 0.05, 0.03, 0.05: mean 0.13 / 3, spread of the mean 0.02 / 3, t = 6.5, 2 degrees
    assert test.difference == pytest.approx(0.13 / 3)
    assert test.t == pytest.approx(6.5)
    assert p == pytest.approx(2 * test.p)  # the smaller of two p-values
    assert compared[PEER] == (None, 1.0)  # the same in every trial: nothing to test


def test_cleanlab_trains_as_much_and_judges_nothing_it_has_seen():
    """Folds of a lab that only takes notes."""
    images = np.arange(60, dtype=np.uint8)[:, None, None].repeat(2, 1).repeat(2, 2)
    source = MemorySource(images, np.arange(60) % 3, classes=["a", "b", "c"])
    trained = []

    def train(model, some, *, epochs, **settings):
        assert settings["validation"] == 0.0
        assert not settings["track"]
        trained.append((set(some.images[:, 0, 0].tolist()), epochs))
        return len(trained) - 1

    def outputs(run, some):
        held = set(some.images[:, 0, 0].tolist())
        assert not held & trained[run][0]
        return SimpleNamespace(logits=torch.tensor(some.images[:, 0, :1].repeat(3, 1)).float())

    lab = SimpleNamespace(train=train, outputs=outputs)
    setting = Setting(datasets=("x",), epochs=(6,), folds=4)
    probs = _held_out_probs(lab, setting, source, epochs=6, seed=0)
    np.testing.assert_allclose(probs, 1 / 3)  # every example was judged
    assert sum(len(seen) * epochs for seen, epochs in trained) == 6 * 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": (6,)}, "one number of epochs per dataset, got 1 for mnist, cifar10"),
        ({"folds": 4}, r"a multiple of folds - 1.*got 4 folds and epochs \(6, 10\)"),
        ({"kinds": ("asymmetric",)}, "expected kinds among symmetric, pairs"),
    ],
)
def test_a_setting_that_cannot_be_fair_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Setting(**options)


def test_a_missing_cleanlab_is_said_before_anything_is_trained(monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab", None)
    with pytest.raises(MissingExtraError, match=r"label-errors needs 'cleanlab': pip install"):
        label_errors(None, Setting())


def test_planted_errors_in_digits_are_found(tmp_path):
    result = run_experiment(
        "label-errors", out=tmp_path, device="cpu", show_progress=False,
        overrides=["kinds=['pairs']", "shares=[0.1]", "limit=500", "epochs=[5]"],
    )  # fmt: skip
    found = [trial["found"]["suspicion"]["AUROC"] for trial in result.data["trials"]]
    assert len(found) == 2
    assert min(found) > 0.9
    methods = {row[0] for row in result.tables[0].rows}
    assert {"**suspicion**", "aum", "avh", "logit_margin", PEER} <= methods
