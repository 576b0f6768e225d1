"""Other seeds reach every generator of a test, and equal seeds still draw the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# each number in a fork of its own: to load torch takes longest
DRAWS = """
import os, sys
import numpy as np, torch
for number in "012":
    if not os.fork():
        break
    os.wait()
else:
    sys.exit()
os.environ["HARDSIGHT_TEST_SEED"] = number
from tests import _seeds
_seeds.shift_seeds()
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
    done = subprocess.run(
        [sys.executable, "-c", DRAWS], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    drawn = [line.split() for line in done.stdout.splitlines()]
    assert [len(line) for line in drawn] == [5, 5, 5], done.stderr
    for same_place in zip(*drawn, strict=True):
        assert len(set(same_place)) == 3
