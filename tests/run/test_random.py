"""A user's random states are hers: what we draw leaves no trace, on a GPU not in use either."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.utilities import seed
from torch import nn

import hardsight as hs
from hardsight.errors import OptionError
from hardsight.experiments.avh import GeometrySetting, sphere
from hardsight.heads import find_head
from hardsight.run.loop import loaded_model, random_states_kept, seeded
from hardsight.run.train import reset_head

pytestmark = pytest.mark.pinned  # the stand-in below seeds as it is told, and nothing is learned


class TwoGpus:
    """Stands for torch.cuda on a machine of two GPUs: a seed waits until they are first used."""

    def __init__(self, patch):
        self.default_generators, self.started, self.waiting = (), False, None
        for name in ("init", "manual_seed_all", "get_rng_state_all", "set_rng_state_all"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        # a build with CUDA takes the count for an answer, and would look for a driver
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.cuda, "is_initialized", lambda: self.started)
        patch.setattr(torch.cuda, "get_rng_state", lambda at: self.get_rng_state_all()[at])
        patch.setattr(torch.cuda, "set_rng_state", lambda state, at: self.set_one(state, at))
        self.patch = patch

    def init(self):
        if not self.started:
            self.started = True
            self.default_generators = (torch.Generator(), torch.Generator())
            self.patch.setattr(torch.cuda, "default_generators", self.default_generators)
            for one in self.default_generators:
                one.seed() if self.waiting is None else one.manual_seed(self.waiting)

    def manual_seed_all(self, seed):
        self.waiting = seed
        for one in self.default_generators:
            one.manual_seed(seed)

    def get_rng_state_all(self):
        self.init()
        return [one.get_state() for one in self.default_generators]

    def set_rng_state_all(self, states):
        for at, state in enumerate(states):
            self.set_one(state, at)

    def set_one(self, state, at):
        self.init()
        self.default_generators[at].set_state(state)

    def draw(self):
        self.init()
        return torch.stack([torch.rand(3, generator=one) for one in self.default_generators])


@pytest.fixture
def gpus(monkeypatch):
    found = TwoGpus(monkeypatch)
    states = seed._collect_rng_states  # of Lightning, which starts every GPU that is there
    monkeypatch.setattr(seed, "_collect_rng_states", lambda *args: found.init() or states(*args))
    torch.manual_seed(3)
    assert found.waiting == 3
    return found


def expected(skipped=0):
    """What both GPUs draw after their user has seeded them, and drawn some batches of numbers."""
    drawn = torch.rand(3 * (skipped + 1), generator=torch.Generator().manual_seed(3))
    return drawn[-3:].expand(2, 3)


def draw_head(folder):
    model = nn.Sequential(nn.Linear(4, 3))
    reset_head(model, find_head(model, torch.rand(2, 4)), seed=0)


def load(folder):
    loaded_model("small_cnn", None, 3, seed=0, device=torch.device("cpu"))


def score_points(folder):
    sphere(GeometrySetting(points=8, sphere_steps=1), seed=0)


def train(folder):
    hs.train(
        "small_cnn", "builtin:digits", split="train", out=folder / "run", epochs=1, device="cpu",
        reset_head=True, batch_size=512, show_progress=False,
    )  # fmt: skip


@pytest.mark.parametrize("work", [draw_head, load, score_points])
def test_work_on_the_cpu_does_not_start_a_gpu(work, gpus, tmp_path):
    work(tmp_path)
    assert not gpus.started


@pytest.mark.parametrize("work", [draw_head, load, score_points, train])
def test_a_gpu_not_in_use_keeps_the_seed_that_waits_for_it(work, gpus, tmp_path):
    work(tmp_path)  # training starts the GPU on the way: Lightning asks for its state
    torch.testing.assert_close(gpus.draw(), expected(), rtol=0, atol=0)


@pytest.mark.parametrize("work", [draw_head, load, score_points, train])
def test_a_gpu_in_use_goes_on_where_it_was(work, gpus, tmp_path):
    gpus.draw()
    work(tmp_path)
    torch.testing.assert_close(gpus.draw(), expected(skipped=1), rtol=0, atol=0)


def test_a_gpu_that_will_be_used_is_started_and_seeded(gpus):
    with seeded(1, torch.device("cuda")):
        one = gpus.draw()
    with seeded(1, torch.device("cuda")):
        torch.testing.assert_close(gpus.draw(), one, rtol=0, atol=0)
    torch.testing.assert_close(gpus.draw(), expected(), rtol=0, atol=0)


def test_draws_inside_come_from_the_seed_and_those_after_it_from_the_user():
    torch.manual_seed(5)
    own = torch.rand(3)
    torch.manual_seed(5)
    with seeded(1):
        one = torch.rand(3)
    torch.testing.assert_close(torch.rand(3), own, rtol=0, atol=0)
    with seeded(1):
        torch.testing.assert_close(torch.rand(3), one, rtol=0, atol=0)


def test_the_state_comes_back_after_an_error():
    def fail():
        with random_states_kept():
            torch.rand(3)
            raise KeyError

    before = torch.get_rng_state()
    with pytest.raises(KeyError):
        fail()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("seed", [10**20, -(2**63) - 1])
def test_a_seed_that_no_generator_takes_is_refused(seed):
    with pytest.raises(OptionError, match=rf"seed .*{seed}"):
        hs.score("small_cnn", "builtin:digits", split="test", seed=seed)


def test_the_largest_seed_is_taken():
    with seeded(2**64 - 1):
        first = torch.rand(3)
    with seeded(2**64 - 1):
        assert torch.equal(first, torch.rand(3))
