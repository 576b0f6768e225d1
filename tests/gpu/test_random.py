"""Random states on a real GPU: as they were, whether CUDA was in use before or not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import hardsight as hs
from hardsight.heads import find_head
from hardsight.run.loop import random_states_kept
from hardsight.run.train import reset_head

# a fresh interpreter, seeded by its user, where nothing has used CUDA yet
FRESH = """
import sys, torch
import hardsight as hs
from hardsight.run.loop import loaded_model, random_states_kept

torch.manual_seed(3)
what = sys.argv[1]
if what == "load":
    loaded_model("small_cnn", None, 10, seed=0, device=torch.device("cpu"))
elif what == "first-use":
    with random_states_kept():
        torch.rand(5, device="cuda")
elif what != "nothing":
    hs.train(
        "small_cnn", "builtin:digits", split="train", out=sys.argv[2], epochs=1, batch_size=256,
        reset_head=True, show_progress=False, device=what,
    )
print(torch.cuda.is_initialized(), torch.rand(3, device="cuda").tolist(), torch.rand(3).tolist())
"""


def states():
    return torch.get_rng_state(), torch.cuda.get_rng_state()


def assert_states(before):
    for one, other in zip(before, states(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_a_new_head_comes_from_the_seed_and_changes_no_state(place):
    model = nn.Sequential(nn.Linear(4, 3)).to(place)
    head = find_head(model, torch.rand(2, 4, device=place))
    torch.rand(3, device="cuda")  # a state that no seed alone gives back
    before = states()
    reset_head(model, head, seed=0)
    assert_states(before)
    drawn = model[0].weight.detach().clone()
    reset_head(model, head, seed=0)
    torch.testing.assert_close(model[0].weight.detach(), drawn, rtol=0, atol=0)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_training_changes_no_state(tmp_path, place):
    torch.rand(3, device="cuda")
    before = states()
    hs.train(
        "small_cnn", "builtin:digits", split="train", out=tmp_path / "run", epochs=1,
        batch_size=256, reset_head=True, show_progress=False, device=place,
    )  # fmt: skip
    assert_states(before)


def test_what_is_drawn_inside_is_taken_back_on_the_gpu():
    before = states()
    with random_states_kept():
        torch.rand(5, device="cuda")
        torch.manual_seed(9)
    assert_states(before)


def test_a_gpu_not_in_use_keeps_the_seed_that_waits_for_it(tmp_path):
    said = {
        what: subprocess.run(
            [sys.executable, "-c", FRESH, what, str(tmp_path / what)],
            capture_output=True, text=True, check=True,
        ).stdout.split(" ", 1)
        for what in ("nothing", "load", "first-use", "cpu", "cuda")
    }  # fmt: skip
    assert said["load"][0] == said["nothing"][0] == "False"  # whether CUDA was started
    assert len({values for _, values in said.values()}) == 1, said
