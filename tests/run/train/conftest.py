from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

NET = """
from torch import nn


def make(num_classes=3, channels=1):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, num_classes),
    )
"""


class Bright(torch.utils.data.Dataset):
    """A user's own dataset: vectors whose largest value tells the class."""

    def __init__(self, length=60):
        draw = torch.Generator().manual_seed(0)
        self.targets = torch.arange(length) % 3
        self.inputs = torch.randn(length, 5, generator=draw)
        self.inputs[torch.arange(length), self.targets] += 4

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.inputs[index], int(self.targets[index])


@pytest.fixture
def vectors():
    return Bright()


@pytest.fixture
def linear():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """120 pictures of 8x8 pixels in three classes, told apart by where they are bright."""
    draw = np.random.default_rng(0)
    labels = np.arange(120) % 3
    pixels = draw.integers(0, 60, size=(120, 8, 8), dtype=np.uint8)
    for row, label in enumerate(labels):
        pixels[row, 2 * label : 2 * label + 3] += 150
    np.savez(tmp_path / "images.npz", images=pixels, labels=labels)
    return tmp_path / "images.npz"


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path / 'net.py'}:make"
