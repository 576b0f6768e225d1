"""Adversarial training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hardsight as hs
from hardsight.data import decoded
from hardsight.errors import ConfigError
from hardsight.evaluate import Normalisation, pgd
from hardsight.run.train import AdversarialConfig, Adversary, TrainBatch

FAST = {"device": "cpu", "batch_size": 16, "show_progress": False, "workers": 0}
HOW = Normalisation((0.3,), (0.2,))


def a_batch(count=8):
    draw = torch.Generator().manual_seed(0)
    pixels = torch.rand(count, 1, 8, 8, generator=draw)
    return TrainBatch(torch.arange(count), (pixels - 0.3) / 0.2, torch.arange(count) % 3)


def a_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(144, 3),
    )  # fmt: skip


@pytest.mark.parametrize("attack", ["pgd", "fgsm"])
def test_the_change_stays_in_the_ball_of_pixels_and_raises_the_loss(attack):
    net, batch = a_net().train(), a_batch()
    changed = Adversary(AdversarialConfig(0.1, attack=attack), HOW).changed(net, batch)
    apart = (changed.inputs - batch.inputs) * 0.2  # back in pixels
    assert float(apart.abs().max()) == pytest.approx(0.1, abs=1e-5)
    pixels = changed.inputs * 0.2 + 0.3
    assert float(pixels.min()) > -1e-5
    assert float(pixels.max()) < 1 + 1e-5
    net.eval()
    with torch.no_grad():
        before, after = (
            nn.functional.cross_entropy(net(one.inputs), one.labels) for one in (batch, changed)
        )
    assert after > before


def test_an_attack_leaves_statistics_mode_and_gradients_as_they_were():
    net = a_net().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    Adversary(AdversarialConfig(0.1), HOW).changed(net, a_batch())
    assert net.training
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_share_of_the_batch_is_changed_and_the_rest_stays_clean():
    batch = a_batch()
    changed = Adversary(AdversarialConfig(0.1, share=0.25), HOW).changed(a_net(), batch)
    same = (changed.inputs == batch.inputs).flatten(1).all(dim=1)
    assert same.tolist() == [False] * 2 + [True] * 6
    assert torch.equal(changed.labels, batch.labels)


def test_a_recipe_that_trains_on_attacks_resists_them_better(tmp_path):
    found = {}
    source = decoded(hs.data.open_source("builtin:digits", split="train")).subset(range(800))
    images = torch.from_numpy(source.images[:300])[:, None] / 255
    labels = torch.from_numpy(source.labels[:300])
    for epsilon in (0.0, 0.2):
        done = hs.train(
            "small_cnn", source, out=tmp_path / str(epsilon), epochs=2, batch_size=32,
            optimizer={"name": "adamw", "lr": 0.003}, schedule="one_cycle", device="cpu",
            adversarial={"epsilon": epsilon, "steps": 2}, show_progress=False, workers=0,
        )  # fmt: skip
        how = done.preprocessing
        moved = pgd(
            done.model, (images - how.mean[0]) / how.std[0], labels, epsilon=0.15, steps=5,
            normalisation=Normalisation(how.mean, how.std),
        )  # fmt: skip
        with torch.no_grad():
            found[epsilon] = float((done.model(moved).argmax(1) == labels).float().mean())
    assert found[0.2] > found[0.0] + 0.1


def test_tensors_of_unknown_pixels_are_refused(vectors, linear, tmp_path):
    with pytest.raises(ConfigError, match="needs images whose pixels are known, got tensors"):
        hs.train(linear, vectors, out=tmp_path / "run", epochs=1, adversarial=0.1, **FAST)
