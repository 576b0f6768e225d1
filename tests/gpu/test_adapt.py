"""Adapting on a GPU: images stay there, mixed precision, and a run that continues."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hardsight as hs
from hardsight.data import MemorySource


def stripes(length, *, seed, noise, bright):
    draw = np.random.default_rng(seed)
    labels = np.arange(length) % 3
    pixels = draw.integers(0, noise, size=(length, 16, 16, 3), dtype=np.uint8)
    for row, label in enumerate(labels):
        pixels[row, 4 * label : 4 * label + 5] += bright
    large = pixels.repeat(2, axis=1).repeat(2, axis=2)
    return MemorySource(large, labels, classes=("top", "middle", "low"))


@pytest.mark.parametrize("model", ["resnet18", "efficientnet_lite0"])
def test_every_rule_runs_on_the_gpu_and_continues(model, tmp_path):
    source = stripes(300, seed=0, noise=60, bright=150)
    target = stripes(300, seed=1, noise=150, bright=60)
    settings = {
        "rule": ("cbst", "cbst+avh", "crst-lrent", "crst-mrkld", "crst", "entropy", "bn-only"),
        "rounds": 2,
        "pretrain": {"epochs": 3, "optimizer": {"name": "adamw"}}, "retrain": 1, "device": "cuda",
        "augment": {"crop_padding": 2, "flip": True}, "batch_size": 64, "keep_models": False,
    }  # fmt: skip
    done = hs.adapt(model, source, target, out=tmp_path / "run", **settings)
    assert all(len(run.rounds) == 3 for run in done.runs.values())
    again = hs.adapt(model, source, target, out=tmp_path / "run", resume=True, **settings)
    for rule, run in done.runs.items():
        assert again.runs[rule].rounds[1:] == run.rounds[1:]
        for name, value in run.state.items():
            torch.testing.assert_close(again.runs[rule].state[name], value, rtol=0, atol=0)
