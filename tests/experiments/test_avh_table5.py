from __future__ import annotations

import numpy as np
import pytest
import torch

from hardsight.data import MemorySource
from hardsight.errors import ConfigError
from hardsight.experiments import Lab, Outputs
from hardsight.experiments.avh import _table5 as table5
from hardsight.experiments.avh._table5 import Setting, angular_accuracy


def found(plain, angular):
    return {
        "cross-entropy": {name: table5._Found([], values) for name, values in plain.items()},
        "AVH loss": {name: table5._Found([], values) for name, values in angular.items()},
    }


@pytest.mark.parametrize(
    ("gain", "holds", "better"), [(5.0, True, 2), (-5.0, False, 0), (0.01, None, 2)]
)
def test_the_claim_follows_the_mean_over_domains(gain, holds, better):
    plain = {"photo": [90.0, 90.2, 90.4], "sketch": [50.0, 50.2, 50.4]}
    angular = {name: [value + gain for value in values] for name, values in plain.items()}
    claim = table5._claim("cnn10", found(plain, angular))
    assert claim.holds is holds
    assert f"better on {better} of 2 domains" in claim.seen
    assert "cross-entropy 70.20 ± 0.20" in claim.seen


def test_the_mean_is_over_domains_for_each_seed():
    by_domain = {"a": table5._Found([], [10.0, 20.0]), "b": table5._Found([], [30.0, 60.0])}
    assert table5._means(by_domain) == [20.0, 40.0]


def test_a_class_is_predicted_by_angle_whatever_norm_and_bias():
    # by logits the long second weight wins everywhere; by angle each example has its own class
    weights = torch.tensor([[0.1, 0.0], [3.0, 3.0]])
    embeddings = torch.tensor([[1.0, 0.1], [1.0, 1.0]])
    logits = embeddings @ weights.T
    outputs = Outputs(embeddings, logits, torch.tensor([0, 1]), weights, None)
    assert outputs.accuracy == 0.5
    assert angular_accuracy(outputs) == 100


def test_images_shrink_to_the_mean_of_their_blocks():
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    got = table5._shrunk(images, 2)
    assert got.shape == (2, 2, 2, 3)
    wanted = images[1, 2:, :2, 1].astype(float).mean()
    assert got[1, 1, 0, 1] == round(wanted)
    grey = table5._shrunk(images[..., 0], 2)
    np.testing.assert_array_equal(grey, got[..., 0])


def test_validation_rows_come_from_the_training_domains_and_are_not_trained_on():
    images = np.arange(100, dtype=np.uint8).reshape(100, 1, 1).repeat(8, 1).repeat(8, 2)
    source = MemorySource(images, np.arange(100) % 2)
    train, held_out = table5._split(source, 0.1)
    assert (len(train), len(held_out)) == (90, 10)
    pixels = {int(image[0, 0]) for image in train.images}
    assert pixels.isdisjoint({int(image[0, 0]) for image in held_out.images})
    again, _ = table5._split(source, 0.1)
    np.testing.assert_array_equal(train.images, again.images)


def test_the_scale_is_the_one_that_validation_prefers_and_the_test_domain_plays_no_part(
    tmp_path, monkeypatch
):
    # a made-up model of scale 16 is right on held-out images and wrong on the test domain
    setting = Setting(scales=(6.0, 16.0), seeds=(1, 2), choice_seed=7)
    lab = Lab(scale="smoke", out=tmp_path, runs=tmp_path, device="cpu", show_progress=False)
    asked = []

    def trained(lab, setting, recipe, train, scale, seed):
        asked.append((scale, seed))
        return scale

    def accuracy(outputs):
        scale, place = outputs
        return {"held out": {6.0: 60.0, 16.0: 90.0}, "test": {6.0: 99.0, 16.0: 1.0}}[place][scale]

    monkeypatch.setattr(table5, "_trained", trained)
    monkeypatch.setattr(table5, "angular_accuracy", accuracy)
    monkeypatch.setattr(lab, "outputs", lambda run, source: (run, source))
    got = table5._angular(lab, setting, None, "train", "held out", "test")
    assert got.scale == 16.0
    assert got.test == [1.0, 1.0]
    assert asked == [(6.0, 7), (16.0, 7), (16.0, 1), (16.0, 2)]
    assert got.validation_by_scale == {"6": 60.0, "16": 90.0}


def test_digits_become_domains_by_degradation():
    images = np.full((2, 8, 8), 51, dtype=np.uint8)
    np.testing.assert_array_equal(table5._degraded(images, "plain"), images)
    assert (table5._degraded(images, "inverted") == 204).all()
    assert (table5._degraded(images, "contrast") == round(255 * (0.3 * 0.2 + 0.35))).all()
    assert table5._degraded(images, "noise").std() > 10


def test_a_size_that_does_not_divide_the_images_is_refused(tmp_path, monkeypatch):
    lab = Lab(scale="smoke", out=tmp_path, runs=tmp_path, device="cpu")
    digits = lab.source("builtin:digits", "test", limit=20)
    monkeypatch.setattr(lab, "source", lambda dataset, name: digits)
    with pytest.raises(ConfigError, match=r"have 8 pixels, which do not shrink to 3 .* divide 8"):
        table5._domain(lab, "pacs", "photo", 3)


def test_a_domain_that_digits_cannot_be_made_into_is_refused():
    with pytest.raises(ConfigError, match=r"unknown domain 'nois'. Did you mean 'noise'\?"):
        Setting(dataset="builtin:digits", domains=("plain", "nois"))
