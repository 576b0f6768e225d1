from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def embeddings_file(tmp_path: Path) -> Path:
    """500 embeddings of width 8 in 4 classes, with their head, in one file."""
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(4, 8)).astype(np.float32)
    labels = draw.integers(0, 4, size=500)
    embeddings = weights[labels] + draw.normal(size=(500, 8)).astype(np.float32)
    file = tmp_path / "embeddings.npz"
    np.savez(
        file, embeddings=embeddings, labels=labels, class_weights=weights,
        bias=draw.normal(size=4).astype(np.float32),
    )  # fmt: skip
    return file


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of twelve 12x12 pictures, told apart by their colour."""
    draw = np.random.default_rng(1)
    for number, name in enumerate(("blue", "green", "red")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for picture in range(12):
            pixels = draw.integers(0, 80, size=(12, 12, 3), dtype=np.uint8)
            pixels[..., 2 - number] += 150
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{picture:02d}.png")
    return tmp_path / "photos"


NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.classifier = nn.Linear(6, num_classes)

    def forward(self, images):
        return self.classifier(self.body(images).flatten(1))


def make(num_classes=3):
    return Net(num_classes)
"""


@pytest.fixture
def net_file(tmp_path: Path) -> Path:
    """A user's own model in a file of her own."""
    file = tmp_path / "net.py"
    file.write_text(NET)
    return file


@pytest.fixture(scope="module")
def without_progress():
    """Transformers draws no bars while it loads."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()
