"""Other seeds reach every generator of a test, and equal seeds still draw the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRAWS = """
from tests import _seeds
_seeds.shift_seeds()
import numpy as np, torch
from hardsight.models import SmallCNN
def draws():
    torch.manual_seed(0)
    yield torch.rand(1).item()
    yield torch.rand(1, generator=torch.Generator().manual_seed(0)).item()
    yield SmallCNN(seed=0).head.weight[0, 0].item()
    yield np.random.default_rng(0).random()
    yield np.random.default_rng([0, 1]).random()
assert list(draws()) == list(draws())
print(*draws())
"""


@pytest.mark.pinned
def test_another_number_draws_something_else_everywhere():
    drawn = []
    for number in "012":
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HARDSIGHT_TEST_SEED": number}
        done = subprocess.run(
            [sys.executable, "-c", DRAWS], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        drawn.append(done.stdout.split())
    for same_place in zip(*drawn, strict=True):
        assert len(set(same_place)) == 3
