"""Recipes for long tails: subsets, class-balanced sampling, decoupled re-training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import hardsight as hs
from hardsight.errors import ConfigError, HeadError
from hardsight.heads import Head, find_head
from hardsight.models import SmallCNN
from hardsight.run.train import (
    AugmentConfig,
    Draws,
    class_balanced_rows,
    frozen_body,
    reset_head,
)
from hardsight.run.train.engine import TrainModule

FAST = {"device": "cpu", "batch_size": 16, "show_progress": False, "workers": 0}


def balanced(labels):
    return lambda epoch, draw: class_balanced_rows(labels, draw)


@pytest.fixture
def seen(monkeypatch):
    """Labels of every training batch."""
    labels: list[int] = []
    original = TrainModule.training_step

    def watched(self, batch, at):
        labels.extend(batch.labels.tolist())
        return original(self, batch, at)

    monkeypatch.setattr(TrainModule, "training_step", watched)
    return labels


def test_an_imbalanced_recipe_trains_on_exact_counts_and_validates_on_all_classes(
    images, net, tmp_path, seen
):
    done = hs.train(
        net, images, out=tmp_path / "run", epochs=1, validation=0.25, imbalance=9.0, **FAST
    )
    # 40 per class, 30 left to train on: 30, 10 and 3
    assert np.bincount(seen).tolist() == [30, 10, 3]
    assert done.history[0]["val_accuracy"] * 30 == pytest.approx(
        round(done.history[0]["val_accuracy"] * 30)
    )


def test_class_balanced_sampling_draws_every_class_equally_often(images, net, tmp_path, seen):
    hs.train(
        net, images, out=tmp_path / "run", epochs=20, validation=0.0, imbalance=20.0,
        sampling="class_balanced", **FAST,
    )  # fmt: skip
    shares = np.bincount(seen) / len(seen)  # 40, 8 and 2 examples, 50 draws in each epoch
    assert len(seen) == 20 * 50
    np.testing.assert_allclose(shares, 1 / 3, atol=0.075)  # five deviations of a binomial


def test_a_class_is_drawn_equally_often_and_its_examples_are_too():
    labels = torch.tensor([0] * 90 + [7] * 10)  # a class between them has no examples
    rows = Draws.of_epoch(
        10_000, AugmentConfig(), seed=0, epoch=0, rows=balanced(labels.repeat(100))
    ).order
    assert len(rows) == 10_000
    counts = torch.bincount(rows % 100, minlength=100)
    assert abs(int(counts[90:].sum()) - 5000) < 200
    # 500 draws each within the small class; three deviations of a binomial are 66
    assert counts[90:].min() > 430
    assert counts[90:].max() < 570


def test_an_example_that_comes_twice_is_cropped_anew():
    draws = Draws.of_epoch(
        64, AugmentConfig(crop_padding=4), seed=0, epoch=0, rows=balanced(torch.tensor([0, 1] * 32))
    )
    assert len(draws.order.unique()) < 64
    row = int(draws.order.mode().values)
    offsets = draws.offsets[draws.order == row]
    assert len(offsets) > 1
    assert len(offsets.unique(dim=0)) > 1


def test_a_tracker_takes_the_first_of_an_example_that_comes_twice(images, tmp_path):
    done = hs.train(
        "small_cnn", images, out=tmp_path / "run", epochs=1, imbalance=9.0, track=True,
        sampling="class_balanced", **FAST,
    )  # fmt: skip
    assert done.dynamics is not None
    assert 0 < len(done.dynamics) < 120


def trained(images, out, **settings):
    return hs.train("small_cnn", images, out=out, epochs=1, validation=0.25, **FAST, **settings)


def test_a_frozen_body_stays_as_it_was_while_a_new_head_learns(images, tmp_path):
    first = trained(images, tmp_path / "first")
    weights = str(tmp_path / "first" / "model.safetensors")
    again = hs.train(
        {"name": "small_cnn", "weights": weights}, images, out=tmp_path / "again", epochs=2,
        freeze_body=True, reset_head=True, optimizer={"lr": 0.5}, **FAST,
    )  # fmt: skip
    before, after = first.model.state_dict(), again.model.state_dict()
    for name, value in before.items():
        if name.startswith("body"):  # running statistics included
            torch.testing.assert_close(after[name], value, rtol=0, atol=0, msg=name)
    assert not torch.equal(before["head.weight"], after["head.weight"])
    assert all(parameter.requires_grad for parameter in again.model.parameters())
    assert again.history[-1]["val_accuracy"] > 0.6


@pytest.mark.parametrize("loss", ["amc", "euclidean_contrastive"])
def test_a_frozen_body_needs_a_loss_that_reaches_the_head(images, tmp_path, loss):
    with pytest.raises(ConfigError, match=rf"freeze_body .*head.*{loss}.*cross_entropy"):
        trained(images, tmp_path / "run", freeze_body=True, loss=loss)


def test_the_folder_of_a_run_can_be_trained_further_and_loaded_again(images, tmp_path):
    trained(images, tmp_path / "first")
    again = hs.train(
        str(tmp_path / "first"), images, out=tmp_path / "again", epochs=1, freeze_body=True,
        reset_head=True, **FAST,
    )  # fmt: skip
    loaded = hs.models.load_model(str(tmp_path / "again"))
    for name, value in again.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value), name


def test_resetting_a_head_depends_on_the_seed_alone():
    net = SmallCNN()
    head = find_head(net, torch.zeros(2, 1, 8, 8))
    found = []
    for seed in (0, 0, 1):
        state = torch.random.get_rng_state()
        reset_head(net, head, seed=seed)
        assert torch.equal(state, torch.random.get_rng_state())
        found.append(net.head.weight.detach().clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_head_that_cannot_draw_its_weights_is_named():
    class Cosine(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(3))

    net = nn.Sequential(nn.Linear(5, 3), Cosine())
    with pytest.raises(HeadError, match=r"head with reset_parameters\(\), got Cosine at '1'"):
        reset_head(net, Head(weight=torch.eye(3), bias=None, name="1"), seed=0)


def test_what_was_frozen_by_the_user_stays_frozen_afterwards():
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    net[0].requires_grad_(False)
    with frozen_body(net, find_head(net, torch.zeros(2, 5))):
        assert [layer.weight.requires_grad for layer in net] == [False, False, True]
    assert [layer.weight.requires_grad for layer in net] == [False, True, True]
