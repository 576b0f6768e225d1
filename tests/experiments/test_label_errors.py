"""The experiment label-errors: its peers, its statistics, and claims that follow the data."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from hardsight.data import MemorySource
from hardsight.errors import ConfigError, MissingExtraError
from hardsight.experiments import EXPERIMENTS, run_experiment
from hardsight.experiments.labels import label_errors
from hardsight.experiments.labels._errors import area, by_cleanlab, held_out_probs, partners
from hardsight.stats import auroc

PEER = "cleanlab self-confidence"
SPEC = EXPERIMENTS["label-errors"]
Setting = type(SPEC.scales["short"])
LEADS = [0.95, 0.96, 0.975, 0.95]


def outcome(**values):
    """Tables and claims of trials whose AUROC and precision are both the given values."""
    base = {"aum": [0.9, 0.91, 0.9, 0.92], "logit_margin": [0.8, 0.82, 0.81, 0.8]}
    given = {("cleanlab self-confidence" if k == "peer" else k): v
             for k, v in {**base, **values}.items()}  # fmt: skip
    others = {"avh": [0.1] * len(values["suspicion"]), "mean_avh": [0.1] * len(values["suspicion"])}
    methods = {**others, **given}
    trials = [
        {
            "dataset": "mnist", "kind": "pairs", "share": 0.1, "seed": seed,
            "found": {
                name: {"AUROC": found[seed], "precision": found[seed]}
                for name, found in methods.items()
            },
        }
        for seed in range(len(values["suspicion"]))
    ]  # fmt: skip
    tables, claims = SPEC.judge(None, {"trials": trials})
    return [claim.holds for claim in claims], claims, tables


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
    assert called[:8].any()  # those above the threshold of their class
    assert not called[8:].any()


def test_suspicion_holds_when_it_leads_and_fails_when_a_peer_surely_does():
    leads, *_ = outcome(suspicion=LEADS, peer=[0.8, 0.81, 0.82, 0.81])
    assert leads == [True, True, True, True, True]
    trails, said, _ = outcome(suspicion=[0.75, 0.76, 0.77, 0.75], peer=[0.95, 0.96, 0.975, 0.96])
    assert trails == [False, False, False, False, True]
    assert "3 of 5 have a higher mean, 3 of them significantly" in said[0].seen
    assert said[0].seen.startswith("mean 0.7575; the best other method is cleanlab self-confidence")


def test_a_lead_within_the_noise_decides_nothing():
    unclear, said, _ = outcome(suspicion=LEADS, peer=[0.97, 0.95, 0.96, 0.97])
    assert unclear[:4] == [None, None, None, None]
    assert "1 of 5 have a higher mean, 0 of them significantly" in said[0].seen


def test_the_claim_on_aum_turns_with_the_data():
    even = {"suspicion": LEADS, "peer": [0.8, 0.81, 0.82, 0.81]}
    assert outcome(**even)[0][-1] is True
    assert outcome(**even, logit_margin=[0.98, 0.99, 0.985, 0.99])[0][-1] is False
    assert outcome(**even, logit_margin=[0.91, 0.9, 0.91, 0.91])[0][-1] is None
    assert outcome(**even, logit_margin=[0.9, 0.91, 0.9, 0.92])[0][-1] is None


def test_a_single_seed_decides_nothing():
    found, said, tables = outcome(suspicion=[0.9], peer=[0.8], aum=[0.85], logit_margin=[0.7])
    assert found == [None] * 5
    assert "difference +0.1000 (one seed)" in said[2].seen
    assert tables[1].rows[0][4] is None


def test_p_values_are_raised_for_the_number_of_comparisons():
    values = {"suspicion": [0.95, 0.96, 0.97], "aum": [0.90, 0.93, 0.92]}
    *_, tables = outcome(**values, peer=[0.95, 0.96, 0.97], logit_margin=[0.95, 0.93, 0.99])
    rows = {row[0]: row for row in tables[1].rows}
    # differences 0.05, 0.03, 0.05: mean 0.13 / 3, spread of the mean 0.02 / 3, t = 6.5, 2 degrees
    assert rows["aum"][1] == pytest.approx(0.13 / 3)
    raw = stats.ttest_rel(values["suspicion"], values["aum"]).pvalue
    assert stats.ttest_rel(values["suspicion"], values["aum"]).statistic == pytest.approx(6.5)
    # of eleven p-values four (AVH and its mean, twice) are smaller
    assert float(rows["aum"][4]) == pytest.approx(7 * raw, rel=0.01)
    assert rows[PEER][4] == "1"  # the same with every seed: no difference


def test_a_seed_counts_once_and_not_once_per_kind_of_noise():
    def trial(share, seed, ours, theirs):
        found = {"suspicion": ours, "logit_margin": theirs, "aum": 0.5, "avh": 0.1, PEER: 0.4,
                 "mean_avh": 0.1}  # fmt: skip
        both = {name: {"AUROC": value, "precision": value} for name, value in found.items()}
        return {"dataset": "mnist", "kind": "pairs", "share": share, "seed": seed, "found": both}

    gaps = {(0.1, 0): 0.02, (0.4, 0): 0.04, (0.1, 1): 0.05, (0.4, 1): 0.09}
    trials = [trial(share, seed, 0.8 + gap, 0.8) for (share, seed), gap in gaps.items()]
    tables, _ = SPEC.judge(None, {"trials": trials})
    row = next(row for row in tables[1].rows if row[0] == "logit_margin")
    test = stats.ttest_1samp([0.03, 0.07], 0)  # the means of each seed
    assert row[1] == pytest.approx(0.05)
    assert (row[2], row[3]) == pytest.approx(tuple(test.confidence_interval()))


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
    probs = held_out_probs(lab, setting, source, epochs=6, seed=0)
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
        overrides=["kinds=['pairs']", "shares=[0.1]", "limit=400", "epochs=[5]"],
    )  # fmt: skip
    found = [trial["found"]["suspicion"]["AUROC"] for trial in result.data["trials"]]
    assert len(found) == 2
    assert min(found) > 0.9
    methods = {row[0] for row in result.tables[0].rows}
    assert {"**suspicion**", "aum", "avh", "logit_margin", PEER} <= methods
