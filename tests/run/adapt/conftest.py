from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hardsight.data import MemorySource

NET = """
from torch import nn


def make(num_classes=3, channels=1):
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.1),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, num_classes),
    )
"""


def stripes(length=90, *, seed=0, noise=60, bright=150, shift=0, spec="stripes"):
    """Pictures of 8x8 pixels in three classes, told apart by where they are bright."""
    draw = np.random.default_rng(seed)
    labels = np.arange(length) % 3
    pixels = draw.integers(0, noise, size=(length, 8, 8), dtype=np.uint8)
    for row, label in enumerate(labels):
        at = 2 * label + shift
        pixels[row, at : at + 3] += bright
    return MemorySource(pixels, labels, classes=("top", "middle", "low"), spec=spec)


@pytest.fixture
def source():
    return stripes()


@pytest.fixture
def target():
    """The same pictures, paler and noisier."""
    return stripes(seed=1, noise=150, bright=40, spec="pale stripes")


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path / 'net.py'}:make"


@pytest.fixture
def settings():
    """A small run: two rounds of two epochs after three on the source."""
    return {
        "rounds": 2,
        "pretrain": {"epochs": 3, "optimizer": {"lr": 0.1}},
        "retrain": {"epochs": 2, "optimizer": {"lr": 0.02}},
        "batch_size": 32,
        "portion": 0.3,
        "portion_step": 0.2,
        "device": "cpu",
    }


@pytest.fixture
def make_stripes():
    return stripes
