"""Settings of an adaptation that would play no part in it."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hardsight as hs
from hardsight.errors import ConfigError, HardsightWarning
from hardsight.models import load_model
from hardsight.run.adapt import AdaptConfig

SMALL = {
    "rounds": 1, "retrain": 1, "batch_size": 32, "device": "cpu", "show_progress": False,
}  # fmt: skip


def loaded(*overrides, **given):
    given = {"model": "m", "source": "s", "target": "t", "out": "o", **given}
    return AdaptConfig.load(None, overrides, **given)


@pytest.mark.parametrize("override", ["retrain.epochs=3", "retrain=3"])
def test_other_epochs_of_a_round_keep_its_learning_rate(override):
    config = loaded(override)
    assert config.retrain.epochs == 3
    assert config.retrain.optimizer == AdaptConfig.retrain.optimizer
    assert config.retrain.optimizer.lr == 0.01


def test_a_key_of_the_optimizer_keeps_the_others_and_another_optimizer_has_its_own():
    config = loaded("retrain.optimizer.momentum=0.5")
    assert (config.retrain.epochs, config.retrain.optimizer.lr) == (2, 0.01)
    other = loaded("retrain.optimizer=adam").retrain
    assert (other.epochs, other.optimizer.name, other.optimizer.lr) == (2, "adam", None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha": 0.5}, "alpha plays no part with rule = 'cbst', only with 'crst-lrent' and 'cr"),
        ({"mrkld_weight": 0.2}, "mrkld_weight plays no part with rule = 'cbst', only with 'crst-m"),
        ({"entropy_weight": 0.2}, "entropy_weight plays no part with rule = 'cbst', only with 'en"),
        ({"threshold": 0.5}, "threshold plays no part with rule = 'cbst', only with 'threshold'"),
        ({"compare": "cbst"}, "compare = 'cbst' is the rule itself; it is compared with 'cbst.avh"),
    ],
)
def test_an_option_of_another_rule_is_said_to_play_no_part(
    net, source, target, tmp_path, given, message
):
    with pytest.warns(UserWarning, match=message) as caught:
        hs.adapt(net, source, target, out=tmp_path / "run", pretrain=1, **SMALL, **given)
    told = [str(warning.message) for warning in caught]  # also of classes that were not learned
    assert sum(re.search(message, text) is not None for text in told) == 1


def test_how_to_train_on_the_source_plays_no_part_for_a_trained_model(
    net, source, target, tmp_path
):
    hs.train(net, source, out=tmp_path / "trained", epochs=1, device="cpu", batch_size=32)
    weights = tmp_path / "trained" / "model.safetensors"
    with pytest.warns(UserWarning, match="pretrain plays no part: the model is a trained one"):
        hs.adapt(
            load_model(net, weights=weights).model, source, target, out=tmp_path / "run",
            pretrain={"epochs": 0, "optimizer": {"lr": 0.5}}, **SMALL,
        )  # fmt: skip


def test_an_option_of_a_rule_at_work_is_taken_without_a_word(net, source, target, tmp_path):
    done = hs.adapt(
        net, source, target, out=tmp_path / "run", pretrain=1, rule=("cbst", "crst-lrent"),
        alpha=0.5, **SMALL,
    )  # fmt: skip
    assert set(done.runs) == {"cbst", "crst-lrent"}


def test_vectors_cannot_be_augmented_while_adapting(tmp_path):
    rows = TensorDataset(torch.randn(60, 5), torch.arange(60) % 3)
    net = nn.Sequential(nn.Linear(5, 3))
    with pytest.raises(ConfigError, match="augment needs images"):
        hs.adapt(net, rows, rows, out=tmp_path / "run", augment={"flip": True}, **SMALL)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:round")  # about classes that are never predicted
def test_a_target_that_is_the_source_is_told_of(net, source, settings, tmp_path):
    settings = {**settings, "rounds": 1}
    with pytest.warns(HardsightWarning, match="the target .* is the source itself"):
        hs.adapt(net, source, source, out=tmp_path / "run", **settings)
