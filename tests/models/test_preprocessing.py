from types import SimpleNamespace

import pytest
from torch import nn

from hardsight.errors import ModelError
from hardsight.models import load_model
from hardsight.models._known import from_torchvision
from hardsight.preprocessing import Preprocessing


def stating(**attributes) -> nn.Module:
    module = nn.Linear(2, 2)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def test_a_mapping_of_fields_on_the_module_is_read():
    found = load_model(stating(preprocessing={"size": [8, 9], "mean": [0.5]})).preprocessing
    assert found == Preprocessing(size=(8, 9), mean=(0.5,), origin="preprocessing of Linear")


@pytest.mark.parametrize("stated", [{"sise": 8}, "imagenet"])
def test_something_else_as_preprocessing_is_refused(stated):
    with pytest.raises(ModelError, match=r"Linear\.preprocessing to be .*size.*got (sise|str)"):
        load_model(stating(preprocessing=stated))


@pytest.mark.parametrize("attribute", ["pretrained_cfg", "default_cfg"])
def test_a_configuration_as_timm_writes_it_is_read(attribute):
    config = {
        "input_size": (3, 288, 256), "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6),
        "crop_pct": 0.95, "crop_mode": "center", "interpolation": "bicubic",
    }  # fmt: skip
    assert load_model(stating(**{attribute: config})).preprocessing == Preprocessing(
        size=(288, 256),
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
        crop=0.95,
        interpolation="bicubic",
        channels=3,
        origin=f"{attribute} of Linear",
    )


def test_a_squashing_timm_configuration_is_kept_as_such():
    config = {"input_size": (3, 224, 224), "crop_pct": 1.0, "crop_mode": "squash"}
    assert load_model(stating(pretrained_cfg=config)).preprocessing.squash


def test_a_crop_of_timm_that_we_do_not_have_is_refused():
    config = {"input_size": (3, 224, 224), "crop_pct": 1.0, "crop_mode": "border"}
    with pytest.raises(ModelError, match=r"crop_mode='border', which cannot be followed"):
        load_model(stating(pretrained_cfg=config))
    stated = Preprocessing(size=(8, 8))
    assert load_model(stating(pretrained_cfg=config), preprocessing=stated).preprocessing is stated


def test_a_torchvision_preset_crops_a_share_of_the_resized_image():
    preset = SimpleNamespace(
        crop_size=[224], resize_size=[256], mean=[0.1], std=[0.2],
        interpolation=SimpleNamespace(value="bilinear"),
    )  # fmt: skip
    found = from_torchvision(preset, origin="here")
    assert (found.size, found.crop, found.mean) == ((224, 224), 0.875, (0.1,))
