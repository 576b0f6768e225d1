from __future__ import annotations

import numpy as np
import pytest
import torch

from hardsight.data import MemorySource
from hardsight.errors import ConfigError
from hardsight.experiments import EXPERIMENTS, Lab, Outputs
from hardsight.experiments.avh import _table5 as table5
from hardsight.experiments.avh import angular_accuracy

SPEC = EXPERIMENTS["avh-table5"]
Setting = type(SPEC.scales["short"])


def judged(plain, angular, seeds=(0, 1, 2)):
    """Tables and claims of one model."""
    setting = Setting(
        models=("cnn10",), sizes=(0,), epochs=(1,), learning_rates=(0.1,), domains=tuple(plain),
        seeds=seeds,
    )  # fmt: skip
    data = {
        "cnn10": {
            loss: {
                name: {"validation": values, "test": values, "scale": 6.0,
                       "validation_by_scale": {"6": 90.0}}
                for name, values in found.items()
            }
            for loss, found in (("cross-entropy", plain), ("AVH loss", angular))
        }
    }  # fmt: skip
    return SPEC.judge(setting, data)


@pytest.mark.parametrize(
    ("gain", "holds", "better"), [(5.0, True, 2), (-5.0, False, 0), (0.01, None, 2)]
)
def test_the_claim_follows_the_mean_over_domains(gain, holds, better):
    plain = {"photo": [90.0, 90.2, 90.4], "sketch": [50.0, 50.2, 50.4]}
    noise = np.array([0.0, 0.02, -0.02])
    angular = {name: (np.array(values) + gain + noise).tolist() for name, values in plain.items()}
    _, (claim,) = judged(plain, angular)
    assert claim.holds is holds
    assert f"better on {better} of 2 domains" in claim.seen
    assert "cross-entropy 70.20 ± 0.20" in claim.seen


def test_the_mean_is_over_domains_for_each_seed():
    tables, _ = judged({"a": [10.0, 20.0], "b": [30.0, 60.0]}, {"a": [1.0, 2.0], "b": [3.0, 4.0]},
                       seeds=(0, 1))  # fmt: skip
    row = tables[0].rows[0]
    assert (row[-2].mean, row[-2].std) == (30.0, pytest.approx(np.std([20, 40], ddof=1)))
    assert tables[1].rows[0][3] == "6: 90.00"


def test_a_class_is_predicted_by_angle_whichever_norm_and_bias_it_has():
    # by logits the long second weight wins everywhere; by angle each example has its own class
    weights = torch.tensor([[0.1, 0.0], [3.0, 3.0]])
    embeddings = torch.tensor([[1.0, 0.1], [1.0, 1.0]])
    logits = embeddings @ weights.T
    outputs = Outputs(embeddings, logits, torch.tensor([0, 1]), weights, None)
    assert outputs.accuracy == 0.5
    assert angular_accuracy(outputs) == 100


def test_images_shrink_to_the_mean_of_their_blocks():
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    got = table5.shrunk(images, 2)
    assert got.shape == (2, 2, 2, 3)
    wanted = images[1, 2:, :2, 1].astype(float).mean()
    assert got[1, 1, 0, 1] == round(wanted)
    grey = table5.shrunk(images[..., 0], 2)
    np.testing.assert_array_equal(grey, got[..., 0])


def test_validation_rows_come_from_the_training_domains_and_are_not_trained_on():
    images = np.arange(100, dtype=np.uint8).reshape(100, 1, 1).repeat(8, 1).repeat(8, 2)
    source = MemorySource(images, np.arange(100) % 2)
    train, held_out = table5.held_apart(source, 0.1)
    assert (len(train), len(held_out)) == (90, 10)
    pixels = {int(image[0, 0]) for image in train.images}
    assert pixels.isdisjoint({int(image[0, 0]) for image in held_out.images})
    again, _ = table5.held_apart(source, 0.1)
    np.testing.assert_array_equal(train.images, again.images)


class ByAngle(Lab):
    """A model of scale 16 is right on held-out images and wrong on the domain left out."""

    def __init__(self, script, **options):
        super().__init__(**options)
        self.recipes = []

    def train(self, model, source, *, seed, loss, **settings):
        scale = None if loss == ["cross_entropy"] else loss[0]["options"]["scale"]
        self.recipes.append((scale, seed))
        return scale

    def outputs(self, run, source):
        is_held_out = len(source) == 120  # a tenth of two domains of 600 images
        right = 1.0 if run is None or (run == 16.0) == is_held_out else 0.5
        count = round(right * 10)
        rows = torch.eye(2)[torch.arange(10).lt(count).long()]
        return Outputs(rows, rows, torch.ones(10, dtype=torch.long), torch.eye(2), None)


def test_the_scale_is_the_one_that_validation_prefers_and_the_test_domain_plays_no_part(scripted):
    result, asked = scripted(
        "avh-table5", make=ByAngle, scales=(6.0, 16.0), seeds=(1, 2), choice_seed=7
    )
    found = result.data["small_cnn"]["AVH loss"]["plain"]
    assert found["scale"] == 16.0
    assert found["test"] == [50.0, 50.0]
    assert found["validation_by_scale"] == {"6": 50.0, "16": 100.0}
    assert asked[:6] == [(None, 1), (None, 2), (6.0, 7), (16.0, 7), (16.0, 1), (16.0, 2)]


def test_a_size_that_does_not_divide_the_images_is_refused(scripted, monkeypatch):
    source = Lab.source
    monkeypatch.setattr(Lab, "source", lambda lab, *_: source(lab, "builtin:digits", "test"))
    with pytest.raises(ConfigError, match=r"have 8 pixels, which do not shrink to 3 .* divide 8"):
        scripted("avh-table5", dataset="pacs", domains=("photo", "sketch"), sizes=(3,))


def test_a_domain_that_digits_cannot_be_made_into_is_refused():
    with pytest.raises(ConfigError, match=r"unknown domain 'nois'. Did you mean 'noise'\?"):
        Setting(dataset="builtin:digits", domains=("plain", "nois"))
