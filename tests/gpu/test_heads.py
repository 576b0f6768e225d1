"""Every batch is held to its head without waiting for the device, also inside of a recording."""

import numpy as np
import pytest
import torch
from torch import nn

import hardsight as hs
from hardsight.data import MemorySource
from hardsight.errors import HeadMismatchError
from hardsight.heads import capture, find_head

pytestmark = pytest.mark.gpu


class LateBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(64, 32), nn.Linear(32, 3)

    def forward(self, images):
        x = images.flatten(1)
        logits = self.fc(self.body(x).relu())
        return torch.where(x.mean(1, keepdim=True) > 100, logits.flip(1), logits)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_rounding_on_the_device_is_not_a_mismatch(precision):
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1000)).cuda()
    batches = torch.randn(40, 256, 64, device="cuda")
    dtype = getattr(torch, precision)
    head = find_head(model, batches[0])
    cast = torch.autocast("cuda", dtype=dtype, enabled=precision != "float32")
    with torch.inference_mode(), cast, capture(model, head) as forward:
        for batch in batches:
            forward(batch)


def test_a_mismatch_on_the_device_is_told_when_it_is_asked_for():
    model, batch = LateBranch().cuda(), torch.rand(8, 1, 8, 8, device="cuda")
    head = find_head(model, batch)
    with torch.no_grad(), capture(model, head) as forward:
        forward(batch)
        forward(batch + 1000)
        with pytest.raises(HeadMismatchError, match="batch 2"):
            forward.check()


def test_a_recorded_step_is_held_to_the_head(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (256, 8, 8), dtype=np.uint8)
    data = MemorySource(pixels, np.arange(256) % 3, classes=("a", "b", "c"), spec="noise")

    options = {"epochs": 2, "batch_size": 32, "capture": True, "track": True, "device": "cuda"}
    done = hs.train(LateBranch(), data, out=tmp_path / "run", show_progress=False, **options)
    assert len(done.history) == 2
