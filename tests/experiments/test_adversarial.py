"""Appendix G of the AVH paper: claims that turn with the numbers."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from hardsight.experiments import EXPERIMENTS
from hardsight.experiments.avh import travelled

SPEC = EXPERIMENTS["avh-adversarial"]
SETTING = type(SPEC.scales["short"])(dataset="made up", seeds=(0, 1, 2))
SPEEDS = [
    f"AVH changes more slowly than the norm during adversarial training ({which})"
    for which in ("mean over images", "single images")
]


def data(avh=(0.1, 0.09, 0.085), norm=(2.0, 4.0, 7.0), changed=0.12, original=0.05):
    """Three seeds that differ a little."""

    def curve(seed, scale=1.0):
        return {"norm": [v + 0.01 * seed for v in norm], "avh": [v + 1e-4 * seed for v in avh],
                "correct": [0.5, 0.9, 0.99],
                "travelled": {"norm": scale * travelled(np.array(norm)) + 0.01 * seed,
                              "avh": scale * travelled(np.array(avh)) + 0.002 * seed}}  # fmt: skip

    def images(avh):
        return {"share": [1.0] * 3, "accuracy": [0.9] * 3, "norm": [3.0] * 3,
                "avh": [avh, avh + 1e-4, avh + 3e-4]}  # fmt: skip

    kinds = {"original": images(original), "changed": images(changed),
             "original, still right": images(original),
             "changed, still right": images((changed + original) / 2)}  # fmt: skip
    measures = ("accuracy", "fooled", "norm_ratio", "own_before", "own_after", "new_after")
    plane = {measure: [1.0, 2.0, 3.0] for measure in measures}
    trainings = ("plain training", "adversarial training")
    return {
        "curves": {training: [curve(seed) for seed in range(3)] for training in trainings},
        "images": {training: copy.deepcopy(kinds) for training in trainings},
        "planes": {"CNN": plane, "decoupled SphereNet": plane},
    }


def holds(**changes):
    _, claims = SPEC.judge(SETTING, data(**changes))
    return {claim.says: claim.holds for claim in claims}


def test_the_claims_turn_with_the_curves():
    slow = holds()
    assert [slow[says] for says in SPEEDS] == [True, True]
    fast = holds(avh=(0.1, 0.05, 0.01), norm=(2.0, 2.02, 2.05))
    assert [fast[says] for says in SPEEDS] == [False, False]


@pytest.mark.parametrize(("changed", "wanted"), [(0.12, True), (0.02, False)])
def test_the_claims_turn_with_the_changed_images(changed, wanted):
    found = holds(changed=changed)
    others = {says: verdict for says, verdict in found.items() if says not in SPEEDS}
    assert len(others) == 4
    assert set(others.values()) == {wanted}


def test_a_curve_travels_both_ways_and_a_factor_does_not_matter():
    # 1 up, 2 down, over a mean of 4 / 3
    there_and_back = np.array([1.0, 2.0, 0.0, 2.0])
    assert travelled(there_and_back) == pytest.approx(5 / 1.25)
    assert travelled(100 * there_and_back) == pytest.approx(travelled(there_and_back))
    still = np.ones(4)
    both = np.stack([there_and_back, still], axis=1)
    assert travelled(both) == pytest.approx((4.0 + 0.0) / 2)  # the mean over examples
    assert np.isnan(travelled(np.zeros(3)))
