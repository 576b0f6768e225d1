"""Keys of a recipe that would play no part with the data and the model of a run."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from inspect import signature

import pytest
import torch

import hardsight as hs
from hardsight.errors import ConfigError, DataError, HardsightWarning, HeadError
from hardsight.registry import LOSSES
from hardsight.run.train import LossConfig, TotalLoss

FAST = {
    "device": "cpu", "batch_size": 16, "epochs": 1, "show_progress": False, "workers": 0,
}  # fmt: skip


@pytest.mark.parametrize("loss", ["cross_entropy", "amc"])
def test_a_head_that_the_model_does_not_have_is_refused_even_if_nobody_needs_it(
    images, net, tmp_path, loss
):
    with pytest.raises(HeadError, match="classifier"):
        hs.train(net, images, out=tmp_path / "run", loss=loss, head="classifier", **FAST)
    assert not (tmp_path / "run").exists()
    with (
        pytest.warns(HardsightWarning, match="head is not trained")
        if loss == "amc"
        else (nullcontext())
    ):
        named = hs.train(net, images, out=tmp_path / "run", loss=loss, head="6", **FAST)
    assert named.history


@pytest.mark.parametrize(
    "loss",
    [
        "amc",
        "euclidean_contrastive",
        {"name": "amc", "options": {"similarity": "predictions"}},
        ["euclidean_contrastive", "amc"],
        ["amc", {"name": "cross_entropy", "weight": 0.0}],
    ],
)
def test_losses_that_never_reach_the_head_are_told_of(images, net, tmp_path, loss):
    net = hs.models.load_model(net).model
    before = {key: value.clone() for key, value in net.state_dict().items() if key[0] == "6"}
    assert before
    with pytest.warns(HardsightWarning, match=r"the head is not trained: no loss .*\(.*cross_ent"):
        done = hs.train(net, images, out=tmp_path / "run", loss=loss, **FAST)
    for key, value in before.items():
        torch.testing.assert_close(done.model.state_dict()[key], value, rtol=0, atol=0)


OF_EMBEDDINGS = ("amc", "angular_triplet", "euclidean_contrastive")
REACHING = [name for name in LOSSES if name not in OF_EMBEDDINGS]


@pytest.mark.parametrize("name", OF_EMBEDDINGS)
def test_losses_of_embeddings_alone_do_not_reach_the_head(name):
    assert idle(LossConfig(name), epochs=2) == [0, 1]


@pytest.mark.parametrize("name", ["cross_entropy", *REACHING])
def test_losses_that_reach_the_head_are_not_told_of(name):
    needs_scale = (
        "scale" in signature(LOSSES[name].function).parameters if name in LOSSES else False
    )
    options = {"scale": 8.0} if needs_scale else {}
    assert idle(LossConfig(name, options=options), epochs=1) == []
    late = LossConfig(name, options=options, start_epoch=1)
    assert idle(late, epochs=1) == [0]
    assert idle(LossConfig("amc"), late, epochs=3) == [0]


def idle(*losses, epochs):
    return TotalLoss(losses).epochs_without_head(epochs=epochs, num_classes=3)


def test_a_frozen_body_needs_a_loss_of_the_head_in_every_epoch(images, tmp_path):
    early = [{"name": "amc"}, {"name": "cross_entropy", "end_epoch": 1}]
    options = {**FAST, "epochs": 3, "freeze_body": True, "loss": early}
    with pytest.raises(
        ConfigError, match=r"only the head, .* in epochs 1 and 2 .*: amc, cross_entropy before"
    ):
        hs.train("small_cnn", images, out=tmp_path / "run", **options)


def test_a_frozen_body_of_random_weights_is_told_of(images, tmp_path):
    with pytest.warns(
        HardsightWarning,
        match=r"freeze_body keeps a body that was never trained: .* small_cnn as made",
    ) as told:
        hs.train("small_cnn", images, out=tmp_path / "run", freeze_body=True, **FAST)
    assert len(told) == 1
    # with weights there is nothing to tell; a warning would be an error
    hs.train(tmp_path / "run", images, out=tmp_path / "again", freeze_body=True, **FAST)


def test_a_frozen_body_that_an_option_has_pretrained_is_in_order(images, tmp_path):
    model = {"name": "efficientnet_lite0", "options": {"pretrained": True, "image_size": 32}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hs.train(model, images, out=tmp_path / "run", freeze_body=True, size=32, **FAST)
    assert not [str(each.message) for each in told if "was never trained" in str(each.message)]


@pytest.mark.parametrize("augment", [{"flip": True}, {"crop_padding": 2}])
def test_vectors_cannot_be_flipped_or_cropped(vectors, linear, tmp_path, augment):
    with pytest.raises(ConfigError, match=r"augment needs images .* got examples \[5\]"):
        hs.train(linear, vectors, out=tmp_path / "run", augment=augment, **FAST)


def test_a_test_split_with_the_examples_of_training_is_refused_by_any_name(tmp_path, photos):
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "train").symlink_to(photos, target_is_directory=True)
    (tmp_path / "both" / "test").symlink_to(photos, target_is_directory=True)
    data = {"name": str(tmp_path / "both"), "split": "train", "test_split": "test"}
    with pytest.raises(DataError, match="test_split 'test' holds the examples of the training"):
        hs.train("small_cnn", data, out=tmp_path / "run", **FAST)
    data = {"name": str(tmp_path / "both"), "split": "train", "validation_split": "test"}
    with pytest.raises(DataError, match="validation_split 'test' holds the examples of the tr"):
        hs.train("small_cnn", data, out=tmp_path / "run", **FAST)


def test_all_of_the_data_is_not_trained_on_beside_a_part_of_it_to_test_on(tmp_path):
    digits = {"name": "builtin:digits", "test_split": "test"}
    with pytest.raises(DataError, match=r"without a split is all of its examples.*set data.split"):
        hs.train("small_cnn", digits, out=tmp_path / "run", **FAST)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"thumbnails": 10}, "thumbnails plays no part without track = true"),
        ({"optimizer": {"lr": 0.0}}, "nothing is learned: optimizer.lr = 0 changes no weight"),
        (
            {"loss": ["cross_entropy", {"name": "amc", "start_epoch": 3}]},
            "loss amc plays no part: it starts in epoch 3 .counted from 0. and the run has 1",
        ),
        (
            {"schedule": {"name": "step", "drop_epochs": [2]}},
            "the learning rate never drops: drop_epochs = .2,. and the run has 1 epoch",
        ),
        (
            {"schedule": {"name": "step", "step_epochs": 1}},
            "the learning rate never drops: step_epochs = 1 and the run has 1 epoch",
        ),
    ],
)
def test_what_plays_no_part_in_this_run_is_said_once(images, net, tmp_path, settings, message):
    with pytest.warns(UserWarning, match=message) as caught:
        hs.train(net, images, out=tmp_path / "run", **FAST, **settings)
    assert len(caught) == 1


def test_what_selects_by_held_out_examples_needs_some(images, net, tmp_path):
    options = {"out": tmp_path / "run", "select": "loss", **FAST}
    with pytest.raises(ConfigError, match="select = 'loss' needs examples that are held out"):
        hs.train(net, images, validation=0.0, **options)
    assert hs.train(net, images, validation=images, **options).best_epoch == 1


def test_a_memory_layout_of_images_is_not_that_of_vectors(vectors, linear, tmp_path):
    with pytest.warns(UserWarning, match="channels_last plays no part: the examples are not im"):
        hs.train(linear, vectors, out=tmp_path / "run", channels_last=True, **FAST)


def test_a_model_whose_outputs_are_not_finite_on_the_test_split_is_told_of(tmp_path):
    loss = {"name": "linear_avh", "options": {"scale": 1e20}}
    data = {"name": "builtin:digits", "split": "train", "test_split": "test"}
    options = {**FAST, "batch_size": 2048, "optimizer": {"name": "sgd", "lr": 0.5}}
    with pytest.warns(
        HardsightWarning, match=r"the test loss is (nan|inf): .* accuracy means nothing"
    ):
        hs.train("small_cnn", data, out=tmp_path / "run", loss=loss, **options)
