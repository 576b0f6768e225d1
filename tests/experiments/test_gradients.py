"""Gradient norms of Encouraging Loss on images: claims that turn, and the norm of a first step."""

from __future__ import annotations

import json

import pytest

from hardsight.experiments import EXPERIMENTS, run_experiment

SPEC = EXPERIMENTS["el-gradients"]
SETTING = type(SPEC.scales["short"])(task="made up/net", seeds=(0, 1, 2))


def verdicts(normal, conservative):
    """Of three seeds, norms as multiples of those of cross-entropy."""
    plain = [1.0, 2.0, 4.0]
    shaken = (0.99, 1.0, 1.02)

    def of(times):
        norms = [times * one * more for one, more in zip(plain, shaken, strict=True)]
        return {"norm": norms, "accuracy": [99.0, 99.1, 99.2]}

    data = {"CE": {"norm": plain, "accuracy": [99.0] * 3}, "EL, LE=0.75": of(conservative),
            "EL, LE=1": of(normal)}  # fmt: skip
    return [claim.holds for claim in SPEC.judge(SETTING, data)[1]]


@pytest.mark.parametrize(
    ("normal", "conservative", "wanted"),
    [(8.0, 1.2, [True, True]), (3.0, 2.5, [False, False]), (5.0, 1.7, [None, None])],
)
def test_the_claims_turn_with_the_ratios(normal, conservative, wanted):
    assert verdicts(normal, conservative) == wanted


def test_losses_start_from_the_same_weights_and_see_the_same_batches(tmp_path):
    run_experiment(
        "el-gradients", out=tmp_path, device="cpu", show_progress=False,
        overrides=("epochs=1", "limit=64", "batch_size=32", "seeds=[0]"),
    )  # fmt: skip
    data = json.loads((tmp_path / "result.json").read_text())["data"]
    first = {loss: part["curve"][0][0] for loss, part in data.items()}
    # a fresh network is sure of nothing: with p below LE both bonuses are the same curve
    assert first["EL, LE=0.75"] == pytest.approx(first["EL, LE=1"], rel=1e-4)
    # and at p = 1/10 its slope in the logits is 10/9 of that of cross-entropy
    assert first["EL, LE=1"] / first["CE"] == pytest.approx(10 / 9, rel=0.02)
