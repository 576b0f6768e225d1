"""DenseNet-121 for small images."""

import torch
from torch import Tensor, nn

from hardsight.models._classifier import Classifier, pooled

_DEPTHS, _GROWTH = (6, 12, 24, 16), 32


class DenseNet121(Classifier):
    """DenseNet-121 with a 3x3 stem and no first pooling; 6,956,298 parameters at 10 classes.

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        seed: of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> DenseNet121().features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 1024])

    Reference:
        Huang et al., Densely Connected Convolutional Networks, 2017, DenseNet-BC with growth 32
        and compression 0.5; the stem for 32x32 images.
    """

    def __init__(self, *, num_classes: int = 10, channels: int = 3, seed: int = 0) -> None:
        super().__init__(
            lambda: _body(channels), embedding_width=1024, num_classes=num_classes, seed=seed
        )


class _Dense(nn.Module):
    """``[branch(x), x]`` along the channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_norm_conv(inputs, 4 * _GROWTH, 1), *_norm_conv(4 * _GROWTH, _GROWTH, 3)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([self.branch(inputs), inputs], dim=1)


def _body(channels: int) -> nn.Sequential:
    width = 2 * _GROWTH
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
    for stage, depth in enumerate(_DEPTHS):
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
